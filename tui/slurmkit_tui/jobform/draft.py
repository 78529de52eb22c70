"""The draft of a form, and the conversion between its texts and a JobSpec, both ways."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from slurmkit.cli.job_options import format_container_options, parse_container_options
from slurmkit.errors import BadInput
from slurmkit.spec.gpus import Gpus
from slurmkit.spec.jobfile import parse_option_words, parse_script
from slurmkit.spec.jobspec import JobSpec, Launch
from slurmkit.spec.sbatch_options import (
    merge_fields,
    option_values,
    parse_options,
    per_socket_text,
)
from slurmkit_tui.jobform.fields import (
    COMMAND_FIELD,
    GPU_COUNT_OPTIONS,
    GPUS_FIELD,
    GPUS_PER_FIELD,
    OPTION_FIELDS,
    OTHER_OPTIONS_FIELD,
)

FormTexts = Mapping[str, str]
"""Text of each field by its name; empty ones may be left out."""

NOTHING_TO_RUN = "enter what the job runs: a command, or a batch script"
_ANYTHING: dict[str, Any] = {"command": ("true",)}
_QUOTED = re.compile(r"""'[^']*'|"(?:[^"\\$`]|\\.)*\"""", re.DOTALL)
_SHELL = re.compile(r"[\n|&;<>()$`*?\[\]#~{}\\!]|^\s*\w+=")
_ASSIGNS = re.compile(r"\w+=")
_SHEBANG = "#!/bin/bash\n"

Pairs = list[tuple[str, str]]
_LAUNCH = {
    "launch": "launcher", "launcher": "launcher", "mpi": "mpi", "nccl-debug": "nccl_debug",
    "preflight": "preflight", "cpu-bind": "cpu_bind",
}  # fmt: skip
_FLAGS = {"label": "label", "log-per-rank": "log_per_rank"}
_YES_NO = {"yes": True, "no": False}
_PER_GPU = "task-per-gpu"  # has no option on the command line


class Draft(NamedTuple):
    """A form that was not submitted yet.

    Attributes:
        texts: texts of its fields.
        origin: where the texts come from; empty if they were typed.
        notes: remarks to show on the form.
    """

    texts: FormTexts
    origin: str = ""
    notes: tuple[str, ...] = ()


class ParsedForm(NamedTuple):
    """The parsed form: the job, or None and what is wrong by field."""

    spec: JobSpec | None
    wrong: dict[str, str]


def parse_form(texts: FormTexts) -> ParsedForm:
    """Parse the form into a job, or into errors by field."""
    filled = {name: text for name, text in texts.items() if text.strip()}
    wrong = {name: why for name in filled if (why := _error_of_field(name, filled))}
    if not filled.get(COMMAND_FIELD):
        wrong[COMMAND_FIELD] = NOTHING_TO_RUN
    if wrong:
        return ParsedForm(None, wrong)
    try:
        return ParsedForm(JobSpec(**_fields(filled)), {})
    except BadInput as error:
        return ParsedForm(None, {_field_at_fault(filled): str(error)})


def _error_of_field(name: str, filled: FormTexts) -> str:
    """Return what is wrong with one field alone, whatever the others hold; empty for nothing."""
    if name == OTHER_OPTIONS_FIELD:  # `--gpu-bind` there needs the GPUs of another field
        return ""
    base = {} if name == COMMAND_FIELD else _ANYTHING
    if name == "ntasks-per-gpu":  # it needs the GPUs or the tasks of another field
        base = base | {"gpus": Gpus(1)}
    try:
        JobSpec(**base | _fields({name: filled[name]}))
    except BadInput as error:
        return str(error)
    return ""


def _field_at_fault(filled: FormTexts) -> str:
    """Return the last field whose removal makes the job valid."""
    for name in reversed(list(filled)):
        rest = {other: text for other, text in filled.items() if other != name}
        base = _ANYTHING if name == COMMAND_FIELD else {}
        try:
            JobSpec(**base | _fields(rest))
        except BadInput:
            continue
        return name
    return OTHER_OPTIONS_FIELD if OTHER_OPTIONS_FIELD in filled else COMMAND_FIELD


def _fields(texts: FormTexts) -> dict[str, Any]:
    """Return the fields of a JobSpec; the form overrides the #SBATCH lines of a script."""
    runs = _command_or_script(texts[COMMAND_FIELD]) if COMMAND_FIELD in texts else {}
    pairs = [(name, _value(name, texts[name])) for name in OPTION_FIELDS if name in texts]
    if GPUS_FIELD in texts or GPUS_PER_FIELD in texts:
        option = _gpu_option(texts.get(GPUS_PER_FIELD, "node"))
        pairs += [(option, texts[GPUS_FIELD].strip())] if GPUS_FIELD in texts else []
    others, ours = _other_options(texts.get(OTHER_OPTIONS_FIELD, ""))
    return merge_fields(runs, merge_fields(parse_options([*pairs, *others], runs), ours))


def _command_or_script(text: str) -> dict[str, Any]:
    """Parse what the job runs: a command, or a batch script with its #SBATCH lines."""
    text = text.replace("\r\n", "\n")
    if text.startswith("#!"):
        return parse_script(text)
    if _SHELL.search(_QUOTED.sub("''", text.strip())):
        return parse_script(_SHEBANG + text)
    try:
        return {"command": tuple(shlex.split(text))}
    except ValueError as error:
        raise BadInput(f"the command cannot be read: {str(error).lower()}") from error


