"""What ended runs held, used and cost, and what would have fitted: for the mails about jobs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, select

from slurmkit.formats.durations import format_duration
from slurmkit.formats.memory import format_mib
from slurmkit_accounting.calendar import Zone, split_window
from slurmkit_accounting.ledger.bulk_write import find_rows
from slurmkit_accounting.ledger.schema.runs import clusters, runs
from slurmkit_accounting.reports.efficiency import (
    HeldResources,
    ResourceUse,
    held_request,
    smaller_request,
)
from slurmkit_accounting.reports.rates import Rates
from slurmkit_accounting.reports.tally import Tally
from slurmkit_accounting.usage.bins import UsageRun, parse_alloc_tres, usage_in_window

_MORE = (
    "job_id_raw", "time_limit", "gpu_mem_peak_mib", "gpu_idle_seconds",
)  # fmt: skip
_HELD = UsageRun._fields[:-1]
_IDLE_SHOWN = 0.05  # share of the GPUs' time; less is not reported
_TOO_LITTLE = frozenset(("TIMEOUT", "OUT_OF_MEMORY"))  # a run that needed more than it asked for


class EndedRun(msgspec.Struct, frozen=True):
    """A run that has ended, as the ledger has it."""

    run: UsageRun
    job_id_raw: int
    time_limit: str
    gpu_mem_peak_mib: int | None
    gpu_idle_seconds: int | None

    @property
    def seconds(self) -> int:
        """Run time; 0 for a run that never started."""
        return max((self.run.end or 0) - self.run.start, 0) if self.run.start is not None else 0


class UseLine(msgspec.Struct, frozen=True):
    """How much was used of what was asked for.

    Attributes:
        name: `CPU`, `Memory`, `GPU`, `Time`.
        used: in words.
        share: of what was asked for, 0 to 1 or a little more.
    """

    name: str
    used: str
    share: float


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What runs of one job held, used and cost; several if it is an array.

    Attributes:
        uses: what was measured; what was not is left out.
        asked: sbatch's options for what most of the runs held.
        fitted: the options that would have been enough for all runs that completed, if they are
            less; empty if a run needed more than it asked for.
        gpu_hours: in whole GPUs; None where Slurm does not count GPUs.
        cost: with its currency; empty without prices.
        prices_since: the day since which these prices hold; empty without prices.
    """

    uses: tuple[UseLine, ...] = ()
    asked: str = ""
    fitted: str = ""
    gpu_hours: float | None = None
    cost: str = ""
    prices_since: str = ""


def load_ended_runs(
    connection: Connection, cluster: str, job_ids: Collection[int]
) -> dict[int, list[EndedRun]]:
    """Load the runs of jobs that have ended, by Slurm's own job id.

    Args:
        connection: to the ledger.
        cluster: name of the cluster.
        job_ids: Slurm's own ids.
    """
    lab = connection.scalar(select(clusters.c.id).where(clusters.c.name == cluster))
    if lab is None:
        return {}
    columns = (*_HELD, *_MORE)
    keys = [(lab, job) for job in job_ids]
    found: dict[int, list[EndedRun]] = defaultdict(list)
    for values in find_rows(connection, runs, columns, ("cluster_id", "job_id_raw"), keys):
        more = dict(zip(_MORE, values[len(_HELD) :], strict=True))
        ended = EndedRun(UsageRun(*values[: len(_HELD)]), **more)
        if ended.run.end is not None:
            found[ended.job_id_raw].append(ended)
    return found


def latest_run(ended: Iterable[EndedRun], since: int) -> EndedRun | None:
    """Return the last run that ended at or after a time; None if there is none.

    Earlier ones are of the time before the job was requeued, or of another job.
    """
    late = [each for each in ended if (each.run.end or 0) >= since]
    return max(late, key=lambda each: each.run.submit, default=None)


def summarize_runs(
    ended: Sequence[EndedRun], rates: Rates, zone: Zone, *, tracked: bool
) -> RunSummary:
    """Summarize what runs of one job held, used and cost.

    Args:
        ended: the runs; those that never started count for nothing.
        rates: weights and prices.
        zone: time zone of the days from which prices hold.
        tracked: whether the cluster counts GPUs.
    """
    ran = [each for each in ended if each.seconds]
    if not ran:
        return RunSummary()
    shapes = Counter(map(_shape, ran))
    shape = shapes.most_common(1)[0][0]
    alike = [each for each in ran if _shape(each) == shape]
    completed = [each for each in alike if each.run.state == "COMPLETED"]
    cut_short = any(each.run.state in _TOO_LITTLE for each in alike)
    fitted = smaller_request(shape, _add_up(completed)) if completed and not cut_short else ()
    tally = _tally(ran, rates, zone, tracked=tracked)
    return RunSummary(
        uses=tuple(_use_lines(shape, alike)),
        asked=" ".join(held_request(shape)),
        fitted=" ".join(fitted),
        **tally,
    )


