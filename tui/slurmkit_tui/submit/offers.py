"""What a cluster offers for each field of the form, and which of them it does not have."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from slurmkit.capabilities.model import Capabilities, Partition, Standing
from slurmkit.capabilities.summary import GresKind, gres_kinds
from slurmkit.facts import clock
from slurmkit_tui.submit.fields import GPUS, PER, PERS

_COUNTS = (1, 2, 4, 8, 16)
_MAILS = ("END", "FAIL", "BEGIN", "END,FAIL", "TIME_LIMIT_80", "ALL")


class Offers(msgspec.Struct, frozen=True):
    """What can stand in the fields.

    Attributes:
        values: by field, as this person may use them; what is not limited to some has none.
        absent: fields that this cluster has no use for, and why.
        notes: what could not be found out.
        taken: epoch seconds at which Slurm was asked.
    """

    values: dict[str, tuple[str, ...]]
    absent: dict[str, str]
    notes: tuple[str, ...]
    taken: float


def offers(capabilities: Capabilities, standing: Standing) -> Offers:
    """Work out what one person is offered on a cluster."""
    partitions = [p for p in capabilities.partitions if _open_to(p, standing, capabilities)]
    partitions.sort(key=lambda p: not p.default)
    own = [each for each in standing.associations if each.user == standing.user]
    own.sort(key=lambda each: each.account != standing.default_account)
    nodes = capabilities.nodes_of(*(p.name for p in partitions))
    values: dict[str, Iterable[str]] = {
        "partition": (p.name for p in partitions),
        "account": (each.account for each in own),
        "qos": (name for each in own for name in (each.default_qos, *each.qos) if name),
        "reservation": _reservations(standing),
        GPUS: (text for kind in gres_kinds(nodes) for text in _gpus(kind)),
        PER: PERS,
        "mail-type": _MAILS,
    }
    known = {name: tuple(dict.fromkeys(each)) for name, each in values.items()}
    hidden = (*capabilities.hidden, *standing.hidden)
    return Offers(known, _absent(capabilities, standing), hidden, capabilities.taken)


def _open_to(partition: Partition, standing: Standing, capabilities: Capabilities) -> bool:
    """Whether a partition takes this person's jobs, as far as that can be seen."""
    if partition.state in ("DRAIN", "INACTIVE") or standing.user == "root":
        return standing.user == "root"
    if partition.settings.get("RootOnly") == "YES":
        return False
    groups = partition.allow_groups
    if groups is not None and not set(groups) & set(standing.groups):
        return False
    accounts = {each.account for each in standing.associations}
    allowed = partition.allow_accounts
    counts = any(map(capabilities.enforces, ("associations", "limits", "qos", "safe")))
    return not (counts and accounts and allowed is not None and not accounts & set(allowed))


def _reservations(standing: Standing) -> Iterable[str]:
    accounts = [each.account for each in standing.associations]
    usable = (r for r in standing.reservations if r.end > standing.taken)
    return (r.name for r in usable if r.admits(standing.user, accounts, standing.groups))


def _gpus(kind: GresKind) -> Iterable[str]:
    most = max(kind.per_node)
    if kind.name == "gpu":
        counts = sorted({n for n in _COUNTS if n <= most} | ({most} if not kind.is_mig else set()))
        return [f"{kind.type}:{n}" if kind.type else str(n) for n in counts]
    return [f"{kind.name}:1"] if kind.name == "shard" else [f"mps:{n}" for n in (10, 25, 50, 100)
            if kind.name == "mps" and n <= most]  # fmt: skip


def _absent(capabilities: Capabilities, standing: Standing) -> dict[str, str]:
    found: dict[str, str] = {}
    config = capabilities.config
    if config.get("AccountingStorageType", "?") in ("accounting_storage/none", "(null)", ""):
        without = "this cluster keeps no accounts"
        found |= {"account": without, "qos": without}
    if not standing.reservations:
        found["reservation"] = "there is no reservation"
    kinds = {g.name for node in capabilities.nodes for g in node.gres}
    if capabilities.nodes and not kinds & {"gpu", "shard", "mps"}:
        found |= dict.fromkeys((GPUS, PER), f"no node had GPUs at {clock(capabilities.taken)}")
    if config.get("MaxArraySize", "?") in ("0", "1"):
        found["array"] = "this cluster has no job arrays (MaxArraySize)"
    return found
