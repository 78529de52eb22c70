"""Options of a job's container, named as pyxis names those of srun."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from slurmkit.cli.tab import ImageNames, PluginNames
from slurmkit.config import nearest
from slurmkit.container import Container
from slurmkit.errors import BadInput

_TEXTS = (
    ("image", "Image: ubuntu:24.04, pytorch (slurmkit image search), ./x.sqsh, ./x.sif, a bundle."),
    ("mounts", "What of the node is seen in it: SRC[:DST[:FLAG+FLAG]],…"),
    ("workdir", "Where COMMAND starts in it."),
    ("name", "Keep it on the nodes under this name."),
    ("save", "Save it to this squashfs file at the end."),
    ("env", "Variables whose values are the node's, not the image's: NAME,…"),
    ("unshare", "Namespaces of its own: net, ipc, uts."),
    ("runtime", "pyxis, enroot, apptainer or oci; by default what suits image and cluster."),
)
_SWITCHES = (
    ("mount-home", "Show the home directory in it, or do not."),
    ("remap-root", "Be shown as root in it, or do not."),
    ("entrypoint", "Run the image's entry point before COMMAND, or do not."),
)
_TYPES = {"image": ImageNames(), "runtime": PluginNames("runtimes")}
_LISTS = ("mounts", "env", "unshare")
_FIELDS = {"env": "environment"}
_WITH_VALUE = {f"container-{name}": name for name, _ in _TEXTS}
_WITHOUT = {
    **{f"container-{name}": (name, True) for name, _ in _SWITCHES},
    **{f"no-container-{name}": (name, False) for name, _ in _SWITCHES},
    "container-writable": ("writable", True),
    "container-readonly": ("writable", False),
    "container-entrypoint-log": ("entrypoint-log", True),
}


def container_options() -> list[Callable[..., Any]]:
    """The options, as decorators."""
    texts = [
        click.option(
            f"--container-{name}", help=text, type=_TYPES.get(name), multiple=name in _LISTS
        )
        for name, text in _TEXTS
    ]
    switches = [
        click.option(f"--container-{name}/--no-container-{name}", default=None, help=text)
        for name, text in _SWITCHES
    ]
    writable = "Let its own files be changed, or do not."
    return [
        *texts,
        *switches,
        click.option("--container-writable/--container-readonly", default=None, help=writable),
        click.option(
            "--container-entrypoint-log", is_flag=True, help="Show what the entry point says."
        ),
    ]


def container_from(take: Callable[[str], Any], below: Container | None) -> Container | None:
    """The container that the options ask for, over that of a job file.

    Args:
        take: gives the value of an option and forgets it.
        below: what a job file asks for.

    Raises:
        BadInput: for what cannot be meant.
    """
    names = [name for name, _ in (*_TEXTS, *_SWITCHES)]
    given = {name: take(f"container_{name.replace('-', '_')}") for name in names}
    given |= {"writable": take("container_writable")}
    given |= {"entrypoint-log": take("container_entrypoint_log") or None}
    found = {
        _field(name): _listed(name, value)
        for name, value in given.items()
        if value not in (None, ())
    }
    if not found and below is None:
        return None
    fields = msgspec.structs.asdict(below) if below else {}
    return Container(**{**fields, **found}).at(str(Path.cwd()))


def container_of(given: Mapping[str, str]) -> Container | None:
    """The container that options mean, by their names; the value of a flag is empty.

    Raises:
        BadInput: for what is no such option, and for what cannot be meant.
    """
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name in _WITHOUT and not value:
            field, values[field] = _WITHOUT[name]
        elif name in _WITH_VALUE and value:
            values[_WITH_VALUE[name]] = value
        elif name in (*_WITHOUT, *_WITH_VALUE):
            raise BadInput(f"--{name} {'has no' if value else 'needs a'} value")
        else:
            raise BadInput(f"no option --{name}; {nearest(name, [*_WITH_VALUE, *_WITHOUT])}")
    named = {f"container_{name.replace('-', '_')}": value for name, value in values.items()}
    return container_from(named.get, None)


def container_words(container: Container) -> list[str]:
    """The options that `container_of` reads as this container."""
    fields = {name: _field(name) for name in _WITH_VALUE.values()}
    given = {name: getattr(container, field) for name, field in fields.items()}
    texts = {n: ",".join(v) if isinstance(v, tuple) else v for n, v in given.items() if v}
    flags = [
        f"--{name}"
        for name, (field, value) in _WITHOUT.items()
        if getattr(container, _field(field)) is value
    ]
    return [*(f"--container-{name}={text}" for name, text in texts.items()), *flags]


def _field(name: str) -> str:
    return _FIELDS.get(name, name.replace("-", "_"))


def _listed(name: str, value: Any) -> Any:
    """Of what may be given with commas, or several times as to pyxis, or both, all."""
    if name not in _LISTS:
        return value
    texts = (value,) if isinstance(value, str) else value
    return tuple(item for text in texts for item in text.split(","))
