"""Read what a cluster is and has: nodes, partitions, settings and reservations, as text."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from slurmkit.errors import SlurmError
from slurmkit.formats import scontrol as slurm_text
from slurmkit.formats.scontrol import expand_nodes, parse_settings
from slurmkit.formats.tres import GPU_TRES
from slurmkit.slurm.commands import SlurmCommands
from slurmkit.state.model import Capabilities, Node, Partition, Reservation

# `--all` shows hidden partitions, too: a job may name one.
CAPABILITY_COMMANDS: dict[str, tuple[str, ...]] = {
    "config": ("scontrol", "show", "config"),
    "nodes": ("scontrol", "--all", "--oneliner", "show", "node"),
    "partitions": ("scontrol", "--all", "--oneliner", "show", "partition"),
    "licenses": ("scontrol", "--oneliner", "show", "license"),
    "mpi": ("srun", "--mpi=list"),
    "srun": ("srun", "--help"),
}
_OPTIONAL = {"licenses", "mpi", "srun"}
_PRIVATE = {"nodes", "partitions"}  # PrivateData may hide them from users
_CONTAINER_OPTION = re.compile(r"^\s+(?:-\w, )?--(container[a-z-]*)", re.MULTILINE)
_MPI_PLUGIN = re.compile(r"^\s+([a-z]\w*)\s*$", re.MULTILINE)


def read_capabilities(slurm: SlurmCommands) -> Capabilities:
    """Ask slurmctld, in four RPCs, and srun on this machine.

    Raises:
        SlurmError: when slurmctld does not answer or its answer cannot be read.
    """
    taken = time.time()
    with ThreadPoolExecutor(
        len(CAPABILITY_COMMANDS)
    ) as pool:  # the commands wait, they do not work
        asked = {
            name: pool.submit(_ask, slurm, name, argv) for name, argv in CAPABILITY_COMMANDS.items()
        }
    outputs = {name: answer.result() for name, answer in asked.items()}
    try:
        return parse_capabilities(outputs, taken)
    except (KeyError, ValueError) as error:
        raise SlurmError(f"scontrol printed something that cannot be read: {error}") from error


def _ask(slurm: SlurmCommands, name: str, argv: Sequence[str]) -> str | None:
    try:
        return slurm.run(argv)
    except SlurmError as error:
        private = name in _PRIVATE and "Access/permission denied" in str(error)
        if name not in _OPTIONAL and not private:
            raise
        return None


def parse_capabilities(outputs: dict[str, str | None], taken: float) -> Capabilities:
    """Parse the outputs of the commands, by the names of `CAPABILITY_COMMANDS`.

    Raises:
        ValueError: for text that is not a number.
    """
    config = slurm_text.parse_settings(outputs["config"] or "")
    version = config.get("SLURM_VERSION", "")
    return Capabilities(
        taken=taken,
        release=tuple(int(part) for part in re.findall(r"\d+", version.partition("-")[0])),
        cluster_name=config.get("ClusterName", ""),
        config=config,
        nodes=parse_nodes(outputs["nodes"] or ""),
        partitions=parse_partitions(outputs["partitions"] or ""),
        mpi=None if outputs["mpi"] is None else tuple(_MPI_PLUGIN.findall(outputs["mpi"])),
        container_options=tuple(_CONTAINER_OPTION.findall(outputs["srun"] or "")),
        licenses={
            record["LicenseName"]: int(record["Total"])
            for record in slurm_text.parse_records(outputs["licenses"] or "", "LicenseName")
        },
        hidden=tuple(
            f"{name} are unknown: slurmctld does not show them to you (PrivateData)"
            for name in ("nodes", "partitions", "licenses")
            if outputs[name] is None
        ),
    )


def parse_nodes(text: str) -> tuple[Node, ...]:
    """Parse `scontrol --oneliner show node`."""
    return tuple(map(parse_node, slurm_text.parse_records(text, "NodeName")))


def parse_node(record: dict[str, str]) -> Node:
    """Parse one node's record, split into keys and values."""
    return Node(
        name=record["NodeName"],
        states=slurm_text.parse_states(record["State"]),
        reason=record.get("Reason", ""),
        cpus=int(record.get("CPUEfctv", record["CPUTot"])),
        sockets=int(record["Sockets"]),
        cores_per_socket=int(record["CoresPerSocket"]),
        threads_per_core=int(record["ThreadsPerCore"]),
        memory=int(record["RealMemory"]) - int(record.get("MemSpecLimit", 0)),
        tmp_disk=int(record["TmpDisk"]),
        features=slurm_text.parse_names(record.get("ActiveFeatures")),
        gres=slurm_text.parse_gres(record.get("Gres")),
        partitions=slurm_text.parse_names(record.get("Partitions")),
        architecture=record.get("Arch", ""),
    )


