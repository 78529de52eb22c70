"""`slurmkit topo`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click
import msgspec

from slurmkit.cli.show import table
from slurmkit.cluster import Cluster
from slurmkit.errors import BadInput, SlurmError
from slurmkit.facts import clock
from slurmkit.nodes.read import NodeRow, read_nodes
from slurmkit.nodes.select import NodeChoice, select
from slurmkit.slurm import Slurm
from slurmkit.text import printable
from slurmkit.topo.gresconf import Gpu, gpus_of, gres_conf
from slurmkit.topo.nvidia import Row, parse_matrix, parse_peers, peer_sets

_SECONDS = 60.0  # a step starts in one or two, nvidia-smi takes some more


class Told(msgspec.Struct, frozen=True):
    """A node's GPUs.

    Attributes:
        gpus: as Slurm counts them; what is null is unknown.
        devices: of a job on it, as nvidia-smi there names them; null when it was not asked.
        peers: sets of these devices in which all have peer access to one another; likewise.
    """

    node: str
    sockets: int
    cores_per_socket: int
    threads_per_core: int
    gpus: tuple[Gpu, ...]
    devices: dict[str, Row] | None = None
    peers: list[tuple[str, ...]] | None = None


@click.command("topo")
@click.argument("nodes", nargs=-1)
@click.option("--job", "job_id", help="Ask nvidia-smi in this running job of yours, too.")
@click.option("--json", "as_json", is_flag=True, help="Print the nodes as JSON.")
def topo_command(nodes: tuple[str, ...], job_id: str | None, *, as_json: bool) -> None:
    """Show where the GPUs of nodes sit: near which cores, and which reach which directly.

    Slurm knows what gres.conf tells it; ? is not told. How GPUs and network devices are connected
    nvidia-smi says on the node itself: with --job it is asked in a step of that job.

    \b
    Examples:
      slurmkit topo c1
      slurmkit topo --job 42
      slurmkit topo --json c[1-4] | jq '.[] | [.node, .gpus[].cores]'
    """
    cluster = Cluster()
    if job_id is not None:
        info = cluster.handle(job_id).info()
        if info.state != "RUNNING":
            raise BadInput(f"job {job_id} does not run ({info.state}); --job asks on its nodes")
        nodes = nodes or (info.node_list,)
    elif not nodes:
        raise BadInput("name nodes, e.g. slurmkit topo c1, or a running job of yours: --job ID")
    snapshot = read_nodes(cluster.slurm)
    rows = select(snapshot.rows, NodeChoice(nodelist=",".join(nodes)))
    path = gres_conf()
    text = path.read_text("utf-8", "replace") if path else ""
    found = [_told(row, text) for row in rows]
    if job_id is not None:
        found = [_asked(cluster.slurm, job_id, each) for each in found]
    if as_json:
        click.echo(msgspec.json.encode(found))
        return
    for each in found:
        _show(each)
    cores = _source(path, found)
    click.echo(f"shapes from slurmctld at {clock(snapshot.taken)}; {cores}", err=True)


def _source(path: Path | None, found: Iterable[Told]) -> str:
    """Where cores and links come from, if from anywhere."""
    if path is None:
        return "cores unknown: no gres.conf that can be read here"
    if any(gpu.cores or gpu.links for each in found for gpu in each.gpus):
        return f"cores from {path}"
    return f"cores unknown: {path} does not tell them for the GPUs that slurmctld has"


def _told(row: NodeRow, text: str) -> Told:
    """By gres.conf where it names as many GPUs as slurmctld has; else their types alone."""
    types = [count.type or "" for count in row.gpus for _ in range(count.total)]
    gpus = gpus_of(text, row.name)
    if len(gpus) != len(types):
        gpus = tuple(map(Gpu, types))
    shape = (row.sockets, row.cores_per_socket, row.threads_per_core)
    return Told(row.name, *shape, gpus)


def _asked(slurm: Slurm, job_id: str, told: Told) -> Told:
    step = ["srun", f"--jobid={job_id}", "--overlap", f"--nodelist={told.node}", "--nodes=1"]
    step += ["--ntasks=1", "--mpi=none", "--input=none", "nvidia-smi", "topo"]
    try:
        devices = parse_matrix(slurm.run([*step, "-m"], timeout=_SECONDS))
        peers = parse_peers(slurm.run([*step, "-p2p", "r"], timeout=_SECONDS))
    except SlurmError as error:
        said = f"nvidia-smi does not answer on {told.node}: {printable(str(error))}"
        click.echo(said, err=True)
        return told
    known = peer_sets(peers) if peers.keys() >= devices.keys() else None
    return msgspec.structs.replace(told, devices=devices or None, peers=known or None)


def _show(told: Told) -> None:
    shape = f"{told.sockets} sockets of {told.cores_per_socket} cores"
    click.echo(f"{printable(told.node)}: {shape}, {len(told.gpus)} GPUs")
    slurm = [
        (str(at), gpu.type or "-", gpu.cores or "?", gpu.links or "?")
        for at, gpu in enumerate(told.gpus)
    ]
    if slurm:
        table(("GPU", "TYPE", "CORES", "LINKS"), slurm)
    if told.devices:
        nics = (name for row in told.devices.values() for name in row.links)
        others = dict.fromkeys([*told.devices, *nics])
        devices = [
            (
                name,
                *(row.links.get(o, "X" if o == name else "?") for o in others),
                row.cpus or "?",
                row.numa or "?",
            )
            for name, row in told.devices.items()
        ]
        table(("DEVICE", *others, "CPUS", "NUMA"), devices)
    if told.peers:
        click.echo(f"peer access: {'; '.join(' '.join(each) for each in told.peers)}")
    elif told.gpus:
        click.echo("peer access: ?")
