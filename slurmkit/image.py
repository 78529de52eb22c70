"""What a job's container is made from: references to images, read and written for each runtime."""

from __future__ import annotations

import posixpath
import re
from typing import Literal

import msgspec

from slurmkit.errors import BadInput

Kind = Literal["registry", "daemon", "squashfs", "sif", "bundle"]

WORDS: dict[str, str] = {
    "registry": "an image of a registry",
    "daemon": "an image of a Docker daemon",
    "squashfs": "a squashfs file",
    "sif": "a SIF file",
    "bundle": "an OCI bundle",
}
"""Kind to what messages call it."""

KERNELS = {"amd64": "x86_64", "arm64": "aarch64", "ppc64le": "ppc64le"}
"""An architecture, as Docker names it, to what the kernel of such a machine calls itself."""

_SUFFIXES: dict[str, Kind] = {
    ".sqsh": "squashfs",
    ".squashfs": "squashfs",
    ".sqfs": "squashfs",
    ".sif": "sif",
}
_HUB = ("docker.io", "index.docker.io", "registry-1.docker.io")
_PART = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
_NAME = re.compile(rf"{_PART}(?:/{_PART})*", re.ASCII)
_TAG = re.compile(r"\w[\w.\-]{0,127}", re.ASCII)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
_REGISTRY = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.\-]*[A-Za-z0-9])?(?::\d{1,5})?", re.ASCII)
_PASSWORD = re.compile(r"[^/#@]*:[^#]*@(?!sha\d*:)")
_USER = re.compile(r"[\w.$%+~@\-]+", re.ASCII)