def _value(name: str, text: str) -> str:
    """Strip blanks, except from names and paths of output; expand `~` in the directory."""
    if name in ("job-name", "output"):
        return text
    if name != "chdir":
        return text.strip()
    try:
        return str(Path(text).expanduser())
    except RuntimeError as error:
        raise BadInput(f"--chdir: {error}") from error


def _gpu_option(text: str) -> str:
    """Return the GPU option for `node`, `task` or `job`."""
    for name, option in GPU_COUNT_OPTIONS.items():
        if text.strip() == name:
            return option
    raise BadInput(f"GPUs for each {text.strip()!r}: write node, task or job")


def _other_options(text: str) -> tuple[Pairs, dict[str, Any]]:
    """Parse other options: those of sbatch, and JobSpec fields of slurmkit's own options."""
    try:
        words = shlex.split(text.replace("\r\n", "\n"))
    except ValueError as error:
        raise BadInput(f"the options cannot be read: {str(error).lower()}") from error
    return split_options(parse_option_words(words))


def form_texts(spec: JobSpec) -> dict[str, str]:
    """Return the texts that `parse_form` parses into this job, without empty ones."""
    values = option_values(spec)
    texts = {COMMAND_FIELD: _command_text(spec)} | {
        name: values.pop(name) for name in OPTION_FIELDS if name in values
    }
    gres = values.pop("gres", "")
    gpus, more = _gpu_texts(spec.gpus, gres)
    more += [f"--{name}={value}" if value else f"--{name}" for name, value in values.items()]
    more += own_option_words(spec)
    texts |= gpus | {OTHER_OPTIONS_FIELD: shlex.join(more)}
    return {name: text for name, text in texts.items() if text}


def form_texts_of_fields(fields: Mapping[str, Any]) -> tuple[dict[str, str], list[str]]:
    """Return the texts of some JobSpec fields, and errors.

    Invalid fields are left out; the errors say why. The fields may lack command and script.
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
    texts = form_texts(JobSpec(**({} if holds else _ANYTHING) | good))
    if not holds:
        texts.pop(COMMAND_FIELD)
    return texts, trouble


def _command_text(spec: JobSpec) -> str:
    if spec.script is not None:
        return spec.script
    first, *more = map(shlex.quote, spec.command)
    return " ".join([f"'{first}'" if _ASSIGNS.match(first) else first, *more])


def _gpu_texts(gpus: Gpus | None, gres: str) -> tuple[dict[str, str], list[str]]:
    """Return texts of the GPU fields, and options for what these fields cannot express."""
    rest = [f"--gres={gres}"] if gres else []
    if gpus is None:
        return {}, rest
    bound = [f"--gpu-bind={gpus.bind}"] if gpus.bind else []
    bound += [f"--gpus-per-socket={per_socket_text(gpus)}"] if gpus.sockets else []
    if gpus.type and (gpus.shard or gpus.mps):
        name, amount = ("shard", gpus.shard) if gpus.shard else ("mps", gpus.mps)
        return {}, [f"--gres={','.join(filter(None, [f'{name}:{gpus.type}:{amount}', gres]))}",
                    *bound]  # fmt: skip
    per = {} if gpus.per == "node" else {GPUS_PER_FIELD: gpus.per}
    return {GPUS_FIELD: str(msgspec.structs.replace(gpus, bind=None)), **per}, [*rest, *bound]


def split_options(pairs: Pairs) -> tuple[Pairs, dict[str, Any]]:
    """Split options into those of sbatch, and JobSpec fields of slurmkit's own options.

    Raises:
        BadInput: for a wrong value of one of slurmkit's own options.
    """
    rest: Pairs = []
    launch: dict[str, Any] = {}
    container: dict[str, str] = {}
    environment: dict[str, str] = {}
    for name, value in pairs:
        if name.removeprefix("no-").startswith("container-"):
            container[name] = value
        elif name in (*_LAUNCH, *_FLAGS, _PER_GPU):
            launch |= _launch(name, value)
        elif name == "env":
            environment |= _variable(value)
        elif name == "option":
            passed, _, content = value.removeprefix("--").partition("=")
            rest.append((passed, content))
        else:
            rest.append((name, value))
    fields = {
        "launch": Launch(**launch) if launch else None,
        "container": parse_container_options(container),
        "environment": environment,
    }
    return rest, {name: value for name, value in fields.items() if value}


def own_option_words(spec: JobSpec) -> list[str]:
    """Return the options that `split_options` turns into these fields of a job."""
    launch = spec.launch
    words = [f"--env={name}={value}" for name, value in spec.environment.items()]
    values = {name: getattr(launch, field) for name, field in _LAUNCH.items() if name != "launcher"}
    words += [f"--{name}={value}" for name, value in values.items() if value]
    words += [f"--{name}" for name, field in _FLAGS.items() if getattr(launch, field)]
    if launch.per_gpu is not None:
        words.append(f"--{_PER_GPU}={'yes' if launch.per_gpu else 'no'}")
    return words + (format_container_options(spec.container) if spec.container else [])


def _launch(name: str, value: str) -> dict[str, Any]:
    if name in _FLAGS:
        return {_FLAGS[name]: True}
    if name != _PER_GPU:
        return {_LAUNCH[name]: value or ("INFO" if name == "nccl-debug" else "")}
    if value not in _YES_NO:
        raise BadInput(f"--{name} is yes or no, not {value!r}")
    return {"per_gpu": _YES_NO[value]}


def _variable(text: str) -> dict[str, str]:
    name, equals, content = text.partition("=")
    if not equals:
        raise BadInput(f"--env {text!r} is not of the form NAME=VALUE")
    return {name: content}
