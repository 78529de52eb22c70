"""The site's network between nodes, told to NCCL: `[fabric.PARTITION]` of the configuration.

Variables and their forms: NCCL's user guide, "Environment Variables". Without a profile nothing is
set, and NCCL chooses by itself.
"""

from __future__ import annotations

import msgspec

from slurmkit.checks.say import note, warning
from slurmkit.config import load_tables
from slurmkit.errors import BadInput
from slurmkit.findings import Finding
from slurmkit.planning.secrets import masked
from slurmkit.spec import JobSpec

_SOURCE = "[fabric.PARTITION]"


class FabricSection(msgspec.Struct, frozen=True):
    """`[fabric.PARTITION]`: the network between the nodes of a partition.

    Attributes:
        interfaces: network interfaces that NCCL's sockets use, by their exact names.
        hcas: InfiniBand or RoCE devices it uses, by their exact names, `mlx5_0` or `mlx5_0:1`.
        network: its network plugin, e.g. `IB` or `AWS Libfabric`.
        environment: other variables of jobs there.
    """

    interfaces: tuple[str, ...] = ()
    hcas: tuple[str, ...] = ()
    network: str = ""
    environment: dict[str, str] = {}

    @property
    def variables(self) -> dict[str, str]:
        """What a job's script exports; `=` makes a name exact: mlx5_1 would be mlx5_10 too."""
        found = {
            "NCCL_SOCKET_IFNAME": f"={','.join(self.interfaces)}" if self.interfaces else "",
            "NCCL_IB_HCA": f"={','.join(self.hcas)}" if self.hcas else "",
            "NCCL_NET": self.network,
        }
        return {name: value for name, value in found.items() if value} | self.environment


def with_fabric(spec: JobSpec, partitions: tuple[str, ...]) -> tuple[JobSpec, tuple[Finding, ...]]:
    """Add what NCCL is told: the profile of a job's partition, and what the job itself asks for.

    Variables that the job sets go before those of the profile.

    Args:
        spec: the job; one without whole GPUs, or of a whole script, is left as it is.
        partitions: those it may run in.

    Raises:
        BadConfig: for a wrong file.
        BadInput: for a variable that no job may set, or that is asked for in two ways.
    """
    spec = _with_debug(spec)
    if spec.script is not None or spec.gpus is None or spec.gpus.is_part:
        return spec, ()
    profiles = load_tables("fabric", FabricSection)
    found = [profiles[name].variables if name in profiles else {} for name in partitions]
    if not any(found):
        return spec, ()
    if any(each != found[0] for each in found):
        message = f"the networks of {', '.join(partitions)} differ: NCCL chooses; name one of them"
        return spec, (warning("fabric-differs", message, _SOURCE),)
    added = {name: value for name, value in found[0].items() if name not in spec.environment}
    if not added:
        return spec, ()
    words = " ".join(f"{name}={value}" for name, value in masked(added).items())
    said = note("fabric", f"the network of partition {partitions[0]}: {words}", _SOURCE)
    environment = {**added, **spec.environment}
    return msgspec.structs.replace(spec, environment=environment), (said,)


def _with_debug(spec: JobSpec) -> JobSpec:
    level, given = spec.launch.nccl_debug, spec.environment.get("NCCL_DEBUG")
    if level is None or level == given:
        return spec
    if given is not None:
        raise BadInput(f"--nccl-debug {level} and NCCL_DEBUG={given}: give one of them")
    return msgspec.structs.replace(spec, environment={**spec.environment, "NCCL_DEBUG": level})
