"""Values of sbatch's `--dependency`, written from job handles or ids (sbatch(1))."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from slurmkit.config.files import did_you_mean
from slurmkit.errors import BadInput
from slurmkit.formats.job_ids import check_job_id

DEPENDENCY_TYPES = ("after", "afterany", "afterburstbuffer", "aftercorr", "afternotok", "afterok")
"""Types of dependency on other jobs; `singleton` names no job and is not one of them."""


class HasParts(Protocol):
    """A job handle, e.g. `slurmkit.jobs.job.Job`."""

    @property
    def id(self) -> str:
        """The Slurm job id, or several ids."""
        ...

    @property
    def parts(self) -> Iterable[HasParts]:
        """The Slurm jobs that it consists of."""
        ...


def format_dependency(jobs: Iterable[HasParts | str | int], kind: str, minutes: int = 0) -> str:
    """Write one dependency, e.g. `afterok:12:13` for two jobs.

    Args:
        jobs: handles or ids; at least one.
        kind: one of `DEPENDENCY_TYPES`.
        minutes: to wait after their start; for `after` only.

    Raises:
        BadInput: for a malformed job id, an unknown kind, or minutes with another kind.
    """
    if kind not in DEPENDENCY_TYPES:
        raise BadInput(
            f"unknown kind of dependency {kind!r}; {did_you_mean(kind, list(DEPENDENCY_TYPES))}"
        )
    if minutes and kind != "after":
        raise BadInput(
            f"{kind} takes no minutes: Slurm counts them from the start of a job; use kind='after'"
        )
    if minutes < 0:
        raise BadInput(f"the minutes to wait must be at least 0, not {minutes}")
    ids = [job_id for job in jobs for job_id in _ids(job)]
    if not ids:
        raise BadInput("the dependency names no job; give at least one job to wait for")
    if kind == "aftercorr" and len(ids) > 1:
        raise BadInput(f"aftercorr takes one array, not {', '.join(ids)}")
    more = f"+{minutes}" if minutes else ""
    return ":".join([kind, *(f"{job_id}{more}" for job_id in ids)])


def join_dependencies(own: str | None, more: str) -> str:
    """Join two dependencies so that both must be met.

    Raises:
        BadInput: when the first is satisfied by any one of several (`?`); Slurm cannot join that.
    """
    if own and "?" in own:
        raise BadInput(f"dependency {own} waits for any of several jobs; Slurm cannot add {more}")
    return f"{own},{more}" if own else more


def _ids(job: HasParts | str | int) -> Iterator[str]:
    if isinstance(job, str | int):
        yield check_job_id(str(job))
    else:
        yield from (check_job_id(part.id) for part in job.parts)
