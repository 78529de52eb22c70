"""Explain a running job: is it slow or stuck?"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from slurmkit.diagnose.earlier_runs import (
    EarlierRuns,
    earlier_fact,
    earlier_finding,
    read_earlier_runs,
)
from slurmkit.diagnose.gpus_now import (
    HeldGpu,
    gpu_fact,
    gpu_findings,
    gpus_of_job,
    mean_use,
    read_samples,
    samples_since,
)
from slurmkit.diagnose.job_memory import (
    NodeMemory,
    measured_memory,
    memory_fact,
    near_limit,
    watched_memory,
    why_no_room,
)
from slurmkit.diagnose.log_pace import LogPace, pace_fact, pace_finding, read_pace
from slurmkit.diagnose.model import (
    FINDING_KINDS,
    RankStack,
    RunningExplanation,
    RunningFact,
    RunningFinding,
)
from slurmkit.diagnose.probe import Probe, probe_job, read_stacks
from slurmkit.diagnose.ranks import (
    JobRank,
    find_ranks,
    nccl_finding,
    parse_nccl_problems,
    rank_findings,
    suspects,
    to_watched,
    usual_wait,
)
from slurmkit.errors import BadInput, SlurmError
from slurmkit.formats.display import format_seconds, join_names
from slurmkit.formats.memory import format_bytes
from slurmkit.formats.scontrol import parse_settings
from slurmkit.jobs.steps import (
    StepsSnapshot,
    compute_efficiencies,
    read_running_steps,
    read_step_uses,
)
from slurmkit.slurm.commands import SlurmCommands
from slurmkit.slurm.machine import machine_of
from slurmkit.state.gpu_metrics import IDLE_BELOW
from slurmkit.state.queue_rows import QueueRow

if TYPE_CHECKING:
    from slurmkit.jobs.job import JobCluster

_LOW_GPUS = 30  # percent; a job whose GPUs do less waits for something else
_FULL_CPUS = 0.85
_SILENT = 300  # seconds
_FRESH = 60  # seconds; a job whose log is as new as this makes progress
_MOST_STACKS = 8
# How the answer begins, by the most telling finding.
_ANSWERS = {
    "stopped": "is stuck: ",
    "blocked": "is stuck, or waits for a very slow disk: ",
    "nccl": "seems stuck: ",
    "asleep-all": "may be stuck: ",
    "loader": "waits for the data of a rank: ",
    "busy": "waits for a rank: ",
    "asleep": "may be stuck: ",
    "throttled": "is slow: ",
    "data": "waits for its data: ",
    "idle": "does not use its GPUs: ",
    "uneven": "uses its GPUs unevenly: ",
    "memory": "is near its memory limit: ",
    "slower": "takes longer than its earlier runs: ",
}
# Findings that only follow from another one.
_FOLLOW = {
    "stopped": ("nccl", "asleep-all", "data", "idle", "uneven", "silent", "slower"),
    "blocked": ("nccl", "asleep-all", "data", "idle", "uneven", "silent"),
    "nccl": ("asleep-all", "data", "idle", "uneven", "silent"),
    "asleep-all": ("data", "idle", "silent"),
    "loader": ("asleep-all", "data", "idle", "uneven"),
    "busy": ("data", "idle", "uneven"),
    "asleep": ("data", "idle", "uneven"),
    "data": ("idle",),
}


class RunningQuestion(msgspec.Struct, frozen=True):
    """How far one may look into a running job.

    Attributes:
        probe: start a short step in the job, to look at its processes. It works for one's own
            jobs only.
        stacks: also read the Python stacks of the ranks that stand out.
    """

    probe: bool = False
    stacks: bool = False


class RunningAnswer(msgspec.Struct, frozen=True):
    """What `explain_running` found: one sentence, the facts, and what could not be found out.

    Attributes:
        step_failed: whether no node answered the step: perhaps there is no job any more.
    """

    answer: str
    running: RunningExplanation
    notes: tuple[str, ...]
    step_failed: bool = False


class _Facts(msgspec.Struct, frozen=True, kw_only=True):
    """All that was read about a running job.

    Attributes:
        elapsed: seconds since its start.
        cpu_share: share of its CPUs that it used while it was watched; None if unknown.
        memory: by node.
        steps: what Slurm has measured; None if it was not asked.
        taken: epoch seconds.
    """

    row: QueueRow
    elapsed: float | None
    gpus: tuple[HeldGpu, ...]
    gpu_problem: str
    probe: Probe
    ranks: tuple[JobRank, ...]
    cpu_share: float | None
    memory: Mapping[str, NodeMemory]
    steps: StepsSnapshot | None
    pace: LogPace | str
    earlier: EarlierRuns
    nccl: tuple[str, ...]
    taken: float


def explain_running(
    cluster: JobCluster, row: QueueRow, question: RunningQuestion, runs: str
) -> RunningAnswer:
    """Explain whether a running job is slow or stuck.

    Args:
        cluster: of the job.
        row: the running job.
        question: how far to look.
        runs: where and since when it runs, in words.
    """
    is_own = _is_own(cluster, row)
    facts = _read_facts(cluster, row, probe=question.probe and is_own)
    findings = find_problems(facts)
    stacks: tuple[RankStack, ...] = ()
    problems: tuple[str, ...] = ()
    if question.stacks and facts.probe.nodes:
        stacks, problems = _read_stacks(cluster, row, facts.ranks, findings)
    shown = tuple(
        msgspec.structs.replace(each, advice=each.advice.replace(" JOB", f" {row.job_id}"))
        for each in findings
    )
    running = RunningExplanation(
        runs=runs,
        findings=shown,
        facts=tuple(_facts(facts)),
        probed=bool(facts.probe.nodes),
        ranks=tuple(map(to_watched, facts.ranks)),
        nccl=facts.nccl,
        stacks=stacks,
    )
    notes = [*_notes(row, question, is_own=is_own), *facts.probe.problems, *problems]
    return RunningAnswer(
        _answer(facts, running), running, tuple(notes), step_failed=facts.probe.failed
    )


def _is_own(cluster: JobCluster, row: QueueRow) -> bool:
    try:
        return machine_of(cluster.slurm).user == row.user
    except BadInput:  # this user has no name
        return False


def _notes(row: QueueRow, question: RunningQuestion, *, is_own: bool) -> Iterator[str]:
    if not is_own:
        yield (
            f"only {row.user} can look at the processes of this job"
            f"{' and read their stacks' if question.stacks else ''}; the rest is from squeue,"
            " sacct, and samples of its GPUs"
        )
    elif not question.probe:
        yield "its nodes were not asked what its processes do"


def _read_facts(cluster: JobCluster, row: QueueRow, *, probe: bool) -> _Facts:
    now = time.time()
    held, problem = _held_gpus(cluster, row)
    steps = _read_steps(cluster, row) if probe and _ends_by_samples(cluster.slurm) else None
    measured = None if steps is None else measured_memory(row, steps)
    no_room = "" if steps is None else why_no_room(measured)
    if no_room or not probe:
        probed = Probe({}, (no_room,) if no_room else ())
    else:
        probed = probe_job(cluster.slurm, row, held)
    memory = watched_memory(row, probed)
    if measured is not None and not memory:
        memory = {"one of its nodes" if row.nodes > 1 else row.node_list: measured}
    gpus: tuple[HeldGpu, ...] = ()
    if held:
        sampled = samples_since(read_samples(list(held)), row.started)
        driver = [each.gpus.problem for each in probed.nodes.values() if each.gpus.problem]
        problem = "; ".join(filter(None, dict.fromkeys([*driver, sampled.problem])))
        gpus = gpus_of_job(held, sampled, probed.nodes)
    if steps is None and (not probed.nodes or (row.gpus and mean_use(gpus) is None)):
        steps = _read_steps(cluster, row)
    return _Facts(
        row=row,
        elapsed=None if row.started is None else max(0.0, now - row.started),
        gpus=gpus,
        gpu_problem=problem,
        probe=probed,
        ranks=find_ranks(probed.nodes),
        cpu_share=_cpu_share(row, probed),
        memory=memory,
        steps=steps,
        pace=read_pace(cluster, row.job_id, row.started, now),
        earlier=read_earlier_runs(cluster.slurm, row, now),
        nccl=tuple(
            line for node in probed.nodes.values() for line in parse_nccl_problems(node.nccl.text)
        ),
        taken=time.time(),
    )


def _ends_by_samples(slurm: SlurmCommands) -> bool:
    """Return whether Slurm ends jobs whose sampled memory, our step's too, is above their limit.

    Where cgroups limit memory instead, the step itself looks at the job's cgroup, which tells what
    counts: a sample may have the page cache in it, and shared pages several times.
    """
    try:
        config = parse_settings(slurm.run(["scontrol", "show", "config"]))
    except SlurmError:
        return True
    return "overmemorykill" in config.get("JobAcctGatherParams", "").lower()


def _held_gpus(cluster: JobCluster, row: QueueRow) -> tuple[dict[str, list[int]], str]:
    """Return Slurm's indices of the job's GPUs by node, and why they are unknown if so."""
    if "gres/" not in row.tres and not row.gpus:
        return {}, ""
    try:
        held = cluster.job(row.job_id).info().gpu_indices
    except SlurmError as error:
        return {}, str(error)
    return held, "" if held else "Slurm does not say which whole GPUs it holds"


def _cpu_share(row: QueueRow, probed: Probe) -> float | None:
    """Return the CPU time of all processes as a share of the job's CPUs on the nodes asked."""
    used = 0.0
    for node in probed.nodes.values():
        if node.processes is None:
            return None
        used += sum(each.cpu or 0.0 for each in node.processes.processes) / max(
            node.processes.seconds, 0.1
        )
    cpus = row.cpus * len(probed.nodes) / max(row.nodes, 1)
    return used / cpus if probed.nodes and cpus else None


