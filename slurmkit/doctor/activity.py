"""Checks of the current activity: scheduler cycles, reservations, and jobs in trouble.

They change from minute to minute, so the terminal app shows them and `slurmkit doctor` does not.
"""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import msgspec

from slurmkit.doctor.case import Check, CheckContext, CheckFinding, Severity
from slurmkit.errors import SlurmError
from slurmkit.formats.display import format_time
from slurmkit.formats.durations import format_duration
from slurmkit.formats.scontrol import fold_nodes
from slurmkit.jobs.pending_reasons import explain_reason
from slurmkit.slurm.records import format_options, record_mark, split_records
from slurmkit.state.capabilities import parse_reservations
from slurmkit.state.gres import holding_jobs_command, parse_holding_jobs
from slurmkit.state.model import Reservation
from slurmkit.state.queue_rows import parse_epoch

# Thresholds in seconds and counts. The main cycle is cut at 2 s (max_sched_time), backfill starts
# every 30 s (bf_interval), slurmctld has 256 threads (slurm.conf(5), SchedulerParameters).
_LONG_CYCLE, _LONGEST_CYCLE, _LONG_BACKFILL, _OLD_BACKFILL = 0.5, 2.0, 30.0, 600.0
_MANY_THREADS, _MOST_THREADS, _MANY_MESSAGES = 64, 150, 100
_NEXT_SECONDS = 7 * 86400
_COMPLETING_SECONDS = 300  # seconds after a job's end, when its nodes should be free again
_FOR_EVER_REASONS = (
    "DependencyNeverSatisfied", "BadConstraints", "ReservationDeleted", "ReservationInvalid",
    "InvalidAccount", "InvalidQOS", "JobHoldMaxRequeue", "JobHeldAdmin", "JobHeldUser",
)  # fmt: skip
_SECTION = re.compile(r"^(Main schedule statistics|Main scheduler exit|Backfilling stats|"
                      r"Backfill exit|Latency for|Remote Procedure)", re.MULTILINE)  # fmt: skip
_NUMBER = re.compile(r"^\s*(?P<name>\S[^:\n]*?):[ \t]+(?P<value>\d+)[ \t]*$", re.MULTILINE)
_WHEN = re.compile(
    r"^\s*(?P<name>\S[^:\n]*?)(?: at|:)?\s+\w{3} [^\n]*\((?P<at>\d+)\)", re.MULTILINE
)
_WAITING_FIELDS = ("JobArrayID", "UserName", "Reason")
_ENDING_FIELDS = ("JobArrayID", "UserName", "NodeList", "EndTime")


def _sdiag(case: CheckContext) -> SdiagStatistics:
    return parse_sdiag(case.ask_controller("sdiag"))


def _source(sdiag: SdiagStatistics) -> str:
    return f"sdiag of {format_time(sdiag.at)}; means since {format_time(sdiag.since)}"


def check_main_scheduler(case: CheckContext) -> Iterator[CheckFinding]:
    """Report how long the main scheduler's cycles take."""
    sdiag = _sdiag(case)
    longest = max(sdiag.main.last or 0.0, sdiag.main.mean or 0.0)
    severity: Severity = "ok"
    if longest > _LONG_CYCLE:
        severity = "warning" if longest >= _LONGEST_CYCLE else "note"
    yield CheckFinding(
        severity,
        f"main scheduler: {_cycle_times(sdiag.main)},"
        f" {_number_of(sdiag.main.depth, 'job')} tried on average,"
        f" {_number(sdiag.main.queue)} in its queue",
        f"beyond {_LONG_CYCLE:g} s slurmctld answers commands late, at {_LONGEST_CYCLE:g} s a"
        " cycle is cut and jobs start late"
        if severity != "ok"
        else "",
        "SchedulerParameters: default_queue_depth, sched_min_interval" * (severity != "ok"),
        _source(sdiag),
    )


def check_backfill(case: CheckContext) -> Iterator[CheckFinding]:
    """Report how long backfill takes, and whether it runs at all."""
    sdiag = _sdiag(case)
    cycles = sdiag.backfill
    age = sdiag.at - cycles.when if sdiag.at and cycles.when else None
    stale = bool(age and age > _OLD_BACKFILL and cycles.queue)
    slow = max(cycles.last or 0.0, cycles.mean or 0.0) > _LONG_BACKFILL
    when = f", {format_duration(age)} ago" if age is not None else ""
    yield CheckFinding(
        "warning" if stale or slow else "ok",
        f"backfill: {_cycle_times(cycles)}{when};"
        f" {_number(cycles.depth)} of {_number_of(cycles.queue, 'job')} tried",
        "small jobs do not start in the gaps before large ones, and start estimates are old"
        if stale or slow else "",
        "SchedulerParameters: bf_max_job_test, bf_resolution, bf_continue" * (stale or slow),
        _source(sdiag),
    )  # fmt: skip


