"""`slurmkit capabilities`."""

from __future__ import annotations

import math
import time
from collections.abc import Collection

import click
import msgspec

from slurmkit.backends.usable import Verdict, verdict
from slurmkit.capabilities.cache import load_capabilities
from slurmkit.capabilities.model import Capabilities, Limits, Partition, Qos, Standing, Tres
from slurmkit.capabilities.nodes import folded
from slurmkit.capabilities.standing import me, read_standing
from slurmkit.capabilities.summary import GresKind, gres_kinds
from slurmkit.cli.show import key_values, table
from slurmkit.cluster import Cluster
from slurmkit.durations import format_duration
from slurmkit.errors import ControllerDown, SlurmError, SlurmMissing, SlurmTimeout
from slurmkit.facts import Fact, clock
from slurmkit.slurm import Slurm
from slurmkit.text import printable

_GRES = ("GRES", "TYPE", "COUNT", "PER NODE", "NODES", "PARTITIONS")
_PARTITIONS = tuple("PARTITION STATE NODES GPUS MAXTIME DEFTIME MAXNODES QOS WHO".split())
_QOS = tuple("QOS YOU PRIORITY MAXTIME PREEMPTS FLAGS LIMITS".split())

_LIMITS = {
    "max_jobs": "MaxJobsPU",
    "max_submit": "MaxSubmitPU",
    "max_tres_per_user": "MaxTRESPU",
    "max_tres_run_mins_per_user": "MaxTRESRunMinsPU",
    "max_jobs_per_account": "MaxJobsPA",
    "max_submit_per_account": "MaxSubmitPA",
    "max_tres_per_account": "MaxTRESPA",
    "max_tres_run_mins_per_account": "MaxTRESRunMinsPA",
    "max_tres_per_job": "MaxTRES",
    "max_tres_per_node": "MaxTRESPerNode",
    "max_tres_mins_per_job": "MaxTRESMins",
    "min_tres_per_job": "MinTRES",
    "grp_jobs": "GrpJobs",
    "grp_submit": "GrpSubmit",
    "grp_tres": "GrpTRES",
    "grp_tres_mins": "GrpTRESMins",
    "grp_tres_run_mins": "GrpTRESRunMins",
    "grp_wall": "GrpWall",
}