def _wanted_cpus(probed: Probe) -> float:
    """Return how many processes ran or were ready to run, on average over the looks."""
    return sum(
        each.states.get("R", 0) / max(sum(each.states.values()), 1)
        for node in probed.nodes.values()
        if node.processes
        for each in node.processes.processes
    )


def find_problems(facts: _Facts) -> tuple[RunningFinding, ...]:
    """Return what is wrong with a job, the most telling first, without what only follows."""
    silent = None if isinstance(facts.pace, str) else pace_finding(facts.pace)
    found = [
        *rank_findings(facts.ranks, facts.taken),
        *filter(None, [nccl_finding(facts.nccl, facts.taken)]),
        *_asleep_all(facts),
        *_beside_cpus(gpu_findings(facts.gpus, facts.elapsed or 0), facts),
        *_waits_for_data(facts),
        *near_limit(facts.memory, _memory_taken(facts)),
        *filter(None, [earlier_finding(facts.earlier, facts.elapsed), silent]),
    ]
    if not isinstance(facts.pace, str) and facts.pace.size and facts.pace.silent < _FRESH:
        found = [each for each in found if not _is_passing(each)]
    kinds = {each.kind for each in found}
    follow = {each for kind in kinds for each in _FOLLOW.get(kind, ())}
    left = [each for each in found if each.kind not in follow]
    return tuple(sorted(left, key=lambda each: FINDING_KINDS.index(each.kind)))


