"""What of its node a container of each runtime sees, as far as that is known from here."""

from __future__ import annotations

from pathlib import Path

from slurmkit.container import Container, Mount, View

_TMP = "/tmp"  # noqa: S108 - the node's, which is shown


def bound(container: Container) -> tuple[Mount, ...]:
    """The mounts that show a path of the node at a place that does not depend on the image."""
    return tuple(m for m in container.mounted if m.is_bind and m.target.startswith("/"))


def enroot_view(container: Container) -> View:
    """With enroot, and so pyxis: what is mounted, and the home directory where that is asked for.

    The user who is shown as root has it in /root (conf/hooks/10-home.sh).
    """
    home = str(Path.home())
    where = "/root" if container.remap_root else home
    homes = (Mount(home, where),) if container.mount_home else ()
    return View((*bound(container), *homes), container.workdir)


def apptainer_view(container: Container, folder: str) -> View:
    """With Apptainer: also the home directory, /tmp, and where the job starts ("Bind Paths")."""
    own = [folder, _TMP]
    own += [] if container.mount_home is False else [str(Path.home())]
    mounts = (*bound(container), *(Mount(path, path) for path in own))
    return View(mounts, container.workdir or folder)
