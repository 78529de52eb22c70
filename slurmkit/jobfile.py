"""Jobs from files: a TOML job file, or a batch script with its `#SBATCH` lines."""

from __future__ import annotations

import datetime
import json
import os
import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from slurmkit.config import nearest
from slurmkit.container import Container
from slurmkit.directives import directive
from slurmkit.errors import BadInput
from slurmkit.gpus import Gpus
from slurmkit.options import ASIDES, GPU_OPTIONS, read_options
from slurmkit.spec import MAGIC, JobSpec, Launch, Survive, Sweep, header
from slurmkit.sweeps.reading import sweep_of

_AS_OPTIONS = ("gres", "gpu-bind", "nodes")  # read as on the command line: GPUs, ranges
_UNQUOTED = re.compile(r"\s*(?P<key>[\w\-]+)\s*=\s*(?P<value>[\d:\-]*\d:\d[\d:]*)\s*(#.*)?")
_TABLES: dict[str, type[msgspec.Struct]] = {
    "gpus": Gpus,
    "launch": Launch,
    "container": Container,
    "survive": Survive,
}
_BLANKS = str.maketrans("", "", "\n\t")
_WHERE = re.compile(r"line (\d+)")


def read_job_file(path: Path) -> dict[str, Any]:
    """Fields of a JobSpec from a TOML file; keys are sbatch's long options without dashes.

    A file is data only: nothing in it is run. Relative paths of its container are below its folder.

    Raises:
        BadInput: naming the file, the key and the nearest valid one.
    """
    table = read_toml(path)
    try:
        return job_fields(table, path.parent)
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from error


def read_toml(path: Path) -> dict[str, Any]:
    """Parse a file of a user's.

    Raises:
        BadInput: naming the file, and what TOML reads as nonsense.
    """
    text = _text(path)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"{path}: {_why(text, error)}") from error


def job_file_text(spec: JobSpec) -> str:
    """The job file that `read_job_file` reads as this spec."""
    table: dict[str, Any] = msgspec.to_builtins(spec)
    lines = [f"{key} = {_toml(value)}" for key, value in table.items() if value is not None
             and not isinstance(value, dict)]  # fmt: skip
    for key, value in table.items():
        if isinstance(value, dict) and value:
            lines += ["", f"[{key}]"]
            given = ((name, each) for name, each in value.items() if each is not None)
            lines += [f"{_key(name)} = {_toml(each)}" for name, each in given]
    return "\n".join([*lines, ""])


def _toml(value: object) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if not isinstance(value, str):
        return json.dumps(value)
    if "\n" in value and "'''" not in value and value.translate(_BLANKS).isprintable():
        return f"'''\n{value}'''"  # as a script reads best
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(name: str) -> str:
    return name if re.fullmatch(r"[\w\-]+", name, re.ASCII) else _toml(name)


def read_script(path: Path) -> dict[str, Any]:
    """Fields of a JobSpec from a batch script: its options, and the rest as `script`.

    Raises:
        BadInput: naming the file and the line.
    """
    text = _text(path)
    try:
        return {"job_name": path.name} | script_fields(text)
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from error


def script_fields(text: str) -> dict[str, Any]:
    """Fields of a JobSpec from the text of a batch script: its options, and the rest as `script`.

    Raises:
        BadInput: naming the line.
    """
    pairs, rest = _parted(text)
    return read_options(pair for pair in pairs if pair[0] not in ASIDES) | {"script": rest}


def asides(path: Path) -> tuple[str, ...]:
    """Options in a batch script that are about sbatch itself, e.g. `wait`, not about the job.

    Raises:
        BadInput: as `read_script`.
    """
    text = _text(path)
    try:
        pairs, _ = _parted(text)
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from error
    return tuple(dict.fromkeys(name for name, _ in pairs if name in ASIDES))


