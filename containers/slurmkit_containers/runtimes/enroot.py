"""The runtime enroot without pyxis: import and create once per node, then start in every task.

Options are those of enroot's doc/cmd/{import,create,start,remove}.md. Its containers start with
only the image's environment. So a configuration script (doc/cmd/start.md) passes on the job's
variables that the image does not set, as pyxis does. Values with a line break cannot be passed:
enroot's file of variables has one variable per line.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from slurmkit.planning.containers import EXPORT_GPU_VARIABLES
from slurmkit.spec.containers import Container, ContainerLaunch, ContainerPaths, Mount
from slurmkit.spec.findings import Finding
from slurmkit.state.model import Capabilities
from slurmkit_containers.runtimes.common import (
    LOGIN_SHELL,
    check_credentials,
    enroot_view,
    error,
    missing_features,
    note,
    why_not_configured,
)

NAME = "enroot"
_KINDS = ("registry", "daemon", "squashfs")
_FEATURES = "mounts workdir mount_home remap_root writable entrypoint environment name".split()
# The same flags as pyxis (args.c, add_mount), so that a mount means the same with both.
_FLAGS = {"tmpfs": ("x-create=dir",), "umount": ("x-detach",)}
_BIND = ("x-create=auto", "rbind")


class Enroot:
    """The container runtime enroot: script lines before and after, and a command prefix."""

    def runs(self, kind: str) -> bool:
        """Return True for images of a registry or Docker daemon, and for squashfs files."""
        return kind in _KINDS

    def available(self, capabilities: Capabilities) -> str | None:
        """Return why enroot cannot be used; None with pyxis, which needs it, or if configured."""
        if "container-image" in capabilities.container_options:
            return None
        return why_not_configured(NAME)

    def needs(self, container: Container, capabilities: Capabilities) -> Iterable[Finding]:
        """Yield errors for features that only pyxis has."""
        del capabilities
        yield from missing_features(NAME, container, _KINDS, _FEATURES)
        yield from check_credentials(NAME, container)
        if ":" in (container.name or ""):
            yield error(
                NAME, "enroot has no modes for a container's name; pyxis from 0.14 on has them"
            )
        if container.name is None:
            yield note(
                NAME,
                "the container is removed when the batch script ends; a killed job leaves it on the"
                " nodes: enroot list",
            )

    def view(self, container: Container, folder: str) -> ContainerPaths:
        """Return what the container sees of the node: the requested mounts."""
        del folder
        return enroot_view(container)

    def step(self, container: Container, *, gpus: bool) -> ContainerLaunch:
        """Return lines that create and remove it on every node, and a prefix to start it."""
        image = "" if container.source is None else container.source.enroot
        name = container.name or ""
        create = _on_each_node(CREATE, image, name)
        change_directory: tuple[str, ...] = ()
        if container.workdir is not None:
            change_directory = ("sh", "-c", CHANGE_DIRECTORY, "sh", container.workdir)
        return ContainerLaunch(
            before=(LOGIN_SHELL, f"{create} || exit"),
            prefix=(*_start(container, gpus=gpus), *change_directory),
            after=() if name else (_on_each_node(REMOVE),),
        )


def _on_each_node(script: str, *words: str) -> str:
    """Return an srun command that runs `script` once on every node of the job.

    It unsets SLURM_NTASKS_PER_GPU, the only variable of the job's options that would forbid one
    task per node.
    """
    nodes = '"--nodes=$SLURM_JOB_NUM_NODES" "--ntasks=$SLURM_JOB_NUM_NODES" --ntasks-per-node=1'
    inside = shlex.join(["bash", "-c", script, "slurmkit-enroot", *words])
    srun = f"srun {nodes} --mpi=none --kill-on-bad-exit=1 -- {inside}"
    return f"(unset SLURM_NTASKS_PER_GPU; {srun})"


def _start(container: Container, *, gpus: bool) -> tuple[str, ...]:
    # Without a setting the entry point is not run, as with pyxis.
    config = CONFIG + (GPUS * gpus) + ENTRYPOINTS[bool(container.entrypoint)]
    words = ["bash", "-c", START, "slurmkit-enroot", container.name or "", config]
    settings = (
        ("ENROOT_MOUNT_HOME", container.mount_home),
        ("ENROOT_REMAP_ROOT", container.remap_root),
        ("ENROOT_ROOTFS_WRITABLE", container.writable),
    )
    variables = [f"{name}={'y' if value else 'n'}" for name, value in settings if value is not None]
    mounts = [f"--mount={_fstab(mount)}" for mount in container.mounted]
    environment = [f"--env={name}" for name in container.environment]
    return (*(["env", *variables] if variables else []), *words, *mounts, *environment, "--")


def _fstab(mount: Mount) -> str:
    flags = (*_FLAGS.get(mount.source, _BIND), *mount.flags)
    return f"{mount.source}:{mount.target}:{','.join(flags)}"


_NAME = '[ -n "$name" ] || name=slurmkit_${SLURM_JOB_ID}_${SLURM_RESTART_COUNT:-0}\n'

# $1: image in enroot's form, or empty; $2: name of a container that stays, or empty.
# One lock is in the folder of the containers, so that each container is created once per node.
# Another, in the home directory, is held while enroot imports, so that two nodes do not fill the
# same layer cache at once. A marker file, with what enroot says, tells that a container is being
# created: a marker found while the lock is free was left by an interrupted run. The folder of the
# containers is found as enroot finds it (its config::load): from the environment, then from its
# configuration files. The locks are those of flock(1): a node needs no Python to run this script.
CREATE = (
    """\