def _memory_taken(facts: _Facts) -> float:
    return facts.taken if facts.probe.nodes or facts.steps is None else facts.steps.taken


def _is_passing(finding: RunningFinding) -> bool:
    """Tell whether a finding is usual in a job that makes progress.

    A rank that gives work to the others sleeps, and ranks are a few operations of NCCL apart.
    """
    return finding.kind == "asleep" or (
        finding.kind == "nccl" and "different collective operation counts" in finding.text
    )


def _asleep_all(facts: _Facts) -> Iterator[RunningFinding]:
    """Find a job all of whose processes sleep, while its GPUs and its log stand still, too.

    A process may also sleep while its GPU computes. Where nobody knows what the GPUs do, the log
    must be silent for longer than is usual for this job.
    """
    ranks, pace = facts.ranks, facts.pace
    if not ranks or isinstance(pace, str) or pace.silent < _SILENT:
        return
    if len(facts.probe.nodes) < facts.row.nodes:  # others may compute
        return
    is_still = all(rank.is_asleep for rank in ranks) and (facts.cpu_share or 0) < 0.05
    use = mean_use(facts.gpus)
    if use is None and facts.row.gpus and pace_finding(pace) is None:
        return
    if is_still and (use is None or use < 5):
        who = f"all {len(ranks)} ranks sleep" if len(ranks) > 1 else f"{ranks[0].title} sleeps"
        kinds = {usual_wait(rank.main)[1] for rank in ranks}
        where = f" (in {kinds.pop()})" if len(kinds) == 1 and "" not in kinds else ""
        gpus = "" if use is None else f", its GPUs are at {use:.0f} %"
        yield RunningFinding(
            kind="asleep-all",
            text=f"{who}{where}{gpus}, and its log is silent for {format_seconds(pace.silent)}",
            source="/proc",
            taken=facts.taken,
            advice=(
                "slurmkit why JOB --stacks shows where the program waits"
                if any(rank.number is not None for rank in ranks)
                else "a server that waits for requests does the same; if this is none: slurmkit why"
                " JOB --stacks shows where the program waits"
            ),
        )


def _has_full_cpus(facts: _Facts) -> bool:
    """Return whether the job uses its CPUs fully, or has work for all of them."""
    share = facts.cpu_share
    return share is not None and (
        share >= _FULL_CPUS or _wanted_cpus(facts.probe) >= facts.row.cpus
    )


