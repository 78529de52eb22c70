"""What is going on now: the schedulers' pace, reservations, and jobs that something is wrong with.

`slurmkit doctor` is about settings, which stay; these pass, and are for who watches the cluster.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from slurmkit.capabilities.model import Reservation
from slurmkit.capabilities.nodes import folded
from slurmkit.capabilities.reservations import parse_reservations
from slurmkit.doctor.case import Case
from slurmkit.doctor.model import Check, Found, Severity
from slurmkit.doctor.sdiag import Controller, Cycles, parse_sdiag
from slurmkit.durations import format_duration
from slurmkit.errors import SlurmError
from slurmkit.facts import clock
from slurmkit.nodes.holders import Holder, holders_asked, parse_holders
from slurmkit.queue.rows import epoch, record_mark
from slurmkit.why.reasons import in_words

# Seconds and counts that are much: a main cycle is cut at 2 s (max_sched_time), backfill starts
# every 30 s (bf_interval) and slurmctld has 256 threads (slurm.conf(5), SchedulerParameters).
_LONG_CYCLE, _LONGEST_CYCLE, _LONG_BACKFILL, _OLD_BACKFILL = 0.5, 2.0, 30.0, 600.0
_MANY_THREADS, _MOST_THREADS, _MANY_MESSAGES = 64, 150, 100
_SOON = 7 * 86400
_COMPLETES = 300  # seconds after its end, when its nodes should long be free again
_FOR_EVER = (
    "DependencyNeverSatisfied", "BadConstraints", "ReservationDeleted", "ReservationInvalid",
    "InvalidAccount", "InvalidQOS", "JobHoldMaxRequeue", "JobHeldAdmin", "JobHeldUser",
)  # fmt: skip
_WAITING_FIELDS = ("JobArrayID", "UserName", "Reason")
_ENDING_FIELDS = ("JobArrayID", "UserName", "NodeList", "EndTime")


def _sdiag(case: Case) -> Controller:
    return parse_sdiag(case.ask_controller("sdiag"))


def _source(found: Controller) -> str:
    return f"sdiag of {clock(found.at)}; means since {clock(found.since)}"


def scheduler(case: Case) -> Iterator[Found]:
    """How long the main scheduler's cycles take."""
    found = _sdiag(case)
    longest = max(found.main.last or 0.0, found.main.mean or 0.0)
    severity: Severity = "ok"
    if longest > _LONG_CYCLE:
        severity = "warning" if longest >= _LONGEST_CYCLE else "note"
    yield Found(
        severity,
        f"main scheduler: {_pace(found.main)}, {_counted(found.main.depth, 'job')} looked at in the"
        f" mean, {_count(found.main.queue)} in its queue",
        f"beyond {_LONG_CYCLE:g} s slurmctld answers commands late, at {_LONGEST_CYCLE:g} s a"
        " cycle is cut and jobs start late" if severity != "ok" else "",
        "SchedulerParameters: default_queue_depth, sched_min_interval" * (severity != "ok"),
        _source(found),
    )  # fmt: skip


def backfill(case: Case) -> Iterator[Found]:
    """How long backfill takes, and whether it runs at all."""
    found = _sdiag(case)
    of = found.backfill
    age = found.at - of.when if found.at and of.when else None
    stale = bool(age and age > _OLD_BACKFILL and of.queue)
    slow = max(of.last or 0.0, of.mean or 0.0) > _LONG_BACKFILL
    when = f", {format_duration(age)} ago" if age is not None else ""
    yield Found(
        "warning" if stale or slow else "ok",
        f"backfill: {_pace(of)}{when}; {_count(of.depth)} of {_counted(of.queue, 'job')} tried",
        "small jobs do not start in the gaps before large ones, and start estimates are old"
        if stale or slow else "",
        "SchedulerParameters: bf_max_job_test, bf_resolution, bf_continue" * (stale or slow),
        _source(found),
    )  # fmt: skip


def requests(case: Case) -> Iterator[Found]:
    """How much slurmctld is asked."""
    found = _sdiag(case)
    threads, agents = found.threads or 0, found.agents or 0
    much = threads >= _MOST_THREADS or agents >= _MANY_MESSAGES
    severity: Severity = "warning" if much else "note" if threads >= _MANY_THREADS else "ok"
    yield Found(
        severity,
        f"slurmctld: {_counted(found.threads, 'thread')} for requests (256 at most),"
        f" {_counted(found.agents, 'message')} to nodes waiting",
        "commands are answered late, and may time out" * (severity != "ok"),
        "sdiag shows by user and by kind who asks so much" * (severity != "ok"),
        _source(found),
    )


