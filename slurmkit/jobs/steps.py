"""Steps of jobs and what they use: ended ones from sacct, those that run from sstat as well."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import msgspec

from slurmkit.durations import parse_elapsed
from slurmkit.errors import DatabaseDown, SlurmError
from slurmkit.queue.rows import epoch, record_mark
from slurmkit.slurm import Slurm
from slurmkit.tres import parse_tres, size_in_bytes

MOST = 200
"""So many running jobs are asked about at once: slurmd of every node of theirs answers."""
# Text a user chooses comes last.
_SACCT = (
    "JobID", "JobIDRaw", "State", "Start", "End", "ElapsedRaw", "NTasks", "NNodes", "NCPUS",
    "TotalCPU", "AllocTRES", "TRESUsageInMax", "TRESUsageInTot", "TRESUsageInAve", "ExitCode",
    "JobName",
)  # fmt: skip
_SSTAT = ("JobID", "NTasks", "TRESUsageInMax", "TRESUsageInTot", "TRESUsageInAve")
_PATIENCE = 30  # seconds for sstat: a slurmd that is away keeps it waiting
# A live AveCPU once read 213503982334-14:25:51: nothing of one step is as much.
_ABSURD = 10**12


class Use(msgspec.Struct, frozen=True):
    """What was measured of a step; None is unknown.

    Attributes:
        tasks: how many processes of it srun started.
        cpu_seconds: of CPU, of all its tasks.
        mem_peak: bytes: the most of all its tasks together that was seen, or of one task.
        gpu_percent: GPU utilisation, the average of its tasks.
    """

    tasks: int | None = None
    cpu_seconds: float | None = None
    mem_peak: float | None = None
    gpu_percent: int | None = None


class StepUse(msgspec.Struct, frozen=True, kw_only=True):
    """A step, or the allocation itself; None is unknown.

    Attributes:
        step_id: `12.0`, `12_3.batch`; the allocation's is the job's.
        raw_id: the same with Slurm's own number of the job.
        state: Slurm's base state.
        started: epoch seconds, like `ended`.
        elapsed: seconds it has run.
        mem_asked: bytes it may use on all its nodes together.
        exit_code: `code:signal`; empty while it runs.
        name: whatever its user typed; escape it before showing it.
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
    use: Use = Use()

    @property
    def is_allocation(self) -> bool:
        """Whether it is the job, and no step of it."""
        return "." not in self.step_id

    @property
    def runs(self) -> bool:
        """Whether it goes on."""
        return self.state == "RUNNING"

    @property
    def cpu_efficiency(self) -> float | None:
        """CPU time used, of that which its CPUs had; None when unknown."""
        return share(self.use.cpu_seconds, (self.cpus or 0) * (self.elapsed or 0))


class Steps(msgspec.Struct, frozen=True):
    """Jobs and their steps at one time.

    Attributes:
        rows: each job before its steps, in sacct's order.
        missing: what is not known, and why; empty when nothing is missing.
        source: who was asked.
        taken: epoch seconds at which Slurm was asked.
        seconds: how long the answers took.
    """

    rows: tuple[StepUse, ...]
    missing: str
    source: str
    taken: float
    seconds: float


def read_step_uses(slurm: Slurm, job_ids: Sequence[str]) -> Steps:
    """Ask sacct for jobs and their steps, and sstat for what the running ones use so far.

    Without slurmdbd there are only the steps that run, with what sstat says of them.
    """
    taken, began = time.time(), time.perf_counter()
    try:
        return read_selected(slurm, [f"--jobs={','.join(job_ids)}"])
    except DatabaseDown as error:
        text, problem = _sstat(slurm, job_ids[:MOST])
        missing = "; ".join(filter(None, [str(error), problem]))
        rows = merged((), parse_sstat(text))
        return Steps(rows, missing, "sstat", taken, time.perf_counter() - began)


def read_selected(slurm: Slurm, selection: Sequence[str]) -> Steps:
    """The same of the jobs that sacct's options choose.

    Raises:
        DatabaseDown: when slurmdbd does not answer.
    """
    taken, began, mark = time.time(), time.perf_counter(), record_mark()
    rows = parse_sacct(slurm.run(sacct_argv(mark, *selection)), mark)
    running = [row for row in rows if row.is_allocation and row.runs]
    if not running:
        return Steps(tuple(rows), "", "sacct", taken, time.perf_counter() - began)
    last = sorted(running, key=lambda row: -(row.started or 0))[:MOST]
    text, problem = _sstat(slurm, [row.raw_id for row in last])
    some = f"sstat was asked about the {MOST} of {len(running):,} running jobs that began last"
    missing = "; ".join(filter(None, [problem, some if len(running) > MOST else ""]))
    seconds = time.perf_counter() - began
    return Steps(merged(rows, parse_sstat(text)), missing, "sacct and sstat", taken, seconds)


