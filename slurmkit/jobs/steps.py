"""Resource use of job steps, and the efficiency of jobs computed from it.

Ended steps come from sacct, running steps from sacct and sstat.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import msgspec

from slurmkit.errors import SlurmError
from slurmkit.formats.durations import parse_elapsed_milliseconds
from slurmkit.formats.memory import parse_bytes
from slurmkit.formats.tres import parse_tres
from slurmkit.jobs.accounting_records import starttime_option
from slurmkit.jobs.exit_codes import sacct_exit_code
from slurmkit.slurm.commands import SlurmCommands
from slurmkit.slurm.records import format_options, record_mark, split_records
from slurmkit.state.queue_rows import parse_epoch

DAYS = 2

MAX_SSTAT_JOBS = 200
"""Most running jobs in one sstat: the slurmd of each of their nodes has to answer."""
# Text that a user chooses comes last.
_SACCT = (
    "JobID", "JobIDRaw", "State", "Start", "End", "ElapsedRaw", "NTasks", "NNodes", "NCPUS",
    "TotalCPU", "AllocTRES", "TRESUsageInMax", "TRESUsageInTot", "TRESUsageInAve", "ExitCode",
    "JobName",
)  # fmt: skip
_SSTAT = ("JobID", "NTasks", "TRESUsageInMax", "TRESUsageInTot", "TRESUsageInAve")
_PATIENCE = 30  # timeout of sstat in seconds: it waits for a slurmd that is down
# Larger values are garbage: a live AveCPU once read 213503982334-14:25:51.
_ABSURD = 10**12


class StepMetrics(msgspec.Struct, frozen=True):
    """Measured use of a step; None is unknown.

    Attributes:
        tasks: number of tasks.
        cpu_seconds: CPU seconds of all tasks.
        mem_peak: peak memory in bytes: of all tasks together if measured so, else of one task.
        gpu_percent: GPU utilization, average over the tasks.
        read_bytes: bytes that its tasks have read: files, pipes and sockets.
        mem_now: of a running step: memory in bytes of all tasks together, when last measured.
        task_peak: of a running step: peak memory in bytes of one task.
    """

    tasks: int | None = None
    cpu_seconds: float | None = None
    mem_peak: float | None = None
    gpu_percent: int | None = None
    read_bytes: float | None = None
    mem_now: float | None = None
    task_peak: float | None = None


class StepUse(msgspec.Struct, frozen=True, kw_only=True):
    """A step, or the allocation itself; None is unknown.

    Attributes:
        step_id: `12.0`, `12_3.batch`; for the allocation the job id.
        raw_id: the same with Slurm's plain number of the job.
        state: Slurm's base state.
        started: epoch seconds, like `ended`.
        elapsed: run time in seconds.
        mem_asked: allocated memory in bytes on all nodes together.
        exit_code: `code:signal`; `72 or 200` where sacct may have taken 128 off; empty while it
            runs.
        name: any text from its user; escape it before showing it.
    """

    step_id: str
    raw_id: str
    state: str
    started: int | None = None
    ended: int | None = None
    elapsed: int | None = None
    nodes: int | None = None
    cpus: int | None = None
    mem_asked: float | None = None
    exit_code: str = ""
    name: str = ""
    use: StepMetrics = StepMetrics()

    @property
    def is_allocation(self) -> bool:
        """Whether it is the allocation and not a step of it."""
        return "." not in self.step_id

    @property
    def runs(self) -> bool:
        """Whether it is running."""
        return self.state == "RUNNING"

    @property
    def cpu_efficiency(self) -> float | None:
        """CPU time used, as a share of CPUs times run time, 0 to 1; None when unknown."""
        return share_of(self.use.cpu_seconds, (self.cpus or 0) * (self.elapsed or 0))


class StepsSnapshot(msgspec.Struct, frozen=True):
    """Jobs and their steps at one time.

    Attributes:
        rows: each job before its steps, in sacct's order.
        missing: what is not known, and why; empty when nothing is missing.
        source: the commands that were run.
        taken: epoch seconds at which Slurm was asked.
        seconds: how long the answers took.
    """

    rows: tuple[StepUse, ...]
    missing: str
    source: str
    taken: float
    seconds: float


def read_step_uses(slurm: SlurmCommands, job_ids: Sequence[str]) -> StepsSnapshot:
    """Read jobs and their steps from sacct, and the use of running steps from sstat.

    If slurmdbd is down, or there is none, only the running steps are returned, as sstat knows
    them.
    """
    try:
        return read_selected_steps(slurm, [f"--jobs={','.join(job_ids)}"])
    except SlurmError as error:
        found = read_running_steps(slurm, job_ids)
        missing = "; ".join(filter(None, [str(error), found.missing]))
        return msgspec.structs.replace(found, missing=missing)


def read_running_steps(slurm: SlurmCommands, job_ids: Sequence[str]) -> StepsSnapshot:
    """Read only the running steps of jobs that run, from sstat."""
    taken, began = time.time(), time.perf_counter()
    text, problem = _sstat(slurm, job_ids[:MAX_SSTAT_JOBS])
    rows = merge_live_use((), parse_sstat(text))
    return StepsSnapshot(rows, problem, "sstat", taken, time.perf_counter() - began)


def read_selected_steps(slurm: SlurmCommands, selection: Sequence[str]) -> StepsSnapshot:
    """Read jobs and steps like `read_step_uses`, for the jobs that sacct's options choose.

    Raises:
        DatabaseDown: when slurmdbd does not answer.
    """
    taken, began, mark = time.time(), time.perf_counter(), record_mark()
    rows = [
        msgspec.structs.replace(row, exit_code=sacct_exit_code(slurm, row.exit_code, row.state))
        for row in parse_sacct(slurm.run(sacct_argv(mark, *selection)), mark)
    ]
    running = [row for row in rows if row.is_allocation and row.runs]
    if not running:
        return StepsSnapshot(tuple(rows), "", "sacct", taken, time.perf_counter() - began)
    last = sorted(running, key=lambda row: -(row.started or 0))[:MAX_SSTAT_JOBS]
    text, problem = _sstat(slurm, [row.raw_id for row in last])
    some = (
        f"sstat measured only {MAX_SSTAT_JOBS} of {len(running):,} running jobs, those that"
        " started last"
    )
    missing = "; ".join(filter(None, [problem, some if len(running) > MAX_SSTAT_JOBS else ""]))
    seconds = time.perf_counter() - began
    return StepsSnapshot(
        merge_live_use(rows, parse_sstat(text)), missing, "sacct and sstat", taken, seconds
    )


def sacct_argv(mark: str, *selection: str) -> list[str]:
    """Return the sacct command whose output `parse_sacct` parses."""
    return ["sacct", "--noconvert", *selection, *format_options("sacct", _SACCT, mark)]


def sstat_argv(job_ids: Sequence[str]) -> list[str]:
    """Return the sstat command whose output `parse_sstat` parses; sstat only delimits by `|`."""
    flags = ["--allsteps", "--noheader", "--parsable", "--noconvert"]
    return ["sstat", *flags, f"--jobs={','.join(job_ids)}", f"--format={','.join(_SSTAT)}"]


def _sstat(slurm: SlurmCommands, job_ids: Sequence[str]) -> tuple[str, str]:
    """Return sstat's output so far, and the error if it failed.

    It fails for other users' jobs, and when a slurmd is down.
    """
    lines: list[str] = []
    try:
        lines.extend(slurm.stream(sstat_argv(job_ids), timeout=_PATIENCE))
    except SlurmError as error:
        return "".join(lines), str(error)
    return "".join(lines), ""


def parse_sacct(text: str, mark: str) -> list[StepUse]:
    """Parse the jobs and steps in sacct's output."""
    records = split_records(text, mark, len(_SACCT), "sacct")
    return [_parse_row(dict(zip(_SACCT, values, strict=True))) for values in records]


