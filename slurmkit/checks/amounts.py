"""Limits on amounts: TRES of one job, node, user, account or group."""

from __future__ import annotations

from collections.abc import Iterator

from slurmkit.checks.inforce import Limit, fate, in_force
from slurmkit.checks.say import Pairs, amount, error, memory_option, note, warning
from slurmkit.findings import Finding
from slurmkit.gpus import Gpus
from slurmkit.request import Request

_MOST = (
    "max_tres_per_job",
    "max_tres_per_node",
    "max_tres_per_user",
    "max_tres_per_account",
    "grp_tres",
)


def amounts(request: Request) -> Iterator[Finding]:
    """More of a TRES than a QOS or association allows, now or ever."""
    for field in _MOST:
        for limit in in_force(request, field):
            yield from _most(request, limit)


def _most(request: Request, limit: Limit) -> Iterator[Finding]:
    wanted = request.total.get(limit.tres, 0)
    if limit.field == "max_tres_per_node":
        yield from _uneven(request, limit, wanted)
        wanted //= max(request.nodes, 1)  # as acct_policy.c does, whatever one node gets
    allows = f"{limit.holder} allows {limit.whose} {amount(limit.tres, limit.value)}"
    if wanted > limit.value:
        asks = f"asks for {amount(limit.tres, wanted)}"
        message = f"{asks}; {allows} ({limit.setting}); {fate(request)}"
        yield error(limit.code, message, limit.source)
    elif wanted and wanted + (held := _held(limit)) > limit.value:
        message = (
            f"will wait: {held} of the {amount(limit.tres, limit.value)} that {limit.holder}"
            f" allows {limit.whose} are in use ({limit.setting})"
        )
        yield note(limit.code, message, limit.source)


def _uneven(request: Request, limit: Limit, total: int) -> Iterator[Finding]:
    """More on one of the nodes than is allowed, though not on average, by which Slurm goes."""
    nodes = max(request.nodes, 1)
    if total // nodes <= limit.value < -(-total // nodes):
        most = amount(limit.tres, -(-total // nodes))
        allows = f"{limit.holder} allows {limit.whose} {amount(limit.tres, limit.value)}"
        said = f"one of {nodes} nodes gets at least {most}; {allows} ({limit.setting})"
        yield warning(limit.code, f"{said}; Slurm lets it run, going by the average", limit.source)


def _held(limit: Limit) -> int:
    per_job = limit.field in ("max_tres_per_job", "max_tres_per_node")
    return 0 if per_job else limit.usage.tres.get(limit.tres, 0)


def least(request: Request) -> Iterator[Finding]:
    """Less of a TRES than a QOS demands; none at all is less, too."""
    for limit in in_force(request, "min_tres_per_job"):
        wanted = request.total.get(limit.tres, 0)
        if wanted < limit.value:
            asks = f"asks for {amount(limit.tres, wanted)}"
            demands = f"{limit.holder} takes jobs of at least {amount(limit.tres, limit.value)}"
            message = f"{asks}; {demands} ({limit.setting}); {fate(request)}"
            yield error(limit.code, message, limit.source, _more(request, limit))


def _more(request: Request, limit: Limit) -> Pairs:
    """Options that ask for as much as is demanded."""
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


def _more_gpus(request: Request, limit: Limit) -> Pairs:
    """So many per node, per task or in all, as they were asked for."""
    gpus = request.spec.gpus or Gpus()
    shares = {"node": request.nodes, "task": request.tasks, "job": 1}[gpus.per]
    count = -(-limit.value // shares)
    kind = limit.tres.removeprefix("gres/gpu").removeprefix(":") or gpus.mig or gpus.type
    return ((gpus.option, f"{kind}:{count}" if kind else str(count)),)