def sacct_argv(mark: str, *selection: str) -> list[str]:
    """The command whose output `parse_sacct` reads."""
    flags = ["--noheader", "--parsable", "--noconvert", f"--delimiter={mark}"]
    return ["sacct", *flags, *selection, f"--format={','.join(_SACCT)}"]


def sstat_argv(job_ids: Sequence[str]) -> list[str]:
    """The command whose output `parse_sstat` reads; it knows no other delimiter than `|`."""
    flags = ["--allsteps", "--noheader", "--parsable", "--noconvert"]
    return ["sstat", *flags, f"--jobs={','.join(job_ids)}", f"--format={','.join(_SSTAT)}"]


def _sstat(slurm: Slurm, job_ids: Sequence[str]) -> tuple[str, str]:
    """What it says, and why that may not be all: other people's jobs, a slurmd that is away."""
    lines: list[str] = []
    try:
        lines.extend(slurm.stream(sstat_argv(job_ids), timeout=_PATIENCE))
    except SlurmError as error:
        return "".join(lines), str(error)
    return "".join(lines), ""


def parse_sacct(text: str, mark: str) -> list[StepUse]:
    """Jobs and steps of sacct's text."""
    return [_row(dict(zip(_SACCT, values, strict=True))) for values in _records(text, mark, _SACCT)]


def parse_sstat(text: str) -> dict[str, Use]:
    """What running steps use, by their ids."""
    found = {}
    for line in text.splitlines():
        values = line.split("|")
        if len(values) == len(_SSTAT) + 1:
            of = dict(zip(_SSTAT, values, strict=False))
            cpu = parse_tres(of["TRESUsageInTot"]).get("cpu", "")
            found[of["JobID"]] = _use(of, _cpu_seconds(cpu))
    return found


def merged(rows: Iterable[StepUse], live: dict[str, Use]) -> tuple[StepUse, ...]:
    """Rows of sacct with what sstat says of those that run, and steps that sacct does not know."""
    known = tuple(
        msgspec.structs.replace(row, use=live.get(row.raw_id) or live.get(row.step_id) or row.use)
        if row.runs
        else row
        for row in rows
    )
    ids = {each for row in known for each in (row.step_id, row.raw_id)}
    others = [step for step in live if step not in ids]  # just begun, or slurmdbd is away
    return (*known, *(StepUse(step_id=s, raw_id=s, state="RUNNING", use=live[s]) for s in others))


def share(part: float | None, whole: float | None) -> float | None:
    """How much of the whole; None when either is unknown, or there is nothing to use."""
    return part / whole if part is not None and whole else None


def _records(text: str, mark: str, fields: Sequence[str]) -> list[list[str]]:
    parts, size = text.split(mark), len(fields)
    records = [parts[at : at + size] for at in range(0, len(parts) - size, size)]
    return [[record[0].lstrip("\n"), *record[1:]] for record in records]


def _row(of: dict[str, str]) -> StepUse:
    state = of["State"].partition(" ")[0]  # `CANCELLED by 10001`
    measured = parse_tres(of["TRESUsageInTot"])
    cpu = _cpu_seconds(of["TotalCPU"])
    # An allocation has the sum of those steps that ended; a step that was not measured has 0.
    known = "." in of["JobID"] and state != "RUNNING" and (cpu or "mem" in measured)
    return StepUse(
        step_id=of["JobID"],
        raw_id=of["JobIDRaw"],
        state=state,
        started=epoch(of["Start"]),
        ended=epoch(of["End"]),
        elapsed=_number(of["ElapsedRaw"]),
        nodes=_number(of["NNodes"]),
        cpus=_number(of["NCPUS"]),
        mem_asked=size_in_bytes(parse_tres(of["AllocTRES"]).get("mem", "")),
        exit_code="" if state == "RUNNING" else of["ExitCode"],
        name=of["JobName"],
        use=_use(of, cpu if known else None),
    )


def _use(of: dict[str, str], cpu_seconds: float | None) -> Use:
    # Of a step that runs, the total is that of now, and the most is that of one task.
    sizes = [_memory(of["TRESUsageInMax"]), _memory(of["TRESUsageInTot"])]
    return Use(
        tasks=_number(of["NTasks"]),
        cpu_seconds=cpu_seconds,
        mem_peak=max((size for size in sizes if size is not None), default=None),
        gpu_percent=_number(parse_tres(of["TRESUsageInAve"]).get("gres/gpuutil", "")),
    )


def _memory(usage: str) -> float | None:
    return _sensible(size_in_bytes(parse_tres(usage).get("mem", "")), 2**56)


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and int(text) < _ABSURD else None


def _cpu_seconds(text: str) -> float | None:
    """Of `[D-]HH:MM:SS` or `MM:SS.mmm`."""
    clock, _, fraction = text.partition(".")
    whole = parse_elapsed(clock)
    if whole is None or not (fraction.isdecimal() or not fraction):
        return None
    return _sensible(whole + float(f"0.{fraction or 0}"), _ABSURD)


def _sensible(value: float | None, most: float) -> float | None:
    return value if value is not None and 0 <= value < most else None
