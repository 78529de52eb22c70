"""A parameter sweep: the points of an array, and their values in the words of its command."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product

import msgspec

from slurmkit.errors import BadInput

MOST_POINTS = 1_000_000
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
# Of Slurm and of what starts a job, whose value a point must not take away.
_TAKEN_SO = ("SLURM_", "SBATCH_", "SRUN_", "PYXIS_", "SLURMKIT_", "BASH_", "slurmkit_", "LD_")
_TAKEN = frozenset(
    "PATH HOME USER LOGNAME SHELL PWD OLDPWD IFS ENV BASH BASHOPTS SHELLOPTS UID EUID PPID GROUPS"
    " DIRSTACK FUNCNAME HOSTNAME LINENO OPTARG OPTIND PIPESTATUS RANDOM SECONDS SHLVL TMPDIR _"
    " RANK LOCAL_RANK NODE_RANK WORLD_SIZE MASTER_ADDR MASTER_PORT CUDA_VISIBLE_DEVICES"
    " ROCR_VISIBLE_DEVICES GPU_DEVICE_ORDINAL".split()
)
_FIELD = re.compile(r"(?P<brace>\{\{|\}\})|\{(?P<name>[^{}]*)\}|(?P<alone>[{}])")
_MARK = "\x1e"  # around a parameter's name in a word: no shell takes such a word unquoted
_MARKED = re.compile(rf"(?P<open>'?){_MARK}(?P<name>\w+){_MARK}(?P<close>'?)")

Value = str | int | float | bool


class Sweep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Named parameters, and the values that each task of an array has of them.

    Attributes:
        names: of the parameters, which are also the variables in a task's environment.
        points: the values of each task, in the order of `names`; the first is task 0.
    """

    names: tuple[str, ...]
    points: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        """Refuse names that no variable can have, and points without a value for each."""
        for name in self.names:
            _check_name(name)
        if len(set(self.names)) != len(self.names):
            twice = next(name for name in self.names if self.names.count(name) > 1)
            raise BadInput(f"sweep: {twice} is given twice; give all its values together")
        if not self.names or not self.points:
            raise BadInput("sweep: it has no points; give e.g. lr=1e-3,1e-4")
        _check_number(len(self.points))
        for at, point in enumerate(self.points):
            _check_point(at, point, self.names)

    def __len__(self) -> int:
        """The number of points."""
        return len(self.points)

    @classmethod
    def grid(cls, **values: Iterable[Value]) -> Sweep:
        """Every combination of some values; the last parameter changes fastest.

        >>> len(Sweep.grid(lr=["1e-3", "1e-4"], seed=range(10)))
        20

        Raises:
            BadInput: for a name that cannot be a variable, and for more points than 1,000,000.
        """
        texts = [_texts(name, given) for name, given in values.items()]
        _check_number(math.prod(map(len, texts)))
        return cls(tuple(values), tuple(product(*texts)))

    @classmethod
    def of(cls, points: Iterable[Mapping[str, Value]]) -> Sweep:
        """The points of a list, in its order.

        >>> Sweep.of([{"lr": "1e-3", "layers": 4}, {"lr": "1e-4", "layers": 8}]).names
        ('lr', 'layers')

        Raises:
            BadInput: when they do not all have the same parameters.
        """
        given = list(points)
        names = tuple(given[0]) if given else ()
        for at, point in enumerate(given):
            if set(point) != set(names):
                wrong = ", ".join(sorted(set(point) ^ set(names)))
                raise BadInput(f"sweep: point {at} and the first one differ in {wrong}")
        return cls(names, tuple(tuple(text_of(point[n]) for n in names) for point in given))

    def times(self, other: Sweep) -> Sweep:
        """Every point of this with every point of the other, whose parameters change fastest."""
        _check_number(len(self) * len(other))
        points = tuple((*a, *b) for a, b in product(self.points, other.points))
        return Sweep((*self.names, *other.names), points)

    def values(self, index: int) -> dict[str, str]:
        """The parameters of a task."""
        return dict(zip(self.names, self.points[index], strict=True))


def text_of(value: object) -> str:
    """A value as a task gets it: `true` of True, `0.001` of 0.001.

    Raises:
        BadInput: for what is neither text, a number nor a truth value.
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise BadInput(f"sweep: a value is text or a number, not {value!r}")


def _texts(name: str, given: Iterable[Value]) -> list[str]:
    if isinstance(given, str):
        raise BadInput(f"sweep: the values of {name} are a list, e.g. {name}=[{given!r}]")
    return [text_of(value) for value in given]


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise BadInput(f"sweep: {name!r} is not the name of a variable: letters, digits and _")
    if name in _TAKEN or name.startswith(_TAKEN_SO):
        raise BadInput(f"sweep: {name} is set by Slurm or the shell itself; name it otherwise")


def _check_number(count: int) -> None:
    if count > MOST_POINTS:
        raise BadInput(f"sweep: {count:,} points are more than {MOST_POINTS:,}; split the sweep")


def _check_point(at: int, point: Sequence[str], names: Sequence[str]) -> None:
    if len(point) != len(names):
        raise BadInput(f"sweep: point {at} has {len(point)} values for {len(names)} parameters")
    for name, value in zip(names, point, strict=True):
        if not isinstance(value, str):
            raise BadInput(f"sweep: point {at}: the value of {name} is text, not {value!r}")
        if "\0" in value or any("\ud800" <= char <= "\udfff" for char in value):
            raise BadInput(f"sweep: point {at}: {name} holds a NUL or is not UTF-8")


def check_words(command: Iterable[str], sweep: Sweep) -> None:
    """Refuse words that name what is no parameter.

    Raises:
        BadInput: naming the parameters there are.
    """
    for word in command:
        if _MARK in word:
            raise BadInput("the command of a sweep may not hold the character 0x1E")
        for field in _FIELD.finditer(word):
            name = field["name"]
            if field["alone"] or (name is not None and name not in sweep.names):
                known = ", ".join(f"{{{each}}}" for each in sweep.names)
                raise BadInput(
                    f"the command has {field[0]} where only {known} can stand;"
                    " a brace that is meant as it is is written twice: {{ or }}"
                )


def words_at(command: Iterable[str], values: Mapping[str, str]) -> tuple[str, ...]:
    """The words of a command at one point."""
    return _filled(command, lambda name: values[name])


def marked(command: Iterable[str]) -> tuple[str, ...]:
    """The words of a command with marks where a value stands, which `unmarked` finds again."""
    return _filled(command, lambda name: f"{_MARK}{name}{_MARK}")


def unmarked(text: str) -> str:
    """A line of a shell in whose words, quoted once, each mark becomes the value of its variable.

    A word with a mark is quoted by `'`: that ends before the variable and begins anew after it.
    """
    return _MARKED.sub(_expansion, text)


def _expansion(mark: re.Match[str]) -> str:
    before, after = ("" if mark[side] else "'" for side in ("open", "close"))
    return f'{before}"${mark["name"]}"{after}'


def _filled(command: Iterable[str], value: Callable[[str], str]) -> tuple[str, ...]:
    def put(field: re.Match[str]) -> str:
        return field["brace"][0] if field["brace"] else value(field["name"])

    return tuple(_FIELD.sub(put, word) for word in command)
