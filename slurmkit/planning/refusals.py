"""Messages that refuse a GPU request, shared by the planner and Slurm's job_submit.lua.

`slurmkit plan` prints them. The site's job_submit.lua, which gets them from
`slurmkit config slurm-lua`, prints the same texts to users of sbatch.
"""

from __future__ import annotations

REFUSAL_TEXTS = {
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
"""Code of a finding to its text; Python and Lua fill in the same `{field}` names.

    name       `shard` or `mps`
    type       GPU type as it was asked for
    count      how many were asked for
    asked      the request on one node: `gpu:9` or `gpu:a100:9`; the number of shards or MPS
               units; the profile of a MIG slice
    most       the largest request that fits, in the form of `asked`
    partition  the partition, or all those asked for, comma-separated
    types      `gpu:TYPE` of each suitable type, comma-separated
"""


def too_many_parts_code(name: str, *, several: bool) -> str:
    """Return the code for a job that asks for too many shards or MPS units on a node.

    Args:
        name: `shard` or `mps`.
        several: whether they may come from several GPUs of a node.
    """
    return f"{'shards' if name == 'shard' else name}-per-{'node' if several else 'gpu'}"


def refusal_text(code: str, **values: object) -> str:
    """Write one refusal.

    Args:
        code: key of `REFUSAL_TEXTS`, which is also the code of the finding.
        values: the fields of its text.
    """
    return REFUSAL_TEXTS[code].format(**values)