def parse_sstat(text: str) -> dict[str, StepMetrics]:
    """Parse the use of running steps, by step id."""
    uses = {}
    for line in text.splitlines():
        values = line.split("|")
        if len(values) == len(_SSTAT) + 1:
            fields = dict(zip(_SSTAT, values, strict=False))
            cpu = parse_tres(fields["TRESUsageInTot"]).get("cpu", "")
            use = _parse_use(fields, _cpu_seconds(cpu))
            # While a step runs, Tot is the current sum of all tasks and Max the peak of one task.
            now, peak = _memory(fields["TRESUsageInTot"]), _memory(fields["TRESUsageInMax"])
            uses[fields["JobID"]] = msgspec.structs.replace(use, mem_now=now, task_peak=peak)
    return uses


def merge_live_use(rows: Iterable[StepUse], live: dict[str, StepMetrics]) -> tuple[StepUse, ...]:
    """Put sstat's use into the running rows of sacct; add running steps unknown to sacct."""
    known = tuple(
        msgspec.structs.replace(row, use=live.get(row.raw_id) or live.get(row.step_id) or row.use)
        if row.runs
        else row
        for row in rows
    )
    ids = {each for row in known for each in (row.step_id, row.raw_id)}
    others = [step for step in live if step not in ids]  # just begun, or slurmdbd is down
    return (*known, *(StepUse(step_id=s, raw_id=s, state="RUNNING", use=live[s]) for s in others))


