"""Parameter sweeps: the parameters of each array task, and their use in the command.

Points come from the command line, a CSV or TOML file, or a table of a job file.
"""

from __future__ import annotations

import csv
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import product
from pathlib import Path
from typing import Any

import msgspec

from slurmkit.config.files import did_you_mean
from slurmkit.errors import BadInput

MOST_POINTS = 1_000_000
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
# Variables of Slurm, the shell and the launchers, which a parameter must not overwrite.
_RESERVED_PREFIXES = (
    "SLURM_",
    "SBATCH_",
    "SRUN_",
    "PYXIS_",
    "SLURMKIT_",
    "BASH_",
    "slurmkit_",
    "LD_",
)
_RESERVED_NAMES = frozenset(
    "PATH HOME USER LOGNAME SHELL PWD OLDPWD IFS ENV BASH BASHOPTS SHELLOPTS UID EUID PPID GROUPS"
    " DIRSTACK FUNCNAME HOSTNAME LINENO OPTARG OPTIND PIPESTATUS RANDOM SECONDS SHLVL TMPDIR _"
    " RANK LOCAL_RANK NODE_RANK WORLD_SIZE MASTER_ADDR MASTER_PORT CUDA_VISIBLE_DEVICES"
    " ROCR_VISIBLE_DEVICES GPU_DEVICE_ORDINAL".split()
)
_FIELD = re.compile(r"(?P<brace>\{\{|\}\})|\{(?P<name>[^{}]*)\}|(?P<alone>[{}])")
_MARK = "\x1e"  # around a parameter's name in a word; shlex always quotes a word with it
_MARKED = re.compile(rf"(?P<open>'?){_MARK}(?P<name>\w+){_MARK}(?P<close>'?)")

Value = str | int | float | bool

_RANGE = re.compile(r"(-?\d{1,9})\.\.(-?\d{1,9})(?:\.\.([1-9]\d{0,8}))?", re.ASCII)
_KEYS = ("grid", "point", "names", "points")
_EXAMPLE = "e.g. lr=1e-3,1e-4 or seed=0..9"


class Sweep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Named parameters with their values in each array task.

    Attributes:
        names: of the parameters; also the names of the variables in a task's environment.
        points: the values of each task, in the order of `names`; the first point is task 0.
    """

    names: tuple[str, ...]
    points: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        """Refuse names that no variable can have, and points with a missing value."""
        for name in self.names:
            _check_name(name)
        if len(set(self.names)) != len(self.names):
            twice = next(name for name in self.names if self.names.count(name) > 1)
            raise BadInput(f"sweep: {twice} is given twice; give all its values together")
        if not self.names or not self.points:
            raise BadInput("sweep: there are no points; give e.g. lr=1e-3,1e-4")
        _check_number(len(self.points))
        for at, point in enumerate(self.points):
            _check_point(at, point, self.names)

    def __len__(self) -> int:
        """The number of points."""
        return len(self.points)

    @classmethod
    def grid(cls, **values: Iterable[Value]) -> Sweep:
        """Make a sweep of every combination of values; the last parameter changes fastest.

        >>> len(Sweep.grid(lr=["1e-3", "1e-4"], seed=range(10)))
        20

        Raises:
            BadInput: for a name that cannot be a variable, and for more than 1,000,000 points.
        """
        texts = [_texts(name, each) for name, each in values.items()]
        _check_number(math.prod(map(len, texts)))
        return cls(tuple(values), tuple(product(*texts)))

    @classmethod
    def of(cls, points: Iterable[Mapping[str, Value]]) -> Sweep:
        """Make a sweep of a list of points, in its order.

        >>> Sweep.of([{"lr": "1e-3", "layers": 4}, {"lr": "1e-4", "layers": 8}]).names
        ('lr', 'layers')

        Raises:
            BadInput: when they do not all have the same parameters.
        """
        all_points = list(points)
        names = tuple(all_points[0]) if all_points else ()
        for at, point in enumerate(all_points):
            if set(point) != set(names):
                wrong = ", ".join(sorted(set(point) ^ set(names)))
                raise BadInput(
                    f"sweep: point {at} and the first point must have the same parameters; they"
                    f" differ in {wrong}"
                )
        return cls(names, tuple(tuple(value_text(point[n]) for n in names) for point in all_points))

    def times(self, other: Sweep) -> Sweep:
        """Combine every point with every point of `other`, whose parameters change fastest."""
        _check_number(len(self) * len(other))
        points = tuple((*a, *b) for a, b in product(self.points, other.points))
        return Sweep((*self.names, *other.names), points)

    def values(self, index: int) -> dict[str, str]:
        """Return the parameters of a task by name."""
        return dict(zip(self.names, self.points[index], strict=True))


def value_text(value: object) -> str:
    """Write a value as a task gets it: `true` for True, `0.001` for 0.001.

    Raises:
        BadInput: for a value that is neither text, a number nor a bool.
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise BadInput(f"sweep: a value must be text or a number, not {value!r}")


