"""Variables of NCCL, gloo and UCX for the network of nodes, from `[fabric.PARTITION]`.

The variables and their forms are in NCCL's user guide, "Environment Variables", PyTorch's
"Distributed communication package" and UCX's "Frequently asked questions". Without a profile
nothing is set, and each library chooses the network itself.
"""

from __future__ import annotations

import msgspec

from slurmkit.config.files import load_tables
from slurmkit.errors import BadInput
from slurmkit.planning.secrets import mask_secrets
from slurmkit.spec.findings import Finding, note, warning
from slurmkit.spec.jobspec import JobSpec

_SOURCE = "[fabric.PARTITION]"


class FabricSection(msgspec.Struct, frozen=True):
    """`[fabric.PARTITION]`: the network between the nodes of a partition.

    Attributes:
        interfaces: network interfaces that the sockets of NCCL and gloo use, by their exact names.
        hcas: InfiniBand or RoCE devices that NCCL and UCX use, by their exact names, `mlx5_0` or
            `mlx5_0:1`.
        network: its network plugin, e.g. `IB` or `AWS Libfabric`.
        environment: other variables of jobs in this partition.
    """

    interfaces: tuple[str, ...] = ()
    hcas: tuple[str, ...] = ()
    network: str = ""
    environment: dict[str, str] = {}

    @property
    def variables(self) -> dict[str, str]:
        """Variables that a job's script exports.

        For NCCL, `=` makes a device name exact; without it, mlx5_1 would match mlx5_10 too. gloo
        serves PyTorch's groups of CPUs. UCX wants a port after each device. Without devices its
        variable stays unset: with interfaces alone UCX would use nothing but TCP.
        """
        ports = [each if ":" in each else f"{each}:1" for each in self.hcas]
        variables = {
            "NCCL_SOCKET_IFNAME": f"={','.join(self.interfaces)}" if self.interfaces else "",
            "NCCL_IB_HCA": f"={','.join(self.hcas)}" if self.hcas else "",
            "NCCL_NET": self.network,
            "GLOO_SOCKET_IFNAME": ",".join(self.interfaces),
            "UCX_NET_DEVICES": ",".join([*ports, *self.interfaces]) if self.hcas else "",
        }
        return {name: value for name, value in variables.items() if value} | self.environment


def with_nccl_variables(
    spec: JobSpec, partitions: tuple[str, ...]
) -> tuple[JobSpec, tuple[Finding, ...]]:
    """Add the NCCL variables of the partition's profile, and NCCL_DEBUG from `launch`.

    Variables that the job sets itself win over those of the profile.

    Args:
        spec: the job; the profile is only for commands with whole GPUs, not for scripts.
        partitions: names of the partitions it may run in.

    Raises:
        BadConfig: for a wrong file.
        BadInput: for a variable that no job may set, or two values of NCCL_DEBUG.
    """
    spec = _with_nccl_debug(spec)
    if spec.script is not None or spec.gpus is None or spec.gpus.is_part:
        return spec, ()
    profiles = load_tables("fabric", FabricSection)
    variables = [profiles[name].variables if name in profiles else {} for name in partitions]
    if not any(variables):
        return spec, ()
    if any(each != variables[0] for each in variables):
        message = (
            f"the networks of {', '.join(partitions)} differ, so NCCL chooses one itself; give only"
            " one of these partitions"
        )
        return spec, (warning("fabric-differs", message, _SOURCE),)
    added = {name: value for name, value in variables[0].items() if name not in spec.environment}
    if not added:
        return spec, ()
    words = " ".join(f"{name}={value}" for name, value in mask_secrets(added).items())
    finding = note("fabric", f"the network of partition {partitions[0]}: {words}", _SOURCE)
    environment = {**added, **spec.environment}
    return msgspec.structs.replace(spec, environment=environment), (finding,)


def _with_nccl_debug(spec: JobSpec) -> JobSpec:
    level, own_level = spec.launch.nccl_debug, spec.environment.get("NCCL_DEBUG")
    if level is None or level == own_level:
        return spec
    if own_level is not None:
        raise BadInput(f"--nccl-debug {level} and NCCL_DEBUG={own_level}: give one of them")
    return msgspec.structs.replace(spec, environment={**spec.environment, "NCCL_DEBUG": level})