def _parted(text: str) -> tuple[list[tuple[str, str]], str]:
    """A script's options, and the script without their lines."""
    kept: list[str] = []
    pairs: list[tuple[str, str]] = []
    first = header(text)
    for number, line in enumerate(first, 1):
        magic = next((word for word in MAGIC if line.startswith(word)), None)
        if magic is None:
            kept.append(line)
            continue
        try:
            pairs += directive(line.removeprefix(magic))
        except BadInput as error:
            raise BadInput(f"line {number}: {error}") from error
    return pairs, "\n".join([*kept, *text.split("\n")[len(first) :]])


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not UTF-8 text") from error


def _why(text: str, error: tomllib.TOMLDecodeError) -> str:
    """A time without quotes is what TOML reads most often as nonsense."""
    found = _WHERE.search(str(error))
    lines = text.splitlines()
    line = lines[int(found[1]) - 1] if found and int(found[1]) <= len(lines) else ""
    if match := _UNQUOTED.fullmatch(line):
        return f'{match["key"]} must be in quotes: {match["key"]} = "{match["value"]}"'
    return str(error)


def job_fields(table: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Fields of a JobSpec from what stands in a job file, or in a table of the same keys.

    Args:
        table: of the file.
        folder: the file's; relative paths of a container are below it, wherever it is read from.

    Raises:
        BadInput: naming the key, and the nearest valid one.
    """
    known = {field.encode_name: field for field in msgspec.structs.fields(JobSpec)}
    fields: dict[str, Any] = {}
    pairs: list[tuple[str, str]] = []
    for key, value in table.items():
        if key in GPU_OPTIONS and isinstance(value, dict):
            fields["gpus"] = _gpu_table(key, value)
        elif key in GPU_OPTIONS:
            pairs.append((key, _gpu_words(key, value)))
        elif key in _AS_OPTIONS:
            pairs.append((key, _value(key, value, str)))
        elif key == "sweep":
            fields["sweep"] = _sweep(value)
        elif key not in known:
            raise BadInput(f"no key {key!r}; {nearest(key, [*known, *GPU_OPTIONS, *_AS_OPTIONS])}")
        else:
            fields[known[key].name] = _value(key, value, known[key].type)
    asking = [pair for pair in pairs if pair[0] != "gpu-bind"]
    if "gpus" in fields and "gpus" in read_options(asking, fields):
        raise BadInput("GPUs are asked for a second time beside [gpus]; ask for them once")
    fields |= read_options(pairs, fields)
    if "container" in fields:
        fields["container"] = fields["container"].at(os.path.abspath(folder))  # noqa: PTH100
    return fields


def _sweep(value: object) -> Sweep:
    if not isinstance(value, dict):
        raise BadInput("sweep is a table: [sweep.grid] or [[sweep.point]]")
    try:
        return sweep_of(value)
    except BadInput as error:
        raise BadInput(
            str(error) if str(error).startswith("sweep") else f"sweep: {error}"
        ) from error


def _gpu_table(key: str, value: dict[str, Any]) -> Gpus:
    if key != "gpus":
        raise BadInput(f'{key} is a number or text such as "a100:2"; a table is [gpus]')
    gpus: Gpus = _value("gpus", value, Gpus)
    return gpus


def _gpu_words(key: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise BadInput(f'{key} is a number, text such as "a100:2" or a table')
    return str(value)


def _value(key: str, value: object, kind: Any) -> Any:
    if isinstance(value, datetime.time | datetime.date):
        raise BadInput(f'{key} must be in quotes: {key} = "{value}"')
    if isinstance(value, int) and not isinstance(value, bool) and kind in (str, str | None):
        value = str(value)  # `time = 90` means what `--time=90` does
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise BadInput(f"{key}{_below(str(error), _TABLES.get(key, Gpus))}") from error


def _below(words: str, table: type[msgspec.Struct]) -> str:
    """`.count: Expected ...` of msgspec's "Expected ... - at `$.count`"."""
    said, _, path = words.partition(" - at `$")
    field = re.search(r"unknown field `(.+)`", said)
    if field:
        known = [f.encode_name for f in msgspec.structs.fields(table)]
        return f".{field[1]}: no such key; {nearest(field[1], known)}"
    return f"{path.rstrip('`')}: {said[:1].lower()}{said[1:]}"
