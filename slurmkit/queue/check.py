"""Filters that name what a cluster does not have: squeue shows no jobs for them and ends well."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from slurmkit.errors import BadInput, Refused
from slurmkit.queue.rows import QueueRow
from slurmkit.slurm import Slurm

_SHOW = ("scontrol", "--all", "--oneliner", "show")
# squeue's own words (src/squeue/opts.c, 22.05 to 26.05), and ours.
_REFUSALS = (
    (r"Invalid user: (.*?)(?:;|$)", "--user {}: there is no such user here"),
    (r"Invalid node name (.*?)(?:;|$)", "--nodelist: there is no node {}; see: sinfo -N"),
    (r"'(.*?)' invalid entry for --nodelist", "--nodelist {}: not a list of nodes like c[1-3],c5"),
    (
        r"Invalid job state specified: (.*?)(?:;|$).*Valid job states include: (.*?)(?:;|$)",
        "--states {}: not a state; give all alone, or some of {}",
    ),
)


def bad_input(error: Refused) -> Refused | BadInput:
    """Name the filter that squeue refused."""
    for pattern, words in _REFUSALS:
        match = re.search(pattern, str(error))
        if match:
            return BadInput(words.format(*match.groups()))
    return error


def refuse_unknown(
    slurm: Slurm, named: Mapping[str, Sequence[str]], rows: Sequence[QueueRow]
) -> None:
    """Ask Slurm about names that no row has; what it does not let us see passes.

    Args:
        slurm: the border to Slurm.
        named: names by squeue's option: partition, account, qos and reservation.
        rows: what squeue showed.

    Raises:
        BadInput: naming the option, the name and what there is instead.
    """
    for option, names in named.items():
        seen = {value.lower() for row in rows for value in getattr(row, option).split(",")}
        for name in names:
            if name.lower() not in seen:
                _KINDS[option](slurm, name)


def _partition(slurm: Slurm, name: str) -> None:
    there = _names(slurm, [*_SHOW, "partition"], "PartitionName")
    _must_be_in(there, "partition", name, f"there are {', '.join(there)}")


def _qos(slurm: Slurm, name: str) -> None:
    there = _names(slurm, [*_SHOW, "assoc_mgr", "flags=qos"], "QOS")
    if there:
        _must_be_in(map(str.lower, there), "qos", name.lower(), f"there are {', '.join(there)}")


def _account(slurm: Slurm, name: str) -> None:
    """Every cluster with accounts has `root`: without it none is shown to us."""
    asked = [*_SHOW, "assoc_mgr", "flags=assoc", f"accounts={name.lower()},root"]
    there = _names(slurm, asked, "Account")
    if "root" in there:
        advice = "see: sacctmgr show account"
        _must_be_in(map(str.lower, there), "account", name.lower(), advice)


def _reservation(slurm: Slurm, name: str) -> None:
    there = _names(slurm, [*_SHOW, "reservation"], "ReservationName")
    _must_be_in(there, "reservation", name, f"there are {', '.join(there) or 'none'}")


_KINDS = {
    "partition": _partition,
    "qos": _qos,
    "account": _account,
    "reservation": _reservation,
}


def _names(slurm: Slurm, argv: list[str], key: str) -> list[str]:
    pattern = rf"^(?:ClusterName=\S+ )?{key}=([^\s(]+)"
    return list(dict.fromkeys(re.findall(pattern, slurm.run(argv), re.MULTILINE)))


def _must_be_in(there: Iterable[str], option: str, name: str, advice: str) -> None:
    if name not in set(there):
        raise BadInput(f"--{option} {name}: this cluster has no such {_WORDS[option]}; {advice}")


_WORDS = {"qos": "QOS"} | {word: word for word in ("partition", "account", "reservation")}
