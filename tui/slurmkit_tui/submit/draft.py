"""What stands in the form, as texts, and the job it means; both ways."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from slurmkit.directives import options_in
from slurmkit.errors import BadInput
from slurmkit.gpus import Gpus
from slurmkit.jobfile import script_fields
from slurmkit.options import merged, option_values, read_options
from slurmkit.spec import JobSpec
from slurmkit_tui.submit.fields import GPUS, MORE, OPTIONS, PER, PERS, WHAT
from slurmkit_tui.submit.ours import Pairs, parted, words_of

Texts = Mapping[str, str]
"""What stands in each field, by its name; empty ones may be left out."""

NOTHING = "say what is to run: a command, or a batch script"
_ANYTHING: dict[str, Any] = {"command": ("true",)}
_QUOTED = re.compile(r"""'[^']*'|"(?:[^"\\$`]|\\.)*\"""", re.DOTALL)
_SHELL = re.compile(r"[\n|&;<>()$`*?\[\]#~{}\\!]|^\s*\w+=")
_ASSIGNS = re.compile(r"\w+=")
_SHEBANG = "#!/bin/bash\n"


class Draft(NamedTuple):
    """A form that was not sent yet.

    Attributes:
        texts: what stands in its fields.
        origin: where that is from, in words; empty where it was typed.
        notes: what is to be known of it.
    """

    texts: Texts
    origin: str = ""
    notes: tuple[str, ...] = ()


class Reading(NamedTuple):
    """The job that texts mean; None with what is wrong, by field."""

    spec: JobSpec | None
    wrong: dict[str, str]


def read(texts: Texts) -> Reading:
    """Read the form; what is wrong is told field by field."""
    given = {name: text for name, text in texts.items() if text.strip()}
    wrong = {name: why for name in given if (why := _wrong_alone(name, given))}
    if not given.get(WHAT):
        wrong[WHAT] = NOTHING
    if wrong:
        return Reading(None, wrong)
    try:
        return Reading(JobSpec(**_fields(given)), {})
    except BadInput as error:
        return Reading(None, {_culprit(given): str(error)})


def _wrong_alone(name: str, given: Texts) -> str:
    """What is wrong with one field whatever stands in the others."""
    if name == MORE:  # a binding of GPUs there is for those of another field
        return ""
    base = {} if name == WHAT else _ANYTHING
    try:
        JobSpec(**base | _fields({name: given[name]}))
    except BadInput as error:
        return str(error)
    return ""


def _culprit(given: Texts) -> str:
    """The field without which there would be a job; of several the last one."""
    for name in reversed(list(given)):
        rest = {other: text for other, text in given.items() if other != name}
        base = _ANYTHING if name == WHAT else {}
        try:
            JobSpec(**base | _fields(rest))
        except BadInput:
            continue
        return name
    return MORE if MORE in given else WHAT


def _fields(texts: Texts) -> dict[str, Any]:
    """Fields of a JobSpec; a script's own lines are weaker than what stands in the form."""
    runs = _what(texts[WHAT]) if WHAT in texts else {}
    pairs = [(name, _value(name, texts[name])) for name in OPTIONS if name in texts]
    if GPUS in texts or PER in texts:
        option = _per(texts.get(PER, "node"))
        pairs += [(option, texts[GPUS].strip())] if GPUS in texts else []
    others, ours = _more(texts.get(MORE, ""))
    return merged(runs, read_options([*pairs, *others], runs) | ours)


def _what(text: str) -> dict[str, Any]:
    """A command, or a batch script."""
    text = text.replace("\r\n", "\n")
    if text.startswith("#!"):
        return script_fields(text)
    if _SHELL.search(_QUOTED.sub("''", text.strip())):
        return script_fields(_SHEBANG + text)
    try:
        return {"command": tuple(shlex.split(text))}
    except ValueError as error:
        raise BadInput(f"the command cannot be read: {str(error).lower()}") from error


def _value(name: str, text: str) -> str:
    """Blanks belong to names alone; a path may be in one's home."""
    if name in ("job-name", "output"):
        return text
    if name != "chdir":
        return text.strip()
    try:
        return str(Path(text).expanduser())
    except RuntimeError as error:
        raise BadInput(f"--chdir: {error}") from error


def _per(text: str) -> str:
    for name, option in PERS.items():
        if text.strip() == name:
            return option
    raise BadInput(f"GPUs are for each node, task or job, not {text.strip()!r}")


def _more(text: str) -> tuple[Pairs, dict[str, Any]]:
    """Options of sbatch, and fields that our own options of the command line stand for."""
    try:
        words = shlex.split(text.replace("\r\n", "\n"))
    except ValueError as error:
        raise BadInput(f"the options cannot be read: {str(error).lower()}") from error
    return parted(options_in(words))


def texts_of(spec: JobSpec) -> dict[str, str]:
    """The texts that `read` reads as this job; empty ones are left out."""
    values = option_values(spec)
    texts = {WHAT: _words(spec)} | {name: values.pop(name) for name in OPTIONS if name in values}
    gres = values.pop("gres", "")
    gpus, more = _gpu_texts(spec.gpus, gres)
    more += [f"--{name}={value}" if value else f"--{name}" for name, value in values.items()]
    more += words_of(spec)
    texts |= gpus | {MORE: shlex.join(more)}
    return {name: text for name, text in texts.items() if text}


def texts_of_fields(fields: Mapping[str, Any]) -> tuple[dict[str, str], list[str]]:
    """The texts of fields of a JobSpec from elsewhere, perhaps without what runs.

    Fields that no job can have are left out, and named with the reason.
    """
    good: dict[str, Any] = {}
    trouble: list[str] = []
    runs = {n: v for n, v in fields.items() if n in ("command", "script") and v}
    for name, value in (*runs.items(), *((n, v) for n, v in fields.items() if n not in runs)):
        base = {} if runs else _ANYTHING
        try:
            JobSpec(**base | good | {name: value})
        except BadInput as error:
            trouble.append(str(error))
        else:
            good[name] = value
    holds = any(name in good for name in runs)
    texts = texts_of(JobSpec(**({} if holds else _ANYTHING) | good))
    if not holds:
        texts.pop(WHAT)
    return texts, trouble


def _words(spec: JobSpec) -> str:
    if spec.script is not None:
        return spec.script
    first, *more = map(shlex.quote, spec.command)
    return " ".join([f"'{first}'" if _ASSIGNS.match(first) else first, *more])


def _gpu_texts(gpus: Gpus | None, gres: str) -> tuple[dict[str, str], list[str]]:
    """Fields for GPUs, and options for what these cannot say."""
    rest = [f"--gres={gres}"] if gres else []
    if gpus is None:
        return {}, rest
    bound = [f"--gpu-bind={gpus.bind}"] if gpus.bind else []
    if gpus.type and (gpus.shard or gpus.mps):
        name, amount = ("shard", gpus.shard) if gpus.shard else ("mps", gpus.mps)
        return {}, [f"--gres={','.join(filter(None, [f'{name}:{gpus.type}:{amount}', gres]))}",
                    *bound]  # fmt: skip
    per = {} if gpus.per == "node" else {PER: gpus.per}
    return {GPUS: str(msgspec.structs.replace(gpus, bind=None)), **per}, [*rest, *bound]
