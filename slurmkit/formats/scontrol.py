"""Parsers of Slurm's printed forms: records, amounts, durations, TRES and GRES; no I/O."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import cast

from slurmkit.formats.durations import parse_elapsed
from slurmkit.formats.memory import BINARY_UNITS, parse_mib
from slurmkit.formats.tres import Gres, Tres, parse_tres

_KEY = re.compile(r"(?:(?<=\s)|^)([A-Z][A-Za-z_/]*)=")
_SETTING = re.compile(r"^(?P<key>[A-Za-z]\S*?)[ \t]*=[ \t](?P<value>.*?)[ \t]*$", re.MULTILINE)
_UNSET = {"", "(null)", "N/A", "NONE", "None"}
_UNLIMITED = {"UNLIMITED", "INFINITE", "N"}
_SIZE = re.compile(r"\d+[KMGTP]?")
# A list as Slurm prints it: `c[1-3,007],d5`. Brackets stand at the end of a name.
_RANGES = r"\d{1,9}(?:-\d{1,9})?(?:,\d{1,9}(?:-\d{1,9})?)*"
_PRINTED = rf"([\w.-]+)(?:\[({_RANGES})\])?"
_PRINTED_ITEM = re.compile(_PRINTED)
_PRINTED_LIST = re.compile(rf"{_PRINTED}(?:,{_PRINTED})*")
# A list as a user may write it: `r[1-2]n[1-8]x,c[01-10]`.
_ITEM = re.compile(r"(?:[^,\[\]]|\[[^\]]*\])+")
_BRACKET = re.compile(r"(\d*)\[([^\]]*)\](?=(\d*))")
_NOT_CLUSTERSHELL = re.compile(r"[\d\]]\[")
_MOST_NODES = 1 << 16  # Slurm allows 65,533 nodes (MAX_SLURM_NODES)
_PARENTHESES = re.compile(r"\([^)]*\)")  # `(S:0-1)`, `(IDX:0,2)`
_FLAG_SIGNS = {  # sinfo(1), NODE STATE CODES
    "*": "NOT_RESPONDING",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "!": "POWER_DOWN",
    "%": "POWERING_DOWN",
    "$": "MAINTENANCE",
    "@": "REBOOT_REQUESTED",
    "^": "REBOOT_ISSUED",
}


def parse_records(text: str, first: str) -> Iterator[dict[str, str]]:
    """Split the output of `scontrol show --oneliner` into records that begin with key `first`."""
    for part in re.split(rf"^(?={first}=)", text, flags=re.MULTILINE):
        if part.startswith(f"{first}="):
            yield parse_pairs(part)


def parse_pairs(text: str) -> dict[str, str]:
    """Split one record `KEY=VALUE KEY=VALUE …`, whose values may hold blanks.

    A repeated key is part of a value. Texts that users write (Reason, Comment, Extra) come last, so
    they cannot replace a fact.
    """
    _, *parts = _KEY.split(text)
    record: dict[str, str] = {}
    last = ""
    for key, value in zip(parts[::2], parts[1::2], strict=True):
        if key in record:
            record[last] += f"{key}={value}"
        else:
            record[key], last = value, key
    return {key: value.strip() for key, value in record.items()}


def parse_settings(text: str) -> dict[str, str]:
    """Parse the `KEY = VALUE` lines of `scontrol show config`."""
    values: dict[str, str] = {}
    for line in _SETTING.finditer(text):
        values.setdefault(line["key"], line["value"])
    return values


def optional(text: str | None) -> str | None:
    """Return a value, or None for the ways in which Slurm writes that there is none."""
    return None if text is None or text in _UNSET else text


def parse_names(text: str | None) -> tuple[str, ...]:
    """Split a list `a,b`; empty for `(null)`."""
    value = optional(text)
    return tuple(value.split(",")) if value else ()


def parse_allowed(text: str | None) -> tuple[str, ...] | None:
    """Split a list of who is allowed; None for everybody."""
    return None if text is None or text.upper() == "ALL" else parse_names(text)


def parse_amount(text: str | None) -> int | None:
    """Parse a count such as `8`, or a size such as `500G` or `1.50T` in MiB; None for no limit.

    Slurm prints sizes in the largest unit that fits, so K is below 1 M and rounded up.

    Raises:
        ValueError: for text that is no amount.
    """
    if text is None or text in _UNSET or text in _UNLIMITED:
        return None
    unit = text[-1].upper()
    if unit not in BINARY_UNITS and math.isfinite(count := float(text)):
        return int(count)
    mebibytes = parse_mib(text, rounding="up")
    if mebibytes is None:
        raise ValueError(f"{text!r} is not an amount")
    return mebibytes


def parse_minutes(text: str | None) -> int | None:
    """Parse `7-00:00:00`, `01:00:00` or plain minutes to minutes; None for UNLIMITED and NONE."""
    if text is None or text in _UNSET or text in _UNLIMITED:
        return None
    if ":" not in text:
        return int(text)
    seconds = parse_elapsed(text)
    if seconds is None:
        raise ValueError(f"{text!r} is not a time limit")
    return seconds // 60


def parse_tres_counts(text: str | None) -> Tres:
    """Parse `cpu=4,mem=8G,gres/gpu=2`; memory in MiB, and K of other TRES is 1024."""
    texts = parse_tres(text or "")
    read = ((name, parse_tres_amount(name, value)) for name, value in texts.items())
    return {name: value for name, value in read if value is not None}


def parse_tres_amount(name: str, value: str) -> int | None:
    """Parse the amount of one TRES; None for no limit."""
    unit = value[-1:].upper()
    if name == "mem" or unit not in BINARY_UNITS:
        return parse_amount(value)
    return int(float(value[:-1]) * BINARY_UNITS[unit])


def parse_limit_and_use(text: str | None) -> tuple[int | None, int]:
    """Parse `12(3)` or `N(3)` of `scontrol show assoc_mgr`: a limit, if any, and its use."""
    limit, _, used = (text or "").partition("(")
    return parse_amount(limit), int(float(used.rstrip(")") or 0))


def parse_limits_and_uses(text: str | None) -> tuple[Tres, Tres]:
    """Parse `cpu=N(3),mem=1024(512)`: limits that are set, and uses other than 0."""
    limits: Tres = {}
    uses: Tres = {}
    for name, both in parse_tres(text or "").items():
        limit, used = parse_limit_and_use(both)
        limits |= {} if limit is None else {name: limit}
        uses |= {name: used} if used else {}
    return limits, uses


def parse_weights(text: str | None) -> dict[str, float]:
    """Parse TRESBillingWeights: TRES name in lower case to weight per unit, memory per MiB."""
    weights_ = {}
    for name, value in parse_tres((text or "").lower()).items():
        weights_[name] = _weight(value, is_memory=name == "mem" or name.startswith("bb/"))
    return weights_


def _weight(value: str, *, is_memory: bool) -> float:
    unit = value[-1:].upper()
    if unit not in BINARY_UNITS:
        return float(value)
    base = BINARY_UNITS["M" if is_memory else ""]
    return float(value[:-1]) / max(BINARY_UNITS[unit] // base, 1)


def parse_gres(text: str | None) -> tuple[Gres, ...]:
    """Parse a node's `Gres=`, e.g. `gpu:a100:8(S:0-1),shard:16`; types keep their spelling."""
    return tuple(map(_one_gres, parse_names(_PARENTHESES.sub("", text or ""))))


