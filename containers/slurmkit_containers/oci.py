"""Slurm's own containers: `srun --container=BUNDLE`, run by what oci.conf names, e.g. crun.

Slurm puts the command and the job's variables into the bundle's configuration and changes nothing
else of it (src/slurmd/slurmstepd/container.c, doc/html/containers.shtml), so mounts, user and
folder are those of the bundle's config.json. The bundle must be on the nodes. Variables that its
config.json sets win over the job's; those that the job is to keep go in under other names, and a
shell of the bundle's gives them theirs.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from pathlib import Path

from slurmkit.capabilities.model import Capabilities
from slurmkit.container import Container, View, Wrapped
from slurmkit.findings import Finding
from slurmkit.runtimes import containers_section
from slurmkit_containers.bundles import read_bundle
from slurmkit_containers.lacks import error, lacking

NAME = "oci"
_KINDS = ("bundle",)
_FEATURES = ("environment",)
_KEPT = "SLURMKIT_ENV_"


class Oci:
    """See `slurmkit.plugins.Runtime`: one option of srun."""

    def runs(self, kind: str) -> bool:
        """OCI bundles only."""
        return kind in _KINDS

    def available(self, capabilities: Capabilities) -> str | None:
        """Whether Slurm has an oci.conf: without, it starts the command outside of any container.

        `scontrol show config` does not say; Slurm looks beside slurm.conf, on every machine and
        where slurmctld hands its configuration out (src/common/fetch_config.c). Where it is on the
        nodes alone, the configuration says so.
        """
        if "container" not in capabilities.container_options:
            return "srun knows no --container"
        if NAME in containers_section().runtimes:
            return None
        beside = capabilities.config.get("SLURM_CONF", "")
        if beside and (Path(beside).parent / "oci.conf").is_file():
            return None
        return (
            "no oci.conf beside slurm.conf here, and [containers] runtimes in the configuration"
            f" does not name {NAME}"
        )

    def needs(self, container: Container, capabilities: Capabilities) -> Iterable[Finding]:
        """Nearly all but the image: it stands in the bundle's config.json."""
        del capabilities
        yield from lacking(NAME, container, _KINDS, _FEATURES)
        image = container.source
        if image is not None and image.kind == "bundle" and not posixpath.isabs(image.name):
            yield error(NAME, f"Slurm wants the absolute path of an OCI bundle, not {image.name}")

    def view(self, container: Container, folder: str) -> View | None:
        """What its config.json says, where it can be read here."""
        del folder
        bundle = read_bundle(container.source.name) if container.source else None
        return bundle.view if bundle else None

    def step(self, container: Container, *, gpus: bool) -> Wrapped:
        """`--container`, and words that give variables back what the bundle would hide."""
        del gpus  # devices are the bundle's own affair
        image = container.source
        if image is None:
            return Wrapped()
        bundle = read_bundle(image.name)
        names = [n for n in container.environment if bundle is None or n in bundle.variables]
        return Wrapped(
            srun_options=(f"--container={image.name}",),
            before=tuple(_copy(name, f"{_KEPT}{name}") for name in names),
            prefix=_given_back(names),
        )


def _given_back(names: Iterable[str]) -> tuple[str, ...]:
    lines = [f"{_copy(f'{_KEPT}{name}', name)}; unset {_KEPT}{name}" for name in names]
    return ("sh", "-c", "; ".join([*lines, 'exec "$@"']), "sh") if lines else ()


def _copy(from_: str, to: str) -> str:
    return f'[ -z "${{{from_}+set}}" ] || export {to}="${from_}"'