def share_of(part: float | None, whole: float | None) -> float | None:
    """Return part / whole; None when either is unknown or the whole is 0."""
    return part / whole if part is not None and whole else None


def _parse_row(fields: dict[str, str]) -> StepUse:
    """Parse one record of sacct, by field."""
    state = fields["State"].partition(" ")[0]  # `CANCELLED by 10001`
    measured = parse_tres(fields["TRESUsageInTot"])
    cpu = _cpu_seconds(fields["TotalCPU"])
    # For an allocation TotalCPU is the sum of its ended steps; for a step not measured it is 0.
    known = "." in fields["JobID"] and state != "RUNNING" and (cpu or "mem" in measured)
    return StepUse(
        step_id=fields["JobID"],
        raw_id=fields["JobIDRaw"],
        state=state,
        started=parse_epoch(fields["Start"]),
        ended=parse_epoch(fields["End"]),
        elapsed=_number(fields["ElapsedRaw"]),
        nodes=_number(fields["NNodes"]),
        cpus=_number(fields["NCPUS"]),
        mem_asked=parse_bytes(parse_tres(fields["AllocTRES"]).get("mem", "")),
        exit_code="" if state == "RUNNING" else fields["ExitCode"],
        name=fields["JobName"],
        use=_parse_use(fields, cpu if known else None),
    )


def _parse_use(fields: dict[str, str], cpu_seconds: float | None) -> StepMetrics:
    """Parse the measured use in a record of sacct or sstat."""
    sizes = [_memory(fields["TRESUsageInMax"]), _memory(fields["TRESUsageInTot"])]
    return StepMetrics(
        tasks=_number(fields["NTasks"]),
        cpu_seconds=cpu_seconds,
        mem_peak=max((size for size in sizes if size is not None), default=None),
        gpu_percent=_number(parse_tres(fields["TRESUsageInAve"]).get("gres/gpuutil", "")),
        read_bytes=_plausible(
            parse_bytes(parse_tres(fields["TRESUsageInTot"]).get("fs/disk", "")), 2**60
        ),
    )


def _memory(usage: str) -> float | None:
    """Parse the memory in a TRESUsage field, in bytes."""
    return _plausible(parse_bytes(parse_tres(usage).get("mem", "")), 2**56)


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and int(text) < _ABSURD else None


def _cpu_seconds(text: str) -> float | None:
    """Parse `[D-]HH:MM:SS` or `MM:SS.mmm` into seconds."""
    milliseconds = parse_elapsed_milliseconds(text)
    return None if milliseconds is None else _plausible(milliseconds / 1000, _ABSURD)


def _plausible(value: float | None, most: float) -> float | None:
    """Return the value if it lies between 0 and `most`, else None."""
    return value if value is not None and 0 <= value < most else None