def _pace(of: Cycles) -> str:
    last, mean, most = map(_seconds, (of.last, of.mean, of.longest))
    return f"last cycle {last}, mean {mean}, longest {most} of {_count(of.count)}"


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return "unknown"
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _count(number: int | None) -> str:
    return "?" if number is None else f"{number:,}"


def _counted(number: int | None, noun: str) -> str:
    return f"{_count(number)} {noun}{'' if number == 1 else 's'}"


def reserved(case: Case) -> Iterator[Found]:
    """Reservations of now and of the next days; others would only be in the way."""
    said = case.ask_controller("scontrol", "--all", "--oneliner", "show", "reservation")
    now = time.time()
    for each in sorted(parse_reservations(said), key=lambda r: r.start):
        if each.start < now + _SOON and each.end > now:
            yield _reservation(each, now)


def _reservation(each: Reservation, now: float) -> Found:
    who = ", ".join((*each.users, *each.accounts, *each.groups)) or "nobody named"
    when = "until" if each.start <= now else f"from {clock(each.start)} until"
    flags = f" ({','.join(each.flags)})" if each.flags else ""
    where = folded(each.nodes) if each.nodes else "nodes not chosen yet"
    return Found(
        "note",
        f"reservation {each.name}: {where} {when} {clock(each.end)} for {who}{flags}",
        "other jobs do not start there, nor those that would run into it",
        where=f"scontrol show reservation, {clock(now)}",
    )


def waiting(case: Case) -> Iterator[Found]:
    """Jobs that wait for what will never come by itself, by reason."""
    found: dict[str, list[list[str]]] = defaultdict(list)
    for row in _squeue(case, _WAITING_FIELDS, "--states=PENDING"):
        if row[2] in _FOR_EVER:
            found[row[2]].append(row)
    for reason, rows in found.items():
        users = Counter(user for _, user, _ in rows).most_common(3)
        said = ", ".join(f"{user} {count}" for user, count in users)
        words = in_words(reason, rows[0][0])
        yield Found(
            "note" if "Held" in reason else "warning",
            f"{len(rows)} pending for ever ({reason}): {said}; e.g. job {rows[0][0]}",
            words.meaning,
            words.advice,
            f"squeue, {clock(time.time())}",
        )


def completing(case: Case) -> Iterator[Found]:
    """Jobs that ended some time ago and still hold their nodes."""
    now = time.time()
    for job, user, nodes, end in _squeue(case, _ENDING_FIELDS, "--states=COMPLETING"):
        late = now - (epoch(end) or now)
        if late > _COMPLETES:
            yield Found(
                "warning",
                f"job {job} of {user} completes on {nodes} for {format_duration(int(late))}",
                "its nodes take no other job: a process does not end, or an epilog hangs",
                "see slurmd's log there; UnkillableStepTimeout drains such nodes",
                f"squeue, {clock(now)}",
            )


def without_node(case: Case) -> Iterator[Found]:
    """Jobs that run, as slurmctld has it, on nodes that are down or on none."""
    down = {node.name for node in case.nodes if node.kind == "down"}
    for holder in _holders(case):
        gone = [name for name in holder.nodes if name in down]
        if holder.state == "RUNNING" and gone:
            yield Found(
                "warning",
                f"job {holder.job_id} of {holder.user} runs on {folded(gone)}, which is down",
                "nobody knows whether it still runs; SlurmdTimeout ends it, or puts it back",
                f"scontrol requeue {holder.job_id}, once the node is known to be dead",
                f"squeue and scontrol, {clock(time.time())}",
            )


def _holders(case: Case) -> tuple[Holder, ...]:
    mark = record_mark()
    return parse_holders(case.ask_controller(*holders_asked(mark)), mark)


def _squeue(case: Case, fields: Iterable[str], states: str) -> Iterator[list[str]]:
    """Rows of just these fields; none of them is a text that people choose."""
    mark = record_mark()
    shown = ",".join(f"{field}:{mark}" for field in fields)
    said = case.ask_controller("squeue", "--all", "--noheader", states, "-O", shown)
    for line in said.splitlines():
        *row, rest = line.split(mark)
        if rest or len(row) != shown.count(mark):
            raise SlurmError("squeue printed a row that cannot be read")
        yield [each.strip() for each in row]


CHECKS = (
    Check("scheduler", "the main scheduler runs", scheduler),
    Check("backfill", "backfill runs", backfill),
    Check("requests", "slurmctld keeps up with requests", requests),
    Check("reservations", "nothing is reserved now or in the next 7 days", reserved),
    Check("jobs-waiting", "no job waits for what never comes", waiting),
    Check("jobs-completing", "no job takes long to free its nodes", completing),
    Check("jobs-without-node", "no job runs on a node that is down", without_node),
)
