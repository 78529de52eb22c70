"""Options of our own among the form's other options: launch, container, environment."""

from __future__ import annotations

from typing import Any

from slurmkit.cli.containeroptions import container_of, container_words
from slurmkit.errors import BadInput
from slurmkit.spec import JobSpec, Launch

Pairs = list[tuple[str, str]]

_LAUNCH = {
    "launch": "launcher", "launcher": "launcher", "mpi": "mpi", "nccl-debug": "nccl_debug",
    "preflight": "preflight",
}  # fmt: skip
_FLAGS = {"label": "label", "log-per-rank": "log_per_rank"}
_YES_NO = {"yes": True, "no": False}
_PER_GPU = "task-per-gpu"  # has no option on the command line


def parted(pairs: Pairs) -> tuple[Pairs, dict[str, Any]]:
    """Options of sbatch, and the fields of a JobSpec that the others stand for.

    Raises:
        BadInput: for a value that such an option cannot have.
    """
    rest: Pairs = []
    launch: dict[str, Any] = {}
    inside: dict[str, str] = {}
    environment: dict[str, str] = {}
    for name, value in pairs:
        if name.removeprefix("no-").startswith("container-"):
            inside[name] = value
        elif name in (*_LAUNCH, *_FLAGS, _PER_GPU):
            launch |= _launch(name, value)
        elif name == "env":
            environment |= _variable(value)
        elif name == "option":
            passed, _, content = value.removeprefix("--").partition("=")
            rest.append((passed, content))
        else:
            rest.append((name, value))
    found = {
        "launch": Launch(**launch) if launch else None,
        "container": container_of(inside),
        "environment": environment,
    }
    return rest, {name: value for name, value in found.items() if value}


def words_of(spec: JobSpec) -> list[str]:
    """The options that `parted` reads as these fields of a job."""
    launch = spec.launch
    words = [f"--env={name}={value}" for name, value in spec.environment.items()]
    given = {name: getattr(launch, field) for name, field in _LAUNCH.items() if name != "launcher"}
    words += [f"--{name}={value}" for name, value in given.items() if value]
    words += [f"--{name}" for name, field in _FLAGS.items() if getattr(launch, field)]
    if launch.per_gpu is not None:
        words.append(f"--{_PER_GPU}={'yes' if launch.per_gpu else 'no'}")
    return words + (container_words(spec.container) if spec.container else [])


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
