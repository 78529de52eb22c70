"""What a press of Tab offers for values, from what is kept on disk: Slurm is never asked."""

from __future__ import annotations

from collections.abc import Iterable

import click
from click.shell_completion import CompletionItem
from click.types import StringParamType

from slurmkit.capabilities.names import cached_names
from slurmkit.errors import SlurmkitError
from slurmkit.plugins import plugins

KINDS = {
    "account": "account",
    "constraint": "feature",
    "exclude": "node",
    "licenses": "license",
    "nodelist": "node",
    "partition": "partition",
    "qos": "qos",
    "reservation": "reservation",
}
"""Options that every command means alike, to the kind of names they take."""


class _Names(StringParamType):
    """Text that is one of some names, which Tab offers; others are judged where they are used."""

    name = "text"

    def _known(self) -> Iterable[str]:
        raise NotImplementedError

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Offer what the name could go on to."""
        del ctx, param
        return [CompletionItem(n) for n in self._known() if n.startswith(incomplete)]


class PluginNames(_Names):
    """Text that is the name of a plugin.

    Args:
        kind: as `slurmkit.plugins.KINDS` has it.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def _known(self) -> Iterable[str]:
        return plugins(self._kind)


class ImageNames(_Names):
    """Text that names a container's image: one that is imported, or of the catalogue."""

    def _known(self) -> Iterable[str]:
        from slurmkit.runtimes import image_names  # noqa: PLC0415 - for Tab alone

        try:
            return image_names()
        except SlurmkitError:  # a press of Tab has nowhere to say so
            return ()


class SweepIds(_Names):
    """The id of a sweep that is remembered here."""

    def _known(self) -> Iterable[str]:
        from slurmkit.sweeps.records import ids  # noqa: PLC0415 - for Tab alone

        return ids()


class CachedNames(StringParamType):
    """Text that is a name, or several with commas, of something the cluster has.

    Args:
        kind: as `slurmkit.capabilities.names.cached_names` knows it.
    """

    name = "names"

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Offer what the last name could go on to."""
        del ctx, param
        before, comma, last = incomplete.rpartition(",")
        names = cached_names(self._kind)
        return [CompletionItem(before + comma + n) for n in names if n.startswith(last)]


def complete_from_cache(command: click.Command) -> click.Command:
    """Let Tab offer names for the options of a command that take them."""
    for param in command.params:
        kind = KINDS.get((param.name or "").replace("_", "-"))
        if kind and isinstance(param, click.Option) and param.type is click.STRING:
            param.type = CachedNames(kind)
    return command
