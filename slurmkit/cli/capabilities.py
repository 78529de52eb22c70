"""`slurmkit capabilities` and `slurmkit topo`: what the cluster has, where GPUs sit in nodes."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable
from pathlib import Path

import click
import msgspec

from slurmkit.cli.json_output import JsonOutput, json_option
from slurmkit.cli.tables import Fit, print_key_values, print_table
from slurmkit.cluster.cluster import Cluster
from slurmkit.errors import BadInput, ControllerDown, SlurmError, SlurmMissing, SlurmTimeout
from slurmkit.formats.display import format_time, printable
from slurmkit.formats.durations import format_duration
from slurmkit.formats.scontrol import fold_nodes
from slurmkit.formats.tres import Tres
from slurmkit.jobs.backends.pyslurm_usable import PyslurmCheck, check_pyslurm
from slurmkit.jobs.describe import Fact
from slurmkit.slurm.commands import SlurmCommands
from slurmkit.state.associations import QOS_LIMIT_FIELDS, current_user, read_standing
from slurmkit.state.cache import load_capabilities
from slurmkit.state.gpu_topology import (
    GpuLinks,
    GresConfGpu,
    find_gres_conf,
    parse_gres_conf,
    parse_matrix,
    parse_peers,
    peer_sets,
)
from slurmkit.state.model import (
    Capabilities,
    GresKind,
    Limits,
    Partition,
    Qos,
    Standing,
    gres_kinds,
)
from slurmkit.state.nodes import NodeChoice, NodeRow, read_nodes, select_nodes

_GRES = ("GRES", "TYPE", "COUNT", "PER NODE", "NODES", "PARTITIONS")
_PARTITIONS = tuple("PARTITION STATE NODES GPUS MAXTIME DEFTIME MAXNODES QOS WHO".split())
_QOS = tuple("QOS YOU PRIORITY MAXTIME PREEMPTS FLAGS LIMITS".split())

_LIMIT_NAMES = {
    **QOS_LIMIT_FIELDS,
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
@click.option("--refresh", is_flag=True, help="Ask the cluster now, instead of using the cache.")
@json_option("slurmkit.capabilities/1", text="Print everything as JSON.")
def capabilities_command(*, refresh: bool, as_json: JsonOutput | None) -> None:
    """Show this cluster's GPUs, partitions, QOS and limits, as `slurmkit plan` uses them.

    The answer is cached on disk for ten minutes. QOS are read each time.

    \b
    Examples:
      slurmkit capabilities
      slurmkit capabilities --refresh
      slurmkit capabilities --json | jq '.rows[].gres[] | select(.name == "gpu") | [.type, .count]'
    """
    slurm = Cluster().slurm
    standing, trouble = _read_standing(slurm)
    capabilities = _load_capabilities(slurm, trouble, refresh=refresh)
    hidden = [
        *capabilities.hidden,
        *(standing.hidden if standing else [f"QOS are unknown: {trouble}"]),
    ]
    age = max(0, round(time.time() - capabilities.taken))
    if as_json:
        qos = standing and standing.qos
        facts = {"age": age, "gres": gres_kinds(capabilities.nodes), "qos": qos, "hidden": hidden}
        whole = msgspec.structs.asdict(capabilities) | facts
        row = {name: value for name, value in whole.items() if name not in ("taken", "age")}
        as_json.print([row], taken=capabilities.taken, further={"age": age})
        return
    _print_capabilities(capabilities, standing, check_pyslurm(slurm))
    for line in hidden:
        click.echo(f"slurmkit: {printable(line)}", err=True)
    click.echo(
        f"from scontrol and srun at {format_time(capabilities.taken)}, {format_duration(age)} ago;"
        " --refresh asks again",
        err=True,
    )


def _read_standing(slurm: SlurmCommands) -> tuple[Standing | None, SlurmError | None]:
    """Read QOS and your associations, or return the error."""
    try:
        return read_standing(slurm, current_user(slurm)), None
    except SlurmError as error:
        return None, error


def _load_capabilities(
    slurm: SlurmCommands, trouble: SlurmError | None, *, refresh: bool
) -> Capabilities:
    """Read the capabilities; while slurmctld does not answer, the cached ones of any age."""
    if isinstance(trouble, ControllerDown | SlurmTimeout | SlurmMissing):
        return load_capabilities(slurm, max_age=math.inf)
    return load_capabilities(slurm, refresh=refresh)


def _print_capabilities(
    capabilities: Capabilities, standing: Standing | None, pyslurm: PyslurmCheck
) -> None:
    """Print the cluster, its GRES, partitions and QOS."""
    print_key_values([*_cluster_facts(capabilities), ("PySlurm", _pyslurm(pyslurm))])
    click.echo()
    print_table(
        _GRES,
        map(_gres_row, gres_kinds(capabilities.nodes)),
        right={"COUNT", "PER NODE"},
        fit=Fit(wrapped=("NODES", "PARTITIONS")),
    )
    click.echo()
    rows = [_partition_row(each, capabilities) for each in capabilities.partitions]
    right = {"NODES", "GPUS", "MAXTIME", "DEFTIME", "MAXNODES"}
    least = ("MAXNODES", "DEFTIME", "QOS", "STATE")
    print_table(_PARTITIONS, rows, right=right, fit=Fit(("PARTITION",), ("WHO",), least))
    if standing is not None:
        click.echo()
        mine = {name for each in standing.associations for name in each.qos}
        rows = [_qos_row(each, mine) for each in standing.qos]
        fit = Fit(("QOS", "YOU"), ("PREEMPTS", "LIMITS"), least=("FLAGS", "PRIORITY"))
        print_table(_QOS, rows, right={"PRIORITY", "MAXTIME"}, fit=fit)


def _cluster_facts(capabilities: Capabilities) -> list[Fact]:
    """Return the facts about the cluster as a whole."""
    config = capabilities.config
    usable = sum(node.usable for node in capabilities.nodes)
    nodes = (
        f"{len(capabilities.nodes)}, {usable} of them usable" if capabilities.nodes else "unknown"
    )
    keys = ("SelectType", "SelectTypeParameters")
    selection = ", ".join(config.get(key, "unknown") for key in keys)
    enforced = config.get("AccountingStorageEnforce", "unknown")
    part_limits = config.get("EnforcePartLimits", "unknown")
    mpi = "unknown" if capabilities.mpi is None else ", ".join(capabilities.mpi)
    containers = ", ".join(f"--{name}" for name in capabilities.container_options)
    licenses = ", ".join(f"{name}:{count}" for name, count in capabilities.licenses.items())
    return [
        (
            "Cluster",
            f"{capabilities.cluster_name}, Slurm {config.get('SLURM_VERSION', 'unknown')}",
        ),
        ("Nodes", nodes),
        ("Enforced", f"accounting: {enforced}; partition limits at submission: {part_limits}"),
        ("Counted", config.get("AccountingStorageTRES", "unknown")),
        ("Selection", selection),
        ("Largest array index", _largest_index(capabilities)),
        ("Preemption", config.get("PreemptType", "unknown")),
        ("Topology", config.get("TopologyPlugin", "unknown")),
        ("MPI", mpi),
        ("Container options", containers or "none"),
        ("Licenses", licenses or "none"),
    ]


def _pyslurm(check: PyslurmCheck) -> str:
    if check.why_not:
        return f"not used: {check.why_not}"
    age = format_duration(max(0, round(time.time() - check.taken)))
    return f"{check.version}, for processes that submit many jobs; tried {age} ago"


def _largest_index(capabilities: Capabilities) -> str:
    size = capabilities.config.get("MaxArraySize", "")
    return str(int(size) - 1) if size.isdigit() else "unknown"


def _gres_row(kind: GresKind) -> tuple[str, ...]:
    return (
        f"{kind.name} (MIG slice)" if kind.is_mig else kind.name,
        kind.type or "untyped",
        str(kind.count),
        ",".join(map(str, kind.per_node)),
        fold_nodes(kind.nodes),
        ",".join(kind.partitions),
    )


def _partition_row(each: Partition, capabilities: Capabilities) -> tuple[str, ...]:
    nodes = capabilities.nodes_of(each.name)
    return (
        each.name + ("*" if each.default else ""),
        each.state,
        str(len(each.nodes)),
        str(sum(node.count("gpu") for node in nodes)) if capabilities.nodes else "?",
        _time(each.max_time),
        "MAXTIME" if each.default_time is None else _time(each.default_time),
        "" if each.max_nodes is None else str(each.max_nodes),
        each.qos or "",
        _who_may_use(each),
    )


def _time(minutes: int | None) -> str:
    return "unlimited" if minutes is None else format_duration(minutes * 60)


def _who_may_use(each: Partition) -> str:
    """Describe who may use a partition."""
    allowed = [
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
    return "; ".join(allowed) or "everybody"


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
    """Return the limits that are set, with sacctmgr's names, without MaxWall."""
    words = []
    for field, name in _LIMIT_NAMES.items():
        value: Tres | int | None = getattr(limits, field)
        if isinstance(value, dict):
            words += [f"{name} {tres_in_words(value)}"] if value else []
        elif value is not None:
            words.append(f"{name} {value}")
    return words


