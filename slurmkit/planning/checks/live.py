"""Checks that ask Slurm: jobs in `--dependency`, and leaf switches or blocks for `--switches`.

A dependency is checked for whether its jobs exist and can still end as required. Topology is read
only for a job with `--switches` or `--segment`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from slurmkit.errors import BadInput, DatabaseDown, NoSuchJob, SlurmError
from slurmkit.formats.durations import format_duration, parse_time_limit
from slurmkit.formats.scontrol import expand_nodes, fold_nodes, parse_records
from slurmkit.planning.request import Request
from slurmkit.slurm.commands import SlurmCommands
from slurmkit.spec.findings import Finding, Pairs, error, note, warning
from slurmkit.spec.jobspec import JobSpec

_CLAUSE = re.compile(r"(after\w*):((?:\d+(?:_(?:\d+|\*))?(?:\+\d+)?:?)+)")
_ID = re.compile(r"(\d+)(?:_(\d+|\*))?")
_SUCCESS_STATES = ("COMPLETED",)
_ENDED_STATES = (
    "COMPLETED",
    "FAILED",
    "CANCELLED",
    "TIMEOUT",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "BOOT_FAIL",
    "DEADLINE",
    "PREEMPTED",
)


class DependencyState(NamedTuple):
    """A job that `--dependency` names, and its state.

    Attributes:
        kind: `afterok`, `afterany`, …
        id: as the user gave it: `12`, `12_3`, `12_*`.
        states: of its tasks or of the job; empty when neither squeue nor sacct knows it.
        in_queue: whether slurmctld still knows it.
    """

    kind: str
    id: str
    states: tuple[str, ...]
    in_queue: bool


def check_dependencies(slurm: SlurmCommands, spec: JobSpec) -> tuple[Finding, ...]:
    """Look up the jobs in `--dependency`, in squeue and then in sacct.

    Raises:
        SlurmError: when slurmctld does not answer.
    """
    text = spec.dependency
    asked = _parse_dependency(text or "")
    if not text or not asked:
        return ()
    findings: list[Finding] = list(_ignored_delays(text))
    ids = sorted({job.partition("_")[0] for _, job in asked})
    squeue = ["squeue", "--all", "--noheader", "--states=all", f"--jobs={','.join(ids)}"]
    # %i folds the pending tasks of an array into one line; they have one state anyway.
    queued = _states(slurm, [*squeue, "-o", "%i %T"])
    gone = [job for job in ids if not _states_of_job(job, queued)]
    try:
        sacct = ["sacct", "--allusers", "-X", "--noheader", "--parsable2", "--format=JobID,State"]
        ended = _states(slurm, [*sacct, f"--jobs={','.join(gone)}"]) if gone else {}
    except DatabaseDown:
        ended = None
    remaining = text
    for kind, job in asked:
        states = _states_of_job(job, queued)
        parent = DependencyState(
            kind, job, states or _states_of_job(job, ended or {}), in_queue=bool(states)
        )
        found = tuple(_check_parent(parent, text, known=ended is not None))
        findings += found
        if any(each.severity == "error" for each in found):
            remaining = _without(remaining, job)[0][1]
    # One fix for all errors: without one of the jobs alone, the others still stop the job.
    fix: Pairs = (("dependency", remaining),)
    return tuple(
        dict.fromkeys(
            msgspec.structs.replace(each, fix=fix) if each.severity == "error" else each
            for each in findings
        )
    )


def is_about_dependency(finding: Finding) -> bool:
    """Tell whether a finding is about the jobs of `--dependency`, which only commands can tell."""
    return finding.code in ("dependency-unknown", "dependency-never", "dependency-over")


def _parse_dependency(text: str) -> list[tuple[str, str]]:
    """Parse `--dependency` into pairs of kind and job id."""
    return [
        (clause[1], job.partition("+")[0])
        for clause in _CLAUSE.finditer(text)
        for job in clause[2].strip(":").split(":")
    ]


def _ignored_delays(text: str) -> Iterator[Finding]:
    """Warn of `+MINUTES` after any word but `after`, where Slurm ignores it."""
    for match in _CLAUSE.finditer(text):
        if "+" in match[0] and match[1] != "after":
            message = f"{match[0]}: Slurm ignores the minutes; only after:JOB+MINUTES waits longer"
            yield warning("dependency-minutes", message, "sbatch(1) --dependency")


def _states(slurm: SlurmCommands, argv: list[str]) -> dict[str, str]:
    """Return the state by job id, `12_3` for a task; an unknown id is no error here."""
    try:
        lines = slurm.run(argv).splitlines()
    except NoSuchJob:
        return {}
    pairs = (re.split(r"[ |]", line.strip(), maxsplit=1) for line in lines if line.strip())
    return {pair[0]: pair[-1].partition(" ")[0] for pair in pairs}


def _states_of_job(job: str, states: dict[str, str]) -> tuple[str, ...]:
    """Return the states of a job, of one task, or of all tasks of an array."""
    array, _, task = job.partition("_")
    if task and task != "*":
        exact = states.get(job)
        if exact is not None:
            return (exact,)
        return tuple(s for name, s in states.items() if name.startswith(f"{array}_["))
    return tuple(s for name, s in states.items() if name.partition("_")[0] == array)


def _check_parent(parent: DependencyState, text: str, *, known: bool) -> Iterator[Finding]:
    job, kind = parent.id, parent.kind
    if not parent.states and not known:
        message = (
            f"job {job} of --dependency could not be checked: it is not in the queue, and slurmdbd"
            " does not answer"
        )
        yield warning("unknown-dependency", message, "squeue")
    elif not parent.states:
        message = (
            f"there is no job {job} for --dependency to wait for: sbatch would refuse the job, or"
            " take it and run it at once"
        )
        yield error("dependency-unknown", message, "squeue, sacct", _without(text, job))
    elif _never_satisfied(parent):
        ended = ",".join(sorted(set(parent.states)))
        message = f"job {job} has ended {ended}: {kind} can never be met, the job pends for ever"
        source = "squeue" if parent.in_queue else "sacct"
        yield error("dependency-never", message, source, _without(text, job))
    elif not parent.in_queue:
        yield from _already_ended(parent, text)


def _never_satisfied(parent: DependencyState) -> bool:
    """Return whether the job ended in a way that can never meet the dependency."""
    if not all(state in _ENDED_STATES for state in parent.states):
        failed = set(parent.states) & set(_ENDED_STATES) - set(_SUCCESS_STATES)
        return parent.kind == "afterok" and bool(failed)
    well = all(state in _SUCCESS_STATES for state in parent.states)
    return {"afterok": not well, "afternotok": well}.get(parent.kind, False)


def _already_ended(parent: DependencyState, text: str) -> Iterator[Finding]:
    """Report a job that ended as required, so long ago that only slurmdbd knows it."""
    fix = _without(text, parent.id)
    if parent.kind in ("afterok", "afternotok"):
        message = (
            f"job {parent.id} ended so long ago that slurmctld no longer knows it:"
            f" sbatch may refuse {parent.kind}; leave it out"
        )
        yield error("dependency-over", message, "sacct", fix)
    else:
        message = f"job {parent.id} has ended already: the job does not wait for it"
        yield note("dependency-over", message, "sacct", fix)


def _without(text: str, job: str) -> Pairs:
    """Return the `--dependency` option without one job."""
    clauses = re.split(r"([,?])", text)
    remaining = []
    for clause in clauses[::2]:
        kind, _, ids = clause.partition(":")
        rest = [each for each in ids.split(":") if each.partition("+")[0] != job]
        if not ids or rest:
            remaining.append(f"{kind}:{':'.join(rest)}" if ids else clause)
    sign = clauses[1] if len(clauses) > 1 else ","
    return (("dependency", sign.join(remaining)),)


TOO_FEW_SWITCHES = "switches-too-few"
"""Code of the finding that the job does not fit on so few switches."""

SHOW_TOPOLOGY = ("scontrol", "show", "topology")
"""The command that shows switches and blocks."""
_SOURCE = " ".join(SHOW_TOPOLOGY)
_WAIT = 300  # seconds; slurm.conf(5), SchedulerParameters=max_switch_wait


def check_topology(slurm: SlurmCommands, requests: Sequence[Request]) -> tuple[Finding, ...]:
    """Report on which switches or blocks a job with `--switches` or `--segment` may run.

    Args:
        slurm: runs the Slurm command.
        requests: the job in each partition it may run in.
    """
    if not requests:
        return ()
    spec, plugin = requests[0].spec, requests[0].capabilities.config.get("TopologyPlugin", "")
    asks_tree = spec.switches is not None and "tree" in plugin
    if not asks_tree and (spec.segment is None or "block" not in plugin):
        return ()
    fitting = {node.name for request in requests for node in request.fitting}
    try:
        places = _fitting_nodes(slurm.run(SHOW_TOPOLOGY), fitting, tree=asks_tree)
    except SlurmError:  # the job can be sent without this finding
        return ()
    return tuple(_topology_findings(requests[0], plugin, places)) if places else ()


def _fitting_nodes(text: str, fitting: set[str], *, tree: bool) -> dict[str, list[str]]:
    """Parse leaf switches, or blocks, and the nodes of each that the job may get."""
    key = "SwitchName" if tree else "BlockName"
    nodes_of = {
        record[key]: [name for name in expand_nodes(record.get("Nodes")) if name in fitting]
        for record in parse_records(text, key)
        if not tree or record.get("Level") == "0"
    }
    return {name: nodes for name, nodes in nodes_of.items() if nodes}


def _topology_findings(
    request: Request, plugin: str, places: Mapping[str, list[str]]
) -> Iterator[Finding]:
    what = "leaf switches" if "tree" in plugin else "blocks"
    words = ", ".join(f"{name} ({fold_nodes(nodes)})" for name, nodes in places.items())
    yield note("topology", f"{plugin}: the job's nodes are on {what} {words}", _SOURCE)
    if "tree" in plugin and request.spec.switches is not None:
        yield from _too_few(request, request.spec.switches, places)


def _too_few(request: Request, asked: str, places: Mapping[str, list[str]]) -> Iterator[Finding]:
    count, _, longest_wait = asked.partition("@")
    sizes = sorted((len(nodes) for nodes in places.values()), reverse=True)
    needed = next((n for n in range(1, len(sizes) + 1) if sum(sizes[:n]) >= request.nodes), None)
    if needed is None or needed <= int(count):
        return
    wait = format_duration(_switch_wait(request, longest_wait))
    message = (
        f"{request.nodes} nodes do not fit on {count} of the leaf switches: the job would wait"
        f" {wait} in vain, and then get nodes on more switches"
    )
    yield warning(TOO_FEW_SWITCHES, message, _SOURCE, (("switches", str(needed)),))


def _switch_wait(request: Request, longest_wait: str) -> int:
    """Return the seconds that Slurm waits for so few switches, at most the site's limit."""
    parameters = request.capabilities.config.get("SchedulerParameters", "")
    match = re.search(r"\bmax_switch_wait=(\d+)", parameters)
    longest = int(match[1]) if match else _WAIT
    with suppress(BadInput):  # of no time at all
        return min(longest, parse_time_limit(longest_wait)) if longest_wait else longest
    return 0