class Image(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """One image; made by `Image.parse`.

    Attributes:
        kind: of a registry, of the node's Docker daemon, or a file or folder of a kind.
        name: `nvidia/pytorch`, or the path.
        registry: `nvcr.io`, with a port where it has one; None is Docker Hub.
        user: whom the registry knows; the password stands in enroot's own file, never here.
        tag: None for the registry's default, `latest`.
        digest: `sha256:…`; where it is known, the tag says nothing more.
    """

    kind: Kind
    name: str
    registry: str | None = None
    user: str | None = None
    tag: str | None = None
    digest: str | None = None

    @classmethod
    def parse(cls, text: str, base: str | None = None) -> Image:
        """Read a reference as Docker, enroot or pyxis write it, or a path.

        `ubuntu:24.04`, `nvcr.io/nvidia/pytorch:25.06-py3`, `nvcr.io#nvidia/pytorch`,
        `user@registry#image`, `image@sha256:…`, `docker://…`, `dockerd://…`; a path begins with
        `/` or `.`: `.sqsh` is a squashfs file, `.sif` a SIF file, all else an OCI bundle's folder.

        Args:
            text: the reference.
            base: absolute folder that a relative path is of; without, it stays relative.

        Raises:
            BadInput: for any other form, with the nearest right spelling where there is one.
        """
        if not isinstance(text, str) or not text.isprintable() or not text.strip():
            raise BadInput(f"image {text!r} is no reference, e.g. ubuntu:24.04 or ./image.sqsh")
        scheme, found, rest = text.partition("://")
        if not found and text.startswith(("/", ".")):
            return cls(kind=kind_of(text), name=absolute(text, base))
        if not found:
            _no_path(text)
            return _reference(text, text)
        if scheme == "docker":
            return _reference(rest, text)
        if scheme == "dockerd":
            return _of_daemon(rest, text)
        raise BadInput(f"image {text!r}: {scheme}:// is not known; use docker:// or dockerd://")

    @property
    def is_file(self) -> bool:
        """Whether it is a path on the nodes."""
        return self.kind in ("squashfs", "sif", "bundle")

    @property
    def enroot(self) -> str:
        """As `enroot import` takes it: a URI, the registry set off with `#`; or the path.

        A digest stands in the tag's place, which enroot reads from 3.1 on; `@sha256:` it knows
        since 4.0 only (src/docker.sh). A tag beside it is ignored there, and left out here.
        """
        if self.is_file:
            return self.name
        if self.kind == "daemon":
            return f"dockerd://{self.name}{_after(':', self.tag)}"
        before = f"{_before(self.user, '@')}{_before(self.registry, '#')}"
        return f"docker://{before}{self.name}{_after(':', self.digest or self.tag)}"

    @property
    def pyxis(self) -> str:
        """As srun's `--container-image` takes it: `[USER@][REGISTRY#]IMAGE[:TAG]|PATH`."""
        return self.enroot.removeprefix("docker://")

    @property
    def apptainer(self) -> str:
        """As `apptainer exec` takes it; of a tag and a digest it takes one, the digest."""
        if self.is_file:
            return self.name
        if self.kind == "daemon":
            return f"docker-daemon:{self.name}:{self.tag or 'latest'}"
        last = _after("@", self.digest) or _after(":", self.tag)
        return f"docker://{_before(self.registry, '/')}{self.name}{last}"

    def __str__(self) -> str:
        if self.kind != "registry":
            return self.enroot
        registry = f"{_before(self.user, '@')}{_before(self.registry, '#')}"
        return f"{registry}{self.name}{_after(':', self.tag)}{_after('@', self.digest)}"


def absolute(path: str, base: str | None) -> str:
    """A relative path put below `base`; as it is where that is None or the path is absolute."""
    if base is None or path.startswith("/"):
        return path
    return posixpath.join(base, path.removeprefix("./"))


def kind_of(path: str) -> Kind:
    """What a path's name says it is; a folder, and so an OCI bundle, where it says nothing."""
    return _SUFFIXES.get(posixpath.splitext(path)[1], "bundle")


def _no_path(text: str) -> None:
    if text.startswith("~"):
        raise BadInput(f"image {text!r}: write the path out, only a shell knows what ~ is")
    if text.endswith(tuple(_SUFFIXES)):
        raise BadInput(f"image {text!r}: a path begins with / or ./; write ./{text}")


def _reference(text: str, given: str) -> Image:
    if _PASSWORD.match(text):  # said before any message that would show it
        raise BadInput(
            "the image's reference holds a password, which would be seen by all; write USER@ alone"
            " and the password into enroot's .credentials file"
        )
    rest, digest = _digest(text, given)
    user, rest = _user(rest, given)
    registry, rest = _registry(rest, given)
    name, tag = _tag(rest, given)
    _check_name(name, given)
    return Image(kind="registry", name=name, registry=registry, user=user, tag=tag, digest=digest)


def _of_daemon(text: str, given: str) -> Image:
    registry, rest = _registry(text, given) if "#" not in text else (None, "")
    name, tag = _tag(rest, given)
    _check_name(name, given)
    return Image(kind="daemon", name=f"{_before(registry, '/')}{name}", tag=tag)


def _digest(text: str, given: str) -> tuple[str, str | None]:
    """Take `@sha256:…` off; enroot also reads it in the tag's place."""
    at = re.search(r"[@:](?=sha\d*:)", text)
    if at is None:
        return text, None
    digest = text[at.end() :]
    if not _DIGEST.fullmatch(digest):
        raise BadInput(f"image {given!r}: a digest is sha256: and 64 hexadecimal digits")
    return text[: at.start()], digest


def _user(text: str, given: str) -> tuple[str | None, str]:
    user, found, rest = text.rpartition("@")
    if not found:
        return None, rest
    if not _USER.fullmatch(user):
        raise BadInput(f"image {given!r}: {user!r} is no user of a registry")
    return user, rest


def _registry(text: str, given: str) -> tuple[str | None, str]:
    """Split the registry off; without `#`, Docker's rule says whether the first part is one."""
    registry, found, rest = text.partition("#")
    if not found:
        registry, _, rest = text.partition("/")
        if not rest or not ("." in registry or ":" in registry or registry == "localhost"):
            return None, text
    if rest.startswith("/"):
        raise BadInput(f"image {given!r}: no / after #; write {registry}#{rest.lstrip('/')}")
    if not _REGISTRY.fullmatch(registry):
        raise BadInput(f"image {given!r}: {registry!r} is no registry, e.g. nvcr.io")
    return None if registry in _HUB else registry, rest


def _tag(text: str, given: str) -> tuple[str, str | None]:
    name, found, tag = text.partition(":")
    if found and not _TAG.fullmatch(tag):
        raise BadInput(f"image {given!r}: {tag!r} is no tag, e.g. 24.04")
    return name, tag or None


def _check_name(name: str, given: str) -> None:
    if _NAME.fullmatch(name):
        return
    if _NAME.fullmatch(name.lower()):
        near = given.replace(name, name.lower())
        raise BadInput(f"image {given!r}: an image's name has small letters only; write {near}")
    raise BadInput(f"image {given!r}: {name!r} is no image's name, e.g. nvidia/pytorch")


def _before(text: str | None, sign: str) -> str:
    return "" if text is None else f"{text}{sign}"


def _after(sign: str, text: str | None) -> str:
    return "" if text is None else f"{sign}{text}"