def _one_gres(text: str) -> Gres:
    name, *rest = (part for part in text.split(":") if part != "no_consume")
    size = parse_tres_amount(name, rest.pop()) if rest and _SIZE.fullmatch(rest[-1]) else 1
    return Gres(name, ":".join(rest) or None, size or 0)


def parse_states(text: str) -> tuple[str, ...]:
    """Split `IDLE+DRAIN` or sinfo's `idle*` into the base state and its flags."""
    base, *flags = text.upper().split("+")
    signs = tuple(_FLAG_SIGNS[sign] for sign in base if sign in _FLAG_SIGNS)
    return (base.rstrip("*~#%$@!^-"), *flags, *signs)


def expand_nodes(text: str | None) -> tuple[str, ...]:
    """Expand `c[1-3],d5` as Slurm prints it; empty where Slurm writes that there is none.

    Raises:
        ValueError: as `expand_typed_nodes`.
    """
    return () if text is None or optional(text) is None else expand_typed_nodes(text)


def expand_typed_nodes(text: str) -> tuple[str, ...]:
    """Expand `c[1-3],d5` as a user types it: every text is a name.

    Raises:
        ValueError: for text that is not a node list, or names more nodes than Slurm allows.
    """
    clustershell = _clustershell()
    try:
        _refuse_huge_list(text)
        if _NOT_CLUSTERSHELL.search(text):
            text = ",".join(map(_written_out, _ITEM.findall(text)))
        return tuple(clustershell.NodeSet(text, resolver=clustershell.RESOLVER_NOGROUP))
    # ClusterShell raises AssertionError for a range that is too large.
    except (clustershell.NodeSetException, AssertionError, ValueError) as error:
        raise ValueError(f"{text!r} is not a list of nodes: {error}") from error


