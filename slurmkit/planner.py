"""From a JobSpec to exactly what is sent to Slurm."""

from __future__ import annotations

import shlex
from pathlib import Path, PurePosixPath

import msgspec

from slurmkit.errors import BadInput
from slurmkit.spec import JobSpec, is_utf8
from slurmkit.text import printable


class Submission(msgspec.Struct, frozen=True):
    """One batch job as Slurm gets it.

    Attributes:
        script: the whole batch script; its `#SBATCH` lines say the same as `options`.
        options: sbatch's long options without dashes, and their values, in order.
        after: positions in the plan of the submissions this one waits for.
    """

    script: str
    options: tuple[tuple[str, str], ...]
    after: tuple[int, ...] = ()


class Plan(msgspec.Struct, frozen=True):
    """What a spec comes to: the submissions in the order they are sent."""

    submissions: tuple[Submission, ...]


def plan(spec: JobSpec) -> Plan:
    """Render `spec`; the same spec and working directory give the same bytes.

    Raises:
        BadInput: when an option would break out of its line of the script.
    """
    options = tuple(_options(spec))
    for name, value in options:
        if any(char in value for char in "\n\r\0") or not is_utf8(value):
            raise BadInput(
                f"--{name} may hold neither a line break nor NUL, and only UTF-8: {value!r}"
            )
    return Plan((Submission(_script(spec, options), options),))


def _options(spec: JobSpec) -> list[tuple[str, str]]:
    """Sbatch options in a fixed order; the working directory is explicit for every transport."""
    values: dict[str, object] = {
        "job-name": spec.job_name or printable(PurePosixPath(spec.command[0]).name),
        "nodes": spec.nodes,
        "ntasks-per-node": spec.ntasks_per_node,
        "cpus-per-task": spec.cpus_per_task,
        "gpus-per-node": spec.gpus,
        "mem": spec.mem,
        "time": spec.time,
        "partition": spec.partition,
        "account": spec.account,
        "qos": spec.qos,
        "comment": spec.comment,
        "chdir": spec.chdir or _here(),
        "output": spec.output,
    }
    return [(name, str(value)) for name, value in values.items() if value is not None]


def _here() -> str:
    try:
        return str(Path.cwd())
    except OSError as error:
        raise BadInput(
            f"the current directory cannot be used ({error.strerror}); cd to another one"
        ) from error


def _script(spec: JobSpec, options: tuple[tuple[str, str], ...]) -> str:
    header = (f"#SBATCH --{name}={_sbatch_quote(value)}" for name, value in options)
    # srun does not take --cpus-per-task from the job on every release, so it is always given.
    step = f"srun --cpus-per-task={spec.cpus_per_task} -- {shlex.join(spec.command)}"
    return "\n".join(["#!/bin/bash", *header, "", step, ""])


def _sbatch_quote(value: str) -> str:
    """Quote a value for a `#SBATCH` line, whose words sbatch splits itself (src/sbatch/opt.c)."""
    if value and all(char.isalnum() or char in "%+,-./:=@_" for char in value):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
