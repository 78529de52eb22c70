"""Sweeps as they are written: words of a command line, CSV and TOML files."""

from __future__ import annotations

import csv
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from pathlib import Path
from typing import Any

from slurmkit.config import nearest
from slurmkit.errors import BadInput
from slurmkit.sweep import MOST_POINTS, Sweep

_RANGE = re.compile(r"(-?\d{1,9})\.\.(-?\d{1,9})(?:\.\.([1-9]\d{0,8}))?", re.ASCII)
_KEYS = ("grid", "point", "names", "points")
_EXAMPLE = "e.g. lr=1e-3,1e-4 or seed=0..9"


def sweep_from(words: Iterable[str], files: Iterable[Path] = ()) -> Sweep | None:
    """The sweep of a command line: each point of the files with each combination of the words.

    Args:
        words: `NAME=VALUE,VALUE` or `NAME=FIRST..LAST` or `NAME=FIRST..LAST..STEP`.
        files: of points, CSV with a header or TOML.

    Raises:
        BadInput: naming the word, or the file and its line.
    """
    given: dict[str, list[str]] = {}
    for word in words:
        name, values = parameter(word)
        if name in given:
            raise BadInput(f"--sweep {name} is given twice; give all its values together")
        given[name] = values
    found = [*map(read_points, files), *([Sweep.grid(**given)] if given else [])]
    return reduce(Sweep.times, found) if found else None


def parameter(word: str) -> tuple[str, list[str]]:
    """Name and values of `lr=1e-3,1e-4`; a value with a comma is quoted as in CSV: `x="a,b",c`."""
    name, equals, text = word.partition("=")
    if not equals or not name or not text:
        raise BadInput(f"--sweep {word!r}: give NAME=VALUE,VALUE, {_EXAMPLE}")
    try:
        (values,) = csv.reader([text], strict=True)
    except (csv.Error, ValueError) as error:
        raise BadInput(f"--sweep {word!r}: {error}; quotes stand around a whole value") from error
    return name, [each for value in values for each in _spread(value, word)]


def _spread(value: str, word: str) -> Iterator[str]:
    found = _RANGE.fullmatch(value)
    if found is None:
        yield value
        return
    first, last, step = int(found[1]), int(found[2]), int(found[3] or 1)
    if last < first:
        raise BadInput(f"--sweep {word!r}: {value} holds no number; write FIRST..LAST")
    if (last - first) // step >= MOST_POINTS:
        raise BadInput(f"--sweep {word!r}: more than {MOST_POINTS:,} values")
    yield from map(str, range(first, last + 1, step))


def read_points(path: Path) -> Sweep:
    """The points of a file: TOML by its name, else CSV.

    Raises:
        BadInput: naming the file and what is wrong with it.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
        if path.suffix == ".toml":
            return sweep_of(tomllib.loads(text))
        return _of_csv(text)
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not UTF-8 text") from error
    except (BadInput, csv.Error, tomllib.TOMLDecodeError) as error:
        raise BadInput(f"{path}: {error}") from error


def _of_csv(text: str) -> Sweep:
    rows = csv.reader(text.splitlines(keepends=True), strict=True)
    names = tuple(name.strip() for name in next(rows, []))
    points = []
    for row in rows:
        if len(row) != len(names) and row:
            raise BadInput(f"line {rows.line_num} has {len(row)} values for {len(names)} columns")
        points += [tuple(row)] if row else []
    return Sweep(names, tuple(points))


def sweep_of(table: Mapping[str, Any]) -> Sweep:
    """The sweep of a TOML table: `grid`, `point`, or both: each point with each combination.

    Raises:
        BadInput: naming the key.
    """
    for key in table:
        if key not in _KEYS:
            raise BadInput(f"no key {key!r}; {nearest(key, list(_KEYS))}")
    found = []
    if "names" in table or "points" in table:  # as `slurmkit.jobfile` writes it
        names, points = table.get("names", ()), table.get("points", ())
        found.append(Sweep(tuple(names), tuple(map(tuple, points))))
    if "point" in table:
        found.append(Sweep.of(_tables(table["point"])))
    if "grid" in table:
        found.append(Sweep.grid(**_grid(table["grid"])))
    if not found:
        raise BadInput("it has no points; give [grid] or [[point]]")
    return reduce(Sweep.times, found)


def _tables(value: object) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise BadInput("point is written [[point]], once for each")
    return value


def _grid(value: object) -> dict[str, list[Any]]:
    """Lists of values; a range is text, as on the command line."""
    if not isinstance(value, dict):
        raise BadInput("grid is a table: NAME = [VALUE, VALUE] or 'FIRST..LAST'")
    return {name: _values(name, given) for name, given in value.items()}


def _values(name: str, given: object) -> list[Any]:
    if isinstance(given, str) and _RANGE.fullmatch(given):
        return list(_spread(given, f"{name}={given}"))
    if not isinstance(given, list):
        raise BadInput(f"grid.{name} is a list, or a range such as '0..9', not {given!r}")
    return given
