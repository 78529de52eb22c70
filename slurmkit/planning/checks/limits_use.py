"""Checks of limits of QOS and associations: TRES-minutes, TRES, number of jobs, wall time.

TRES-minutes are limited for one job, for running jobs, and for all use so far.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from slurmkit.formats.durations import format_minutes
from slurmkit.formats.memory import memory_option
from slurmkit.formats.scontrol import expand_nodes
from slurmkit.formats.tres import format_tres, format_tres_minutes
from slurmkit.planning.amounts import JobMemory, least_of_whole_nodes, takes_whole_nodes
from slurmkit.planning.arrays import array_limits_of
from slurmkit.planning.checks.limits import EffectiveLimit, effective_limits, limit_consequence
from slurmkit.planning.checks.nodes import candidate_nodes, has_all
from slurmkit.planning.request import Request, highest_index
from slurmkit.spec.findings import AT_MOST, Finding, Pairs, error, note, warning
from slurmkit.spec.gpus import Gpus

_RUN_MINUTES_LIMITS = (
    "grp_tres_run_mins",
    "max_tres_run_mins_per_user",
    "max_tres_run_mins_per_account",
)
_TRES_LIMITS = (
    "max_tres_per_job",
    "max_tres_per_node",
    "max_tres_per_user",
    "max_tres_per_account",
    "grp_tres",
)
_MAX_JOBS = ("max_jobs", "max_jobs_per_account", "grp_jobs")
_MAX_SUBMIT = ("max_submit", "max_submit_per_account", "grp_submit")


class TresMinutesBudget(msgspec.Struct, frozen=True):
    """One budget of TRES-minutes (GrpTRESMins), and how much of it is left.

    Attributes:
        limit: the budget.
        left: TRES-minutes not used yet; never below 0.
        running: TRES-minutes of `left` that running jobs may still take.
        wanted: TRES-minutes that this job takes at most; None when it has no time limit.
    """

    limit: EffectiveLimit
    left: int
    running: int
    wanted: int | None


def tres_minutes_budgets(request: Request) -> Iterator[TresMinutesBudget]:
    """Yield every GrpTRESMins limit that applies to a TRES of this request."""
    for limit in effective_limits(request, "grp_tres_mins"):
        count = request.total.get(limit.tres, 0)
        if count and not _charges_nothing(request):
            used = limit.usage.tres_mins.get(limit.tres, 0)
            running = limit.usage.tres_run_mins.get(limit.tres, 0)
            wanted = _tres_minutes_needed(request, limit.tres)
            yield TresMinutesBudget(limit, max(limit.value - used, 0), running, wanted)


def group_minutes(request: Request) -> Iterator[Finding]:
    """Report more TRES-minutes than an account or QOS has left (GrpTRESMins)."""
    for balance in tres_minutes_budgets(request):
        wanted = math.inf if balance.wanted is None else balance.wanted
        if wanted > balance.left or not balance.left:
            yield _over_budget(request, balance)
        elif wanted > balance.left - balance.running:
            yield _maybe_over(request, balance)
        elif wanted * request.tasks_in_array > balance.left:
            yield _not_all_tasks(request, balance)


def _over_budget(request: Request, balance: TresMinutesBudget) -> Finding:
    limit = balance.limit
    left = format_tres_minutes(limit.tres, balance.left)
    message = (
        f"{_needs(balance)}; {limit.holder} has {left} left ({limit.setting});"
        f" {_consequence(request, balance)}"
    )
    return error(limit.code, message, limit.source)


def _consequence(request: Request, balance: TresMinutesBudget) -> str:
    if request.capabilities.enforces("safe") or not balance.left:
        return "it would pend for ever, or until use decays or is reset"
    lasts = balance.left / max(request.total[balance.limit.tres], 1)
    lasting = format_minutes(lasts)
    return f"it would start, and Slurm would kill it after {lasting} (limits without safe)"


def _maybe_over(request: Request, balance: TresMinutesBudget) -> Finding:
    limit = balance.limit
    left = format_tres_minutes(limit.tres, balance.left)
    may = format_tres_minutes(limit.tres, balance.running)
    safe = request.capabilities.enforces("safe")
    end = "it waits until they end" if safe else "it would be killed when nothing is left"
    message = (
        f"{_needs(balance)}; of the {left} that {limit.holder} has left, running jobs may"
        f" take {may} ({limit.setting}): {end}"
    )
    return (note if safe else warning)(limit.code, message, limit.source)


def _not_all_tasks(request: Request, balance: TresMinutesBudget) -> Finding:
    limit, tasks = balance.limit, request.tasks_in_array
    fits = balance.left // (balance.wanted or 1)
    left = format_tres_minutes(limit.tres, balance.left)
    message = (
        f"{limit.holder} has {left} left ({limit.setting}):"
        f" enough for {fits} of the {tasks} array tasks if each runs to its time limit"
    )
    return warning(limit.code, message, limit.source)


def _needs(balance: TresMinutesBudget) -> str:
    if balance.wanted is None:
        return "has no time limit"
    return f"needs {format_tres_minutes(balance.limit.tres, balance.wanted)}"


def job_minutes(request: Request) -> Iterator[Finding]:
    """Report more TRES-minutes than one job may take (MaxTRESMinsPerJob)."""
    for limit in effective_limits(request, "max_tres_mins_per_job"):
        if request.total.get(limit.tres, 0) and _exceeds(request, limit):
            yield _too_much(request, limit)


def running_minutes(request: Request) -> Iterator[Finding]:
    """Report more TRES-minutes than running jobs may hold at one time."""
    for field in _RUN_MINUTES_LIMITS:
        for limit in effective_limits(request, field):
            if not request.total.get(limit.tres, 0):
                continue
            held = limit.usage.tres_run_mins.get(limit.tres, 0)
            if _exceeds(request, limit):
                yield _too_much(request, limit)
            elif (_tres_minutes_needed(request, limit.tres) or 0) + held > limit.value:
                message = (
                    f"will wait: running jobs hold {format_tres_minutes(limit.tres, held)} of the"
                    f" {format_tres_minutes(limit.tres, limit.value)} that {limit.holder} allows"
                    f" {limit.whose} at a time ({limit.setting})"
                )
                yield note(limit.code, message, limit.source)


def _exceeds(request: Request, limit: EffectiveLimit) -> bool:
    wanted = _tres_minutes_needed(request, limit.tres)
    return wanted is None or wanted > limit.value


def _too_much(request: Request, limit: EffectiveLimit) -> Finding:
    wanted = _tres_minutes_needed(request, limit.tres)
    asks = (
        "has no time limit"
        if wanted is None
        else f"needs {format_tres_minutes(limit.tres, wanted)}"
    )
    allows = f"{limit.holder} allows {limit.whose} {format_tres_minutes(limit.tres, limit.value)}"
    message = f"{asks}; {allows} ({limit.setting}); {limit_consequence(request)}"
    return error(limit.code, message, limit.source)


def _tres_minutes_needed(request: Request, tres: str) -> int | None:
    """Return the TRES-minutes that the job takes at most; None without a time limit."""
    time = time_limit_minutes(request)
    qos = request.qos
    if time is None:
        return None
    factor = qos.usage_factor if qos and "UsageFactorSafe" in qos.flags else 1.0
    return int(int(time * factor) * request.total.get(tres, 0))


def _charges_nothing(request: Request) -> bool:
    """Return whether the QOS charges nothing; such a job's use does not count."""
    return request.qos is not None and request.qos.usage_factor == 0


