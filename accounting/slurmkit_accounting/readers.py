"""The values of sacct's fields: texts to numbers, times and states, or a ValueError."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar

from slurmkit.tres import GPU, gpu_count, parse_tres

TextT = TypeVar("TextT", bound=Hashable)
ValueT = TypeVar("ValueT")

_NO_TIME = frozenset(("", "0", "Unknown", "None", "N/A", "INVALID"))
# DBIndex has no sign since 24.11 and is stored with one; everything else is far smaller.
_HALF = 2**63
# Until 2106: what is beyond is no time, and sums of seconds stay within 64 bits.
LATEST = 2**32
_MOST = 10**8  # nodes, CPUs or GPUs of one job
_BIGGEST = _HALF - 1
_REMEMBERED = 2**14
_NO_ENERGY = 2**60  # Slurm prints 2^64 - 2 for "no value"


class Memo(dict[TextT, ValueT]):
    """Reads each distinct text once: most values repeat, and rows share them."""

    def __init__(self, read: Callable[[TextT], ValueT]) -> None:
        super().__init__()
        self._read = read

    def __missing__(self, text: TextT) -> ValueT:
        if len(self) >= _REMEMBERED:
            self.clear()
        value = self[text] = self._read(text)
        return value


def number(text: str, biggest: int = _BIGGEST) -> int:
    """Digits alone."""
    if text.isascii() and text.isdigit() and (value := int(text)) <= biggest:
        return value
    raise ValueError(text)


def optional(text: str) -> int | None:
    """A number, or nothing."""
    return number(text) if text else None


def amount(text: str) -> int:
    """How many of something a job has; nothing is none."""
    return number(text, _MOST) if text else 0


def index(text: str) -> int | None:
    """A DBIndex, as it is stored; 0 is none."""
    value = number(text, 2 * _HALF - 1) if text else 0
    return (value if value < _HALF else value - 2 * _HALF) or None


def epoch(text: str) -> int | None:
    """A time as SLURM_TIME_FORMAT=%s prints it; None where it says that there is none."""
    return None if text in _NO_TIME else number(text, LATEST)


def moment(text: str) -> int:
    """A time that there must be."""
    return number(text, LATEST)


def says_no_time(text: str) -> bool:
    """Whether it is one of Slurm's words for a time that is not known."""
    return text in _NO_TIME


def state(text: str) -> str:
    """The base state of `CANCELLED by 10001`."""
    return text.partition(" ")[0]


def cancelled_by(text: str) -> int | None:
    """The uid of `CANCELLED by 10001`."""
    _, _, uid = text.partition(" by ")
    return number(uid) if uid.isdigit() else None


def seconds(text: str) -> int:
    """`[D-]HH:MM:SS`, `MM:SS.mmm` or bare seconds, in whole seconds; nothing is none."""
    return milliseconds(text) // 1000 if text else 0


def milliseconds(text: str) -> int:
    """The same in milliseconds; nothing is an error."""
    days, _, clock = text.rpartition("-")
    whole, _, fraction = clock.partition(".")
    total = 0
    for part in whole.split(":"):
        total = total * 60 + number(part, LATEST)
    total += number(days, LATEST) * 86400 if days else 0
    return total * 1000 + (number(f"{fraction}000"[:3]) if fraction else 0)


def energy(text: str) -> int | None:
    """Joules; None where none were measured, which Slurm prints as 0."""
    value = number(text, 2 * _HALF) if text else 0
    return value if 0 < value < _NO_ENERGY else None


def cpus(tres: str) -> int | None:
    """CPUs of an AllocTRES text."""
    found = parse_tres(tres).get("cpu")
    return None if found is None else number(found, _MOST)


def gpus(tres: str) -> int:
    """GPUs of an AllocTRES text."""
    return number(str(gpu_count(tres)), _MOST)  # Slurm has printed 2^64 - 2 for "no value"


def doubt(allocated: str, requested: str) -> str | None:
    """Why the number of GPUs in AllocTRES cannot be trusted: it is not what ReqTRES asks for.

    More GPUs together with more CPUs are whole nodes (--exclusive), more on more nodes a range of
    nodes: these are no reason.
    """
    got, asked = parse_tres(allocated), parse_tres(requested)
    total = gpu_count(allocated)
    typed = sum(int(count) for kind, count in got.items() if kind.startswith(f"{GPU}:"))
    if GPU in got and typed > total:
        return f"AllocTRES has {typed} GPUs by type and {total} in all"
    wanted = gpu_count(requested)
    nothing = not got.keys() & {"cpu", "node", GPU}  # it never had a node
    if nothing or not wanted or wanted == total or _whole_nodes(got, asked):
        return None
    if wanted * _nodes(got) == total * _nodes(asked):
        return None
    return f"AllocTRES has {total} GPUs, ReqTRES {wanted}"


def _whole_nodes(got: dict[str, str], asked: dict[str, str]) -> bool:
    cpus_got, cpus_asked = (int(tres.get("cpu", 0)) for tres in (got, asked))
    return 0 < cpus_asked * _nodes(got) < cpus_got * _nodes(asked)


def _nodes(tres: dict[str, str]) -> int:
    return int(tres.get("node", 1))