def _cpu_text(facts: _Facts) -> str:
    share, wanted = facts.cpu_share or 0.0, _wanted_cpus(facts.probe)
    text = f"CPUs {share:.0%} of {facts.row.cpus}"
    if share >= _FULL_CPUS:
        return text
    return text + f", which {wanted:.0f} process{'es want' if round(wanted) > 1 else ' wants'}"


def _was_used(gpus: Sequence[HeldGpu]) -> bool:
    """Return whether one of the GPUs did anything that is known."""
    return any(max(gpu.utilization or 0, gpu.busiest or 0) >= IDLE_BELOW for gpu in gpus)


def _beside_cpus(findings: Iterable[RunningFinding], facts: _Facts) -> Iterator[RunningFinding]:
    """Say of GPUs that do nothing that the CPUs are busy, if so."""
    for each in findings:
        if each.kind == "idle" and not _was_used(facts.gpus) and _has_full_cpus(facts):
            yield msgspec.structs.replace(
                each,
                text=f"{each.text}; {_cpu_text(facts)}",
                advice="its program computes on CPUs, or prepares data for long: does it find a"
                " GPU? See the guide, Is my job using its GPUs?",
            )
        else:
            yield each


def _waits_for_data(facts: _Facts) -> Iterator[RunningFinding]:
    use = mean_use(facts.gpus)
    if (use is not None and use >= _LOW_GPUS) or (facts.elapsed or 0) < 60:
        return
    gpus = "" if use is None else f"GPUs {use:.0f} %, "
    reading = [
        rank
        for rank in facts.ranks
        if any(usual_wait(each)[0] == "file" for each in (rank.main, *rank.helpers))
    ]
    if use is not None and _was_used(facts.gpus) and _has_full_cpus(facts):
        text = f"{gpus}{_cpu_text(facts)}"
        advice = "its CPUs cannot prepare data fast enough: ask for more, as with --cpus-per-gpu=8"
    elif reading and len(reading) * 2 >= len(facts.ranks):
        all_of_them = len(facts.ranks)
        count = f"{len(reading)} of {all_of_them} ranks wait"
        count = "its process waits" if all_of_them == 1 else count
        text = f"{gpus}{count} for a file system"
        advice = "read from a faster disk, and not thousands of small files"
    else:
        return
    oldest = min(facts.gpus, key=lambda gpu: gpu.taken, default=None)
    yield RunningFinding(
        kind="data",
        text=text,
        source="/proc" if oldest is None else f"{oldest.source} and /proc",
        taken=facts.taken if oldest is None else oldest.taken,
        advice=advice,
    )


def _facts(facts: _Facts) -> Iterator[RunningFact]:
    row = facts.row
    gpus = gpu_fact(facts.gpus, row.gpus, facts.gpu_problem)
    if gpus is None and any(each in row.tres for each in ("gres/shard", "gres/mps")):
        text = f"unknown: it holds parts of GPUs; see slurmkit job {row.job_id} --gpus"
        gpus = RunningFact(about="GPUs", text=text, source="squeue")
    is_unknown = gpus is not None and mean_use(facts.gpus) is None
    if gpus is not None:
        gpus = (_sampled_by_slurm(facts.steps) if is_unknown and row.gpus else None) or gpus
        source, taken = gpus.source or "samples of its GPUs", gpus.taken or facts.taken
        yield msgspec.structs.replace(gpus, source=source, taken=taken)
    if facts.probe.nodes:
        yield from _watched_facts(facts)
    elif facts.steps is not None:
        yield from _measured_facts(facts, facts.steps)
    yield pace_fact(facts.pace, facts.elapsed, facts.taken)
    yield earlier_fact(facts.earlier, facts.elapsed)


def _read_steps(cluster: JobCluster, row: QueueRow) -> StepsSnapshot:
    """Read what Slurm has measured; it answers the owner and operators."""
    try:
        found = read_step_uses(cluster.slurm, [row.raw_id])
        if not any(step.is_allocation and step.runs for step in found.rows):
            # slurmdbd has not heard of its start: then sstat was not asked.
            found = read_running_steps(cluster.slurm, [row.raw_id])
    except SlurmError as error:
        return StepsSnapshot((), str(error), "", time.time(), 0.0)
    # sacct lists all tasks of an array for the one that has the array's own number.
    own = tuple(step for step in found.rows if step.raw_id.partition(".")[0] == row.raw_id)
    return msgspec.structs.replace(found, rows=own)