def tres_limits(request: Request) -> Iterator[Finding]:
    """Report more of a TRES than a QOS or association allows, now or ever."""
    for field in _TRES_LIMITS:
        for limit in effective_limits(request, field):
            yield from _tres_limit(request, limit)


def _tres_limit(request: Request, limit: EffectiveLimit) -> Iterator[Finding]:
    whole = takes_whole_nodes(request.spec, request.partition)
    wanted, most = request.total.get(limit.tres, 0), _most_within_node_limits(request, limit.tres)
    if whole and limit.field != "max_tres_per_node":
        wanted = max(wanted, _least_of_whole_nodes(request, limit.tres))
    if limit.field == "max_tres_per_node":
        yield from _over_on_one_node(request, limit, wanted)
        wanted //= max(request.nodes, 1)  # as acct_policy.c does, whatever one node gets
        most //= max(request.most.get("node", 0), 1)
    allows = f"{limit.holder} allows {limit.whose} {format_tres(limit.tres, limit.value)}"
    if wanted > limit.value:
        asks = f"asks for {format_tres(limit.tres, wanted)}"
        if wanted > request.per_node.get(limit.tres, 0) * request.nodes and whole:
            asks = f"gets all of its nodes, at least {format_tres(limit.tres, wanted)}"
        message = f"{asks}; {allows} ({limit.setting}); {limit_consequence(request)}"
        yield error(limit.code, message, limit.source)
        return
    if most > limit.value and limit.tres != "node" and (whole or request.most_nodes):
        yield _over_at_most(request, limit, wanted, most)
    per_job = limit.field in ("max_tres_per_job", "max_tres_per_node")
    held = 0 if per_job else limit.usage.tres.get(limit.tres, 0)
    if wanted and wanted + held > limit.value:
        message = (
            f"will wait: {held} of the {format_tres(limit.tres, limit.value)} that {limit.holder}"
            f" allows {limit.whose} are in use ({limit.setting})"
        )
        yield note(limit.code, message, limit.source)


