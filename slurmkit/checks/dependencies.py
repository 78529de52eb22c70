"""Dependencies: whether the jobs waited for exist, and can still end as they must."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from slurmkit.checks.say import Pairs, error, note, warning
from slurmkit.errors import DatabaseDown, NoSuchJob
from slurmkit.findings import Finding
from slurmkit.slurm import Slurm
from slurmkit.spec import JobSpec

_CLAUSE = re.compile(r"(after\w*):((?:\d+(?:_(?:\d+|\*))?(?:\+\d+)?:?)+)")
_ID = re.compile(r"(\d+)(?:_(\d+|\*))?")
_WENT_WELL = ("COMPLETED",)
_OVER = (
    "COMPLETED",
    "FAILED",
    "CANCELLED",
    "TIMEOUT",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "BOOT_FAIL",
    "DEADLINE",
    "PREEMPTED",
)


class Parent(NamedTuple):
    """A job waited for, and what is known of it.

    Attributes:
        kind: `afterok`, `afterany`, …
        id: as it was given: `12`, `12_3`, `12_*`.
        states: of its tasks or of the job; none when nobody knows it.
        in_queue: whether slurmctld still knows it.
    """

    kind: str
    id: str
    states: tuple[str, ...]
    in_queue: bool


def check_dependencies(slurm: Slurm, spec: JobSpec) -> tuple[Finding, ...]:
    """Look up the jobs in `--dependency`, in squeue and then in sacct.

    Raises:
        SlurmError: when slurmctld does not answer.
    """
    text = spec.dependency
    asked = _asked(text or "")
    if not text or not asked:
        return ()
    found: list[Finding] = list(_minutes(text))
    ids = sorted({job.partition("_")[0] for _, job in asked})
    here = _states(slurm, _squeue(ids))
    gone = [job for job in ids if not _of(job, here)]
    try:
        past = _states(slurm, _sacct(gone)) if gone else {}
    except DatabaseDown:
        past = None
    for kind, job in asked:
        states = _of(job, here)
        parent = Parent(kind, job, states or _of(job, past or {}), in_queue=bool(states))
        found += _judge(parent, text, known=past is not None)
    return tuple(dict.fromkeys(found))


def _asked(text: str) -> list[tuple[str, str]]:
    return [
        (clause[1], job.partition("+")[0])
        for clause in _CLAUSE.finditer(text)
        for job in clause[2].strip(":").split(":")
    ]


def _minutes(text: str) -> Iterator[Finding]:
    """Slurm counts minutes from a start only; after any other word it leaves them out."""
    for match in _CLAUSE.finditer(text):
        if "+" in match[0] and match[1] != "after":
            message = f"{match[0]}: {match[1]} waits no minutes more, only after:JOB+MINUTES does"
            yield warning("dependency-minutes", message, "sbatch(1) --dependency")


def _squeue(ids: Iterable[str]) -> list[str]:
    # %i alone would fold an array's waiting tasks, which have one state anyway.
    return [
        "squeue",
        "--all",
        "--noheader",
        "--states=all",
        f"--jobs={','.join(ids)}",
        "-o",
        "%i %T",
    ]


def _sacct(ids: Iterable[str]) -> list[str]:
    flags = ["--allusers", "-X", "--noheader", "--parsable2", "--format=JobID,State"]
    return ["sacct", *flags, f"--jobs={','.join(ids)}"]


def _states(slurm: Slurm, argv: list[str]) -> dict[str, str]:
    """State by job id, `12_3` for a task; an unknown id is no error here."""
    try:
        lines = slurm.run(argv).splitlines()
    except NoSuchJob:
        return {}
    pairs = (re.split(r"[ |]", line.strip(), maxsplit=1) for line in lines if line.strip())
    return {pair[0]: pair[-1].partition(" ")[0] for pair in pairs}


def _of(job: str, states: dict[str, str]) -> tuple[str, ...]:
    """States of a job, of one task, or of all tasks of an array."""
    array, _, task = job.partition("_")
    if task and task != "*":
        exact = states.get(job)
        if exact is not None:
            return (exact,)
        return tuple(s for name, s in states.items() if name.startswith(f"{array}_["))
    return tuple(s for name, s in states.items() if name.partition("_")[0] == array)


def _judge(parent: Parent, text: str, *, known: bool) -> Iterator[Finding]:
    job, kind = parent.id, parent.kind
    if not parent.states and not known:
        message = f"job {job} of --dependency is not in the queue, and slurmdbd does not answer"
        yield warning("unknown-dependency", message, "squeue")
    elif not parent.states:
        message = (
            f"no job {job}, which --dependency waits for: sbatch refuses the job, or takes it and"
            " runs it at once"
        )
        yield error("dependency-unknown", message, "squeue, sacct", _without(text, job))
    elif _never(parent):
        ended = ",".join(sorted(set(parent.states)))
        message = f"job {job} has ended {ended}: {kind} can never be met, the job pends for ever"
        yield error("dependency-never", message, _source(parent), _without(text, job))
    elif not parent.in_queue:
        yield from _forgotten(parent, text)


def _source(parent: Parent) -> str:
    return "squeue" if parent.in_queue else "sacct"


def _never(parent: Parent) -> bool:
    """Whether the way it ended is not the one waited for."""
    if not all(state in _OVER for state in parent.states):
        return parent.kind == "afterok" and any(_failed(state) for state in parent.states)
    well = all(state in _WENT_WELL for state in parent.states)
    return {"afterok": not well, "afternotok": well}.get(parent.kind, False)


def _failed(state: str) -> bool:
    return state in _OVER and state not in _WENT_WELL


def _forgotten(parent: Parent, text: str) -> Iterator[Finding]:
    """Ended as it should, so long ago that only slurmdbd knows."""
    fix = _without(text, parent.id)
    if parent.kind in ("afterok", "afternotok"):
        message = (
            f"job {parent.id} has ended, and so long ago that slurmctld has forgotten it:"
            f" sbatch may refuse {parent.kind}; leave it out"
        )
        yield error("dependency-over", message, "sacct", fix)
    else:
        message = f"job {parent.id} has ended already: nothing is waited for"
        yield note("dependency-over", message, "sacct", fix)


def _without(text: str, job: str) -> Pairs:
    """The dependency without one job."""
    clauses = re.split(r"([,?])", text)
    kept = []
    for clause in clauses[::2]:
        kind, _, ids = clause.partition(":")
        rest = [each for each in ids.split(":") if each.partition("+")[0] != job]
        if not ids or rest:
            kept.append(f"{kind}:{':'.join(rest)}" if ids else clause)
    sign = clauses[1] if len(clauses) > 1 else ","
    return (("dependency", sign.join(kept)),)