def _sampled_by_slurm(steps: StepsSnapshot | None) -> RunningFact | None:
    """Describe what slurmd measured of the job's GPUs; None if it measures none."""
    known = [
        row.use.gpu_percent
        for row in (steps.rows if steps else ())
        if row.runs and row.use.gpu_percent is not None
    ]
    if not known or steps is None:
        return None
    text = f"{max(known)} % on average over the tasks of a step"
    return RunningFact(about="GPUs", text=text, source=steps.source, taken=steps.taken)


def _watched_facts(facts: _Facts) -> Iterator[RunningFact]:
    share = facts.cpu_share
    text = "unknown" if share is None else f"{share:.0%} of {facts.row.cpus}"
    yield RunningFact(about="CPUs", text=text, source="/proc", taken=facts.taken)
    yield from memory_fact(facts.memory, facts.taken)


def _measured_facts(facts: _Facts, steps: StepsSnapshot) -> Iterator[RunningFact]:
    """Describe CPU time and memory as Slurm measures them."""
    row = facts.row
    use = compute_efficiencies(steps.rows).get(row.raw_id)
    if use is None or use.cpu_used is None or not use.cpu_had:
        text = f"unknown: {steps.missing or 'Slurm has measured nothing, or not for you'}"
        source = steps.source or "sstat"
        yield RunningFact(about="CPUs", text=text, source=source, taken=steps.taken)
    else:
        text = f"{use.cpu_used / use.cpu_had:.0%} of {row.cpus} since the start"
        yield RunningFact(about="CPUs", text=text, source=steps.source, taken=steps.taken)
    yield from memory_fact(facts.memory, steps.taken)
    if not facts.memory and use is not None and use.mem_used is not None:
        of = "" if use.mem_had is None else f" of {format_bytes(use.mem_had)}"
        text = f"{format_bytes(use.mem_used)}{of} at most"
        yield RunningFact(about="Memory", text=text, source=steps.source, taken=steps.taken)


def _answer(facts: _Facts, running: RunningExplanation) -> str:
    job = f"job {facts.row.job_id}"
    if running.findings:
        first, *others = running.findings
        also = next((each.text for each in others if each.kind in ("slower", "throttled")), "")
        more = f"; {also}" if also else ""
        begin = _ANSWERS.get(first.kind, "runs, but ")
        if first.kind == "idle" and all(gpu.since is None for gpu in facts.gpus):
            begin = "may not use its GPUs: "  # one look; it may be a pause
        return f"{job} {begin}{first.text}{more}"
    known = []
    use = mean_use(facts.gpus)
    known += [f"GPUs {use:.0f} %"] if use is not None else []
    if facts.cpu_share is not None:
        known.append(f"CPUs {facts.cpu_share:.0%} of {facts.row.cpus}")
    if not isinstance(facts.pace, str) and facts.pace.size:
        known.append(f"log written {format_seconds(facts.pace.silent)} ago")
    if use == 0 or (use is None and facts.cpu_share is not None and facts.cpu_share < 0.005):
        what = "its processes sleep" if use is None else "its GPUs do nothing so far"
        return f"{job} runs, and {what}: {', '.join(known)}"
    if use is None and facts.cpu_share is None:
        measured = [each for each in running.facts if each.about in ("GPUs", "CPUs")]
        told = [f"{each.about} {each.text}" for each in measured if "unknown" not in each.text]
        if told:
            return f"{job} runs: {', '.join([*told, *known])}"
        return (
            f"{job} runs, {known[0]}; nothing more is known of what it does"
            if known
            else f"{job} runs; nothing is known of what it does"
        )
    return f"{job} runs, nothing unusual: {', '.join(known)}"


def _read_stacks(
    cluster: JobCluster,
    row: QueueRow,
    ranks: Sequence[JobRank],
    findings: Iterable[RunningFinding],
) -> tuple[tuple[RankStack, ...], tuple[str, ...]]:
    chosen = suspects(ranks, findings, _MOST_STACKS)
    pids: dict[str, list[int]] = defaultdict(list)
    for rank in chosen:
        pids[rank.node].append(rank.main.pid)
    if not pids:
        return (), ("there is no process whose stack could be read",)
    found = read_stacks(cluster.slurm, row, pids)
    stacks = {
        (node, stack.pid): stack for node, each in found.nodes.items() for stack in each.stacks
    }
    shown = []
    for rank in chosen:
        stack = stacks.get((rank.node, rank.main.pid))
        lines = stack.lines if stack else ()
        problem = stack.problem if stack else "the node did not answer"
        shown.append(RankStack(title=rank.title, lines=lines, problem=problem))
    left = [rank.title for rank in ranks if rank not in chosen]
    notes = [f"no stack of {join_names(left)}: {_MOST_STACKS} at a time"] if left else []
    return tuple(shown), (*found.problems, *notes)
