"""Which measured facts of a run differ from the same person's earlier runs of that job name.

It says what differs and by how much. Whether that made the run slower, it does not say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, NamedTuple, cast

from slurmkit.config.plugins import load_plugin
from slurmkit.diagnose.earlier_runs import format_length
from slurmkit.diagnose.gpus_now import gpu_sources
from slurmkit.diagnose.model import ComparedFact, RunComparison
from slurmkit.diagnose.snapshot import expand_node_list
from slurmkit.errors import NoLedger, SlurmError, SlurmkitError
from slurmkit.formats.display import join_names
from slurmkit.formats.memory import format_bytes, format_mib
from slurmkit.jobs.steps import read_step_uses
from slurmkit.state.gpu_metrics import MeasuredRun, RunBesideEarlier, RunHistory

if TYPE_CHECKING:
    from slurmkit.jobs.job import JobCluster
    from slurmkit.slurm.commands import SlurmCommands

_APART = 0.1  # relative difference from which a number differs
_POINTS = 0.05  # and of shares the difference, 0 to 1
_NO_CLOCKS = "nobody keeps the clocks of GPUs; slurmkit why shows throttling while a job runs"


class RunNow(NamedTuple):
    """The run to compare, as Slurm knows it; times are epoch seconds.

    Attributes:
        started: of a running job.
        ended: None if it runs.
        elapsed: seconds that it has run until now; None if it has ended.
    """

    job_id: str
    started: int | None = None
    ended: int | None = None
    elapsed: float | None = None


def compare_with_earlier(
    cluster: JobCluster, run: RunNow
) -> tuple[RunComparison | None, tuple[str, ...]]:
    """Compare a run with the runs before it, from the first source that keeps runs.

    Returns:
        The comparison, and notes: why there is none. Without a ledger there is neither.
    """
    for source in gpu_sources():
        try:
            history = cast("Callable[[], object]", load_plugin("gpu_metrics", source))()
        except SlurmkitError:  # the extra of the ledger is not installed, or a section is wrong
            continue
        if not hasattr(history, "read_beside_earlier"):
            continue
        try:
            found = cast("RunHistory", history).read_beside_earlier(
                run.job_id, started=run.started, ended=run.ended
            )
        except NoLedger:
            return None, ()
        except SlurmkitError as error:
            return None, (f"not compared with earlier runs: {error}",)
        read = {} if run.elapsed is not None else _read_bytes(cluster.slurm, found)
        return compare_runs(found, run.elapsed, read, source), ()
    return None, ()


def _read_bytes(slurm: SlurmCommands, found: RunBesideEarlier) -> Mapping[int, float]:
    """Return the bytes that ended runs have read, by Slurm's own job id, where it measured that.

    A job id that Slurm has used again belongs to another run, and is left out.
    """
    starts = {str(each.job_id_raw): each.start for each in (found.run, *found.earlier)}
    try:
        rows = read_step_uses(slurm, list(starts)).rows
    except SlurmError:
        return {}
    ours = {
        row.raw_id for row in rows if row.is_allocation and starts.get(row.raw_id) == row.started
    }
    found_bytes: dict[int, float] = {}
    for row in rows:
        job, _, step = row.raw_id.partition(".")
        if step and job in ours and row.use.read_bytes is not None:
            found_bytes[int(job)] = found_bytes.get(int(job), 0.0) + row.use.read_bytes
    return found_bytes


def compare_runs(
    found: RunBesideEarlier,
    elapsed: float | None,
    read_bytes: Mapping[int, float],
    source: str,
) -> RunComparison:
    """Compare a run with the runs before it.

    Args:
        found: the runs.
        elapsed: seconds that it has run until now; None if it has ended.
        read_bytes: bytes that runs have read, by Slurm's own job id; unknown ones are left out.
        source: who keeps these runs.
    """
    lengths = [each.seconds for each in found.earlier if each.seconds]
    now = found.run.seconds if elapsed is None else elapsed
    if not lengths or now is None:
        text = "unknown: no run of this job name completed in the 30 days before it"
        return RunComparison(text=text, source=source, taken=found.taken)
    usual = median(lengths)
    is_slower = now >= (1 + _APART) * max(lengths)
    longer = now / usual - 1
    facts = tuple(_facts(found, read_bytes, source, is_ended=elapsed is None))
    length = _length_sentence(now, lengths, is_running=elapsed is not None)
    return RunComparison(
        text=f"{length}; {what_differs(facts) or 'nothing else that is known differs'}",
        longer=longer if elapsed is None or longer > 0 else None,
        is_slower=is_slower,
        earlier=tuple(each.job_id for each in found.earlier),
        facts=facts,
        source=source,
        taken=found.taken,
    )


def what_differs(facts: Sequence[ComparedFact]) -> str:
    """Return `what differs: GPU use 61% (before: 90% to 94%), …`; empty if nothing does."""
    differing = [
        f"{each.about} {each.now} (before: {each.earlier})" for each in facts if each.differs
    ]
    return f"what differs: {', '.join(differing)}" if differing else ""


def _length_sentence(now: float, lengths: Sequence[int], *, is_running: bool) -> str:
    """Return `it took 3 h, 50 % longer than the median of its 6 earlier runs (2 h; …)`."""
    usual = median(lengths)
    took = "it has run for" if is_running else "it took"
    apart = round((now / usual - 1) * 100)
    runs = (
        "its earlier run" if len(lengths) == 1 else f"the median of its {len(lengths)} earlier runs"
    )
    if is_running and now <= usual:
        compared = f"{runs} took {format_length(round(usual))}"
        return f"{took} {format_length(round(now))}; {compared}"
    how = "as long as" if apart == 0 else f"{abs(apart)} % {'longer' if apart > 0 else 'less'} than"
    spread = format_length(round(usual))
    shortest, longest = format_length(min(lengths)), format_length(max(lengths))
    if shortest != longest:
        spread += f"; {shortest} to {longest}"
    return f"{took} {format_length(round(now))}, {how} {runs} ({spread})"


def _facts(
    found: RunBesideEarlier, read_bytes: Mapping[int, float], source: str, *, is_ended: bool
) -> Iterator[ComparedFact]:
    run, earlier = found.run, found.earlier
    while_running = "" if is_ended else "Slurm tells it when the job has ended"
    numbers = (
        ("GPU use", [each.gpu_use for each in (run, *earlier)], _percent, _POINTS, ""),
        ("power of a GPU", [each.watts for each in (run, *earlier)], _watts, 0.0, ""),
        (
            "busy CPUs",
            [each.cpus_busy for each in (run, *earlier)],
            lambda cpus: f"{cpus:.1f}",
            _POINTS,
            while_running,
        ),
        (
            "most memory",
            [each.mem_peak_mib for each in (run, *earlier)],
            lambda mib: format_mib(round(mib)),
            0.0,
            while_running,
        ),
        (
            "data read",
            [read_bytes.get(each.job_id_raw) for each in (run, *earlier)],
            format_bytes,
            2.0**20,
            while_running,
        ),
    )
    had_gpus = any(each.gpus for each in (run, *earlier))
    for about, values, words, least, why in numbers:
        if had_gpus or "GPU" not in about:
            by = "sacct" if about == "data read" else source
            yield _number_fact(about, values, words, least, why or "not measured", by)
    if had_gpus:
        yield ComparedFact(about="throttling", unknown=_NO_CLOCKS)
    yield _node_fact(run, earlier, source)
    texts: tuple[tuple[str, Callable[[MeasuredRun], str]], ...] = (
        ("nodes held", lambda each: str(each.nodes)),
        ("GPUs held", lambda each: _gpus(each.gpus)),
        ("CPUs held", lambda each: str(each.cpus)),
        ("memory held", lambda each: format_mib(each.mem_mib) if each.mem_mib else ""),
        ("partition", lambda each: each.partition),
    )
    for about, tell in texts:
        if about != "GPUs held" or had_gpus:
            yield _text_fact(about, tell(run), [tell(each) for each in earlier], source)


def _number_fact(
    about: str,
    values: Sequence[float | None],
    words: Callable[[float], str],
    least: float,
    why: str,
    source: str,
) -> ComparedFact:
    """Compare a number of a run with those of earlier runs.

    Args:
        about: what is compared.
        values: of the run, then of the earlier ones; None is unknown.
        words: formats a value.
        least: absolute difference below which values are alike.
        why: why values are unknown.
        source: where the values come from.
    """
    now, known = values[0], [each for each in values[1:] if each is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    span = words(low) if words(low) == words(high) else f"{words(low)} to {words(high)}"
    if len(known) < len(values) - 1:
        span += f", known of {len(known)} of {len(values) - 1}"
    earlier = span if known else ""
    if now is None or not known:
        which = "of this run" if known else "of the earlier runs" if now is not None else ""
        unknown = f"{which}: {why}" if which else why
        shown = "" if now is None else words(now)
        return ComparedFact(about=about, now=shown, earlier=earlier, unknown=unknown, source=source)
    apart = max(now - high, low - now)
    bound = high if now > high else low
    differs = apart > 0 and apart >= least and apart >= _APART * bound
    return ComparedFact(
        about=about, now=words(now), earlier=earlier, differs=differs, source=source
    )


def _text_fact(about: str, now: str, earlier: Sequence[str], source: str) -> ComparedFact:
    known = sorted({each for each in earlier if each})
    if not now or not known:
        return ComparedFact(about=about, now=now, unknown="not recorded", source=source)
    return ComparedFact(
        about=about,
        now=now,
        earlier=" or ".join(known),
        differs=now not in known,
        source=source,
    )


def _node_fact(run: MeasuredRun, earlier: Sequence[MeasuredRun], source: str) -> ComparedFact:
    """Compare the nodes: they differ if the run had one that no earlier run had."""
    try:
        own = expand_node_list(run.node_list)
        before = sorted({node for each in earlier for node in expand_node_list(each.node_list)})
    except ValueError:  # cut off by sacct
        own, before = (), []
    if not own or not before:
        return ComparedFact(about="node", now=run.node_list, unknown="no node list", source=source)
    new = [node for node in own if node not in before]
    return ComparedFact(
        about="node" if len(new or own) == 1 else "nodes",
        now=join_names(new) if new else run.node_list,
        earlier=join_names(before),
        differs=bool(new),
        source=source,
    )


def _gpus(held: Mapping[str, int]) -> str:
    """Return `4 a100`; `none` for no GPU."""
    return ", ".join(f"{count} {kind}".strip() for kind, count in held.items()) or "none"


def _percent(share: float) -> str:
    return f"{share:.0%}"


def _watts(watts: float) -> str:
    return f"{watts:.0f} W"