def check_request_load(case: CheckContext) -> Iterator[CheckFinding]:
    """Report how many requests and messages slurmctld handles."""
    sdiag = _sdiag(case)
    threads, agents = sdiag.threads or 0, sdiag.agents or 0
    much = threads >= _MOST_THREADS or agents >= _MANY_MESSAGES
    severity: Severity = "warning" if much else "note" if threads >= _MANY_THREADS else "ok"
    yield CheckFinding(
        severity,
        f"slurmctld: {_number_of(sdiag.threads, 'thread')} for requests (256 at most),"
        f" {_number_of(sdiag.agents, 'message')} to nodes waiting",
        "commands are answered late, and may time out" * (severity != "ok"),
        "run sdiag: it counts the requests by user and by kind" * (severity != "ok"),
        _source(sdiag),
    )


def _cycle_times(cycles: SchedulerCycles) -> str:
    last, mean, most = map(_seconds, (cycles.last, cycles.mean, cycles.longest))
    return f"last cycle {last}, mean {mean}, longest {most} of {_number(cycles.count)}"


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return "unknown"
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _number(number: int | None) -> str:
    return "?" if number is None else f"{number:,}"


def _number_of(number: int | None, noun: str) -> str:
    return f"{_number(number)} {noun}{'' if number == 1 else 's'}"


def report_reservations(case: CheckContext) -> Iterator[CheckFinding]:
    """Report the reservations of now and of the next seven days."""
    output = case.ask_controller("scontrol", "--all", "--oneliner", "show", "reservation")
    now = time.time()
    for each in sorted(parse_reservations(output), key=lambda r: r.start):
        if each.start < now + _NEXT_SECONDS and each.end > now:
            yield _reservation(each, now)


def _reservation(each: Reservation, now: float) -> CheckFinding:
    """Describe a reservation: its nodes, its time and who may use it."""
    who = ", ".join((*each.users, *each.accounts, *each.groups)) or "nobody named"
    when = "until" if each.start <= now else f"from {format_time(each.start)} until"
    flags = f" ({','.join(each.flags)})" if each.flags else ""
    where = fold_nodes(each.nodes) if each.nodes else "nodes not chosen yet"
    return CheckFinding(
        "note",
        f"reservation {each.name}: {where} {when} {format_time(each.end)} for {who}{flags}",
        "other jobs do not start there; before it, only jobs that end in time start",
        where=f"scontrol show reservation, {format_time(now)}",
    )


def check_waiting_for_ever(case: CheckContext) -> Iterator[CheckFinding]:
    """Report jobs that can never start by themselves, by reason."""
    by_reason: dict[str, list[list[str]]] = defaultdict(list)
    for row in _squeue(case, _WAITING_FIELDS, "--states=PENDING"):
        if row[2] in _FOR_EVER_REASONS:
            by_reason[row[2]].append(row)
    for reason, rows in by_reason.items():
        users = Counter(user for _, user, _ in rows).most_common(3)
        counts = ", ".join(f"{user} {count}" for user, count in users)
        words = explain_reason(reason, rows[0][0])
        yield CheckFinding(
            "note" if "Held" in reason else "warning",
            f"{len(rows)} pending for ever ({reason}): {counts}; e.g. job {rows[0][0]}",
            words.meaning,
            words.advice,
            f"squeue, {format_time(time.time())}",
        )


def check_completing_jobs(case: CheckContext) -> Iterator[CheckFinding]:
    """Report jobs that ended some time ago and still hold their nodes."""
    now = time.time()
    for job, user, nodes, end in _squeue(case, _ENDING_FIELDS, "--states=COMPLETING"):
        late = now - (parse_epoch(end) or now)
        if late > _COMPLETING_SECONDS:
            yield CheckFinding(
                "warning",
                f"job {job} of {user} has been completing on {nodes} for"
                f" {format_duration(int(late))}",
                "its nodes take no other job: a process does not end, or an epilog hangs",
                "see slurmd's log there; UnkillableStepTimeout drains such nodes",
                f"squeue, {format_time(now)}",
            )