@click.command("capabilities")
@click.option("--refresh", is_flag=True, help="Ask the cluster now, whatever is kept.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def capabilities_command(*, refresh: bool, as_json: bool) -> None:
    """Show what this cluster has and enforces, as `slurmkit plan` sees it.

    It is kept on disk for ten minutes; QOS are read each time.

    \b
    Examples:
      slurmkit capabilities
      slurmkit capabilities --refresh
      slurmkit capabilities --json | jq '.gres[] | select(.name == "gpu") | [.type, .count]'
    """
    slurm = Cluster().slurm
    standing, trouble = _standing(slurm)
    found = _capabilities(slurm, trouble, refresh=refresh)
    hidden = [*found.hidden, *(standing.hidden if standing else [f"QOS are unknown: {trouble}"])]
    age = max(0, round(time.time() - found.taken))
    if as_json:
        qos = standing and standing.qos
        facts = {"age": age, "gres": gres_kinds(found.nodes), "qos": qos, "hidden": hidden}
        click.echo(msgspec.json.encode(msgspec.structs.asdict(found) | facts))
        return
    _show(found, standing, verdict(slurm))
    for line in hidden:
        click.echo(f"slurmkit: {printable(line)}", err=True)
    click.echo(
        f"from scontrol and srun at {clock(found.taken)}, {format_duration(age)} ago;"
        " --refresh asks again",
        err=True,
    )


def _standing(slurm: Slurm) -> tuple[Standing | None, SlurmError | None]:
    try:
        return read_standing(slurm, me(slurm)), None
    except SlurmError as error:
        return None, error


def _capabilities(slurm: Slurm, trouble: SlurmError | None, *, refresh: bool) -> Capabilities:
    """While slurmctld is silent, what it said last, whenever that was."""
    if isinstance(trouble, ControllerDown | SlurmTimeout | SlurmMissing):
        return load_capabilities(slurm, max_age=math.inf)
    return load_capabilities(slurm, refresh=refresh)


def _show(found: Capabilities, standing: Standing | None, pyslurm: Verdict) -> None:
    key_values([*_facts(found), ("PySlurm", _pyslurm(pyslurm))])
    click.echo()
    table(_GRES, map(_gres_row, gres_kinds(found.nodes)), right={"COUNT", "PER NODE"})
    click.echo()
    rows = [_partition_row(each, found) for each in found.partitions]
    table(_PARTITIONS, rows, right={"NODES", "GPUS", "MAXTIME", "DEFTIME", "MAXNODES"})
    if standing is not None:
        click.echo()
        mine = {name for each in standing.associations for name in each.qos}
        rows = [_qos_row(each, mine) for each in standing.qos]
        table(_QOS, rows, right={"PRIORITY", "MAXTIME"})


def _facts(found: Capabilities) -> list[Fact]:
    enforced = found.config.get("AccountingStorageEnforce", "unknown")
    part_limits = found.config.get("EnforcePartLimits", "unknown")
    mpi = "unknown" if found.mpi is None else ", ".join(found.mpi)
    containers = ", ".join(f"--{name}" for name in found.container_options)
    licenses = ", ".join(f"{name}:{count}" for name, count in found.licenses.items())
    return [
        ("Cluster", f"{found.cluster_name}, Slurm {found.config.get('SLURM_VERSION', 'unknown')}"),
        ("Nodes", _nodes(found)),
        ("Enforced", f"accounting: {enforced}; partition limits at submission: {part_limits}"),
        ("Counted", found.config.get("AccountingStorageTRES", "unknown")),
        ("Selection", _selection(found)),
        ("Largest array index", _largest_index(found)),
        ("Preemption", found.config.get("PreemptType", "unknown")),
        ("Topology", found.config.get("TopologyPlugin", "unknown")),
        ("MPI", mpi),
        ("Container options", containers or "none"),
        ("Licenses", licenses or "none"),
    ]


def _pyslurm(found: Verdict) -> str:
    if found.why_not:
        return f"not used: {found.why_not}"
    age = format_duration(max(0, round(time.time() - found.taken)))
    return f"{found.version}, for processes that submit many jobs; tried {age} ago"


def _nodes(found: Capabilities) -> str:
    usable = sum(node.usable for node in found.nodes)
    return f"{len(found.nodes)}, {usable} of them usable" if found.nodes else "unknown"


def _selection(found: Capabilities) -> str:
    keys = ("SelectType", "SelectTypeParameters")
    return ", ".join(found.config.get(key, "unknown") for key in keys)


def _largest_index(found: Capabilities) -> str:
    size = found.config.get("MaxArraySize", "")
    return str(int(size) - 1) if size.isdigit() else "unknown"


def _gres_row(kind: GresKind) -> tuple[str, ...]:
    return (
        f"{kind.name} (MIG slice)" if kind.is_mig else kind.name,
        kind.type or "untyped",
        str(kind.count),
        ",".join(map(str, kind.per_node)),
        folded(kind.nodes),
        ",".join(kind.partitions),
    )


def _partition_row(each: Partition, found: Capabilities) -> tuple[str, ...]:
    nodes = found.nodes_of(each.name)
    return (
        each.name + ("*" if each.default else ""),
        each.state,
        str(len(each.nodes)),
        str(sum(node.count("gpu") for node in nodes)) if found.nodes else "?",
        _time(each.max_time),
        "MAXTIME" if each.default_time is None else _time(each.default_time),
        "" if each.max_nodes is None else str(each.max_nodes),
        each.qos or "",
        _who(each),
    )


def _time(minutes: int | None) -> str:
    return "unlimited" if minutes is None else format_duration(minutes * 60)


def _who(each: Partition) -> str:
    said = [
        f"{kind} {','.join(names)}"
        for kind, names in (
            ("accounts", each.allow_accounts),
            ("not accounts", each.deny_accounts or None),
            ("groups", each.allow_groups),
            ("QOS", each.allow_qos),
            ("not QOS", each.deny_qos or None),
        )
        if names is not None
    ]
    return "; ".join(said) or "everybody"


def _qos_row(qos: Qos, mine: Collection[str]) -> tuple[str, ...]:
    return (
        qos.name,
        "?" if not mine else "yes" if qos.name in mine else "no",
        str(qos.priority),
        _time(qos.limits.max_wall),
        ",".join(qos.preempts),
        ",".join(qos.flags),
        "; ".join(limits_in_words(qos.limits)),
    )


def limits_in_words(limits: Limits) -> list[str]:
    """Name the limits that are set, as sacctmgr does, without the longest run time."""
    said = []
    for field, name in _LIMITS.items():
        value: Tres | int | None = getattr(limits, field)
        if isinstance(value, dict):
            said += [f"{name} {tres_in_words(value)}"] if value else []
        elif value is not None:
            said.append(f"{name} {value}")
    return said


def tres_in_words(tres: Tres) -> str:
    """Write `cpu=4,mem=64G`."""
    return ",".join(f"{name}={_amount(name, count)}" for name, count in tres.items())


def _amount(name: str, count: int) -> str:
    if name != "mem":
        return str(count)
    return f"{count // 1024}G" if count % 1024 == 0 else f"{count}M"
