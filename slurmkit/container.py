"""A job's container as its user means it: frozen, typed, for every runtime the same."""

from __future__ import annotations

import posixpath
import re

import msgspec

from slurmkit.errors import BadInput
from slurmkit.image import Image, absolute

__all__ = ["UNSET_PYXIS", "Container", "Image", "Mount", "View", "Wrapped"]

UNSET_PYXIS = 'unset "${!PYXIS_@}"'
"""Line of a batch script, for bash: pyxis takes such variables as options of each step."""

NAMESPACES = ("net", "ipc", "uts")
MODES = ("auto", "create", "exec", "no_exec")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_CONTAINER = re.compile(rf"[A-Za-z0-9][\w.\-]*(:({'|'.join(MODES)}))?", re.ASCII)
_RUNTIME = re.compile(r"[a-z][\w.\-]*", re.ASCII)
_FLAG = re.compile(r"[\w=.%\-]+", re.ASCII)
# White space separates fields in enroot's fstab; pyxis before 0.24 puts paths between double
# quotes into a shell script, and enroot lets a shell expand patterns in those it is given.
_NO_PATH = re.compile(r"[\s,:$`\"\\*?\[]")
_YES_NO = {
    **dict.fromkeys(("mount_home", "remap_root", "writable", "entrypoint"), bool | None),
    "entrypoint_log": bool,
}
_LISTS = ("mounts", "environment", "unshare")


class Mount(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What of the node is seen in the container.

    Attributes:
        source: path on the node, or `tmpfs` for an empty one, or `umount` to take one away.
        target: path in the container.
        flags: mount(8)'s options and enroot's own, e.g. `ro`; added to the runtime's.
    """

    source: str
    target: str
    flags: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Mount:
        """Read `SRC[:DST[:FLAG+FLAG]]` by pyxis's rules (args.c, parse_mount_option).

        Raises:
            BadInput: for any other form, and for signs that enroot takes for something else.
        """
        if not isinstance(text, str) or not text.isprintable():
            raise BadInput(f"mount {text!r} is not of the form SRC[:DST[:FLAGS]]")
        source, found, rest = text.partition(":")
        target, _, flags = rest.partition(":")
        made = cls(source, target if found else source, tuple(flags.split("+")) if flags else ())
        made._check(text)
        return made

    def _check(self, text: str) -> None:
        if not self.source.startswith(("/", ".")) and self.source not in ("tmpfs", "umount"):
            raise BadInput(
                f"mount {text!r}: the source is a path that begins with / or ., or tmpfs, or umount"
            )
        if not self.target.startswith(("/", ".")):
            raise BadInput(f"mount {text!r}: the target is a path that begins with / or .")
        if sign := _NO_PATH.search(self.source + self.target):
            raise BadInput(f"mount {text!r}: a path may not hold {sign[0]!r}; mount a link to it")
        if wrong := [flag for flag in self.flags if not _FLAG.fullmatch(flag)]:
            raise BadInput(f"mount {text!r}: {wrong[0]!r} is no flag; join flags with +: ro+nosuid")

    @property
    def is_bind(self) -> bool:
        """Whether it shows a path of the node."""
        return self.source not in ("tmpfs", "umount")

    def at(self, base: str) -> Mount:
        """The same with a source that is absolute, and so a target that repeats it."""
        if not self.is_bind:
            return self
        source = absolute(self.source, base)
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
    """The container that a job's steps run in; fields are named as pyxis's options.

    What is None is left to the runtime and the site's settings of it.

    Attributes:
        image: as `Image.parse` reads it; None for a container of that name which is there.
        mounts: each as `Mount.parse` reads it.
        workdir: where the command starts, absolute, in the container.
        mount_home: the user's home directory is seen in the container.
        remap_root: the user is shown as root there; gives no power over the node.
        writable: the container's own files can be changed.
        entrypoint: the image's entry point runs before the command; `entrypoint_log` shows
            what it says.
        environment: names of variables whose values are the node's, not the image's.
        name: keeps the container on the nodes, to be used again; `NAME:MODE` as pyxis has it.
        save: file on the node that the container is saved to as squashfs at the end.
        unshare: namespaces of its own: `net`, `ipc`, `uts`.
        runtime: name of a runtime; None for what suits image and cluster.
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
            raise BadInput("a container needs an image, e.g. ubuntu:24.04, or the name of one kept")
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
            raise BadInput("container entrypoint-log: the entry point is not to run at all")

    def _check_types(self) -> None:
        for name in _YES_NO:
            if not isinstance(getattr(self, name), bool | None):
                raise BadInput(f"container {name} is true or false, not {getattr(self, name)!r}")
        if not isinstance(self.entrypoint_log, bool):
            raise BadInput(
                f"container entrypoint_log is true or false, not {self.entrypoint_log!r}"
            )
        for name in _LISTS:
            if not isinstance(getattr(self, name), tuple):
                raise BadInput(f"container {name} is a tuple, not {getattr(self, name)!r}")

    @property
    def source(self) -> Image | None:
        """The image, read; None where a container that is there is meant."""
        return None if self.image is None else Image.parse(self.image)

    @property
    def mounted(self) -> tuple[Mount, ...]:
        """The mounts, read."""
        return tuple(map(Mount.parse, self.mounts))

    @property
    def asked(self) -> tuple[str, ...]:
        """Fields that ask something of the runtime beyond the image."""
        fields = msgspec.structs.fields(type(self))
        given = (f.name for f in fields if getattr(self, f.name) != f.default)
        return tuple(name for name in given if name not in ("image", "runtime"))

    def at(self, base: str) -> Container:
        """The same with every path of the node made absolute; relative ones are below `base`."""
        image = self.source
        return msgspec.structs.replace(
            self,
            image=str(Image.parse(self.image or "", base))
            if image and image.is_file
            else self.image,
            mounts=tuple(str(mount.at(base)) for mount in self.mounted),
            save=None if self.save is None else absolute(self.save, base),
        )


class Wrapped(msgspec.Struct, frozen=True, kw_only=True):
    """How a runtime puts one step into a container.

    Attributes:
        srun_options: for srun, as words of an argv, not quoted.
        before: shell lines of the batch script that must have succeeded before the step.
        prefix: words between srun's `--` and the command, not quoted.
        after: shell lines for when the job's work is over, however it went.
    """

    srun_options: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    prefix: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


class View(msgspec.Struct, frozen=True):
    """What of its node a container sees, and where its command starts.

    Attributes:
        mounts: what shows a path of the node, whoever asked for it.
        start: folder in the container; None is one of the image's own.
        is_asked: whether options of the job say so; else the image itself does.
    """

    mounts: tuple[Mount, ...] = ()
    start: str | None = None
    is_asked: bool = True

    def sees(self, path: str) -> bool:
        """Whether an absolute path of the container shows something of the node."""
        return any(_is_below(path, mount.target) for mount in self.mounts)

    def inside(self, path: str) -> str | None:
        """Where an absolute path of the node is in the container; None where it is not seen."""
        found = [mount for mount in self.mounts if _is_below(path, mount.source)]
        if not found:
            return None
        nearest = max(found, key=lambda mount: len(mount.source))
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
                f"container environment: {name!r} is not the name of a variable; values are those"
                " that the job has"
            )
    for name in unshare:
        if name not in NAMESPACES:
            raise BadInput(f"container unshare: {name!r} is not one of {', '.join(NAMESPACES)}")


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
