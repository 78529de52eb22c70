"""Commands that change the cluster, as they are shown, confirmed and run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slurmkit.errors import BadInput
from slurmkit.state.queue_rows import FINAL_STATES, PENDING_STATES, QueueRow
from slurmkit_tui.feed.rights import AdminLevel

if TYPE_CHECKING:
    from slurmkit.jobs.info import JobInfo
    from slurmkit.state.nodes import NodeRow

    JobRow = QueueRow | JobInfo

Argv = list[str]
_BATCH = 1000  # jobs
CommandsFor = Callable[[Sequence[Any], str], list[Argv]]


def _no_text(_row: object) -> str:
    return ""


@dataclass(frozen=True)
class ValuePrompt:
    """A value that the person types for a command.

    Attributes:
        label: name of the value.
        hint: which values are allowed.
        check: returns the value as Slurm takes it; raises BadInput with the allowed values.
        start: returns the initial text for the first row.
    """

    label: str
    hint: str
    check: Callable[[str], str]
    start: Callable[[Any], str] = _no_text


@dataclass(frozen=True)
class ClusterChange:
    """A kind of change of the cluster.

    Attributes:
        is_for: returns whether a row is of the class that it applies to.
        commands: returns the commands for some rows and the typed value.
        question: question before the commands run; {what} stands for the rows.
        refusal: returns why a row cannot be changed; empty when it can.
        needs: Slurm's AdminLevel that is required even for an own row.
        wanted: the value to be typed first; None if there is none.
    """

    is_for: Callable[[object], bool]
    commands: CommandsFor
    question: str
    refusal: Callable[[Any], str] = _no_text
    needs: AdminLevel = "none"
    wanted: ValuePrompt | None = None


def is_job_row(row: object) -> bool:
    """Return whether a row is a job: of the queue, or of a job's own screen."""
    return hasattr(row, "job_id")


def is_node_row(row: object) -> bool:
    """Return whether a row is a node.

    The class of nodes is imported only for rows that are no jobs, because its import would delay
    the first paint of the queue.
    """
    if is_job_row(row):
        return False
    from slurmkit.state.nodes import NodeRow  # noqa: PLC0415 - see above

    return isinstance(row, NodeRow)


def query_id(job_id: str) -> str:
    """Return an id that Slurm's commands accept: for `12_[4-9]`, the first task `12_4`."""
    return re.sub(r"\[(\d+).*", r"\1", job_id)


def no_commands(_rows: Sequence[object], _value: str) -> list[Argv]:
    """Return no command; for the action `shell`, whose dialog lists its own commands."""
    return []


def cancel_commands(rows: Sequence[JobRow], _value: str) -> list[Argv]:
    """Return scancel commands; for an array row `12_[4-9]` only pending tasks are cancelled."""
    whole = [row.job_id for row in rows if "_[" not in row.job_id]
    waiting = [row.job_id.partition("_[")[0] for row in rows if "_[" in row.job_id]
    return [
        *(["scancel", *some] for some in _batches(whole)),
        *(["scancel", "--state=PENDING", *some] for some in _batches(waiting)),
    ]


def signal_commands(rows: Sequence[JobRow], value: str) -> list[Argv]:
    """Return scancel commands that send a signal; `B:USR1` is for the batch shell only."""
    batch, _, name = value.rpartition(":")
    argv = ["scancel", f"--signal={name}", *(["--batch"] if batch else [])]
    return [[*argv, *some] for some in _batches(_ids(rows))]


def scontrol_commands(word: str) -> CommandsFor:
    """Return a function for `scontrol hold`, `release` or `requeue`."""
    return lambda rows, _value: [
        ["scontrol", word, ",".join(some)] for some in _batches(_ids(rows))
    ]


def update_commands(setting: str) -> CommandsFor:
    """Return a function for `scontrol update`, with one command per job, as scontrol requires."""
    return lambda rows, value: [
        ["scontrol", "update", f"JobId={job_id}", f"{setting}={value}"] for job_id in _ids(rows)
    ]


