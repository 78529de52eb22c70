"""What a GPU request is refused with, in words that the planner and Slurm itself share.

`slurmkit plan` says them, and so does the site's job_submit.lua to users who call sbatch: it gets
them from `slurmkit config slurm-lua`, so there is this one text of each.
"""

from __future__ import annotations

WORDS = {
    "typed-shard": (
        "{name}:{type}:{count}: no GPU type can be named for {name}, the job would start and every"
        " step of it fail; ask for {name}:{count} and choose the GPUs by partition or constraint"
    ),
    "gpu-and-shared": (
        "whole GPUs and {name} in one job: a GPU is given out whole or in parts; ask for one of"
        " them, or make it two jobs"
    ),
    "gpus-per-node": (
        "{asked} on one node: no node of partition {partition} has more than {most}; ask for at"
        " most {most} per node, on more nodes"
    ),
    "shards-per-gpu": (
        "shard:{asked} on one node: a job's shards on a node come from one GPU, and no GPU of"
        " partition {partition} has more than {most}; ask for at most shard:{most}"
    ),
    "mps-per-gpu": (
        "mps:{asked} on one node: a job's MPS share on a node comes from one GPU, and no GPU of"
        " partition {partition} has more than {most}; ask for at most mps:{most}"
    ),
    "shards-per-node": (
        "shard:{asked} on one node: no node of partition {partition} has more than {most}; ask for"
        " at most shard:{most} per node, on more nodes"
    ),
    "mps-per-node": (
        "mps:{asked} on one node: no node of partition {partition} has more than {most}; ask for"
        " at most mps:{most} per node, on more nodes"
    ),
    "mig-profile": (
        "gpu:{asked}: {asked} is a MIG profile, and Slurm wants the whole type; ask for {types}"
    ),
}
"""Code of the finding to its text; the same `{field}` names in Python and in Lua.

    name       `shard` or `mps`
    type       GPU type as it was asked for
    count      how many were asked for
    asked      what was asked for on one node: `gpu:9` or `gpu:a100:9`; of shards and MPS the
               number, of a MIG slice the profile
    most       the largest that fits, in the form of `asked`
    partition  name of the partition, or the names, comma-separated, of those asked for
    types      `gpu:TYPE` of each that would do, comma-separated
"""


def per_job_code(name: str, *, several: bool) -> str:
    """Which text says that a job asks for too many parts of GPUs on a node.

    Args:
        name: `shard` or `mps`.
        several: whether they may come from several GPUs there.
    """
    return f"{'shards' if name == 'shard' else name}-per-{'node' if several else 'gpu'}"


def words(code: str, **values: object) -> str:
    """Say one refusal.

    Args:
        code: key of `WORDS`, which is also the code of the finding.
        values: the fields of its text.
    """
    return WORDS[code].format(**values)