set -eu
image=$1 name=$2 work='' whole=''
"""
    + _NAME
    + """\
data=${ENROOT_DATA_PATH-}
for file in /etc/enroot/enroot.conf /etc/enroot/enroot.conf.d/*.conf; do
    if [ -n "$data" ] || [ ! -r "$file" ]; then continue; fi
    value=$(sed -n 's/^ENROOT_DATA_PATH[ =\t]*//p' "$file" | head -n 1)
    data=$(set +u; eval echo "$value")
done
data=${data:-${XDG_DATA_HOME:-$HOME/.local/share}/enroot}
locks=${XDG_CACHE_HOME:-$HOME/.cache}/slurmkit
mkdir -p "$data" "$locks"
exec 9>>"$data/.slurmkit.lock"
flock 9
making=$data/.slurmkit-making-$name
if enroot list | grep -Fqx -e "$name"; then
    [ -e "$making" ] || exit 0
    enroot remove --force "$name"
fi
rm -f -- "$making"
if [ -z "$image" ]; then
    echo "slurmkit: enroot has no container $name on $(hostname), and no image is named" >&2
    exit 1
fi
finish() {
    [ -z "$work" ] || rm -rf -- "$work"
    [ -n "$whole" ] || enroot remove --force "$name" >/dev/null 2>&1 || :
    rm -f -- "$making"
}
trap finish EXIT
case $image in
/* | .*) file=$image ;;
*)
    work=$(mktemp -d "${ENROOT_TEMP_PATH:-${TMPDIR:-/tmp}}/slurmkit.XXXXXX")
    file=$work/image.sqsh
    (flock 8 && enroot import --output "$file" "$image") 8>>"$locks/enroot.lock"
    ;;
esac
enroot create --name "$name" "$file" >"$making" 2>&1 || { cat -- "$making" >&2; exit 1; }
whole=yes"""
)

# $1: name, or empty; $2: text of the configuration script; then options up to `--`; then the
# command. The configuration script removes itself when enroot reads it.
START = (
    """\
name=$1
"""
    + _NAME
    + """\
config=$(mktemp "${TMPDIR:-/tmp}/slurmkit-enroot.XXXXXX") && printf %s "$2" >"$config" || exit
shift 2
options=()
while [ "$1" != -- ]; do options+=("$1"); shift; done
shift
exec enroot start --conf "$config" "${options[@]}" "$name" "$@\""""
)

REMOVE = "name=''\n" + _NAME + 'enroot remove --force "$name"'

# Variables that describe the node are not passed on; enroot sets home and shell itself.
CONFIG = """\
rm -f -- "${BASH_SOURCE[0]}"
environ() {
    local name
    for name in $(compgen -e); do
        case $name in
        ENROOT_* | BASH* | LD_* | PATH | HOME | SHELL | TMPDIR | *PWD | SHLVL | _) continue ;;
        esac
        [[ ${!name} == *$'\\n'* ]] || grep -qs "^$name=" "$ENROOT_ROOTFS/etc/environment" ||
            printf '%s="%s"\\n' "$name" "${!name}"
    done
}
"""

# Before its hooks, enroot reads this. An image built for GPUs keeps its own values.
GPUS = f"""\
if ! grep -qs '^NVIDIA_VISIBLE_DEVICES=' "$ENROOT_ROOTFS/etc/environment"; then
    {EXPORT_GPU_VARIABLES}
fi
"""

# /etc/rc of an image reads /etc/rc.local before the entry point (enroot's src/docker.sh). The tasks
# of a node share that file. So it is replaced by a rename, and only if its text differs.
_HOOKS = """\
hooks() {
    local rc=$ENROOT_ROOTFS/etc/rc.local text='%s'
    if [ -f "$rc" ] && [ "$(cat "$rc")" = "$text" ]; then return; fi
    mkdir -p "${rc%%/*}"
    printf '%%s' "$text" >"$rc.$$"
    mv -f "$rc.$$" "$rc"
}
"""
ENTRYPOINTS = {False: _HOOKS % 'exec "$@"', True: _HOOKS % ""}

CHANGE_DIRECTORY = 'cd -- "$1" && shift && exec "$@"'
