"""Read `scontrol show reservation`."""

from __future__ import annotations

from slurmkit.capabilities import text as slurm_text
from slurmkit.capabilities.model import Reservation
from slurmkit.capabilities.nodes import node_names
from slurmkit.errors import SlurmError
from slurmkit.slurm import Slurm


def read_reservations(slurm: Slurm) -> tuple[Reservation, ...]:
    """Ask slurmctld for the current and future reservations that it shows.

    Raises:
        SlurmError: when it does not answer or its answer cannot be read.
    """
    text = slurm.run(["scontrol", "--all", "--oneliner", "show", "reservation"])
    try:
        return parse_reservations(text)
    except (KeyError, ValueError) as error:
        raise SlurmError(f"scontrol printed a reservation that cannot be read: {error}") from error


def parse_reservations(text: str) -> tuple[Reservation, ...]:
    """Read `scontrol --oneliner show reservation`, its times as epoch seconds.

    Raises:
        ValueError: for a number that is none.
    """
    return tuple(map(_reservation, slurm_text.records(text, "ReservationName")))


def _reservation(found: dict[str, str]) -> Reservation:
    return Reservation(
        name=found["ReservationName"],
        start=int(found["StartTime"]),
        end=int(found["EndTime"]),
        nodes=node_names(found.get("Nodes")),
        partition=slurm_text.optional(found.get("PartitionName")) or "",
        users=slurm_text.names(found.get("Users")),
        accounts=slurm_text.names(found.get("Accounts")),
        groups=slurm_text.names(found.get("Groups")),
        qos=slurm_text.names(found.get("QOS")),
        allowed_partitions=slurm_text.names(found.get("AllowedPartitions")),
        features=slurm_text.optional(found.get("Features")) or "",
        tres=slurm_text.tres(found.get("TRES")),
        flags=slurm_text.names(found.get("Flags")),
        state=found["State"],
    )
