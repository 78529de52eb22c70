"""The container a user asks for: frozen, typed, the same for every runtime."""

from __future__ import annotations

import posixpath
import re

import msgspec

from slurmkit.errors import BadInput
from slurmkit.spec.images import Image, absolute_path

__all__ = ["UNSET_PYXIS", "Container", "ContainerLaunch", "ContainerPaths", "Image", "Mount"]

UNSET_PYXIS = 'unset "${!PYXIS_@}"'
"""Line of a bash batch script: pyxis would read these variables as options of each step."""

CONTAINER_NAMESPACES = ("net", "ipc", "uts")
CONTAINER_MODES = ("auto", "create", "exec", "no_exec")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_CONTAINER = re.compile(rf"[A-Za-z0-9][\w.\-]*(:({'|'.join(CONTAINER_MODES)}))?", re.ASCII)
_RUNTIME = re.compile(r"[a-z][\w.\-]*", re.ASCII)
_FLAG = re.compile(r"[\w=.%\-]+", re.ASCII)
# White space separates fields in enroot's fstab. pyxis before 0.24 writes paths in double quotes
# into a shell script. enroot lets a shell expand patterns in paths.
_NO_PATH = re.compile(r"[\s,:$`\"\\*?\[]")
_YES_NO = {
    **dict.fromkeys(("mount_home", "remap_root", "writable", "entrypoint"), bool | None),
    "entrypoint_log": bool,
}
_LISTS = ("mounts", "environment", "unshare")