def tres_in_words(tres: Tres) -> str:
    """Format TRES as `cpu=4,mem=64G`."""
    return ",".join(f"{name}={_amount(name, count)}" for name, count in tres.items())


def _amount(name: str, count: int) -> str:
    if name != "mem":
        return str(count)
    return f"{count // 1024}G" if count % 1024 == 0 else f"{count}M"


_SECONDS = 60.0  # a step starts in one or two, nvidia-smi takes some more


class NodeTopology(msgspec.Struct, frozen=True):
    """The GPUs of a node.

    Attributes:
        gpus: in Slurm's order; null values are unknown.
        devices: GPUs of a job on the node, by nvidia-smi's name; null if nvidia-smi was not asked.
        peers: sets of these devices with peer access to one another; null if unknown.
    """

    node: str
    sockets: int
    cores_per_socket: int
    threads_per_core: int
    gpus: tuple[GresConfGpu, ...]
    devices: dict[str, GpuLinks] | None = None
    peers: list[tuple[str, ...]] | None = None


@click.command("topo")
@click.argument("nodes", nargs=-1)
@click.option("--job", "job_id", help="Also run nvidia-smi in this running job of yours.")
@json_option("slurmkit.topo/1", text="Print the nodes as JSON.")
def topo_command(nodes: tuple[str, ...], job_id: str | None, *, as_json: JsonOutput | None) -> None:
    """Show how the GPUs of a node are connected: to which cores, and to which other GPUs.

    Slurm knows only the entries of gres.conf; ? is unknown. nvidia-smi knows how GPUs and network
    devices are connected, but only on the node: --job runs it in a step of that job.

    \b
    Examples:
      slurmkit topo c1
      slurmkit topo --job 42
      slurmkit topo --json c[1-4] | jq '.rows[] | [.node, .gpus[].cores]'
    """
    cluster = Cluster()
    if job_id is not None:
        info = cluster.handle(job_id).info()
        if info.state != "RUNNING":
            raise BadInput(f"job {job_id} is not running ({info.state}); --job needs a running job")
        nodes = nodes or (info.node_list,)
    elif not nodes:
        raise BadInput("name nodes, e.g. slurmkit topo c1, or a running job of yours: --job ID")
    snapshot = read_nodes(cluster.slurm)
    rows = select_nodes(snapshot.rows, NodeChoice(nodelist=",".join(nodes)))
    path = find_gres_conf()
    text = path.read_text("utf-8", "replace") if path else ""
    topologies = [_read_gres_conf(row, text) for row in rows]
    if job_id is not None:
        topologies = [_ask_nvidia_smi(cluster.slurm, job_id, each) for each in topologies]
    if as_json:
        as_json.print(topologies, taken=snapshot.taken)
        return
    for each in topologies:
        _print_topology(each)
    cores = _source(path, topologies)
    click.echo(f"sockets from slurmctld at {format_time(snapshot.taken)}; {cores}", err=True)