def _most_within_node_limits(request: Request, tres: str) -> int:
    """Return the most of a TRES that a job gets; limits on nodes make a range of nodes shorter."""
    most, nodes = request.most.get(tres, 0), request.most.get("node", 0)
    if not request.most_nodes or not nodes:
        return most
    fields = (field for field in _TRES_LIMITS if field != "max_tres_per_node")
    limits = (limit for field in fields for limit in effective_limits(request, field))
    allowed = min((limit.value for limit in limits if limit.tres == "node"), default=nodes)
    return most * min(allowed, nodes) // nodes


def _over_at_most(request: Request, limit: EffectiveLimit, least: int, most: int) -> Finding:
    """Warn that a job is over a limit with the largest or the most nodes that it may get.

    Slurm takes as many nodes of a range as are free, and of whole nodes any; only then it compares
    what they give with the limits, and takes no others (`select_nodes` in
    src/slurmctld/node_scheduler.c). Of limits only those on nodes make a range shorter
    (`acct_policy_get_max_nodes` in src/slurmctld/acct_policy.c, in 22.05 to 26.05).
    """
    amounts = f"{format_tres(limit.tres, least)} to {format_tres(limit.tres, most)}"
    gets = f"gets all of its nodes, {amounts} by the nodes"
    change = "name smaller nodes with --nodelist"
    if request.most_nodes:
        gets, change = f"gets {amounts} by the number of nodes", "give a smaller range with --nodes"
    message = (
        f"{gets} that Slurm takes; {limit.holder} allows {limit.whose}"
        f" {format_tres(limit.tres, limit.value)} ({limit.setting}): it may pend for ever; {change}"
    )
    return warning(f"{limit.code}{AT_MOST}", message, limit.source)


def _least_of_whole_nodes(request: Request, tres: str) -> int:
    """Return the least of a TRES that the job gets with whole nodes, whichever Slurm takes.

    A job over a limit with the nodes that the scheduler takes waits, and is tried again: it never
    starts where that is so with all of them (`select_nodes` in src/slurmctld/node_scheduler.c).
    Nodes that are down may come back, so they count, too.
    """
    spec, asked = request.spec, request.per_node
    needs = {name: amount for name, amount in asked.items() if name != "mem"}
    nodes = candidate_nodes(request)
    there = [node for node in nodes if has_all(node, needs)] or nodes
    named = set(expand_nodes(spec.nodelist))
    if tres != "mem":
        return least_of_whole_nodes(tres, asked, there, named, request.nodes)
    memory = JobMemory(spec, request.partition, request.capabilities.config)
    if memory.size[0] != "cpu" or not request.total["cpu"]:
        return 0
    cpus = least_of_whole_nodes("cpu", asked, there, named, request.nodes)
    return request.total.get("mem", 0) * cpus // request.total["cpu"]


