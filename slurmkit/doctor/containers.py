"""Checks of pyxis and enroot on this machine, a login node or a node of a job.

They are not part of the other checks: `slurmkit doctor --containers` runs them, and
`srun slurmkit doctor --containers` runs them on a node.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from slurmkit.config.paths import filesystem_type
from slurmkit.doctor.case import Check, CheckContext, CheckFinding, parse_release
from slurmkit.doctor.installation import SHARED_FILESYSTEMS
from slurmkit.errors import SlurmkitError
from slurmkit.formats.memory import format_bytes
from slurmkit.state.container_site import (
    ENROOT_FOLDER,
    PyxisSettings,
    read_enroot_settings,
    read_pyxis_settings,
)

_KERNEL = Path("/proc/sys")
_PATIENCE = 20  # timeout in seconds of a program
_HERE = "on this machine"
_NEWER = "install enroot 4 or newer"
_CONF = "enroot.conf"
_PLUGSTACK = "plugstack.conf"
_IMPORT_ROOM = 16 << 30  # bytes; a large image, compressed
_LARGE_CACHE = 20 << 30  # bytes; several large images
_OLD_LAYER = 30  # days
_OURS = re.compile(r"(?:pyxis_(\d+)\.\d+|(?:pyxis_)?slurmkit_(?:preflight_)?(\d+)_\d+)")
_HOOKS = {
    "50-slurm-pmi.sh": "MPI in a container does not find the other ranks with srun --mpi=pmix",
    "50-slurm-pytorch.sh": "plain srun of NVIDIA's PyTorch images finds no MASTER_ADDR and RANK",
}


def check_user_namespaces(case: CheckContext) -> Iterator[CheckFinding]:
    """Check that a user may make a user namespace, which enroot needs."""
    del case
    settings = {
        "user.max_user_namespaces": ("0", "sysctl -w user.max_user_namespaces=65536"),
        "kernel.unprivileged_userns_clone": ("0", "sysctl -w kernel.unprivileged_userns_clone=1"),
        "kernel.apparmor_restrict_unprivileged_userns": (
            "1",
            "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or a profile for enroot",
        ),
    }
    wrong = [
        CheckFinding(
            "warning",
            f"{name} is {bad}",
            "enroot and pyxis cannot unpack or start images, unless enroot has capabilities",
            fix,
            "/etc/sysctl.d",
        )
        for name, (bad, fix) in settings.items()
        if _kernel_setting(name) == bad
    ]
    yield from wrong
    if not wrong and (why := _why_no_namespace()):
        yield CheckFinding(
            "warning",
            f"no user namespace can be made here: {why}",
            "enroot and pyxis cannot unpack or start images",
            "in a container of Docker: security_opt seccomp=unconfined, cap_add SYS_ADMIN",
            _HERE,
        )


def _kernel_setting(name: str) -> str:
    try:
        return (_KERNEL / name.replace(".", "/")).read_text("utf-8").strip()
    except OSError:
        return ""


def _why_no_namespace() -> str:
    if shutil.which("unshare") is None:
        raise SlurmkitError("unshare is not installed, so no user namespace was tried")
    argv = ["unshare", "--user", "--mount", "--map-root-user", "true"]
    done = subprocess.run(argv, capture_output=True, timeout=_PATIENCE, check=False)
    output = done.stderr.decode("utf-8", "replace").strip()
    return (output or f"exit code {done.returncode}") if done.returncode else ""


def check_enroot(case: CheckContext) -> Iterator[CheckFinding]:
    """Check that enroot is here, and has what slurmkit uses of it."""
    del case
    if shutil.which("enroot") is None:
        yield CheckFinding(
            "note",
            "enroot is not on the PATH",
            "on a login node only images that need no password can be imported; on a node, none"
            " starts",
            "install enroot",
            _HERE,
        )
        return
    version = _enroot("version")
    release = parse_release(version)
    if release and release < (3, 1):
        meaning = "it cannot fetch an image by its digest, so a tag may change between two jobs"
        yield CheckFinding("warning", f"enroot is {version}", meaning, _NEWER, _HERE)
    elif release and release < (4,):
        meaning = "it names no digest of private images, so their imports are not pinned"
        yield CheckFinding("note", f"enroot is {version}", meaning, _NEWER, _HERE)


def _enroot(*words: str) -> str:
    argv = ["enroot", *words]
    try:
        done = subprocess.run(argv, capture_output=True, timeout=_PATIENCE, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise SlurmkitError(f"enroot {words[0]} failed: {error}") from error
    return done.stdout.decode("utf-8", "replace").strip()


def check_enroot_hooks(case: CheckContext) -> Iterator[CheckFinding]:
    """Check the hooks that MPI, PyTorch and GPUs need in containers."""
    del case
    if not ENROOT_FOLDER.is_dir():
        raise SlurmkitError(f"there is no {ENROOT_FOLDER} here; look on a node")
    folder = ENROOT_FOLDER / "hooks.d"
    for name, meaning in _HOOKS.items():
        if not os.access(folder / name, os.X_OK):
            yield CheckFinding(
                "note",
                f"enroot's hook {name} is not in {folder}",
                meaning,
                f"ln -s /usr/share/enroot/hooks.d/{name} {folder}/",
                "on the nodes",
            )
    has_gpus = any(Path("/dev").glob("nvidia[0-9]*"))
    if has_gpus and shutil.which("nvidia-container-cli") is None:
        yield CheckFinding(
            "error",
            "nvidia-container-cli is not on the PATH, and this machine has NVIDIA GPUs",
            "images that ask for GPUs do not start",
            "install libnvidia-container-tools",
            _HERE,
        )


def check_enroot_paths(case: CheckContext) -> Iterator[CheckFinding]:
    """Check where enroot unpacks images and keeps containers."""
    del case
    settings = read_enroot_settings(os.environ)
    data, runtime = settings["ENROOT_DATA_PATH"], settings["ENROOT_RUNTIME_PATH"]
    if filesystem_type(_nearest(data)).startswith(SHARED_FILESYSTEMS):
        yield CheckFinding(
            "warning",
            f"ENROOT_DATA_PATH is {data}, which other machines share",
            "the nodes of a job overwrite each other's containers",
            "ENROOT_DATA_PATH /var/lib/enroot/data-$(id -u)",
            _CONF,
        )
    if (
        data == runtime
        or f"{data}/".startswith(f"{runtime}/")
        or f"{runtime}/".startswith(f"{data}/")
    ):
        yield CheckFinding(
            "error",
            f"of ENROOT_DATA_PATH ({data}) and ENROOT_RUNTIME_PATH ({runtime}) one is in the other",
            "containers do not start",
            "give each a folder of its own",
            _CONF,
        )
    temp = settings["ENROOT_TEMP_PATH"]
    if filesystem_type(_nearest(temp)) == "overlay":
        yield CheckFinding(
            "warning",
            f"ENROOT_TEMP_PATH is {temp}, on overlayfs",
            "enroot cannot import images with deleted files: whiteouts are not allowed there",
            "ENROOT_TEMP_PATH to a tmpfs or a disk",
            _CONF,
        )
    for name in ("ENROOT_DATA_PATH", "ENROOT_TEMP_PATH", "ENROOT_CACHE_PATH"):
        if not os.access(_nearest(settings[name]), os.W_OK | os.X_OK):
            yield CheckFinding(
                "warning",
                f"{name} is {settings[name]}, where you may not write",
                "enroot fails for you",
                f"a folder that each user may write: {name}",
                _CONF,
            )


def check_enroot_cache(case: CheckContext) -> Iterator[CheckFinding]:
    """Check that enroot's cache of layers is not large: enroot only ever adds to it."""
    del case
    folder = read_enroot_settings(os.environ)["ENROOT_CACHE_PATH"]
    held = sum(_file_sizes(folder))
    if held >= _LARGE_CACHE:
        old = f"-maxdepth 1 -type f -mtime +{_OLD_LAYER}"
        yield CheckFinding(
            "note",
            f"enroot's cache of layers {folder} holds {format_bytes(held)}",
            "enroot removes nothing there; imported images do not need it",
            f"while nothing is imported: find {shlex.quote(folder)} {old} -delete",
            _HERE,
        )


