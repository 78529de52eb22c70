"""Container images: references, parsed, and written for each runtime."""

from __future__ import annotations

import posixpath
import re
from typing import Literal

import msgspec

from slurmkit.errors import BadInput

ImageKind = Literal["registry", "daemon", "squashfs", "sif", "bundle"]

IMAGE_KIND_NAMES: dict[str, str] = {
    "registry": "an image of a registry",
    "daemon": "an image of a Docker daemon",
    "squashfs": "a squashfs file",
    "sif": "a SIF file",
    "bundle": "an OCI bundle",
}
"""Kind of image to its name in messages."""

KERNEL_ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64", "ppc64le": "ppc64le"}
"""Docker's name of an architecture to the kernel's (`uname -m`)."""

_SUFFIXES: dict[str, ImageKind] = {
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
        kind: from a registry, from the node's Docker daemon, or a file or folder of some form.
        name: `nvidia/pytorch`, or the path.
        registry: `nvcr.io`, with a port where it has one; None is Docker Hub.
        user: login at the registry; the password is in enroot's own file, never here.
        tag: None for the registry's default, `latest`.
        digest: `sha256:…`; if set, the tag does not matter.
    """

    kind: ImageKind
    name: str
    registry: str | None = None
    user: str | None = None
    tag: str | None = None
    digest: str | None = None

    @classmethod
    def parse(cls, text: str, base: str | None = None) -> Image:
        """Parse a reference as Docker, enroot or pyxis write it, or a path.

        `ubuntu:24.04`, `nvcr.io/nvidia/pytorch:25.06-py3`, `nvcr.io#nvidia/pytorch`,
        `user@registry#image`, `image@sha256:…`, `docker://…`, `dockerd://…`. A path begins with
        `/` or `.`: `.sqsh` is a squashfs file, `.sif` a SIF file, all else an OCI bundle's folder.

        Args:
            text: the reference.
            base: absolute folder of a relative path; None leaves the path relative.

        Raises:
            BadInput: for any other form, with the nearest right spelling where there is one.
        """
        if not isinstance(text, str) or not text.isprintable() or not text.strip():
            raise BadInput(
                f"image {text!r} is not an image reference, e.g. ubuntu:24.04 or ./image.sqsh"
            )
        scheme, has_scheme, rest = text.partition("://")
        if not has_scheme and text.startswith(("/", ".")):
            return cls(kind=image_kind(text), name=absolute_path(text, base))
        if not has_scheme:
            _refuse_path(text)
            return _parse_reference(text, text)
        if scheme == "docker":
            return _parse_reference(rest, text)
        if scheme == "dockerd":
            return _parse_daemon_reference(rest, text)
        raise BadInput(f"image {text!r}: {scheme}:// is not known; use docker:// or dockerd://")

    @property
    def is_file(self) -> bool:
        """Whether the image is a path on the nodes."""
        return self.kind in ("squashfs", "sif", "bundle")

    @property
    def enroot(self) -> str:
        """The argument of `enroot import`: a URI with `#` after the registry, or the path.

        A digest takes the place of the tag, which enroot reads since 3.1; it reads `@sha256:`
        only since 4.0 (src/docker.sh). With a digest enroot ignores the tag, so it is left out.
        """
        if self.is_file:
            return self.name
        if self.kind == "daemon":
            return f"dockerd://{self.name}{_after(':', self.tag)}"
        before = f"{_before(self.user, '@')}{_before(self.registry, '#')}"
        return f"docker://{before}{self.name}{_after(':', self.digest or self.tag)}"

    @property
    def pyxis(self) -> str:
        """The value of srun's `--container-image`: `[USER@][REGISTRY#]IMAGE[:TAG]|PATH`."""
        return self.enroot.removeprefix("docker://")

    @property
    def apptainer(self) -> str:
        """The argument of `apptainer exec`; it takes a tag or a digest, so the digest wins."""
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


def absolute_path(path: str, base: str | None) -> str:
    """Join a relative path to `base`; an absolute path, or one without base, stays as it is."""
    if base is None or path.startswith("/"):
        return path
    return posixpath.join(base, path.removeprefix("./"))


def image_kind(path: str) -> ImageKind:
    """Return the kind of image by the path's suffix; without a known one, an OCI bundle."""
    return _SUFFIXES.get(posixpath.splitext(path)[1], "bundle")


def _refuse_path(text: str) -> None:
    """Refuse a reference that was surely meant as a path."""
    if text.startswith("~"):
        raise BadInput(f"image {text!r}: only a shell expands ~; write the whole path")
    if text.endswith(tuple(_SUFFIXES)):
        raise BadInput(f"image {text!r}: a path begins with / or ./; write ./{text}")


def _parse_reference(text: str, whole: str) -> Image:
    if _PASSWORD.match(text):  # first, because the other messages would show the password
        raise BadInput(
            "the image reference contains a password, which every user could see; write USER@"
            " only, and put the password into enroot's .credentials file"
        )
    rest, digest = _split_digest(text, whole)
    user, rest = _split_user(rest, whole)
    registry, rest = _split_registry(rest, whole)
    name, tag = _split_tag(rest, whole)
    _check_name(name, whole)
    return Image(kind="registry", name=name, registry=registry, user=user, tag=tag, digest=digest)


def _parse_daemon_reference(text: str, whole: str) -> Image:
    registry, rest = _split_registry(text, whole) if "#" not in text else (None, "")
    name, tag = _split_tag(rest, whole)
    _check_name(name, whole)
    return Image(kind="daemon", name=f"{_before(registry, '/')}{name}", tag=tag)


def _split_digest(text: str, whole: str) -> tuple[str, str | None]:
    """Split off `@sha256:…`; as enroot does, accept it in the tag's place too."""
    at = re.search(r"[@:](?=sha\d*:)", text)
    if at is None:
        return text, None
    digest = text[at.end() :]
    if not _DIGEST.fullmatch(digest):
        raise BadInput(f"image {whole!r}: a digest must be sha256: and 64 hexadecimal digits")
    return text[: at.start()], digest


def _split_user(text: str, whole: str) -> tuple[str | None, str]:
    user, at_sign, rest = text.rpartition("@")
    if not at_sign:
        return None, rest
    if not _USER.fullmatch(user):
        raise BadInput(f"image {whole!r}: {user!r} is not a user name of a registry")
    return user, rest


def _split_registry(text: str, whole: str) -> tuple[str | None, str]:
    """Split off the registry; without `#`, Docker's rule decides if the first part is one."""
    registry, separator, rest = text.partition("#")
    if not separator:
        registry, _, rest = text.partition("/")
        if not rest or not ("." in registry or ":" in registry or registry == "localhost"):
            return None, text
    if rest.startswith("/"):
        raise BadInput(
            f"image {whole!r}: there must be no / after #; write {registry}#{rest.lstrip('/')}"
        )
    if not _REGISTRY.fullmatch(registry):
        raise BadInput(f"image {whole!r}: {registry!r} is not a registry, e.g. nvcr.io")
    return None if registry in _HUB else registry, rest


def _split_tag(text: str, whole: str) -> tuple[str, str | None]:
    name, colon, tag = text.partition(":")
    if colon and not _TAG.fullmatch(tag):
        raise BadInput(f"image {whole!r}: {tag!r} is not a tag, e.g. 24.04")
    return name, tag or None


def _check_name(name: str, whole: str) -> None:
    if _NAME.fullmatch(name):
        return
    if _NAME.fullmatch(name.lower()):
        near = whole.replace(name, name.lower())
        raise BadInput(f"image {whole!r}: an image name must be in lower case; write {near}")
    raise BadInput(f"image {whole!r}: {name!r} is not an image name, e.g. nvidia/pytorch")


def _before(text: str | None, sign: str) -> str:
    return "" if text is None else f"{text}{sign}"


def _after(sign: str, text: str | None) -> str:
    return "" if text is None else f"{sign}{text}"
