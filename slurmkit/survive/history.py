"""The history of a job that survives, as its runs wrote it on the home that nodes share."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from slurmkit.capabilities.cache import cluster_key, load_capabilities
from slurmkit.errors import SlurmError
from slurmkit.machine import HERE, Machine, machine_of
from slurmkit.slurm import Slurm
from slurmkit.statehome import state_folder

RUN_BEGINS = r"slurmkit: run \d+ of job \S+ begins on "
"""How a line of a job's output begins with which a run does; `course.sh` writes it."""
_MOST = 1 << 20  # bytes that are read
_MOST_JOBS = 200  # whose histories are read at once


class RunEnd(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a job, and what came of it.

    Attributes:
        run: how often it was requeued before.
        began: epoch seconds, like `ended`; None where no line says so.
        nodes: where.
        reason: what ended it: `timeout`, `preempt`, `node-fail`, `oom`, `requeued`, `cancelled`,
            `error`, `done`, `stale`, or `unknown`; empty while it runs.
        action: what came of it: `requeue`, `hold`, `fail`, `slurm` (requeued by Slurm itself),
            `limit` (it was requeued too often), `refused` (Slurm would not); empty for nothing.
        exit_code: of its command, where that has ended.
        words: the same in a sentence.
    """

    run: int
    began: int | None = None
    ended: int | None = None
    nodes: str = ""
    reason: str = ""
    action: str = ""
    exit_code: int | None = None
    words: str = ""


def parse_history(text: str) -> tuple[RunEnd, ...]:
    """Read the lines that `turns.sh` writes; what a full disk cut off is left out.

    A run that Slurm put back has what the next one found out of it.
    """
    runs: dict[int, RunEnd] = {}
    for number, at, what, words in _lines(text):
        run = runs.get(number, RunEnd(run=number))
        if what == "begin":
            runs[number] = msgspec.structs.replace(run, began=at, nodes=words)
        elif what == "end":
            runs[number] = _ended(run, at, words)
        elif what == "after" and number - 1 in runs:
            runs[number - 1] = _found_out(runs[number - 1], words)
    return tuple(runs[number] for number in sorted(runs))


def _lines(text: str) -> Iterator[tuple[int, int, str, str]]:
    for line in text.splitlines():
        number, _, rest = line.partition("\t")
        at, _, rest = rest.partition("\t")
        what, tab, words = rest.partition("\t")
        if tab and number.isdecimal() and at.isdecimal():
            yield int(number), int(at), what, words


def _found_out(run: RunEnd, reason: str) -> RunEnd:
    """A run that Slurm put back, and what slurmdbd says of that to the next one."""
    if run.reason == reason or run.action not in ("", "slurm"):
        return run
    words = f"{reason}: requeued by Slurm"
    return msgspec.structs.replace(run, reason=reason, action="slurm", words=words)


def _ended(run: RunEnd, at: int, words: str) -> RunEnd:
    reason, action, code, said = (*words.split(" ", 3), "", "", "")[:4]
    return msgspec.structs.replace(
        run,
        ended=at,
        reason=reason,
        action=action.strip("-"),
        exit_code=int(code) if code.isdecimal() else None,
        words=said,
    )


def history_of(slurm: Slurm, job_id: str) -> tuple[RunEnd, ...]:
    """The runs of a job; none where it has no policy, or its home is not seen here."""
    machine = machine_of(slurm)
    try:
        folder = _folder(slurm, machine)
        return _read(machine, folder / job_id) if folder else ()
    except (OSError, SlurmError):
        return ()


def restarts_of(slurm: Slurm, waits: Mapping[str, bool]) -> dict[str, str]:
    """Of jobs in the queue that were requeued, how often and why the last time, in words.

    Args:
        slurm: the border to Slurm; over SSH nothing is read, since each job has a file.
        waits: the jobs by id, and whether each is pending.
    """
    machine = machine_of(slurm)
    if not machine.is_here or not waits:
        return {}
    try:
        if (folder := _folder(slurm, machine)) is None:
            return {}
        kept = {each.name for each in folder.iterdir()}
    except (OSError, SlurmError):
        return {}
    said = {}
    for job_id in sorted(waits.keys() & kept)[:_MOST_JOBS]:
        with suppress(OSError):
            said[job_id] = restart_words(_read(machine, folder / job_id), waits=waits[job_id])
    return {job_id: words for job_id, words in said.items() if words}


def kept_history(cluster: str, job_id: str) -> tuple[RunEnd, ...]:
    """The runs of a job of a cluster with a name, as this machine's home has them; none else."""
    try:
        return _read(HERE, state_folder("runs") / cluster / job_id)
    except (OSError, ValueError):  # what has a null byte in it is no name
        return ()


def restart_words(runs: Sequence[RunEnd], *, waits: bool) -> str:
    """`restart 2: timeout`, of a job that is in the queue; empty where it was not requeued.

    What waits is to begin its next run; no line of its history says so.
    """
    number = runs[-1].run + waits if runs else 0
    why = next((run.reason for run in runs if run.run == number - 1), "")
    if not number:
        return ""
    return f"restart {number}: {why}" if why not in ("", "unknown") else f"restart {number}"


def _read(machine: Machine, folder: Path) -> tuple[RunEnd, ...]:
    with machine.open(str(folder / "history")) as file:
        return parse_history(file.read(_MOST).decode("utf-8", "replace"))


def _folder(slurm: Slurm, machine: Machine) -> Path | None:
    """Where the jobs of a cluster keep theirs; None where no job left any, or for a stand-in."""
    above = state_folder("runs")
    if not machine.is_here:  # what SFTP takes as below the home
        above = Path(".local/state/slurmkit/runs")
    elif not above.is_dir():  # then the cluster's name need not be known either
        return None
    if cluster_key(slurm) is None:
        return None
    return above / load_capabilities(slurm, max_age=math.inf).cluster_name