def _refuse_huge_list(text: str) -> None:
    """Count the nodes that ClusterShell would make; refuse what would fill the memory."""
    sizes = (
        math.prod(_bracket_size(*bracket) for bracket in _BRACKET.findall(item))
        for item in _ITEM.findall(text)
    )
    if sum(sizes) > _MOST_NODES:
        raise ValueError(f"it names more than {_MOST_NODES} nodes")


def _written_out(item: str) -> str:
    """Write the names of `c[1-2][3-4]` out, which ClusterShell does not take.

    It reads `c1[2-13]` as c12 to c113; for Slurm these are twelve names, as each digit before
    the bracket belongs to the prefix.
    """
    if not _NOT_CLUSTERSHELL.search(item):
        return item
    texts = re.split(r"\[([^\]]*)\]", item)
    parts = [_range_numbers(text) if at % 2 else [text] for at, text in enumerate(texts)]
    return ",".join(map("".join, itertools.product(*parts)))


def _range_numbers(ranges: str) -> list[str]:
    ends = (one.partition("-") for one in ranges.split(","))
    return [
        f"{number:0{len(first)}}"
        for first, dash, last in ends
        for number in range(int(first), int(last if dash else first) + 1)
    ]


def _bracket_size(before: str, ranges: str, after: str) -> int:
    """Return the names of `19[1-65535]0`: ClusterShell makes one range, 1910 to 19655350."""
    ends = (one.partition("/")[0].partition("-") for one in ranges.split(","))
    return sum(
        int(f"{before}{last}{after}") - int(f"{before}{first}{after}") + 1 if dash else 1
        for first, dash, last in ends
    )


def iterate_nodes(text: str) -> Iterator[str]:
    """Yield the names in a node list that a user may have forged, one by one.

    The whole list may be longer than the memory: stop at the first name that is not expected.

    Raises:
        ValueError: before the first name, for text that is not a node list as Slurm prints it.
    """
    if not _PRINTED_LIST.fullmatch(text):
        raise ValueError(f"{text!r} is not a list of nodes")
    for prefix, ranges in _PRINTED_ITEM.findall(text):
        if not ranges:
            yield prefix
            continue
        for part in ranges.split(","):
            first, dash, last = part.partition("-")
            for number in range(int(first), int(last if dash else first) + 1):
                yield f"{prefix}{number:0{len(first)}}"


def fold_nodes(names: Iterable[str]) -> str:
    """Fold names to `c[1-3],d5`."""
    clustershell = _clustershell()
    return str(clustershell.NodeSet.fromlist(list(names), resolver=clustershell.RESOLVER_NOGROUP))


def merge_node_lists(node_lists: Iterable[str]) -> str:
    """Merge `c[1-2]` and `c3` to `c[1-3]`."""
    clustershell = _clustershell()
    return str(
        clustershell.NodeSet.fromlist(list(node_lists), resolver=clustershell.RESOLVER_NOGROUP)
    )


def _clustershell() -> ModuleType:
    """Import ClusterShell's node sets, when the first node list is read."""
    from ClusterShell import NodeSet  # noqa: PLC0415 - 9 ms; commands with a warm cache need none

    return cast("ModuleType", NodeSet)
