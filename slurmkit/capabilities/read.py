"""Ask a cluster what it is and has."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from slurmkit.capabilities import text as slurm_text
from slurmkit.capabilities.model import Capabilities, Node, Partition
from slurmkit.capabilities.nodes import node_names
from slurmkit.errors import SlurmError
from slurmkit.slurm import Slurm

# `--all` shows hidden partitions, too: a job may name one.
ASKED: dict[str, tuple[str, ...]] = {
    "config": ("scontrol", "show", "config"),
    "nodes": ("scontrol", "--all", "--oneliner", "show", "node"),
    "partitions": ("scontrol", "--all", "--oneliner", "show", "partition"),
    "licenses": ("scontrol", "--oneliner", "show", "license"),
    "mpi": ("srun", "--mpi=list"),
    "srun": ("srun", "--help"),
}
_OPTIONAL = {"licenses", "mpi", "srun"}
_PRIVATE = {"nodes", "partitions"}  # PrivateData may keep them from people
_CONTAINER_OPTION = re.compile(r"^\s+(?:-\w, )?--(container[a-z-]*)", re.MULTILINE)
_MPI_PLUGIN = re.compile(r"^\s+([a-z]\w*)\s*$", re.MULTILINE)


def read_capabilities(slurm: Slurm) -> Capabilities:
    """Ask slurmctld, in four RPCs, and srun on this machine.

    Raises:
        SlurmError: when slurmctld does not answer or its answer cannot be read.
    """
    taken = time.time()
    with ThreadPoolExecutor(len(ASKED)) as pool:  # the commands wait, they do not work
        asked = {name: pool.submit(_ask, slurm, name, argv) for name, argv in ASKED.items()}
    said = {name: answer.result() for name, answer in asked.items()}
    try:
        return parse_capabilities(said, taken)
    except (KeyError, ValueError) as error:
        raise SlurmError(f"scontrol printed something that cannot be read: {error}") from error


def _ask(slurm: Slurm, name: str, argv: Sequence[str]) -> str | None:
    try:
        return slurm.run(argv)
    except SlurmError as error:
        private = name in _PRIVATE and "Access/permission denied" in str(error)
        if name not in _OPTIONAL and not private:
            raise
        return None


def parse_capabilities(said: dict[str, str | None], taken: float) -> Capabilities:
    """Put together what the commands said, by the names of `ASKED`.

    Raises:
        ValueError: for a number that is none.
    """
    config = slurm_text.settings(said["config"] or "")
    return Capabilities(
        taken=taken,
        release=_release(config.get("SLURM_VERSION", "")),
        cluster_name=config.get("ClusterName", ""),
        config=config,
        nodes=parse_nodes(said["nodes"] or ""),
        partitions=parse_partitions(said["partitions"] or ""),
        mpi=None if said["mpi"] is None else tuple(_MPI_PLUGIN.findall(said["mpi"])),
        container_options=tuple(_CONTAINER_OPTION.findall(said["srun"] or "")),
        licenses=_licenses(said["licenses"] or ""),
        hidden=tuple(
            f"{name} are unknown: slurmctld does not show them to you (PrivateData)"
            for name in ("nodes", "partitions", "licenses")
            if said[name] is None
        ),
    )


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("-")[0]))


def _licenses(text: str) -> dict[str, int]:
    found = slurm_text.records(text, "LicenseName")
    return {record["LicenseName"]: int(record["Total"]) for record in found}


def parse_nodes(text: str) -> tuple[Node, ...]:
    """Read `scontrol --oneliner show node`."""
    return tuple(map(parse_node, slurm_text.records(text, "NodeName")))


def parse_node(found: dict[str, str]) -> Node:
    """Read one record of it, split into keys and values."""
    return Node(
        name=found["NodeName"],
        states=slurm_text.states(found["State"]),
        reason=found.get("Reason", ""),
        cpus=int(found.get("CPUEfctv", found["CPUTot"])),
        sockets=int(found["Sockets"]),
        cores_per_socket=int(found["CoresPerSocket"]),
        threads_per_core=int(found["ThreadsPerCore"]),
        memory=int(found["RealMemory"]) - int(found.get("MemSpecLimit", 0)),
        tmp_disk=int(found["TmpDisk"]),
        features=slurm_text.names(found.get("ActiveFeatures")),
        gres=slurm_text.gres(found.get("Gres")),
        partitions=slurm_text.names(found.get("Partitions")),
        architecture=found.get("Arch", ""),
    )


def parse_partitions(text: str) -> tuple[Partition, ...]:
    """Read `scontrol --oneliner show partition`."""
    return tuple(map(_partition, slurm_text.records(text, "PartitionName")))


def _partition(found: dict[str, str]) -> Partition:
    rest = dict(found)
    take = rest.pop

    def number(key: str) -> int | None:
        return slurm_text.amount(take(key, None))

    return Partition(
        name=take("PartitionName"),
        default=take("Default", "") == "YES",
        state=take("State", "UNKNOWN"),
        max_time=slurm_text.minutes(take("MaxTime", None)),
        default_time=slurm_text.minutes(take("DefaultTime", None)),
        min_nodes=number("MinNodes") or 0,
        max_nodes=number("MaxNodes"),
        max_cpus_per_node=number("MaxCPUsPerNode"),
        def_mem_per_cpu=number("DefMemPerCPU"),
        def_mem_per_node=number("DefMemPerNode"),
        max_mem_per_cpu=number("MaxMemPerCPU"),
        max_mem_per_node=number("MaxMemPerNode"),
        allow_accounts=slurm_text.allowed(take("AllowAccounts", None)),
        deny_accounts=slurm_text.names(take("DenyAccounts", None)),
        allow_qos=slurm_text.allowed(take("AllowQos", None)),
        deny_qos=slurm_text.names(take("DenyQos", None)),
        allow_groups=slurm_text.allowed(take("AllowGroups", None)),
        qos=slurm_text.optional(take("QoS", None)),
        billing_weights=slurm_text.weights(take("TRESBillingWeights", None)),
        nodes=node_names(take("Nodes", None)),
        settings=rest,
    )