def parse_partitions(text: str) -> tuple[Partition, ...]:
    """Parse `scontrol --oneliner show partition`."""
    return tuple(map(_partition, slurm_text.parse_records(text, "PartitionName")))


def _partition(record: dict[str, str]) -> Partition:
    rest = dict(record)
    take = rest.pop

    def number(key: str) -> int | None:
        return slurm_text.parse_amount(take(key, None))

    return Partition(
        name=take("PartitionName"),
        default=take("Default", "") == "YES",
        state=take("State", "UNKNOWN"),
        max_time=slurm_text.parse_minutes(take("MaxTime", None)),
        default_time=slurm_text.parse_minutes(take("DefaultTime", None)),
        min_nodes=number("MinNodes") or 0,
        max_nodes=number("MaxNodes"),
        max_cpus_per_node=number("MaxCPUsPerNode"),
        def_mem_per_cpu=number("DefMemPerCPU"),
        def_mem_per_node=number("DefMemPerNode"),
        max_mem_per_cpu=number("MaxMemPerCPU"),
        max_mem_per_node=number("MaxMemPerNode"),
        allow_accounts=slurm_text.parse_allowed(take("AllowAccounts", None)),
        deny_accounts=slurm_text.parse_names(take("DenyAccounts", None)),
        allow_qos=slurm_text.parse_allowed(take("AllowQos", None)),
        deny_qos=slurm_text.parse_names(take("DenyQos", None)),
        allow_groups=slurm_text.parse_allowed(take("AllowGroups", None)),
        qos=slurm_text.optional(take("QoS", None)),
        billing_weights=slurm_text.parse_weights(take("TRESBillingWeights", None)),
        nodes=expand_nodes(take("Nodes", None)),
        settings=rest,
    )


class SlurmConfig(NamedTuple):
    """Settings of the whole cluster from slurm.conf; None is unknown.

    Attributes:
        cluster_name: ClusterName; escape it before showing it.
        tracks_gpus: whether AccountingStorageTRES has GPUs; if not, neither squeue nor sacct
            can count them.
    """

    cluster_name: str | None = None
    tracks_gpus: bool | None = None


def read_slurm_config(slurm: SlurmCommands) -> SlurmConfig:
    """Read slurmctld's configuration from scontrol.

    Raises:
        SlurmError: when slurmctld does not answer.
    """
    return parse_slurm_config(slurm.run(["scontrol", "show", "config"]))


def parse_slurm_config(text: str) -> SlurmConfig:
    """Parse the output of `scontrol show config`."""
    config = parse_settings(text)
    tres = config.get("AccountingStorageTRES")
    # Not `gres/gpumem` and `gres/gpuutil`, which are measurements.
    tracks = (
        None
        if tres is None
        else any(name == GPU_TRES or name.startswith(f"{GPU_TRES}:") for name in tres.split(","))
    )
    return SlurmConfig(config.get("ClusterName") or None, tracks)


def read_reservations(slurm: SlurmCommands) -> tuple[Reservation, ...]:
    """Ask slurmctld for the current and future reservations that it shows.

    Raises:
        SlurmError: when slurmctld does not answer or its answer cannot be read.
    """
    text = slurm.run(["scontrol", "--all", "--oneliner", "show", "reservation"])
    try:
        return parse_reservations(text)
    except (KeyError, ValueError) as error:
        raise SlurmError(f"scontrol printed a reservation that cannot be read: {error}") from error


def parse_reservations(text: str) -> tuple[Reservation, ...]:
    """Parse `scontrol --oneliner show reservation`, with times in epoch seconds.

    Raises:
        ValueError: for text that is not a number.
    """
    return tuple(map(_reservation, slurm_text.parse_records(text, "ReservationName")))


def _reservation(record: dict[str, str]) -> Reservation:
    return Reservation(
        name=record["ReservationName"],
        start=int(record["StartTime"]),
        end=int(record["EndTime"]),
        nodes=expand_nodes(record.get("Nodes")),
        partition=slurm_text.optional(record.get("PartitionName")) or "",
        users=slurm_text.parse_names(record.get("Users")),
        accounts=slurm_text.parse_names(record.get("Accounts")),
        groups=slurm_text.parse_names(record.get("Groups")),
        qos=slurm_text.parse_names(record.get("QOS")),
        allowed_partitions=slurm_text.parse_names(record.get("AllowedPartitions")),
        features=slurm_text.optional(record.get("Features")) or "",
        tres=slurm_text.parse_tres_counts(record.get("TRES")),
        flags=slurm_text.parse_names(record.get("Flags")),
        state=record["State"],
    )
