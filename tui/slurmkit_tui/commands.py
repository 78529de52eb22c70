"""The commands that change the cluster, as they are shown, confirmed and run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slurmkit.errors import BadInput
from slurmkit_tui.rights import Level

if TYPE_CHECKING:
    from slurmkit.nodes.read import NodeRow
    from slurmkit.queue.rows import QueueRow

Argv = list[str]
_BATCH = 1000  # jobs
Commands = Callable[[Sequence[Any], str], list[Argv]]


def _empty(_row: object) -> str:
    return ""


@dataclass(frozen=True)
class Wanted:
    """A value that a person types for a command.

    Attributes:
        label: what it is.
        hint: what may be typed.
        check: returns it as Slurm takes it; raises BadInput with what is allowed.
        start: what stands there at first, from the first row.
    """

    label: str
    hint: str
    check: Callable[[str], str]
    start: Callable[[Any], str] = _empty


@dataclass(frozen=True)
class Change:
    """Something that changes the cluster.

    Attributes:
        of: the type of the rows it is done to, by name: to know the keys, none is imported.
        commands: the commands for some rows and the value that was typed.
        question: asked before they are run; {what} is what they are done to.
        refusal: why it cannot be done to a row; empty when it can.
        needs: Slurm's AdminLevel that it takes, whosever it is.
        wanted: the value to be typed first.
    """

    of: str
    commands: Commands
    question: str
    refusal: Callable[[Any], str] = _empty
    needs: Level = "none"
    wanted: Wanted | None = None


def job_argument(job_id: str) -> str:
    """The id of a job, or of the first task of a pending array, as Slurm's commands take it."""
    return re.sub(r"\[(\d+).*", r"\1", job_id)


def nothing(_rows: Sequence[object], _value: str) -> list[Argv]:
    """For what is chosen among several commands, which the menu of shells lists."""
    return []


def cancel(rows: Sequence[QueueRow], _value: str) -> list[Argv]:
    """Cancel jobs; of an array's waiting tasks, those and not the ones that run already."""
    whole = [row.job_id for row in rows if "_[" not in row.job_id]
    waiting = [row.job_id.partition("_[")[0] for row in rows if "_[" in row.job_id]
    return [
        *(["scancel", *some] for some in _batches(whole)),
        *(["scancel", "--state=PENDING", *some] for some in _batches(waiting)),
    ]


def signal(rows: Sequence[QueueRow], value: str) -> list[Argv]:
    """Send a signal; `B:` before its name means the batch shell alone."""
    batch, _, name = value.rpartition(":")
    words = ["scancel", f"--signal={name}", *(["--batch"] if batch else [])]
    return [[*words, *some] for some in _batches(_ids(rows))]


def scontrol(word: str) -> Commands:
    """Hold, release or requeue."""
    return lambda rows, _value: [
        ["scontrol", word, ",".join(some)] for some in _batches(_ids(rows))
    ]


def update(setting: str) -> Commands:
    """Change a setting of jobs; a command for each, since scontrol takes one job at a time."""
    return lambda rows, value: [
        ["scontrol", "update", f"JobId={job_id}", f"{setting}={value}"] for job_id in _ids(rows)
    ]


def node(state: str) -> Commands:
    """Drain nodes with a reason, or give them back."""

    def commands(rows: Sequence[NodeRow], value: str) -> list[Argv]:
        reason = [f"Reason={value}"] if value else []
        names = ",".join(row.name for row in rows)
        return [["scontrol", "update", f"NodeName={names}", f"State={state}", *reason]]

    return commands


def _batches(ids: list[str]) -> Iterator[list[str]]:
    """As many at a time as one command takes: Linux lets an argument have 128 KiB."""
    return (ids[at : at + _BATCH] for at in range(0, len(ids), _BATCH))


def _ids(rows: Sequence[QueueRow]) -> list[str]:
    """As scontrol takes them: an array's waiting tasks are `12_[4-9]`, without `%2`."""
    return [re.sub(r"%\d+(?=\])", "", row.job_id) for row in rows]


def only_waiting(row: QueueRow) -> str:
    """Refuse what only pending jobs take."""
    return "" if row.waits else f"job {row.job_id} does not wait"


def only_started(row: QueueRow) -> str:
    """Refuse what only jobs that started take."""
    return f"job {row.job_id} has not started" if row.waits else ""


def only_running(row: QueueRow) -> str:
    """Refuse what only jobs that run take."""
    return "" if row.state == "RUNNING" else f"job {row.job_id} does not run"


def changed(field: str) -> Callable[[str], str]:
    """Check a new value of a job as `slurmkit update` does."""

    def check(text: str) -> str:
        from slurmkit.jobs.changes import Changes  # noqa: PLC0415 - many forms of values

        value: Any = text.strip()
        if field == "priority":
            if not value.isdigit():
                raise BadInput(f"a priority is a number, not {value!r}")
            value = int(value)
        Changes(**{field: value})
        return str(value)

    return check


def signal_name(text: str) -> str:
    """Check a signal as `slurmkit signal` does.

    Raises:
        BadInput: for none.
    """
    from slurmkit.jobs.changes import check_signal  # noqa: PLC0415 - many forms of values

    return check_signal(text)


def reason(text: str) -> str:
    """Check a reason, which Slurm asks for when a node is drained.

    Raises:
        BadInput: for none.
    """
    if not text.strip() or not text.isprintable():
        raise BadInput("a reason is due: those who find the node drained want to know why")
    return text.strip()
