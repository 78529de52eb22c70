"""Slurm's printed forms, as pure functions: records, amounts, durations, TRES and GRES."""

from __future__ import annotations

import re
from collections.abc import Iterator

from slurmkit.capabilities.model import Gres, Tres

_KEY = re.compile(r"(?:(?<=\s)|^)([A-Z][A-Za-z_/]*)=")
_SETTING = re.compile(r"^(?P<key>[A-Za-z]\S*?)[ \t]*=[ \t](?P<value>.*?)[ \t]*$", re.MULTILINE)
_NOTHING = {"", "(null)", "N/A", "NONE", "None"}
_ENDLESS = {"UNLIMITED", "INFINITE", "N"}
_UNITS = "KMGTP"
_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<h>\d+):(?P<m>\d+):(?P<s>\d+)")
_SIZE = re.compile(r"\d+[KMGTP]?")
_ASIDE = re.compile(r"\([^)]*\)")  # `(S:0-1)`, `(IDX:0,2)`
_FLAG_SIGNS = {"*": "NOT_RESPONDING", "~": "POWERED_DOWN", "#": "POWERING_UP", "%": "POWERING_DOWN"}


def records(text: str, first: str) -> Iterator[dict[str, str]]:
    """Split the output of `scontrol show --oneliner` into records that begin with key `first`."""
    for part in re.split(rf"^(?={first}=)", text, flags=re.MULTILINE):
        if part.startswith(f"{first}="):
            yield pairs(part)


def pairs(text: str) -> dict[str, str]:
    """Split one record `KEY=VALUE KEY=VALUE …`, whose values may hold blanks.

    A key that comes again is part of a value: what people write themselves (Reason, Comment,
    Extra) comes last, so that it cannot stand for a fact.
    """
    _, *parts = _KEY.split(text)
    found: dict[str, str] = {}
    last = ""
    for key, value in zip(parts[::2], parts[1::2], strict=True):
        if key in found:
            found[last] += f"{key}={value}"
        else:
            found[key], last = value, key
    return {key: value.strip() for key, value in found.items()}


def settings(text: str) -> dict[str, str]:
    """Read the `KEY = VALUE` lines of `scontrol show config`."""
    found: dict[str, str] = {}
    for line in _SETTING.finditer(text):
        found.setdefault(line["key"], line["value"])
    return found


def optional(text: str | None) -> str | None:
    """Give back a value, or None for Slurm's ways of writing that there is none."""
    return None if text is None or text in _NOTHING else text


def names(text: str | None) -> tuple[str, ...]:
    """Split a list `a,b`; none for `(null)`."""
    found = optional(text)
    return tuple(found.split(",")) if found else ()


def allowed(text: str | None) -> tuple[str, ...] | None:
    """Split a list of who may; None for everybody."""
    return None if text is None or text.upper() == "ALL" else names(text)


def amount(text: str | None) -> int | None:
    """Read a count such as `8`, `500G` or `1.50T`; None for no limit. M is the unit without a sign.

    Sizes are printed with the largest fitting unit, so K is below 1 and rounded up.
    """
    if text is None or text in _NOTHING or text in _ENDLESS:
        return None
    unit = text[-1].upper()
    if unit not in _UNITS:
        return int(float(text))
    return -int(-float(text[:-1]) * 1024.0 ** (_UNITS.index(unit) - 1) // 1)


def minutes(text: str | None) -> int | None:
    """Read `7-00:00:00`, `01:00:00` or plain minutes; None for UNLIMITED and NONE."""
    if text is None or text in _NOTHING or text in _ENDLESS:
        return None
    return seconds(text) // 60 if ":" in text else int(text)


def seconds(text: str) -> int:
    """Read `7-00:00:00` or `01:00:00`; 0 for nothing."""
    match = _TIME.fullmatch(text)
    if match is None:
        return int(text or 0)
    days, hours, mins, secs = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + mins) * 60 + secs


def tres(text: str | None) -> Tres:
    """Read `cpu=4,mem=8G,gres/gpu=2` as printed; memory in MiB, K of others is 1024."""
    split = (item.partition("=") for item in names(text))
    read = ((name, count(name, value)) for name, _, value in split)
    return {name: value for name, value in read if value is not None}


def count(name: str, value: str) -> int | None:
    """Read the amount of one TRES; None for no limit."""
    if name == "mem" or value[-1:].upper() not in _UNITS:
        return amount(value)
    return int(float(value[:-1]) * 1024 ** (_UNITS.index(value[-1].upper()) + 1))


def limit_and_use(text: str | None) -> tuple[int | None, int]:
    """Read `12(3)` or `N(3)` of `scontrol show assoc_mgr`: a limit, if any, and its use."""
    limit, _, used = (text or "").partition("(")
    return amount(limit), int(float(used.rstrip(")") or 0))


def limits_and_uses(text: str | None) -> tuple[Tres, Tres]:
    """Read `cpu=N(3),mem=1024(512)`: limits that are set, and uses other than 0."""
    limits: Tres = {}
    uses: Tres = {}
    for item in names(text):
        name, _, both = item.partition("=")
        limit, used = limit_and_use(both)
        limits |= {} if limit is None else {name: limit}
        uses |= {name: used} if used else {}
    return limits, uses


def weights(text: str | None) -> dict[str, float]:
    """Read TRESBillingWeights: TRES name in lower case to weight per unit, memory per MiB."""
    found = {}
    for item in names(text):
        name, _, value = item.lower().partition("=")
        found[name] = _weight(value, is_memory=name == "mem" or name.startswith("bb/"))
    return found


def _weight(value: str, *, is_memory: bool) -> float:
    unit = value[-1:].upper()
    if unit not in _UNITS:
        return float(value)
    base = _UNITS.index("M") if is_memory else -1
    return float(value[:-1]) / 1024.0 ** max(_UNITS.index(unit) - base, 0)


def gres(text: str | None) -> tuple[Gres, ...]:
    """Read a node's `Gres=`, e.g. `gpu:a100:8(S:0-1),shard:16`; types as the node declares them."""
    return tuple(map(_one_gres, names(_ASIDE.sub("", text or ""))))


def _one_gres(text: str) -> Gres:
    name, *rest = (part for part in text.split(":") if part != "no_consume")
    size = count(name, rest.pop()) if rest and _SIZE.fullmatch(rest[-1]) else 1
    return Gres(name, ":".join(rest) or None, size or 0)


def states(text: str) -> tuple[str, ...]:
    """Split `IDLE+DRAIN` or sinfo's `idle*` into the base state and its flags."""
    base, *flags = text.upper().split("+")
    signs = tuple(_FLAG_SIGNS[sign] for sign in base if sign in _FLAG_SIGNS)
    return (base.rstrip("*~#%$@!^-"), *flags, *signs)
