"""What a registry says of an image to anybody: digest, size, architectures.

By the OCI distribution specification ("Pulling manifests") and Docker's token authentication.
No credentials are read here, and no redirect is followed; what cannot be asked is left to enroot.
"""

from __future__ import annotations

import os
import re
import urllib.error
import urllib.parse
import urllib.request
from http.client import HTTPException
from typing import IO, Any

import msgspec

from slurmkit.errors import ImageError
from slurmkit.image import Image
from slurmkit_containers.manifests import Table, digest_of, fitting, is_index, manifest_of, parsed

_PATIENCE = 10  # seconds for one answer
_MOST = 4 << 20  # bytes of a manifest, as registries limit them
_HUB = "registry-1.docker.io"
_NO = re.compile(r"no?|N[oO]?|[fF](alse)?|FALSE", re.ASCII)  # as enroot reads its settings
_ELSEWHERE = (301, 302, 303, 307, 308)
_FOLLOWS = 3
_PART = 206
_PIECE = 1 << 20
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"', re.ASCII)
_MANIFESTS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)


class Remote(msgspec.Struct, frozen=True):
    """What a registry says of one image.

    Attributes:
        digest: `sha256:…` of the manifest.
        size: bytes of its layers, compressed; they are at least what has to be fetched.
    """

    digest: str
    size: int


class Unasked(Exception):
    """The registry does not answer, or not to everybody."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Follow none."""


def ask(image: Image, architecture: str) -> Remote | None:
    """Ask for an image; None where the registry does not answer, or not without a password.

    Args:
        image: of a registry.
        architecture: which of several is wanted, as Docker names it.

    Raises:
        ImageError: when there is no such image, or none for that architecture.
    """
    if image.user is not None:
        return None
    try:
        data, found = Session(image).manifest(architecture)
    except Unasked:
        return None
    return Remote(digest_of(data), sum(layer.size for layer in manifest_of(found).layers))


class Session:
    """One image at its registry, with the token for anybody once that is wanted."""

    def __init__(self, image: Image) -> None:
        given = os.environ.get("ENROOT_ALLOW_HTTP", "")
        official = "library/" if image.registry is None and "/" not in image.name else ""
        self._image = image
        self._scheme = "http" if given and not _NO.fullmatch(given) else "https"
        self._host = image.registry or _HUB
        self._name = f"{official}{image.name}"
        self._headers: dict[str, str] = {}

    def manifest(self, architecture: str) -> tuple[bytes, Table]:
        """The manifest of the image for an architecture: its bytes, and what they say.

        Raises:
            ImageError: when there is none.
            Unasked: when the registry does not answer.
        """
        data, found = self._manifest(self._image.digest or self._image.tag or "latest")
        if not is_index(found):
            return data, found
        return self._manifest(_ours(self._image, found, architecture))

    def blob(self, digest: str, begin: int = 0) -> IO[bytes]:
        """Open a layer or configuration; where a registry sends one elsewhere, no token goes.

        Args:
            digest: its.
            begin: the first byte that is wanted.

        Raises:
            Unasked: when it is not given.
        """
        wanted = {"Range": f"bytes={begin}-"} if begin else {}
        return _from(begin, self._blob(digest, wanted))

    def _blob(self, digest: str, headers: dict[str, str]) -> IO[bytes]:
        try:
            return self._open(f"blobs/{digest}", headers)
        except urllib.error.HTTPError as error:
            error.close()
            place = error.headers.get("Location", "")
            if error.code not in _ELSEWHERE or not place.startswith(self._schemes):
                raise Unasked from error
        return _plainly(place, headers, _FOLLOWS)

    @property
    def _schemes(self) -> tuple[str, ...]:
        return ("https://", f"{self._scheme}://")

    def _manifest(self, which: str) -> tuple[bytes, Table]:
        try:
            with self._open(f"manifests/{which}", {"Accept": ", ".join(_MANIFESTS)}) as answer:
                data = _all(answer)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code != 404:
                raise Unasked from error
            words = f"there is no image {self._image} ({self._host} says 404)"
            raise ImageError(words) from error
        if which.startswith("sha256:") and digest_of(data) != which:
            raise ImageError(f"{self._host} gave another manifest of {self._image} than {which}")
        return data, _table(data)

    def _open(self, what: str, headers: dict[str, str]) -> IO[bytes]:
        path = urllib.parse.quote(f"/v2/{self._name}/{what}", safe="/:")
        url = f"{self._scheme}://{self._host}{path}"
        try:
            return _get(url, headers | self._headers)
        except urllib.error.HTTPError as error:
            if error.code != 401:  # with a token, too: it may have run out
                raise
            error.close()
            token = self._token(error.headers.get("WWW-Authenticate", ""))
            self._headers = {"Authorization": f"Bearer {token}"}
        return _get(url, headers | self._headers)

    def _token(self, challenge: str) -> str:
        """A token for anybody, from where the registry says."""
        kind, _, rest = challenge.partition(" ")
        given = dict(_CHALLENGE.findall(rest))
        realm = given.pop("realm", "")
        if kind.lower() != "bearer" or not realm.startswith(self._schemes):
            raise Unasked
        with _plainly(f"{realm}?{urllib.parse.urlencode(given)}", {}) as answer:
            found = _table(_all(answer))
        token = found.get("token") or found.get("access_token")
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise Unasked
        return token


def _from(begin: int, answer: IO[bytes]) -> IO[bytes]:
    """The same answer at the byte `begin`: a server need not heed which part is asked for."""
    status, part = getattr(answer, "status", 200), getattr(answer, "headers", {})
    if begin and status == _PART:
        if not part.get("Content-Range", "").startswith(f"bytes {begin}-"):
            raise Unasked
        return answer
    while begin and (piece := read(answer, min(begin, _PIECE))):
        begin -= len(piece)
    return answer


def _ours(image: Image, index: Table, architecture: str) -> str:
    found, there = fitting(index, architecture)
    if not found:
        raise ImageError(f"image {image} is not there for {architecture}; it is for: {there}")
    return found[0]


def _plainly(url: str, headers: dict[str, str], follows: int = 0) -> IO[bytes]:
    """As `_get`, but what is not given is as no answer, and redirects may be followed."""
    try:
        return _get(url, headers)
    except urllib.error.HTTPError as error:
        error.close()
        place = error.headers.get("Location", "")
        if not follows or error.code not in _ELSEWHERE or not place.startswith("https://"):
            raise Unasked from error
    return _plainly(place, headers, follows - 1)


def _get(url: str, headers: dict[str, str]) -> IO[bytes]:
    opener = urllib.request.build_opener(_NoRedirect)
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - https, or as enroot's
    try:
        answer: IO[bytes] = opener.open(request, timeout=_PATIENCE)
    except urllib.error.HTTPError:
        raise
    except (OSError, ValueError, HTTPException) as error:
        raise Unasked from error
    return answer


def read(answer: IO[bytes], most: int) -> bytes:
    """Read of an answer; an interrupted one is as none.

    Raises:
        Unasked: then.
    """
    try:
        return answer.read(most)
    except (OSError, HTTPException) as error:
        raise Unasked from error


def _all(answer: IO[bytes]) -> bytes:
    data = read(answer, _MOST + 1)
    if len(data) > _MOST:
        raise Unasked
    return data


def _table(data: bytes) -> Table:
    try:
        found = parsed(data)
    except ValueError as error:
        raise Unasked from error
    if not isinstance(found, dict):
        raise Unasked
    return found