def check_jobs_on_down_nodes(case: CheckContext) -> Iterator[CheckFinding]:
    """Report jobs that slurmctld shows as running on nodes that are down."""
    down = {node.name for node in case.nodes if node.kind == "down"}
    mark = record_mark()
    for holder in parse_holding_jobs(case.ask_controller(*holding_jobs_command(mark)), mark):
        gone = [name for name in holder.nodes if name in down]
        if holder.state == "RUNNING" and gone:
            yield CheckFinding(
                "warning",
                f"job {holder.job_id} of {holder.user} runs on {fold_nodes(gone)}, which is down",
                "nobody knows whether it still runs; after SlurmdTimeout it is ended or requeued",
                f"scontrol requeue {holder.job_id}, once the node is known to be dead",
                f"squeue and scontrol, {format_time(time.time())}",
            )


def _squeue(case: CheckContext, fields: Sequence[str], states: str) -> Iterator[list[str]]:
    """Yield squeue's rows of these fields."""
    mark = record_mark()
    asked = format_options("squeue", fields, mark)
    output = case.ask_controller("squeue", "--all", states, *asked)
    for row in split_records(output, mark, len(fields), "squeue"):
        yield [each.strip() for each in row]


CHECKS = (
    Check("scheduler", "the main scheduler runs", check_main_scheduler),
    Check("backfill", "backfill runs", check_backfill),
    Check("requests", "slurmctld keeps up with requests", check_request_load),
    Check("reservations", "nothing is reserved now or in the next 7 days", report_reservations),
    Check("jobs-waiting", "no job waits for ever", check_waiting_for_ever),
    Check("jobs-completing", "no job takes long to free its nodes", check_completing_jobs),
    Check("jobs-without-node", "no job runs on a node that is down", check_jobs_on_down_nodes),
)


class SchedulerCycles(msgspec.Struct, frozen=True):
    """The cycles of one scheduler; None where sdiag prints no number.

    Attributes:
        last: seconds of the last cycle.
        mean: mean seconds of a cycle.
        longest: seconds of the longest cycle.
        count: cycles so far.
        depth: jobs tried: by backfill in its last cycle, by the main scheduler in the mean.
        queue: pending jobs at the last cycle.
        when: epoch seconds of the last cycle; backfill only.
    """

    last: float | None = None
    mean: float | None = None
    longest: float | None = None
    count: int | None = None
    depth: int | None = None
    queue: int | None = None
    when: int | None = None


class SdiagStatistics(msgspec.Struct, frozen=True):
    """The statistics of slurmctld at one moment.

    Attributes:
        at: epoch seconds of the statistics.
        since: epoch seconds of their last reset, the begin of the means.
        threads: threads that serve requests now.
        agents: messages to nodes that wait to be sent.
    """

    at: int | None
    since: int | None
    threads: int | None
    agents: int | None
    main: SchedulerCycles
    backfill: SchedulerCycles


def parse_sdiag(text: str) -> SdiagStatistics:
    """Parse the output of sdiag (src/sdiag/sdiag.c, 22.05 to 26.05).

    Raises:
        SlurmError: when the text has no statistics.
    """
    head, *rest = _SECTION.split(text)
    sections = dict(zip(rest[::2], rest[1::2], strict=True))
    if "Main schedule statistics" not in sections:
        raise SlurmError("sdiag does not print the scheduler's statistics")
    times, first = _times(head), _numbers(head)
    main = _numbers(sections["Main schedule statistics"])
    backfill_text = sections.get("Backfilling stats", "")
    backfill = _numbers(backfill_text)
    when = _times(backfill_text).get("Last cycle when") or None
    return SdiagStatistics(
        times.get("sdiag output"),
        times.get("Data since"),
        first.get("Server thread count"),
        first.get("Agent queue size"),
        _cycles(main, main.get("Mean depth cycle"), None),
        _cycles(backfill, backfill.get("Last depth cycle (try sched)"), when),
    )


def _cycles(numbers: dict[str, int], depth: int | None, when: int | None) -> SchedulerCycles:
    return SchedulerCycles(
        _in_seconds(numbers.get("Last cycle")),
        _in_seconds(numbers.get("Mean cycle")),
        _in_seconds(numbers.get("Max cycle")),
        numbers.get("Total cycles"),
        depth,
        numbers.get("Last queue length"),
        when,
    )


def _in_seconds(microseconds: int | None) -> float | None:
    return None if microseconds is None else microseconds / 1e6


def _numbers(text: str) -> dict[str, int]:
    return {each["name"]: int(each["value"]) for each in _NUMBER.finditer(text)}


def _times(text: str) -> dict[str, int]:
    return {each["name"]: int(each["at"]) for each in _WHEN.finditer(text)}