def _shape(ended: EndedRun) -> HeldResources:
    run, held = ended.run, parse_alloc_tres(ended.run.alloc_tres)
    gpu_type = held.gpus[0][0] if len(held.gpus) == 1 else ""
    return HeldResources(run.nodes, run.cpus, run.gpus, held.mem_mib, ended.time_limit, gpu_type)


def _add_up(ended: Sequence[EndedRun]) -> ResourceUse:
    """Add up the use of runs; what was not measured counts for nothing."""
    total = ResourceUse()
    for each in ended:
        run, seconds = each.run, each.seconds
        cpu, mem, gpu = run.cpu_used_ms, run.mem_peak_mib, run.gpu_used_permille
        use = ResourceUse(jobs=1, seconds=seconds, longest=seconds)
        if cpu is not None:
            use.cpu_seconds, use.cpu_ms, use.most_cpus = seconds, cpu, cpu / (seconds * 1000)
        if mem is not None:
            use.mem_seconds, use.mem, use.most_mem = seconds, mem * seconds, mem
        if gpu is not None:
            use.gpu_seconds, use.gpu, use.most_gpu = seconds, gpu * seconds, gpu
        if each.gpu_mem_peak_mib is not None:
            use.most_gpu_mem, use.gpu_mem_known = each.gpu_mem_peak_mib, 1
        total.add(use)
    return total


def _use_lines(shape: HeldResources, ended: Sequence[EndedRun]) -> list[UseLine]:
    use = _add_up(ended)
    several = use.jobs > 1
    lines = []
    if use.cpu_seconds and shape.cpus:
        busy = use.cpu_ms / 1000 / use.cpu_seconds
        lines.append(
            UseLine("CPU", f"{busy:.1f} of {shape.cpus} busy on average", busy / shape.cpus)
        )
    if use.mem_seconds and shape.mem_mib:
        most = "most of any task: " if several else ""
        words = f"{most}{format_mib(use.most_mem)} of {format_mib(shape.mem_mib)}"
        lines.append(UseLine("Memory", words, use.most_mem / shape.mem_mib))
    if use.gpu_seconds and shape.gpus:
        share = use.gpu / 1000 / use.gpu_seconds
        lines.append(
            UseLine(
                "GPU", f"{share:.0%} of {_count(shape.gpus, 'GPU')}{_gpu_more(use, ended)}", share
            )
        )
    if shape.time_limit.isdecimal() and int(shape.time_limit):
        limit = int(shape.time_limit) * 60
        longest = "longest task: " if several else ""
        words = f"{longest}{format_duration(use.longest)} of {format_duration(limit)}"
        lines.append(UseLine("Time", words, use.longest / limit))
    return lines


def _gpu_more(use: ResourceUse, ended: Sequence[EndedRun]) -> str:
    words = f", at most {format_mib(use.most_gpu_mem)} on one" if use.gpu_mem_known else ""
    known = [each for each in ended if each.gpu_idle_seconds is not None]
    held = sum(each.run.gpus * each.seconds for each in known)
    idle = sum(each.gpu_idle_seconds or 0 for each in known) / held if held else 0.0
    return f"{words}; idle for {min(idle, 1.0):.0%} of the time" if idle >= _IDLE_SHOWN else words


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _tally(ended: Sequence[EndedRun], rates: Rates, zone: Zone, *, tracked: bool) -> dict[str, Any]:
    """Return GPU-hours and cost, as `report usage` counts them."""
    begin = min(each.run.start or 0 for each in ended)
    end = max(each.run.end or 0 for each in ended)
    parts = split_window((begin, end + 1), zone, (), rates.dates)
    tally = Tally()
    tally.tracked = tracked
    for each in ended:
        for number, part in enumerate(parts):
            for key, sums in usage_in_window(each.run, part.begin, part.end):
                tally.add(key, number, sums, first=False)
    values = tally.values(rates, parts)
    cost = values["cost"]
    known = isinstance(cost, float)
    days = [day for day in rates.dates if day <= parts[-1].day]
    return {
        "gpu_hours": values["gpu_hours"],
        "cost": f"{cost:,.2f} {rates.currency}" if known else "",
        "prices_since": str(max(days)) if known and days else "",
    }