class Efficiency(msgspec.Struct, frozen=True):
    """CPU time and memory of one job, used and allocated; None is unknown.

    Attributes:
        cpu_used: CPU seconds used.
        cpu_had: allocated CPUs times elapsed seconds.
        mem_used: peak memory in bytes of the step that used the most.
        mem_had: allocated memory in bytes.
    """

    cpu_used: float | None
    cpu_had: float | None
    mem_used: float | None
    mem_had: float | None

    @property
    def mem(self) -> float | None:
        """Peak memory as a share of the allocated memory, 0 to 1."""
        return share_of(self.mem_used, self.mem_had)


class UserEfficiency(msgspec.Struct, frozen=True):
    """Efficiency of all recent jobs of one user.

    Attributes:
        of: efficiency by raw job id (of the job or array task).
        missing: what is not known, and why; empty when nothing is missing.
        source: the commands that were run.
        taken: epoch seconds at which Slurm was asked.
        seconds: how long the answers took.
    """

    of: dict[str, Efficiency]
    missing: str
    source: str
    taken: float
    seconds: float


def read_user_efficiency(slurm: SlurmCommands, user: str, days: int = DAYS) -> UserEfficiency:
    """Read the steps of the last days from sacct, and the running ones from sstat.

    Raises:
        DatabaseDown: when slurmdbd does not answer: nobody else knows ended steps.
    """
    since = starttime_option(int(time.time()) - days * 86400)
    steps = read_selected_steps(slurm, [f"--user={user}", since])
    of = compute_efficiencies(steps.rows)
    return UserEfficiency(of, steps.missing, steps.source, steps.taken, steps.seconds)


def compute_efficiencies(rows: Iterable[StepUse]) -> dict[str, Efficiency]:
    """Return the efficiency of each job by raw id, from its allocation and its steps."""
    steps: dict[str, list[StepUse]] = {}
    jobs: dict[str, StepUse] = {}
    for row in rows:
        if row.is_allocation:
            jobs[row.raw_id] = row
        elif _is_counted(row):
            steps.setdefault(row.raw_id.partition(".")[0], []).append(row)
    return {raw_id: _efficiency(job, steps.get(raw_id, ())) for raw_id, job in jobs.items()}


def array_shares(several: Sequence[Efficiency | None]) -> tuple[float | None, float | None]:
    """Return the CPU and memory shares of an array, 0 to 1; None while a task is unknown.

    The CPU share counts all tasks together; the memory share is the highest of any task.
    """
    known = [each for each in several if each is not None]
    complete = len(known) == len(several)
    used, had = sum_if_known(e.cpu_used for e in known), sum_if_known(e.cpu_had for e in known)
    peaks = [each.mem for each in known]
    known_peaks = [peak for peak in peaks if peak is not None]
    return (
        share_of(used, had) if complete else None,
        max(known_peaks, default=None) if complete and len(known_peaks) == len(peaks) else None,
    )


def sum_if_known(values: Iterable[float | None]) -> float | None:
    """Return the sum; None when there are no values, or one of them is unknown."""
    everything = list(values)
    known = [value for value in everything if value is not None]
    return sum(known) if known and len(known) == len(everything) else None


def _is_counted(step: StepUse) -> bool:
    """Return whether a step tells about its job: it was measured, or should have been.

    A step of no length is never measured, the extern step on few clusters.
    """
    measured = step.use.cpu_seconds is not None
    return measured or not (step.elapsed == 0 or step.step_id.endswith(".extern"))


def _efficiency(job: StepUse, steps: Sequence[StepUse]) -> Efficiency:
    peaks = [step.use.mem_peak for step in steps if step.use.mem_peak is not None]
    # A running step without a value may have the highest peak of all.
    unsure = any(step.runs and step.use.mem_peak is None for step in steps)
    return Efficiency(
        cpu_used=sum_if_known(step.use.cpu_seconds for step in steps),
        cpu_had=None if job.cpus is None or job.elapsed is None else float(job.cpus * job.elapsed),
        mem_used=None if unsure else max(peaks, default=None),
        mem_had=job.mem_asked,
    )