def _source(path: Path | None, topologies: Iterable[NodeTopology]) -> str:
    """Name the source of cores and links, or say why they are unknown."""
    if path is None:
        return "cores unknown: no readable gres.conf on this machine"
    if any(gpu.cores or gpu.links for each in topologies for gpu in each.gpus):
        return f"cores from {path}"
    return f"cores unknown: {path} does not list them for the GPUs that slurmctld reports"


def _read_gres_conf(row: NodeRow, text: str) -> NodeTopology:
    """Return a node's GPUs from gres.conf, or only their types if the counts differ."""
    types = [count.type or "" for count in row.gpus for _ in range(count.total)]
    gpus = parse_gres_conf(text, row.name)
    if len(gpus) != len(types):
        gpus = tuple(map(GresConfGpu, types))
    shape = (row.sockets, row.cores_per_socket, row.threads_per_core)
    return NodeTopology(row.name, *shape, gpus)


def _ask_nvidia_smi(slurm: SlurmCommands, job_id: str, topology: NodeTopology) -> NodeTopology:
    """Add what nvidia-smi says in a step of the job; print a message if it fails."""
    step = ["srun", f"--jobid={job_id}", "--overlap", f"--nodelist={topology.node}", "--nodes=1"]
    step += ["--ntasks=1", "--mpi=none", "--input=none", "nvidia-smi", "topo"]
    try:
        devices = parse_matrix(slurm.run([*step, "-m"], timeout=_SECONDS))
        peers = parse_peers(slurm.run([*step, "-p2p", "r"], timeout=_SECONDS))
    except SlurmError as error:
        message = f"nvidia-smi does not answer on {topology.node}: {printable(str(error))}"
        click.echo(message, err=True)
        return topology
    known = peer_sets(peers) if peers.keys() >= devices.keys() else None
    return msgspec.structs.replace(topology, devices=devices or None, peers=known or None)


def _print_topology(topology: NodeTopology) -> None:
    """Print the GPUs of a node, the devices of the job on it, and peer access."""
    shape = f"{topology.sockets} sockets of {topology.cores_per_socket} cores"
    click.echo(f"{printable(topology.node)}: {shape}, {len(topology.gpus)} GPUs")
    slurm = [
        (str(at), gpu.type or "-", gpu.cores or "?", gpu.links or "?")
        for at, gpu in enumerate(topology.gpus)
    ]
    if slurm:
        print_table(("GPU", "TYPE", "CORES", "LINKS"), slurm)
    if topology.devices:
        nics = (name for row in topology.devices.values() for name in row.links)
        others = dict.fromkeys([*topology.devices, *nics])
        devices = [
            (
                name,
                *(row.links.get(o, "X" if o == name else "?") for o in others),
                row.cpus or "?",
                row.numa or "?",
            )
            for name, row in topology.devices.items()
        ]
        print_table(("DEVICE", *others, "CPUS", "NUMA"), devices)
    if topology.peers:
        click.echo(f"peer access: {'; '.join(' '.join(each) for each in topology.peers)}")
    elif topology.gpus:
        click.echo("peer access: ?")
