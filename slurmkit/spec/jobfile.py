"""Job files in TOML, and batch scripts with `#SBATCH` lines, read as fields of a JobSpec."""

from __future__ import annotations

import datetime
import json
import os
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from slurmkit.config.files import did_you_mean
from slurmkit.errors import BadInput
from slurmkit.spec.containers import Container
from slurmkit.spec.gpus import Gpus
from slurmkit.spec.jobspec import DIRECTIVE_PREFIXES, JobSpec, Launch, script_header
from slurmkit.spec.option_values import SBATCH_OPTIONS
from slurmkit.spec.sbatch_options import (
    GPU_OPTIONS,
    SBATCH_ONLY_OPTIONS,
    is_flag,
    long_name,
    merge_fields,
    needs_value,
    parse_options,
)
from slurmkit.spec.survival import Survive
from slurmkit.spec.sweep import Sweep, parse_sweep_table

_AS_OPTIONS = ("gres", "gpu-bind", "nodes")  # parsed as on the command line: GPUs, ranges
_UNQUOTED = re.compile(r"\s*(?P<key>[\w\-]+)\s*=\s*(?P<value>[\d:\-]*\d:\d[\d:]*)\s*(#.*)?")
_TABLES: dict[str, type[msgspec.Struct]] = {
    "gpus": Gpus,
    "launch": Launch,
    "container": Container,
    "survive": Survive,
}
_BLANKS = str.maketrans("", "", "\n\t")
_WHERE = re.compile(r"line (\d+)")
_BLANK = " \t\n\v\f\r"


def load_job_file(path: Path) -> dict[str, Any]:
    """Load the fields of a JobSpec from a TOML file; its keys are sbatch's long options.

    A job file is data: nothing in it is run. Relative paths in its container table are relative
    to the file's folder.

    Raises:
        BadInput: naming the file, the key and the nearest valid one.
    """
    table = load_toml(path)
    try:
        return parse_job_table(table, path.parent)
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from error


def load_toml(path: Path) -> dict[str, Any]:
    """Load a user's TOML file.

    Raises:
        BadInput: naming the file and the mistake.
    """
    text = _load_text(path)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"{path}: {_toml_error(text, error)}") from error


def format_job_file(spec: JobSpec) -> str:
    """Write the job file that `load_job_file` reads as this spec."""
    table: dict[str, Any] = msgspec.to_builtins(spec)
    if spec.gpus == Gpus():  # one GPU per node: its fields are all defaults, which are left out
        table["gpus"] = {"count": spec.gpus.count}
    lines = [f"{key} = {_toml_value(value)}" for key, value in table.items() if value is not None
             and not isinstance(value, dict)]  # fmt: skip
    for key, value in table.items():
        if isinstance(value, dict) and value:
            lines += ["", f"[{key}]"]
            filled = ((name, each) for name, each in value.items() if each is not None)
            lines += [f"{_toml_key(name)} = {_toml_value(each)}" for name, each in filled]
    return "\n".join([*lines, ""])


def _toml_value(value: object) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml_value, value))}]"
    if not isinstance(value, str):
        return json.dumps(value)
    if "\n" in value and "'''" not in value and value.translate(_BLANKS).isprintable():
        return f"'''\n{value}'''"  # as a script reads best
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml_key(name: str) -> str:
    return name if re.fullmatch(r"[\w\-]+", name, re.ASCII) else _toml_value(name)


def load_script(path: Path) -> dict[str, Any]:
    """Load the fields of a JobSpec from a batch script: its options, and the rest as `script`.

    Raises:
        BadInput: naming the file and the line.
    """
    text = _load_text(path)
    try:
        return {"job_name": path.name} | parse_script(text)
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from error


def parse_script(text: str) -> dict[str, Any]:
    """Parse a batch script into fields of a JobSpec: its options, and the rest as `script`.

    Raises:
        BadInput: naming the line.
    """
    pairs, rest = _split_script(text)
    return parse_options(pair for pair in pairs if pair[0] not in SBATCH_ONLY_OPTIONS) | {
        "script": rest
    }


