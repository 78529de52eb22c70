"""enroot without pyxis: import and create once per node, then start in every task.

Options are those of enroot's doc/cmd/{import,create,start,remove}.md. Its containers begin with
the image's environment alone, so a configuration script (doc/cmd/start.md) hands the job's
variables on where the image does not set them, as pyxis does. Values with a line break cannot be
handed on: enroot's file of variables has one on each line.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator

from slurmkit.capabilities.model import Capabilities
from slurmkit.container import Container, Mount, View, Wrapped
from slurmkit.findings import Finding
from slurmkit_containers import enroot_scripts as scripts
from slurmkit_containers.lacks import credentials, error, lacking, note, unnamed
from slurmkit_containers.views import enroot_view

NAME = "enroot"
_KINDS = ("registry", "daemon", "squashfs")
_FEATURES = "mounts workdir mount_home remap_root writable entrypoint environment name".split()
# As pyxis has them (args.c, add_mount), so that a mount means the same with both.
_FLAGS = {"tmpfs": ("x-create=dir",), "umount": ("x-detach",)}
_BIND = ("x-create=auto", "rbind")


class Enroot:
    """See `slurmkit.plugins.Runtime`: lines before and after, and words before the command."""

    def runs(self, kind: str) -> bool:
        """Images of a registry or daemon, and squashfs files."""
        return kind in _KINDS

    def available(self, capabilities: Capabilities) -> str | None:
        """Where pyxis is, enroot is too; else the configuration must say that it is there."""
        if "container-image" in capabilities.container_options:
            return None
        return unnamed(NAME)

    def needs(self, container: Container, capabilities: Capabilities) -> Iterable[Finding]:
        """What pyxis alone has."""
        del capabilities
        yield from lacking(NAME, container, _KINDS, _FEATURES)
        yield from credentials(NAME, container)
        if ":" in (container.name or ""):
            yield error(NAME, "enroot has no modes for a container's name; pyxis from 0.14 on has")
        if container.name is None:
            yield note(
                NAME,
                "the container is removed when the batch script ends; what is killed outright"
                " leaves it on the nodes: enroot list",
            )

    def view(self, container: Container, folder: str) -> View:
        """What is asked for, and nothing else."""
        del folder
        return enroot_view(container)

    def step(self, container: Container, *, gpus: bool) -> Wrapped:
        """Create on every node, start in every task, remove on every node."""
        del gpus  # enroot's hooks look at NVIDIA_VISIBLE_DEVICES
        image = "" if container.source is None else container.source.enroot
        name = container.name or ""
        create = _on_each_node(scripts.CREATE, image, name)
        return Wrapped(
            before=(f"{create} || exit",),
            prefix=(*_start(container), *_in_workdir(container.workdir)),
            after=() if name else (_on_each_node(scripts.REMOVE),),
        )


def _on_each_node(script: str, *words: str) -> str:
    """An srun that runs `script` once on every node of the job.

    Of what the job's own options leave in the environment, --ntasks-per-gpu alone would forbid
    one task per node.
    """
    nodes = '"--nodes=$SLURM_JOB_NUM_NODES" "--ntasks=$SLURM_JOB_NUM_NODES" --ntasks-per-node=1'
    inside = shlex.join(["bash", "-c", script, "slurmkit-enroot", *words])
    srun = f"srun {nodes} --mpi=none --kill-on-bad-exit=1 -- {inside}"
    return f"(unset SLURM_NTASKS_PER_GPU; {srun})"


def _start(container: Container) -> tuple[str, ...]:
    # Where nothing is said there is none, as with pyxis.
    config = scripts.CONFIG + scripts.ENTRYPOINTS[bool(container.entrypoint)]
    words = ["bash", "-c", scripts.START, "slurmkit-enroot", container.name or "", config]
    settings = (
        ("ENROOT_MOUNT_HOME", container.mount_home),
        ("ENROOT_REMAP_ROOT", container.remap_root),
        ("ENROOT_ROOTFS_WRITABLE", container.writable),
    )
    given = [f"{name}={'y' if value else 'n'}" for name, value in settings if value is not None]
    return (*(["env", *given] if given else []), *words, *_options(container), "--")


def _options(container: Container) -> Iterator[str]:
    for mount in container.mounted:
        yield f"--mount={_fstab(mount)}"
    for name in container.environment:
        yield f"--env={name}"


def _fstab(mount: Mount) -> str:
    flags = (*_FLAGS.get(mount.source, _BIND), *mount.flags)
    return f"{mount.source}:{mount.target}:{','.join(flags)}"


def _in_workdir(workdir: str | None) -> tuple[str, ...]:
    return () if workdir is None else ("sh", "-c", scripts.CHANGE_DIRECTORY, "sh", workdir)