def _over_on_one_node(request: Request, limit: EffectiveLimit, total: int) -> Iterator[Finding]:
    """Warn when one node gets more than allowed although the average, which Slurm checks, fits."""
    nodes = max(request.nodes, 1)
    if total // nodes <= limit.value < -(-total // nodes):
        most = format_tres(limit.tres, -(-total // nodes))
        allows = f"{limit.holder} allows {limit.whose} {format_tres(limit.tres, limit.value)}"
        gets = f"one of {nodes} nodes gets at least {most}; {allows} ({limit.setting})"
        allowed = "Slurm checks only the average, so it lets the job run"
        yield warning(limit.code, f"{gets}; {allowed}", limit.source)


def minimum_tres(request: Request) -> Iterator[Finding]:
    """Report less of a TRES than a QOS demands (MinTRESPerJob); asking for none counts, too."""
    for limit in effective_limits(request, "min_tres_per_job"):
        wanted = request.total.get(limit.tres, 0)
        if wanted < limit.value:
            asks = f"asks for {format_tres(limit.tres, wanted)}"
            demands = (
                f"{limit.holder} takes jobs of at least {format_tres(limit.tres, limit.value)}"
            )
            message = f"{asks}; {demands} ({limit.setting}); {limit_consequence(request)}"
            yield error(limit.code, message, limit.source, _raised_to_minimum(request, limit))


def _raised_to_minimum(request: Request, limit: EffectiveLimit) -> Pairs:
    """Return options that ask for as much as the QOS demands."""
    nodes = request.nodes
    per_node = -(-limit.value // nodes)
    if limit.tres == "node":
        return (("nodes", str(limit.value)),)
    if limit.tres == "mem":
        return (("mem", memory_option(per_node)),)
    if limit.tres == "cpu":
        tasks = max(1, request.tasks // nodes)
        return (("cpus-per-task", str(-(-per_node // tasks))),)
    if limit.tres == "gres/gpu" or limit.tres.startswith("gres/gpu:"):
        return _more_gpus(request, limit)
    return ()


def _more_gpus(request: Request, limit: EffectiveLimit) -> Pairs:
    """Return the option that asks for enough GPUs, per node, per task or in all as before."""
    gpus = request.spec.gpus or Gpus()
    shares = {"node": request.nodes, "task": request.tasks, "job": 1}[gpus.per]
    count = -(-limit.value // shares)
    kind = limit.tres.removeprefix("gres/gpu").removeprefix(":") or gpus.mig or gpus.type
    return ((gpus.option, f"{kind}:{count}" if kind else str(count)),)


def running_jobs(request: Request) -> Iterator[Finding]:
    """Report a limit on running jobs that is reached: the job waits, for ever if it is 0."""
    for limit in _limits(request, _MAX_JOBS):
        if limit.value == 0:
            message = f"{limit.holder} lets no job run ({limit.setting}); it would pend for ever"
            yield error(limit.code, message, limit.source)
        elif limit.usage.jobs >= limit.value:
            message = (
                f"will wait: {limit.usage.jobs} of the {limit.value} jobs that {limit.holder} lets"
                f" run for {_counted_for(limit)} are running ({limit.setting})"
            )
            yield note(limit.code, message, limit.source)


def submitted_jobs(request: Request) -> Iterator[Finding]:
    """Report more jobs than may be in the queue; every task of an array counts."""
    wanted = request.tasks_in_array
    for limit in submit_limits(request):
        room = max(limit.value - limit.usage.submitted, 0)
        if wanted > room:
            asks = f"an array of {wanted} jobs" if wanted > 1 else "one more job"
            message = (
                f"{asks}: {limit.holder} allows {limit.value} in the queue"
                f" for {_counted_for(limit)} and has {limit.usage.submitted}"
                f" ({limit.setting}); sbatch would refuse it"
            )
            message += "" if room else "; submit it when some have ended"
            yield error(limit.code, message, limit.source)


def submit_limits(request: Request) -> Iterator[EffectiveLimit]:
    """Yield every limit on queued jobs that applies to `request`."""
    yield from _limits(request, _MAX_SUBMIT)


def _limits(request: Request, fields: tuple[str, ...]) -> Iterator[EffectiveLimit]:
    for field in fields:
        yield from effective_limits(request, field)


def _counted_for(limit: EffectiveLimit) -> str:
    if limit.kind == "assoc" and not limit.field.startswith("grp_"):
        return "its user"
    return limit.whose


def array_limits(request: Request) -> Iterator[Finding]:
    """Report arrays on a cluster without any, and more tasks than MaxJobCount.

    An array beyond MaxArraySize is no error: it is sent in parts.
    """
    text, config = request.spec.array, request.capabilities.config
    if text is None:
        return
    size = array_limits_of(config).size
    if size < 2 and highest_index(text) >= size:
        message = f"this cluster has no job arrays (MaxArraySize={size}); sbatch would refuse it"
        yield error("max-array-size", message, f"slurm.conf: MaxArraySize={size}")
    most = config.get("MaxJobCount", "")
    if most.isdigit() and request.tasks_in_array >= int(most):
        message = (
            f"{request.tasks_in_array} array tasks: this cluster holds {most} jobs in all"
            " (MaxJobCount); sbatch would refuse this array, or later jobs"
        )
        yield error("max-job-count", message, f"slurm.conf: MaxJobCount={most}")


def time_limit_minutes(request: Request) -> int | None:
    """Return the time limit that Slurm would give the job, in whole minutes; None for none.

    Without `--time` and without DefaultTime, a limit on wall time becomes the job's time.
    """
    seconds = request.seconds
    asked = None if seconds is None else -(-seconds // 60)
    if request.spec.time is not None or request.partition.default_time is not None:
        return asked
    most = next((limit.value for limit in effective_limits(request, "max_wall")), None)
    return min((time for time in (most, asked) if time is not None), default=None)


def job_wall_time(request: Request) -> Iterator[Finding]:
    """Report a time limit above MaxWall, the limit for one job."""
    time = time_limit_minutes(request)
    for limit in effective_limits(request, "max_wall"):
        if time is not None and time > limit.value:
            asks = f"asks for {format_minutes(time)}"
            allows = f"{limit.holder} allows one job {format_minutes(limit.value)}"
            message = f"{asks}; {allows} ({limit.setting}); {limit_consequence(request)}"
            yield error(limit.code, message, limit.source)


def group_wall_time(request: Request) -> Iterator[Finding]:
    """Report more wall time than is left for all jobs together (GrpWall)."""
    time = time_limit_minutes(request) or 0
    safe = request.capabilities.enforces("safe")
    for limit in effective_limits(request, "grp_wall"):
        left = max(limit.value - limit.usage.wall, 0)
        if left >= time and left:
            continue
        pends = safe or not left
        end = (
            "pend for ever, or until use decays"
            if pends
            else f"be killed after {format_minutes(left)}"
        )
        has = f"{limit.holder} has {format_minutes(left)} of wall time left for {limit.whose}"
        message = f"asks for {format_minutes(time)}; {has} ({limit.setting}); it would {end}"
        yield error(limit.code, message, limit.source)


def default_time(request: Request) -> Iterator[Finding]:
    """Note that without `--time` the job gets the partition's DefaultTime."""
    default = request.partition.default_time
    if request.spec.time is None and default:
        name = request.partition.name
        message = (
            f"no --time given: it gets {format_minutes(default)}, DefaultTime of partition {name}"
        )
        yield note(
            "default-time", message, f"partition {name}: DefaultTime={format_minutes(default)}"
        )
