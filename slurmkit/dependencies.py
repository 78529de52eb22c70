"""Dependencies in Slurm's words (sbatch(1) --dependency), from handles or ids of jobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from slurmkit.config import nearest
from slurmkit.errors import BadInput
from slurmkit.jobs.ids import check_job_id

KINDS = ("after", "afterany", "afterburstbuffer", "aftercorr", "afternotok", "afterok")
"""Ways to wait for other jobs; `singleton`, which names none, is written as a dependency."""


class HasParts(Protocol):
    """A job's handle: `slurmkit.Job`."""

    @property
    def id(self) -> str:
        """Of Slurm, or several."""
        ...

    @property
    def parts(self) -> Iterable[HasParts]:
        """The jobs of Slurm that it consists of."""
        ...


def clause(jobs: Iterable[HasParts | str | int], kind: str, minutes: int = 0) -> str:
    """`afterok:12:13` for two jobs.

    Raises:
        BadInput: for what is no job, an unknown kind, and minutes where Slurm counts none.
    """
    if kind not in KINDS:
        raise BadInput(f"no kind of dependency {kind!r}; {nearest(kind, list(KINDS))}")
    if minutes and kind != "after":
        raise BadInput(f"{kind} takes no minutes: Slurm counts them from a start; use kind='after'")
    if minutes < 0:
        raise BadInput(f"minutes to wait are at least 0, not {minutes}")
    ids = [job_id for job in jobs for job_id in _ids(job)]
    if not ids:
        raise BadInput("no job to wait for was given")
    if kind == "aftercorr" and len(ids) > 1:
        raise BadInput(f"aftercorr is for one array, not {', '.join(ids)}")
    more = f"+{minutes}" if minutes else ""
    return ":".join([kind, *(f"{job_id}{more}" for job_id in ids)])


def joined(own: str | None, more: str) -> str:
    """Both dependencies together: all of it must hold.

    Raises:
        BadInput: when the first waits for any of several jobs, which Slurm cannot join.
    """
    if own and "?" in own:
        raise BadInput(f"dependency {own} waits for any of several jobs; Slurm cannot add {more}")
    return f"{own},{more}" if own else more


def _ids(job: HasParts | str | int) -> Iterator[str]:
    if isinstance(job, str | int):
        yield check_job_id(str(job))
    else:
        yield from (check_job_id(part.id) for part in job.parts)
