"""What a registry says of an image to anybody: digest, size, architectures.

By the OCI distribution specification ("Pulling manifests") and Docker's token authentication.
No credentials are read here, and no redirect is followed; what cannot be asked is left to enroot.
"""

from __future__ import annotations

import hashlib
import json
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

_PATIENCE = 10  # seconds for one answer
_MOST = 4 << 20  # bytes of a manifest, as registries limit them
_HUB = "registry-1.docker.io"
_NO = re.compile(r"no?|N[oO]?|[fF](alse)?|FALSE", re.ASCII)  # as enroot reads its settings
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


class _Unasked(Exception):
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
        return _ask(image, architecture)
    except _Unasked:
        return None


def _ask(image: Image, architecture: str) -> Remote:
    digest, found = _manifest(image, image.digest or image.tag or "latest")
    if "manifests" in found:
        listed = [each for each in _list(found["manifests"]) if isinstance(each, dict)]
        digest, found = _manifest(image, _ours(image, listed, architecture))
    layers = [each for each in _list(found.get("layers")) if isinstance(each, dict)]
    sizes = [each.get("size") for each in layers]
    return Remote(digest, sum(size for size in sizes if isinstance(size, int)))


def _ours(image: Image, listed: list[dict[str, Any]], architecture: str) -> str:
    there = {}
    for each in reversed(listed):  # the first one wins
        platform = each.get("platform")
        if isinstance(platform, dict) and platform.get("os") == "linux":
            there[str(platform.get("architecture"))] = str(each.get("digest"))
    if architecture not in there:
        names = ", ".join(sorted(there)) or "none"
        raise ImageError(f"image {image} is not there for {architecture}; it is for: {names}")
    return there[architecture]


def _manifest(image: Image, which: str) -> tuple[str, dict[str, Any]]:
    host = image.registry or _HUB
    official = "library/" if image.registry is None and "/" not in image.name else ""
    given = os.environ.get("ENROOT_ALLOW_HTTP", "")
    scheme = "http" if given and not _NO.fullmatch(given) else "https"
    path = urllib.parse.quote(f"/v2/{official}{image.name}/manifests/{which}", safe="/:")
    headers = {"Accept": ", ".join(_MANIFESTS)}
    try:
        data = _get(f"{scheme}://{host}{path}", headers)
    except urllib.error.HTTPError as error:
        with error:
            challenge = error.headers.get("WWW-Authenticate", "")
        if error.code == 404:
            raise ImageError(f"there is no image {image} ({host} says 404)") from error
        if error.code != 401:
            raise _Unasked from error
        headers["Authorization"] = f"Bearer {_token(challenge, scheme)}"
        data = _again(f"{scheme}://{host}{path}", headers)
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    if which.startswith("sha256:") and digest != which:
        raise ImageError(f"{host} gave another manifest of image {image} than {which}")
    return digest, _table(data)


def _again(url: str, headers: dict[str, str]) -> bytes:
    try:
        return _get(url, headers)
    except urllib.error.HTTPError as error:
        error.close()
        # Docker Hub says 401 of what is not there, too.
        raise _Unasked from error


def _token(challenge: str, scheme: str) -> str:
    """A token for anybody, from where the registry says."""
    kind, _, rest = challenge.partition(" ")
    given = dict(_CHALLENGE.findall(rest))
    realm = given.pop("realm", "")
    if kind.lower() != "bearer" or not realm.startswith(("https://", f"{scheme}://")):
        raise _Unasked
    found = _table(_again(f"{realm}?{urllib.parse.urlencode(given)}", {}))
    token = found.get("token") or found.get("access_token")
    if not isinstance(token, str) or not token.isascii() or not token.isprintable():
        raise _Unasked
    return token


def _get(url: str, headers: dict[str, str]) -> bytes:
    opener = urllib.request.build_opener(_NoRedirect)
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - made by _manifest
    try:
        answer: IO[bytes]
        with opener.open(request, timeout=_PATIENCE) as answer:
            data = answer.read(_MOST + 1)
    except urllib.error.HTTPError:
        raise
    except (OSError, ValueError, HTTPException) as error:
        raise _Unasked from error
    if len(data) > _MOST:
        raise _Unasked
    return data


def _table(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _Unasked from error
    if not isinstance(found, dict):
        raise _Unasked
    return found


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