class Mount(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A path of the node that is mounted in the container.

    Attributes:
        source: path on the node, or `tmpfs` for an empty folder, or `umount` to remove a mount.
        target: path in the container.
        flags: options of mount(8) and of enroot, e.g. `ro`, added to the runtime's own.
    """

    source: str
    target: str
    flags: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Mount:
        """Parse `SRC[:DST[:FLAG+FLAG]]` by pyxis's rules (args.c, parse_mount_option).

        Raises:
            BadInput: for any other form, and for characters that enroot would misread.
        """
        if not isinstance(text, str) or not text.isprintable():
            raise BadInput(f"mount {text!r} is not of the form SRC[:DST[:FLAGS]]")
        source, colon, rest = text.partition(":")
        target, _, flags = rest.partition(":")
        mount = cls(source, target if colon else source, tuple(flags.split("+")) if flags else ())
        mount._check(text)
        return mount

    def _check(self, text: str) -> None:
        if not self.source.startswith(("/", ".")) and self.source not in ("tmpfs", "umount"):
            raise BadInput(
                f"mount {text!r}: the source must be a path that begins with / or .,"
                " or the word tmpfs or umount"
            )
        if not self.target.startswith(("/", ".")):
            raise BadInput(f"mount {text!r}: the target must be a path that begins with / or .")
        if sign := _NO_PATH.search(self.source + self.target):
            raise BadInput(
                f"mount {text!r}: a path must not contain {sign[0]!r}; mount a symbolic link to it"
            )
        if wrong := [flag for flag in self.flags if not _FLAG.fullmatch(flag)]:
            raise BadInput(
                f"mount {text!r}: {wrong[0]!r} is not a mount flag; join flags with +: ro+nosuid"
            )

    @property
    def is_bind(self) -> bool:
        """Whether it mounts a path of the node."""
        return self.source not in ("tmpfs", "umount")

    def at(self, base: str) -> Mount:
        """Return the mount with an absolute source, relative ones below `base`.

        A target that equals the source changes with it.
        """
        if not self.is_bind:
            return self
        source = absolute_path(self.source, base)
        return Mount(source, source if self.target == self.source else self.target, self.flags)

    def __str__(self) -> str:
        return ":".join([self.source, self.target, *(["+".join(self.flags)] if self.flags else [])])


class Container(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    rename="kebab",
):
    """The container that a job's steps run in; fields have the names of pyxis's options.

    None leaves the choice to the runtime and the site's settings of it.

    Attributes:
        image: text for `Image.parse`; None to use the existing container called `name`.
        mounts: each a text for `Mount.parse`.
        workdir: folder in the container where the command starts, absolute.
        mount_home: mount the user's home directory.
        remap_root: the user appears as root inside; gives no power over the node.
        writable: the container's own files can be changed.
        entrypoint: run the image's entry point before the command; `entrypoint_log` shows its
            output.
        environment: names of variables that keep the node's value, not the image's.
        name: keep the container on the nodes under this name, for later use; `NAME:MODE` as in
            pyxis.
        save: file on the node to which the container is saved as squashfs at the end.
        unshare: namespaces of its own: `net`, `ipc`, `uts`.
        runtime: name of a runtime; None to choose by image and cluster.
    """

    image: str | None = None
    mounts: tuple[str, ...] = ()
    workdir: str | None = None
    mount_home: bool | None = None
    remap_root: bool | None = None
    writable: bool | None = None
    entrypoint: bool | None = None
    entrypoint_log: bool = False
    environment: tuple[str, ...] = ()
    name: str | None = None
    save: str | None = None
    unshare: tuple[str, ...] = ()
    runtime: str | None = None

    def __post_init__(self) -> None:
        self._check_types()
        if self.image is None and self.name is None:
            raise BadInput(
                "a container needs an image, e.g. ubuntu:24.04, or the name of a container that"
                " exists on the nodes"
            )
        if self.image is not None:
            Image.parse(self.image)
        for mount in self.mounts:
            Mount.parse(mount)
        _check_names(self.environment, self.unshare)
        _check_text("name", self.name, _CONTAINER, "e.g. train, or train:create")
        _check_text("runtime", self.runtime, _RUNTIME, "e.g. pyxis")
        _check_path("workdir", self.workdir, ("/",))
        _check_path("save", self.save, ("/", "."))
        if self.save is not None and self.save.endswith("/"):
            raise BadInput(f"container save {self.save!r} is a folder; name a file, e.g. x.sqsh")
        if self.entrypoint_log and self.entrypoint is False:
            raise BadInput(
                "container entrypoint-log shows the output of the entry point, but entrypoint is"
                " false; leave one of them out"
            )

    def _check_types(self) -> None:
        for name in _YES_NO:
            if not isinstance(getattr(self, name), bool | None):
                raise BadInput(
                    f"container {name} must be true or false, not {getattr(self, name)!r}"
                )
        if not isinstance(self.entrypoint_log, bool):
            raise BadInput(
                f"container entrypoint_log must be true or false, not {self.entrypoint_log!r}"
            )
        for name in _LISTS:
            if not isinstance(getattr(self, name), tuple):
                raise BadInput(f"container {name} is a tuple, not {getattr(self, name)!r}")

    @property
    def source(self) -> Image | None:
        """The parsed image; None for an existing container."""
        return None if self.image is None else Image.parse(self.image)

    @property
    def mounted(self) -> tuple[Mount, ...]:
        """The parsed mounts."""
        return tuple(map(Mount.parse, self.mounts))

    @property
    def asked(self) -> tuple[str, ...]:
        """Names of fields, other than the image, that the runtime must support."""
        fields = msgspec.structs.fields(type(self))
        names = (f.name for f in fields if getattr(self, f.name) != f.default)
        return tuple(name for name in names if name not in ("image", "runtime"))

    def at(self, base: str) -> Container:
        """Return the container with absolute node paths; relative ones are below `base`."""
        image = self.source
        return msgspec.structs.replace(
            self,
            image=str(Image.parse(self.image or "", base))
            if image and image.is_file
            else self.image,
            mounts=tuple(str(mount.at(base)) for mount in self.mounted),
            save=None if self.save is None else absolute_path(self.save, base),
        )


class ContainerLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """The additions of a runtime to a batch script, to run one step in a container.

    Attributes:
        srun_options: options of srun, as unquoted words of an argv.
        before: shell lines that must succeed before the step.
        prefix: unquoted words between srun's `--` and the command.
        after: shell lines that run after the job's work, even if it failed.
    """

    srun_options: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    prefix: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


class ContainerPaths(msgspec.Struct, frozen=True):
    """Paths of the node that a container sees, and the folder where its command starts.

    Attributes:
        mounts: all mounts of node paths, by the user, the site or the runtime.
        start: folder in the container where the command starts; None for the image's own.
        is_asked: whether options of the job set these; else the image does (an OCI bundle).
    """

    mounts: tuple[Mount, ...] = ()
    start: str | None = None
    is_asked: bool = True

    def sees(self, path: str) -> bool:
        """Tell whether an absolute path in the container is mounted from the node."""
        return any(_is_below(path, mount.target) for mount in self.mounts)

    def inside(self, path: str) -> str | None:
        """Return the container path of an absolute node path; None if it is not mounted."""
        above = [mount for mount in self.mounts if _is_below(path, mount.source)]
        if not above:
            return None
        nearest = max(above, key=lambda mount: len(mount.source))
        return posixpath.normpath(
            posixpath.join(nearest.target, posixpath.relpath(path, nearest.source))
        )


def _is_below(path: str, folder: str) -> bool:
    path, folder = posixpath.normpath(path), posixpath.normpath(folder)
    return folder in ("/", path) or path.startswith(f"{folder}/")


def _check_names(environment: tuple[str, ...], unshare: tuple[str, ...]) -> None:
    for name in environment:
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            raise BadInput(
                f"container environment: {name!r} is not the name of a variable; give names only,"
                " the values are the job's own"
            )
    for name in unshare:
        if name not in CONTAINER_NAMESPACES:
            raise BadInput(
                f"container unshare: {name!r} is not one of {', '.join(CONTAINER_NAMESPACES)}"
            )


def _check_text(name: str, value: object, form: re.Pattern[str], example: str) -> None:
    if value is not None and not (isinstance(value, str) and form.fullmatch(value)):
        raise BadInput(f"container {name} {value!r} is not a name, {example}")


def _check_path(name: str, value: object, starts: tuple[str, ...]) -> None:
    if value is None:
        return
    if not isinstance(value, str) or not value.startswith(starts) or not value.isprintable():
        raise BadInput(
            f"container {name} {value!r} is not a path that begins with {' or '.join(starts)}"
        )
