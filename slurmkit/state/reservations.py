"""Read and parse `scontrol show reservation`."""

from __future__ import annotations

from slurmkit.errors import SlurmError
from slurmkit.formats import scontrol as slurm_text
from slurmkit.formats.scontrol import expand_nodes
from slurmkit.slurm.commands import SlurmCommands
from slurmkit.state.model import Reservation


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
