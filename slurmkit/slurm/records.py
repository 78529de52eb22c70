"""Records of squeue and sacct: a random mark ends each field, since names may hold any text."""

from __future__ import annotations

import os
from binascii import b2a_base64
from collections.abc import Sequence

from slurmkit.errors import SlurmError
from slurmkit.slurm.commands import SlurmCommands


def record_mark() -> str:
    """Return a random field separator for one call; no existing job name can contain it.

    It has 32 random bits in few characters, since squeue prints it after each field.
    """
    return f"\x1f{b2a_base64(os.urandom(4)).decode()[:6]}"


def read_records(
    slurm: SlurmCommands, argv: Sequence[str], fields: Sequence[str]
) -> list[list[str]]:
    """Run squeue or sacct for records of these fields.

    Args:
        slurm: runs the command.
        argv: the command, without the options of its format.
        fields: the command's own names of them.

    Raises:
        SlurmError: when the command fails, or its answer is cut off.
    """
    mark = record_mark()
    text = slurm.run([*argv, *format_options(argv[0], fields, mark)])
    return split_records(text, mark, len(fields), argv[0])


def format_options(command: str, fields: Sequence[str], mark: str) -> list[str]:
    """Return the options with which squeue or sacct prints records for `split_records`."""
    if command == "squeue":  # a suffix without a width prints the field untruncated
        return ["--noheader", "-O", ",".join(f"{field}:{mark}" for field in fields)]
    return ["--noheader", "--parsable", f"--delimiter={mark}", f"--format={','.join(fields)}"]


def split_records(text: str, mark: str, count: int, command: str) -> list[list[str]]:
    """Split the output of a command into records of `count` fields; the mark ends each field.

    Raises:
        SlurmError: when the last record is cut off.
    """
    parts = text.split(mark)
    records, rest = divmod(len(parts) - 1, count)
    if rest or parts[-1].strip():
        raise SlurmError(f"{command}'s answer broke off after {records} rows; try again")
    return [
        [parts[at].lstrip("\n"), *parts[at + 1 : at + count]]
        for at in range(0, records * count, count)
    ]
