"""Slurm's own containers: `srun --container=BUNDLE`, run by what oci.conf names, e.g. crun.

Slurm puts the command and the job's variables into the bundle's configuration and changes nothing
else of it (src/plugins/runtime/oci, doc/html/containers.shtml), so mounts, user and folder are
those of the bundle's config.json. The bundle must be on the nodes.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from pathlib import Path

from slurmkit.capabilities.model import Capabilities
from slurmkit.container import Container, Wrapped
from slurmkit.findings import Finding
from slurmkit.runtimes import containers_section
from slurmkit_containers.lacks import error, lacking

NAME = "oci"
_KINDS = ("bundle",)


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
        """Everything but the image: it stands in the bundle's config.json."""
        del capabilities
        yield from lacking(NAME, container, _KINDS, ())
        image = container.source
        if image is not None and image.kind == "bundle" and not posixpath.isabs(image.name):
            yield error(NAME, f"Slurm wants the absolute path of an OCI bundle, not {image.name}")

    def step(self, container: Container, *, gpus: bool) -> Wrapped:
        """`--container` alone."""
        del gpus  # devices are the bundle's own affair
        image = container.source
        return Wrapped(srun_options=(f"--container={image.name}",) if image else ())
