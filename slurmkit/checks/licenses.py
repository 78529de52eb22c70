"""Licences asked for with `--licenses`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from slurmkit.checks.say import Pairs, error, warning
from slurmkit.config import nearest
from slurmkit.findings import Finding
from slurmkit.request import Request

_SOURCE = "scontrol show license"


def licenses(request: Request) -> Iterator[Finding]:
    """Licences that do not exist, or more than exist; of alternatives (`a|b`) one is enough."""
    text, total = request.spec.licenses, request.capabilities.licenses
    if text is None:
        return
    if not total and request.capabilities.hidden:
        yield warning("unknown-licenses", f"licences {text} could not be checked", _SOURCE)
        return
    asked = [_split(item) for item in re.split(r"[,;|]", text) if item]
    wrong = [(name, count) for name, count in asked if count > total.get(name, 0)]
    if not wrong or ("|" in text and len(wrong) < len(asked)):
        return
    name, count = wrong[0]
    if name in total:
        message = (
            f"asks for {count} licences {name}; there are {total[name]}; sbatch would refuse it"
        )
        fix: Pairs = (("licenses", _without(asked, name, f"{name}:{total[name]}")),)
        yield error("licenses", message, f"license {name}: Total={total[name]}", fix)
    else:
        hint = nearest(name, sorted(total)) if total else "this cluster has none"
        message = f"no licence {name!r}; {hint}; sbatch would refuse it"
        yield error("no-license", message, _SOURCE, (("licenses", _without(asked, name, "")),))


def _split(item: str) -> tuple[str, int]:
    name, _, count = item.partition(":")
    return name, int(count) if count.isdigit() else 1


def _without(asked: list[tuple[str, int]], name: str, instead: str) -> str:
    items = (instead if each == name else f"{each}:{count}" for each, count in asked)
    return ",".join(filter(None, items))