def sbatch_only_options(path: Path) -> tuple[str, ...]:
    """Return the options in a batch script that concern sbatch itself, e.g. `wait`, not the job.

    Raises:
        BadInput: as `load_script`.
    """
    text = _load_text(path)
    try:
        pairs, _ = _split_script(text)
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from error
    return tuple(dict.fromkeys(name for name, _ in pairs if name in SBATCH_ONLY_OPTIONS))


def _split_script(text: str) -> tuple[list[tuple[str, str]], str]:
    """Split a script into its options and the script without their lines."""
    remaining: list[str] = []
    pairs: list[tuple[str, str]] = []
    first = script_header(text)
    for number, line in enumerate(first, 1):
        magic = next((word for word in DIRECTIVE_PREFIXES if line.startswith(word)), None)
        if magic is None:
            remaining.append(line)
            continue
        try:
            pairs += parse_directive(line.removeprefix(magic))
        except BadInput as error:
            raise BadInput(f"line {number}: {error}") from error
    return pairs, "\n".join([*remaining, *text.split("\n")[len(first) :]])


def _load_text(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not UTF-8 text") from error


def _toml_error(text: str, error: tomllib.TOMLDecodeError) -> str:
    """Return the reason of a TOML error; the most frequent one is a time without quotes."""
    number = _WHERE.search(str(error))
    lines = text.splitlines()
    line = lines[int(number[1]) - 1] if number and int(number[1]) <= len(lines) else ""
    if match := _UNQUOTED.fullmatch(line):
        return f'{match["key"]} must be in quotes: {match["key"]} = "{match["value"]}"'
    return str(error)


def parse_job_table(table: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Convert a job file's table, or one with the same keys, into fields of a JobSpec.

    Args:
        table: the parsed table.
        folder: the file's folder, for relative paths of a container.

    Raises:
        BadInput: naming the key, and the nearest valid one.
    """
    known = {field.encode_name: field for field in msgspec.structs.fields(JobSpec)}
    fields: dict[str, Any] = {}
    pairs: list[tuple[str, str]] = []
    for key, value in table.items():
        if key in GPU_OPTIONS and isinstance(value, dict):
            fields["gpus"] = _gpu_table(key, value)
        elif key == "sweep":
            fields["sweep"] = _convert_sweep(value)
        elif key in (*GPU_OPTIONS, *_AS_OPTIONS, "options") or key in SBATCH_OPTIONS - known.keys():
            pairs += _as_options(key, value)
        elif key in known:
            fields[known[key].name] = _convert_value(key, value, known[key].type)
        else:
            raise BadInput(f"no key {key!r}; {did_you_mean(key, [*known, *SBATCH_OPTIONS])}")
    asking = [pair for pair in pairs if pair[0] != "gpu-bind"]
    if "gpus" in fields and "gpus" in parse_options(asking, fields):
        raise BadInput("GPUs are given twice: in [gpus] and by a GPU option; give one of them")
    fields = merge_fields(fields, parse_options(pairs, fields))
    if "container" in fields:
        fields["container"] = fields["container"].at(os.path.abspath(folder))  # noqa: PTH100
    return fields


def _as_options(key: str, value: object) -> Iterable[tuple[str, str]]:
    """Return options as on the command line; `contiguous = true` is a flag, false leaves it out."""
    if key in GPU_OPTIONS:
        return [(key, _gpu_words(key, value))]
    if key == "options":
        table: dict[str, str] = _convert_value(key, value, dict[str, str])
        return table.items()
    if isinstance(value, bool) and key not in _AS_OPTIONS:
        return [(key, "")] if value else []
    return [(key, _convert_value(key, value, str))]


def _convert_sweep(value: object) -> Sweep:
    if not isinstance(value, dict):
        raise BadInput("sweep must be a table: [sweep.grid] or [[sweep.point]]")
    try:
        return parse_sweep_table(value)
    except BadInput as error:
        raise BadInput(
            str(error) if str(error).startswith("sweep") else f"sweep: {error}"
        ) from error


def _gpu_table(key: str, value: dict[str, Any]) -> Gpus:
    if key != "gpus":
        raise BadInput(f'{key} must be a number or text such as "a100:2"; only [gpus] is a table')
    gpus: Gpus = _convert_value("gpus", value, Gpus)
    return gpus


def _gpu_words(key: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise BadInput(f'{key} must be a number, text such as "a100:2" or a table')
    return str(value)


def _convert_value(key: str, value: object, kind: Any) -> Any:
    if isinstance(value, datetime.time | datetime.date):
        raise BadInput(f'{key} must be in quotes: {key} = "{value}"')
    if isinstance(value, int) and not isinstance(value, bool) and kind in (str, str | None):
        value = str(value)  # `time = 90` means what `--time=90` does
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, BadInput):  # msgspec wraps each ValueError
            raise error.__cause__ from None
        raise BadInput(f"{key}{_key_and_reason(str(error), _TABLES.get(key, Gpus))}") from error


def _key_and_reason(words: str, table: type[msgspec.Struct]) -> str:
    """Rewrite msgspec's "Expected ... - at `$.count`" as `.count: expected ...`."""
    reason, _, path = words.partition(" - at `$")
    field = re.search(r"unknown field `(.+)`", reason)
    if field:
        known = [f.encode_name for f in msgspec.structs.fields(table)]
        return f".{field[1]}: no such key; {did_you_mean(field[1], known)}"
    return f"{path.rstrip('`')}: {reason[:1].lower()}{reason[1:]}"


def parse_directive(line: str) -> list[tuple[str, str]]:
    """Parse the options of one `#SBATCH` line: `--name=value`, `--name value`, `-N2` or `-N 2`.

    Args:
        line: the text after `#SBATCH`.

    Raises:
        BadInput: for a word that is no option, an open quote, or a missing value.
    """
    return parse_option_words(split_directive(line))


def parse_option_words(given_words: Iterable[str]) -> list[tuple[str, str]]:
    """Parse options from words that are already split; see `parse_directive`.

    Raises:
        BadInput: for a word that is no option, or a missing value.
    """
    words = list(given_words)
    pairs: list[tuple[str, str]] = []
    while words:
        word = words.pop(0)
        name, has_value, value = _parse_option_word(word)
        if not has_value and words and not words[0].startswith("-") and not is_flag(name):
            value, has_value = words.pop(0), True
        if not has_value and needs_value(name):
            raise BadInput(f"--{name} needs a value")
        pairs.append((name, value))
    return pairs


def split_directive(line: str) -> list[str]:
    """Split a line into words as sbatch does (src/sbatch/opt.c, get_argument), not as a shell.

    A backslash quotes the next character, inside both kinds of quotes too. `#` outside quotes
    begins a comment, even within a word.

    Raises:
        BadInput: for a quote that is not closed.
    """
    words: list[str] = []
    word: str | None = None
    quote = ""
    characters = iter(line)
    for char in characters:
        if char == "\\":
            word = (word or "") + next(characters, "")
        elif quote:
            word, quote = ((word or ""), "") if char == quote else ((word or "") + char, quote)
        elif char in "\"'":
            word, quote = word or "", char
        elif char == "#":
            break
        elif char in _BLANK:
            words += [] if word is None else [word]
            word = None
        else:
            word = (word or "") + char
    if quote:
        raise BadInput(f"a quote {quote} is not closed")
    return words if word is None else [*words, word]


def _parse_option_word(word: str) -> tuple[str, bool, str]:
    """Return the long name of an option, whether its word has a value, and that value."""
    if word.startswith("--"):
        name, equals, value = word[2:].partition("=")
        return name, bool(equals), value
    if word.lower() in ("hetjob", "packjob"):
        raise BadInput(
            "slurmkit does not support heterogeneous jobs; submit this script with sbatch"
        )
    if not word.startswith("-") or len(word) < 2:
        raise BadInput(f"{word!r} is not an option")
    value = word[2:].removeprefix("=")
    return long_name(word[1]), bool(value), value
