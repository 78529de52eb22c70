"""The registry of plugins: which are installed, and how one is loaded.

A plugin is a named entry point in the group of its kind, `slurmkit.KIND`, whose object implements
the Protocol of that kind (`KINDS`); slurmkit's own parts register the same way. Names are known
without importing anything. One plugin is chosen by name; only policies are all called.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, cast

import msgspec

from slurmkit.config.files import did_you_mean
from slurmkit.errors import BadInput, BrokenPlugin

if TYPE_CHECKING:
    from importlib.metadata import Distribution


OWN_DISTRIBUTION = "slurmkit-hpc"
UNREADABLE = "unreadable"
"""The kind of an entry that stands for a distribution whose entry points cannot be read."""


KINDS: dict[str, str | None] = {
    "backends": "slurmkit.jobs.backends.protocol:Backend",
    "launchers": "slurmkit.planning.launchers.base:Launcher",
    "runtimes": "slurmkit.planning.containers:Runtime",
    "policies": "slurmkit.planning.policies:Policy",
    "gpu_metrics": "slurmkit.state.gpu_metrics:GpuMetrics",
    "past_waits": "slurmkit.state.past_waits:PastWaitReader",
    "renderers": "slurmkit_accounting.plugins:Renderer",
    "notifiers": "slurmkit_accounting.plugins:Notifier",
    "commands": None,
    "config": None,
}
"""Each kind's Protocol as `module:name`; None for kinds without a Protocol."""


class Plugin(msgspec.Struct, frozen=True):
    """A registered plugin, not imported yet.

    Attributes:
        target: `module:object`.
        distribution: the installed package that contains it; `version` is that package's.
    """

    kind: str
    name: str
    target: str
    distribution: str
    version: str

    def load(self) -> object:
        """Import the plugin's object and check that it has the methods of its Protocol.

        Raises:
            BrokenPlugin: when its import fails in any way, or a method is missing.
        """
        from importlib.metadata import EntryPoint  # noqa: PLC0415 - see registered

        entry = EntryPoint(self.name, self.target, f"slurmkit.{self.kind}")
        try:
            loaded = entry.load()
        except (Exception, SystemExit) as error:  # a plugin's code may raise anything
            raise BrokenPlugin(f"{self.title}: {type(error).__name__}: {error}") from error
        lacking = [
            part for part in _required_names(KINDS.get(self.kind)) if not hasattr(loaded, part)
        ]
        if lacking:
            raise BrokenPlugin(f"{self.title} has no {' and no '.join(lacking)}")
        return cast("object", loaded)

    @property
    def title(self) -> str:
        """Its name, kind, target and distribution, for messages."""
        where = f"{self.target}, {self.distribution} {self.version}"
        return f"plugin {self.name!r} of slurmkit.{self.kind} ({where})"


@cache
def registered_plugins() -> tuple[Plugin, ...]:
    """List all entry points in groups `slurmkit.…`: ours first, then by kind, name, distribution.

    A distribution whose entry points cannot be read gets one entry of kind `UNREADABLE`. The first
    call scans all installed packages (some 20 ms), so commands that need no plugin do not call it.
    """
    from importlib.metadata import distributions  # noqa: PLC0415 - itself takes 10 ms

    by_distribution: dict[str, list[Plugin]] = {}
    for each in distributions():
        if entries := _registered_by(each):
            by_distribution.setdefault(entries[0].distribution, entries)  # Python imports the first
    everything = (plugin for entries in by_distribution.values() for plugin in entries)
    return tuple(sorted(everything, key=_sort_key))


def _registered_by(distribution: Distribution) -> list[Plugin]:
    try:
        if "slurmkit." not in (distribution.read_text("entry_points.txt") or ""):
            return []
        entries = [(e.group, e.name, e.value) for e in distribution.entry_points]
    except (TypeError, ValueError):  # a malformed line; anybody may have written the file
        entries = [(f"slurmkit.{UNREADABLE}", "?", "entry_points.txt")]
    name, version = (
        _metadata_field(distribution, "name") or "unknown",
        _metadata_field(distribution, "version") or "?",
    )
    return [
        Plugin(group.removeprefix("slurmkit."), entry, target, name, version)
        for group, entry, target in entries
        if group.startswith("slurmkit.")
    ]


def _metadata_field(distribution: Distribution, what: str) -> str:
    """Read one field of a distribution's metadata.

    `distribution.metadata` would parse it with the email package, whose import takes 20 ms.
    """
    try:
        text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
    except ValueError:  # not UTF-8 text
        return ""
    lines = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    return next((value.strip() for name, _, value in lines if name.lower() == what), "")


def plugins(kind: str) -> dict[str, Plugin]:
    """Return every plugin of a kind, sorted by name; nothing is imported.

    Of plugins with the same name only the first counts; ours go before a site's.
    """
    by_name: dict[str, Plugin] = {}
    for plugin in registered_plugins():
        if plugin.kind == kind:
            by_name.setdefault(plugin.name, plugin)
    return dict(sorted(by_name.items()))


def load_plugin(kind: str, name: str) -> object:
    """Import one plugin, chosen by kind and name.

    Raises:
        BadInput: when there is none of that name; lists the names there are.
        BrokenPlugin: when it cannot be used.
    """
    known = plugins(kind)
    if name not in known:
        hint = did_you_mean(name, list(known), kind) if known else "none is installed"
        raise BadInput(f"no plugin {name!r} of slurmkit.{kind}; {hint}")
    return known[name].load()


def _sort_key(plugin: Plugin) -> tuple[object, ...]:
    return plugin.distribution != OWN_DISTRIBUTION, plugin.kind, plugin.name, plugin.distribution


def _required_names(protocol: str | None) -> list[str]:
    if protocol is None:
        return []
    module, _, attribute = protocol.partition(":")
    return [n for n in vars(getattr(import_module(module), attribute)) if not n.startswith("_")]