def _texts(name: str, values: Iterable[Value]) -> list[str]:
    if isinstance(values, str):
        raise BadInput(f"sweep: the values of {name} must be a list, e.g. {name}=[{values!r}]")
    return [value_text(value) for value in values]


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise BadInput(f"sweep: {name!r} is not the name of a variable; use letters, digits and _")
    if name in _RESERVED_NAMES or name.startswith(_RESERVED_PREFIXES):
        raise BadInput(f"sweep: Slurm or the shell itself sets {name}; choose another name")


def _check_number(count: int) -> None:
    if count > MOST_POINTS:
        raise BadInput(
            f"sweep: {count:,} points are too many, at most {MOST_POINTS:,} are allowed;"
            " split the sweep"
        )


def _check_point(at: int, point: Sequence[str], names: Sequence[str]) -> None:
    if len(point) != len(names):
        raise BadInput(f"sweep: point {at} has {len(point)} values for {len(names)} parameters")
    for name, value in zip(names, point, strict=True):
        if not isinstance(value, str):
            raise BadInput(f"sweep: point {at}: the value of {name} must be text, not {value!r}")
        if "\0" in value or any("\ud800" <= char <= "\udfff" for char in value):
            raise BadInput(f"sweep: point {at}: {name} contains a NUL or is not UTF-8")


def check_placeholders(command: Iterable[str], sweep: Sweep) -> None:
    """Refuse `{name}` in a word of the command where `name` is no parameter.

    Raises:
        BadInput: naming the parameters there are.
    """
    for word in command:
        if _MARK in word:
            raise BadInput("the command of a sweep must not contain the character 0x1E")
        for field in _FIELD.finditer(word):
            name = field["name"]
            if field["alone"] or (name is not None and name not in sweep.names):
                known = ", ".join(f"{{{each}}}" for each in sweep.names)
                raise BadInput(
                    f"the command contains {field[0]}, but the sweep has only {known};"
                    " for a brace that is not a parameter, write the brace twice: {{ or }}"
                )


def fill_in_values(command: Iterable[str], values: Mapping[str, str]) -> tuple[str, ...]:
    """Return the command with `{name}` replaced by the values of one point."""
    return _replace_placeholders(command, lambda name: values[name])


def mark_parameters(command: Iterable[str]) -> tuple[str, ...]:
    """Return the command with each `{name}` replaced by a mark, which `expand_marks` expands."""
    return _replace_placeholders(command, lambda name: f"{_MARK}{name}{_MARK}")


def expand_marks(text: str) -> str:
    """Replace the marks in a shell line by their variables.

    A word with a mark is in single quotes. They end before the variable and begin again after it:
    `'--lr='"$lr"`.
    """
    return _MARKED.sub(_expansion, text)


def _expansion(mark: re.Match[str]) -> str:
    before, after = ("" if mark[side] else "'" for side in ("open", "close"))
    return f'{before}"${mark["name"]}"{after}'


def _replace_placeholders(command: Iterable[str], value: Callable[[str], str]) -> tuple[str, ...]:
    def put(field: re.Match[str]) -> str:
        return field["brace"][0] if field["brace"] else value(field["name"])

    return tuple(_FIELD.sub(put, word) for word in command)


