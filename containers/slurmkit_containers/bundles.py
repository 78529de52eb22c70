"""What the config.json of an OCI bundle says (the OCI runtime specification, config.md)."""

from __future__ import annotations

from pathlib import Path

import msgspec

from slurmkit.container import Mount, View


class _Process(msgspec.Struct, frozen=True):
    env: tuple[str, ...] = ()
    cwd: str = "/"


class _Mount(msgspec.Struct, frozen=True):
    destination: str
    source: str = ""
    options: tuple[str, ...] = ()


class Bundle(msgspec.Struct, frozen=True):
    """As much of a bundle's config.json as a plan asks for."""

    process: _Process = _Process()
    mounts: tuple[_Mount, ...] = ()

    @property
    def variables(self) -> frozenset[str]:
        """Names of those that it sets itself."""
        return frozenset(each.partition("=")[0] for each in self.process.env)

    @property
    def view(self) -> View:
        """What of the node it sees."""
        bound = [m for m in self.mounts if {"bind", "rbind"} & set(m.options)]
        mounts = tuple(Mount(m.source, m.destination) for m in bound if m.source.startswith("/"))
        start = self.process.cwd
        here = View(mounts, start, is_asked=False)
        return here if here.sees(start) else View(mounts, is_asked=False)


def read_bundle(folder: str) -> Bundle | None:
    """Read a bundle's config.json; None where it cannot be read from here."""
    try:
        return msgspec.json.decode((Path(folder) / "config.json").read_bytes(), type=Bundle)
    except (OSError, msgspec.MsgspecError):
        return None
