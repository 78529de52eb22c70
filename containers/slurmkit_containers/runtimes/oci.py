"""The runtime oci, Slurm's own containers: `srun --container=BUNDLE`, run with crun or another.

oci.conf names the program. Slurm puts the command and the job's variables into the bundle's
configuration and changes nothing else of it (src/slurmd/slurmstepd/container.c,
doc/html/containers.shtml). So mounts, user and folder are those of the bundle's config.json. The
bundle must be on the nodes. Variables that config.json sets override the job's. To keep the job's
value, it is passed under another name, and a shell in the container restores the name.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from pathlib import Path

import msgspec

from slurmkit.planning.containers import containers_section
from slurmkit.spec.containers import Container, ContainerLaunch, ContainerPaths, Mount
from slurmkit.spec.findings import Finding
from slurmkit.state.model import Capabilities
from slurmkit_containers.runtimes.common import error, missing_features

NAME = "oci"
_KINDS = ("bundle",)
_FEATURES = ("environment",)
_SAVED = "SLURMKIT_ENV_"


class Oci:
    """The container runtime oci: one option of srun."""

    def runs(self, kind: str) -> bool:
        """Return True for OCI bundles only."""
        return kind in _KINDS

    def available(self, capabilities: Capabilities) -> str | None:
        """Return why it cannot be used: without oci.conf, Slurm runs the command in no container.

        `scontrol show config` does not show oci.conf. Slurm looks for it next to slurm.conf, on
        every machine and in configless mode (src/common/fetch_config.c). If only the nodes have
        it, slurmkit's configuration must name this runtime.
        """
        if "container" not in capabilities.container_options:
            return "srun has no option --container"
        if NAME in containers_section().runtimes:
            return None
        slurm_conf = capabilities.config.get("SLURM_CONF", "")
        if slurm_conf and (Path(slurm_conf).parent / "oci.conf").is_file():
            return None
        return (
            "no oci.conf next to slurm.conf here, and [containers] runtimes in the configuration"
            f" does not name {NAME}"
        )

    def needs(self, container: Container, capabilities: Capabilities) -> Iterable[Finding]:
        """Yield errors for nearly every option: the bundle's config.json sets them."""
        del capabilities
        yield from missing_features(NAME, container, _KINDS, _FEATURES)
        image = container.source
        if image is not None and image.kind == "bundle" and not posixpath.isabs(image.name):
            yield error(NAME, f"Slurm needs the absolute path of an OCI bundle, not {image.name}")

    def view(self, container: Container, folder: str) -> ContainerPaths | None:
        """Return what config.json says the container sees; None if it cannot be read here."""
        del folder
        bundle = read_bundle(container.source.name) if container.source else None
        return bundle.view if bundle else None

    def step(self, container: Container, *, gpus: bool) -> ContainerLaunch:
        """Return `--container`, and a prefix that restores variables that the bundle overrides."""
        del gpus  # devices are the bundle's own affair
        image = container.source
        if image is None:
            return ContainerLaunch()
        bundle = read_bundle(image.name)
        names = [n for n in container.environment if bundle is None or n in bundle.variables]
        restore = [f"{_copy(f'{_SAVED}{name}', name)}; unset {_SAVED}{name}" for name in names]
        return ContainerLaunch(
            srun_options=(f"--container={image.name}",),
            before=tuple(_copy(name, f"{_SAVED}{name}") for name in names),
            prefix=("sh", "-c", "; ".join([*restore, 'exec "$@"']), "sh") if restore else (),
        )


def _copy(from_: str, to: str) -> str:
    return f'[ -z "${{{from_}+set}}" ] || export {to}="${from_}"'


class _Process(msgspec.Struct, frozen=True):
    env: tuple[str, ...] = ()
    cwd: str = "/"


class _Mount(msgspec.Struct, frozen=True):
    destination: str
    source: str = ""
    options: tuple[str, ...] = ()


class Bundle(msgspec.Struct, frozen=True):
    """The parts of a bundle's config.json that a plan needs."""

    process: _Process = _Process()
    mounts: tuple[_Mount, ...] = ()

    @property
    def variables(self) -> frozenset[str]:
        """Names of the environment variables that it sets."""
        return frozenset(each.partition("=")[0] for each in self.process.env)

    @property
    def view(self) -> ContainerPaths:
        """The folders of the node that the container sees."""
        bound = [m for m in self.mounts if {"bind", "rbind"} & set(m.options)]
        mounts = tuple(Mount(m.source, m.destination) for m in bound if m.source.startswith("/"))
        start = self.process.cwd
        view = ContainerPaths(mounts, start, is_asked=False)
        return view if view.sees(start) else ContainerPaths(mounts, is_asked=False)


def read_bundle(folder: str) -> Bundle | None:
    """Read a bundle's config.json; None if it cannot be read here."""
    try:
        return msgspec.json.decode((Path(folder) / "config.json").read_bytes(), type=Bundle)
    except (OSError, msgspec.MsgspecError):
        return None