def _file_sizes(folder: str) -> Iterator[int]:
    """Yield the bytes of each file in a folder."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_file(follow_symlinks=False):
                    yield entry.stat(follow_symlinks=False).st_size
    except FileNotFoundError:
        return
    except OSError as error:
        raise SlurmkitError(f"cannot read {folder}: {error.strerror}") from error


def _nearest(path: str) -> Path:
    """Return the path, or the nearest folder above it that exists."""
    return next(each for each in (Path(path), *Path(path).parents) if each.exists())


def check_pyxis(case: CheckContext) -> Iterator[CheckFinding]:
    """Name the options of pyxis that change what users see, and check the room it needs."""
    settings = read_pyxis_settings(case.config)
    if settings is None:
        yield CheckFinding("note", "plugstack.conf here does not load pyxis", "srun has no"
                    " --container-image; enroot, Apptainer or OCI bundles may work",
                    "required /usr/lib/slurm/spank_pyxis.so", _PLUGSTACK)  # fmt: skip
        return
    if settings.container_scope == "global":
        yield CheckFinding(
            "note",
            "container_scope=global: containers with a name outlive their job",
            "they fill the nodes, and a later job with that name gets the old container",
            "container_scope=job, with Epilog",
            _PLUGSTACK,
        )
    yield from _site_importer(settings)
    folder = Path(settings.runtime_path)
    if folder.is_dir():
        free = shutil.disk_usage(folder).free
        if free < _IMPORT_ROOM and not settings.importer:
            yield CheckFinding(
                "warning",
                f"{folder} has {format_bytes(free)} free",
                "pyxis writes the squashfs file of an image there; large images fail",
                "runtime_path=FOLDER with more room, or import images first: slurmkit image import",
                _PLUGSTACK,
            )


def _site_importer(settings: PyxisSettings) -> Iterator[CheckFinding]:
    if settings.importer:
        is_there = os.access(settings.importer, os.X_OK)
        yield CheckFinding(
            "note",
            f"pyxis fetches images by the site's importer {settings.importer}"
            f"{'' if is_there else ', which is not executable here'}",
            "slurmkit leaves the images of a registry to it",
            "importer=",
            _PLUGSTACK,
        )
    if settings.use_squashfuse:
        yield CheckFinding(
            "note",
            "use_squashfuse: pyxis mounts images and does not unpack them",
            "steps start sooner, and reading is slower",
            "use_squashfuse=",
            _PLUGSTACK,
        )


def check_left_over_containers(case: CheckContext) -> Iterator[CheckFinding]:
    """Check that no container of an ended job is left on this machine."""
    if shutil.which("enroot") is None:
        raise SlurmkitError("enroot is not on the PATH here; look on a node")
    names = [found for found in map(_OURS.fullmatch, _enroot("list").split()) if found]
    if not names:
        return
    queue = set(case.ask_controller("squeue", "--noheader", "--me", "--format=%A").split())
    left = [found[0] for found in names if (found[1] or found[2]) not in queue]
    if left:
        yield CheckFinding(
            "warning",
            f"{len(left)} of your containers are left of jobs that ended: {', '.join(left[:5])}"
            f"{' …' if len(left) > 5 else ''}",
            "they take room on this machine",
            f"enroot remove --force {' '.join(left[:5])}",
            _HERE,
        )


CHECKS = (
    Check("user-namespaces", "user namespaces can be made", check_user_namespaces),
    Check("enroot", "enroot is here, and new enough", check_enroot),
    Check("enroot-hooks", "enroot has the hooks for MPI, PyTorch and GPUs", check_enroot_hooks),
    Check("enroot-paths", "enroot's folders are fit", check_enroot_paths),
    Check("enroot-cache", "enroot's cache of layers is not large", check_enroot_cache),
    Check("pyxis", "pyxis has room, and no option that surprises", check_pyxis),
    Check("left-over-containers", "no container is left of your jobs", check_left_over_containers),
)
"""The checks of containers, in the order shown."""