def keep_commands(rows: Sequence[JobRow], value: str) -> list[Argv]:
    """Return commands that have the idle GPUs of jobs left alone for a while, once for each job."""
    return [["slurmkit", "reclaim", "keep", job, "--reason", value] for job in _ids(rows)]


def node_state_commands(state: str) -> CommandsFor:
    """Return a function that sets the state of nodes: DRAIN with a reason, or RESUME."""

    def commands(rows: Sequence[NodeRow], value: str) -> list[Argv]:
        reason = [f"Reason={value}"] if value else []
        names = ",".join(row.name for row in rows)
        return [["scontrol", "update", f"NodeName={names}", f"State={state}", *reason]]

    return commands


def _batches(ids: list[str]) -> Iterator[list[str]]:
    """Split ids into batches for one command each: Linux limits an argument to 128 KiB."""
    return (ids[at : at + _BATCH] for at in range(0, len(ids), _BATCH))


def _ids(rows: Sequence[JobRow]) -> list[str]:
    """Return ids as scontrol takes them: `12_[4-9]` without the limit `%2`."""
    return [re.sub(r"%\d+(?=\])", "", row.job_id) for row in rows]


def _states(row: JobRow) -> set[str]:
    """Return the state of a job; of a whole array or het job, the states of its parts."""
    return set(getattr(row, "tally", ())) or {row.state}


def refuse_ended(row: JobRow) -> str:
    """Return why an ended job is refused; empty for any other."""
    over = _states(row) <= {*FINAL_STATES, "UNKNOWN"}  # UNKNOWN: Slurm has forgotten the job
    return f"job {row.job_id} has ended" if over else ""


def refuse_unless_pending(row: JobRow) -> str:
    """Return why a job that is not pending is refused; empty for a pending job."""
    waits = _states(row) & PENDING_STATES
    return refuse_ended(row) or ("" if waits else f"job {row.job_id} does not wait")


def refuse_unless_started(row: JobRow) -> str:
    """Return why a job that has not started is refused; empty for a started job."""
    waits = _states(row) <= PENDING_STATES
    return refuse_ended(row) or (f"job {row.job_id} has not started" if waits else "")


def refuse_unless_running(row: JobRow) -> str:
    """Return why a job that does not run is refused; empty for a running job."""
    runs = "RUNNING" in _states(row)
    return refuse_ended(row) or ("" if runs else f"job {row.job_id} does not run")


def change_checker(field: str) -> Callable[[str], str]:
    """Return a function that checks a new value of a job as `slurmkit update` does."""

    def check(text: str) -> str:
        from slurmkit.jobs.job import Changes  # noqa: PLC0415 - many forms of values

        value: Any = text.strip()
        if field == "priority":
            if not value.isdigit():
                raise BadInput(f"{value!r} is no priority; give a whole number, for example 1000")
            value = int(value)
        Changes(**{field: value})
        return str(value)

    return check


def check_signal_name(text: str) -> str:
    """Check a signal as `slurmkit signal` does.

    Raises:
        BadInput: for a name that is no signal.
    """
    from slurmkit.jobs.job import check_signal  # noqa: PLC0415 - many forms of values

    return check_signal(text)


def check_keep_reason(text: str) -> str:
    """Check the reason for which a job's idle GPUs are left alone.

    Raises:
        BadInput: for an empty text, or one with control characters.
    """
    if not text.strip() or not text.isprintable():
        raise BadInput("give a reason of one line; your PI and the operators see it")
    return text.strip()


def check_reason(text: str) -> str:
    """Check the reason that Slurm requires when a node is drained.

    Raises:
        BadInput: for an empty text, or one with control characters.
    """
    if not text.strip() or not text.isprintable():
        raise BadInput("give a reason: Slurm requires one, and users see it on the drained node")
    return text.strip()