def parse_sweep_options(words: Iterable[str], files: Iterable[Path] = ()) -> Sweep | None:
    """Return the sweep of a command line: every point of the files times every combination.

    Args:
        words: `NAME=VALUE,VALUE` or `NAME=FIRST..LAST` or `NAME=FIRST..LAST..STEP`.
        files: files of points, CSV with a header or TOML.

    Raises:
        BadInput: naming the word, or the file and its line.
    """
    given: dict[str, list[str]] = {}
    for word in words:
        name, values = parse_sweep_word(word)
        if name in given:
            raise BadInput(f"--sweep {name} is given twice; give all its values together")
        given[name] = values
    sweeps = [*map(load_points, files), *([Sweep.grid(**given)] if given else [])]
    return reduce(Sweep.times, sweeps) if sweeps else None


def parse_sweep_word(word: str) -> tuple[str, list[str]]:
    """Parse name and values of `lr=1e-3,1e-4`; a value with a comma is quoted: `x="a,b",c`."""
    name, equals, text = word.partition("=")
    if not equals or not name or not text:
        raise BadInput(f"--sweep {word!r}: give NAME=VALUE,VALUE, {_EXAMPLE}")
    try:
        (values,) = csv.reader([text], strict=True)
    except (csv.Error, ValueError) as error:
        raise BadInput(f"--sweep {word!r}: {error}; put quotes around a whole value") from error
    return name, [each for value in values for each in _expand_range(value, word)]


def _expand_range(value: str, word: str) -> Iterator[str]:
    """Yield the numbers of `0..9` or `0..9..3`; any other value as it is."""
    match = _RANGE.fullmatch(value)
    if match is None:
        yield value
        return
    first, last, step = int(match[1]), int(match[2]), int(match[3] or 1)
    if last < first:
        raise BadInput(
            f"--sweep {word!r}: {value} contains no number; write FIRST..LAST, e.g. 0..9"
        )
    if (last - first) // step >= MOST_POINTS:
        raise BadInput(f"--sweep {word!r}: more than {MOST_POINTS:,} values")
    yield from map(str, range(first, last + 1, step))


def load_points(path: Path) -> Sweep:
    """Load the points of a file: TOML if its name ends in .toml, otherwise CSV.

    Raises:
        BadInput: naming the file and what is wrong with it.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
        if path.suffix == ".toml":
            return parse_sweep_table(tomllib.loads(text))
        return _parse_csv(text)
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not UTF-8 text") from error
    except (BadInput, csv.Error, tomllib.TOMLDecodeError) as error:
        raise BadInput(f"{path}: {error}") from error


def _parse_csv(text: str) -> Sweep:
    rows = csv.reader(text.splitlines(keepends=True), strict=True)
    names = tuple(name.strip() for name in next(rows, []))
    points = []
    for row in rows:
        if len(row) != len(names) and row:
            raise BadInput(f"line {rows.line_num} has {len(row)} values for {len(names)} columns")
        points += [tuple(row)] if row else []
    return Sweep(names, tuple(points))


def parse_sweep_table(table: Mapping[str, Any]) -> Sweep:
    """Parse a TOML table with `grid`, `point` or both (every point times every combination).

    Raises:
        BadInput: naming the key.
    """
    for key in table:
        if key not in _KEYS:
            raise BadInput(f"no key {key!r}; {did_you_mean(key, list(_KEYS))}")
    sweeps = []
    if "names" in table or "points" in table:  # written by `slurmkit.spec.jobfile`
        names, points = table.get("names", ()), table.get("points", ())
        sweeps.append(Sweep(tuple(names), tuple(map(tuple, points))))
    if "point" in table:
        sweeps.append(Sweep.of(_check_points(table["point"])))
    if "grid" in table:
        sweeps.append(Sweep.grid(**_parse_grid(table["grid"])))
    if not sweeps:
        raise BadInput("there are no points; give [grid] or [[point]]")
    return reduce(Sweep.times, sweeps)


def _check_points(value: object) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise BadInput("write [[point]], once for each point")
    return value


def _parse_grid(value: object) -> dict[str, list[Any]]:
    """Return the values by name; a value is a list, or a range as text."""
    if not isinstance(value, dict):
        raise BadInput("grid must be a table: NAME = [VALUE, VALUE] or 'FIRST..LAST'")
    grid: dict[str, list[Any]] = {}
    for name, values in value.items():
        if isinstance(values, str) and _RANGE.fullmatch(values):
            grid[name] = list(_expand_range(values, f"{name}={values}"))
        elif isinstance(values, list):
            grid[name] = values
        else:
            raise BadInput(f"grid.{name} must be a list, or a range such as '0..9', not {values!r}")
    return grid
