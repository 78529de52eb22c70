"""The runs of a job that survives, as each run wrote them to the shared home."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from slurmkit.config.paths import state_folder
from slurmkit.errors import SlurmError
from slurmkit.slurm.commands import SlurmCommands
from slurmkit.slurm.machine import LOCAL_MACHINE, Machine, machine_of
from slurmkit.state.cache import cluster_key, load_capabilities

RUN_BEGINS = r"slurmkit: run \d+ of job \S+ begins on "
"""Pattern of the output line in which a run tells that it begins; `course.sh` writes it."""
_MOST = 1 << 20  # bytes that are read
_MOST_JOBS = 200  # whose histories are read at once


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a job, and how it ended.

    Attributes:
        run: how often the job was requeued before.
        began: epoch seconds, like `ended`; None if no line tells it.
        nodes: its nodes.
        reason: what ended it: `timeout`, `preempt`, `node-fail`, `oom`, `checkpoint` (exit code
            75, and not asked for a checkpoint), `requeued`, `cancelled`, `error`, `done`, `stale`,
            or `unknown`; empty while it runs.
        action: what was done then: `requeue`, `hold`, `fail`, `slurm` (requeued by Slurm itself),
            `limit` (it was requeued too often), `refused` (Slurm refused); empty for nothing.
        exit_code: of its command; None if the command has not ended.
        words: reason and action in a sentence.
    """

    run: int
    began: int | None = None
    ended: int | None = None
    nodes: str = ""
    reason: str = ""
    action: str = ""
    exit_code: int | None = None
    words: str = ""


def parse_history(text: str) -> tuple[RunRecord, ...]:
    """Parse the lines that `turns.sh` writes; lines that a full disk cut off are left out.

    For a run that Slurm requeued, the next run writes the cause.
    """
    runs: dict[int, RunRecord] = {}
    for number, at, what, words in _lines(text):
        run = runs.get(number, RunRecord(run=number))
        if what == "begin":
            runs[number] = msgspec.structs.replace(run, began=at, nodes=words)
        elif what == "end":
            runs[number] = _ended(run, at, words)
        elif what == "after" and number - 1 in runs:
            runs[number - 1] = _with_cause(runs[number - 1], words)
    return tuple(runs[number] for number in sorted(runs))


def _lines(text: str) -> Iterator[tuple[int, int, str, str]]:
    for line in text.splitlines():
        number, _, rest = line.partition("\t")
        at, _, rest = rest.partition("\t")
        what, tab, words = rest.partition("\t")
        if tab and number.isdecimal() and at.isdecimal():
            yield int(number), int(at), what, words


def _with_cause(run: RunRecord, reason: str) -> RunRecord:
    """Return a run that Slurm requeued with its cause, which the next run got from slurmdbd."""
    if run.reason == reason or run.action not in ("", "slurm"):
        return run
    words = f"{reason}: requeued by Slurm"
    return msgspec.structs.replace(run, reason=reason, action="slurm", words=words)


def _ended(run: RunRecord, at: int, words: str) -> RunRecord:
    reason, action, code, sentence = (*words.split(" ", 3), "", "", "")[:4]
    return msgspec.structs.replace(
        run,
        ended=at,
        reason=reason,
        action=action.strip("-"),
        exit_code=int(code) if code.isdecimal() else None,
        words=sentence,
    )


def read_history(slurm: SlurmCommands, job_id: str) -> tuple[RunRecord, ...]:
    """Read the runs of a job; none if it has no policy, or its home cannot be read here."""
    machine = machine_of(slurm)
    try:
        folder = _folder(slurm, machine)
        return _read(machine, folder / job_id) if folder else ()
    except (OSError, SlurmError):
        return ()


def read_restarts(slurm: SlurmCommands, waits: Mapping[str, bool]) -> dict[str, str]:
    """Read how often queued jobs were requeued and why the last time, in words, by job id.

    Args:
        slurm: runs Slurm commands; over SSH nothing is read, since each job has its own file.
        waits: job id to whether the job is pending.
    """
    machine = machine_of(slurm)
    if not machine.is_here or not waits:
        return {}
    try:
        if (folder := _folder(slurm, machine)) is None:
            return {}
        with_history = {each.name for each in folder.iterdir()}
    except (OSError, SlurmError):
        return {}
    restarts = {}
    for job_id in sorted(waits.keys() & with_history)[:_MOST_JOBS]:
        with suppress(OSError):
            restarts[job_id] = restart_words(_read(machine, folder / job_id), waits=waits[job_id])
    return {job_id: words for job_id, words in restarts.items() if words}


def load_history(cluster: str, job_id: str) -> tuple[RunRecord, ...]:
    """Load the runs of a job from this machine's home; none if there are none."""
    try:
        return _read(LOCAL_MACHINE, state_folder("runs") / cluster / job_id)
    except (OSError, ValueError):  # ValueError: a null byte in a name
        return ()


def restart_words(runs: Sequence[RunRecord], *, waits: bool) -> str:
    """Return `restart 2: timeout` for a queued job; empty if it was not requeued.

    A pending job is counted for its next run, which has no line in its history yet.
    """
    number = runs[-1].run + waits if runs else 0
    why = next((run.reason for run in runs if run.run == number - 1), "")
    if not number:
        return ""
    return f"restart {number}: {why}" if why not in ("", "unknown") else f"restart {number}"


def _read(machine: Machine, folder: Path) -> tuple[RunRecord, ...]:
    with machine.open(str(folder / "history")) as file:
        return parse_history(file.read(_MOST).decode("utf-8", "replace"))


def _folder(slurm: SlurmCommands, machine: Machine) -> Path | None:
    """Return the folder of a cluster's histories; None if there is none, or for a stand-in."""
    above = state_folder("runs")
    if not machine.is_here:  # relative to the home over SFTP
        above = Path(".local/state/slurmkit/runs")
    elif not above.is_dir():  # the cluster's name is not needed then
        return None
    if cluster_key(slurm) is None:
        return None
    return above / load_capabilities(slurm, max_age=math.inf).cluster_name
