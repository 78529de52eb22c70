"""What is still to be found out after a job has ended: limits, nodes, who came after it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from slurmkit.capabilities.cache import load_capabilities
from slurmkit.capabilities.text import tres
from slurmkit.checks.say import memory_option
from slurmkit.durations import format_duration, parse_time_limit
from slurmkit.errors import BadInput, SlurmError
from slurmkit.jobs.info import JobInfo
from slurmkit.jobs.outcome import NO_OUTPUT, Outcome
from slurmkit.jobs.sacct import Step, read_steps
from slurmkit.machine import machine_of
from slurmkit.nodes.read import NODES_ASKED, parse_rows
from slurmkit.queue.snapshot import QueueFilter, read_queue
from slurmkit.slurm import Slurm
from slurmkit.why import words
from slurmkit.why.scene import nodes_of

_SOON = 120  # seconds after its end in which a preemptor starts
_SIZE = re.compile(r"(?P<n>[\d.]+)(?P<unit>[KMGTP]?)")


def aftermath(slurm: Slurm, info: JobInfo, outcome: Outcome) -> list[str]:
    """Facts that help to see why a job ended so; what cannot be read is left out."""
    find_out = _BY_KIND.get(outcome.kind)
    if outcome.kind == "failed" and outcome.signal == NO_OUTPUT:
        return list(_output(outcome)) if machine_of(slurm).is_here else []
    try:
        return list(find_out(slurm, info, outcome)) if find_out else []
    except SlurmError:
        return []


def _output(outcome: Outcome) -> Iterator[str]:
    """What of the path is wrong as seen from this machine, as whoever asks."""
    if outcome.log is None:
        return
    path = Path(outcome.log)
    folder = path.parent
    try:
        yield from _folder(path, folder)
    except OSError as error:
        yield f"{folder}: {error.strerror}"


def _folder(path: Path, folder: Path) -> Iterator[str]:
    if not folder.exists():
        missing = next(p for p in [*reversed(folder.parents), folder] if not p.exists())
        yield f"{missing} does not exist; make it before you submit: mkdir -p {folder}"
    elif not folder.is_dir():
        yield f"{folder} is not a directory"
    elif path.is_dir():
        yield f"{path} is a directory, not a file"
    elif not os.access(folder if not path.exists() else path, os.W_OK):
        yield f"you may not write {path if path.exists() else folder}"
    else:
        yield f"{folder} can be written from here: is it on a file system the nodes share?"


def _timeout(slurm: Slurm, info: JobInfo, outcome: Outcome) -> Iterator[str]:
    del outcome
    found = longer(slurm, info)
    if found is None:
        return
    time, most = found
    allows = f" (partition {info.partition} allows {words.minutes(most)})" if most else ""
    if time:
        yield f"to ask for more: --time={time}{allows}"
    else:
        yield f"partition {info.partition} allows no more: save its state and go on in a new job"


def longer(slurm: Slurm, info: JobInfo) -> tuple[str, int | None] | None:
    """The time limit to ask for after a timeout, and what the partition allows in minutes.

    The limit is empty where there is no longer one; None when the old one is unknown.

    Raises:
        SlurmError: when Slurm does not answer.
    """
    steps = read_steps(slurm, info.job_id)
    limit = _seconds(info.time_limit or (steps[0].time_limit if steps else ""))
    if limit is None:
        return None
    partition = load_capabilities(slurm).partition(info.partition)
    most = partition.max_time if partition else None
    twice = limit * 2 if most is None else min(limit * 2, most * 60)
    return (format_duration(twice) if twice > limit else "", most)


def _seconds(text: str) -> int | None:
    try:
        return parse_time_limit(text)
    except BadInput:
        return None


def _memory(slurm: Slurm, info: JobInfo, outcome: Outcome) -> Iterator[str]:
    del outcome
    steps = read_steps(slurm, info.job_id)
    had = tres(steps[0].tres).get("mem") if steps else None
    used = max((_mebibytes(step) for step in steps), default=0)
    if had:
        seen = f"; the most that was seen of a task is {words.memory(used)}" if used else ""
        yield f"it had {words.memory(had)} in all{seen} (sacct)"
        yield f"to ask for more: --mem={_more(had, used, info)}"


def more_memory(slurm: Slurm, info: JobInfo) -> str | None:
    """The memory per node to ask for after it ran out; None when what it had is unknown.

    Raises:
        SlurmError: when slurmdbd does not answer.
    """
    steps = read_steps(slurm, info.job_id)
    had = tres(steps[0].tres).get("mem") if steps else None
    return _more(had, max(map(_mebibytes, steps)), info) if had else None


def _more(had: int, used: int, info: JobInfo) -> str:
    return memory_option(max(2 * had, used * 3 // 2) // max(1, len(nodes_of(info.node_list))))


def _mebibytes(step: Step) -> int:
    match = _SIZE.fullmatch(step.max_rss)
    if match is None:
        return 0
    power = {"": -2, "K": -1, "M": 0, "G": 1, "T": 2, "P": 3}[match["unit"]]
    return int(float(match["n"]) * float(1024**power))


def _nodes(slurm: Slurm, info: JobInfo, outcome: Outcome) -> Iterator[str]:
    del outcome
    own = set(nodes_of(info.node_list))
    for node in parse_rows(slurm.run(NODES_ASKED)):
        if node.name in own:
            why = f": {node.reason}" if node.reason else ""
            yield f"{node.name} is {node.state} now{why}"


def _preempted(slurm: Slurm, info: JobInfo, outcome: Outcome) -> Iterator[str]:
    """Slurm does not keep who preempted whom; what started there right after tells."""
    del outcome
    own = set(nodes_of(info.node_list))
    for row in read_queue(slurm, QueueFilter(states=("all",))).rows:
        since = None if info.ended is None or row.started is None else row.started - info.ended
        if since is None or not -5 <= since <= _SOON or row.raw_id == info.raw_id:
            continue
        if own & set(nodes_of(row.node_list)):
            yield (
                f"job {row.job_id} of {row.user} (QOS {row.qos}) started on {row.node_list}"
                f" {words.seconds(since)} after"
            )


_BY_KIND: dict[str, Callable[[Slurm, JobInfo, Outcome], Iterator[str]]] = {
    "timeout": _timeout,
    "out_of_memory": _memory,
    "node_failure": _nodes,
    "boot_failure": _nodes,
    "preempted": _preempted,
}
