"""Ask a registry for an image, and fetch it, without a password and without enroot.

Follows the OCI distribution specification ("Pulling manifests") and Docker's token authentication.
It reads no credentials and follows no redirect of a manifest. Images that need more are left to
enroot.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any

import msgspec

from slurmkit.errors import ImageError
from slurmkit.formats.memory import format_bytes
from slurmkit.spec.images import Image
from slurmkit_containers.cache import ImageOrigin
from slurmkit_containers.importing.archives import import_path, local_architecture, need_mksquashfs
from slurmkit_containers.importing.importer import check_room
from slurmkit_containers.importing.manifests import (
    Blob,
    JsonObject,
    Manifest,
    check_digest,
    digest_of,
    images_for,
    is_index,
    parse_json,
    parse_manifest,
)
from slurmkit_containers.trust import LINE_STAYS, ReportProgress, ignore_progress

HTTP_ADVICE = (
    "for a registry without TLS set ENROOT_ALLOW_HTTP=y here, and in enroot.conf of the nodes:"
    " pyxis does not take it from a job"
)
_PATIENCE = 10  # timeout of one request in seconds
_MOST = 4 << 20  # bytes of a manifest; registries have the same limit
_HUB = "registry-1.docker.io"
_NO = re.compile(r"no?|N[oO]?|[fF](alse)?|FALSE", re.ASCII)  # as enroot reads its settings
_REDIRECTS = (301, 302, 303, 307, 308)
_FOLLOWS = 3
_PART = 206
_PIECE = 1 << 20
_PAUSES = (1.0, 2.0, 5.0, 10.0)
"""Seconds before each retry. After as many breaks in a row without progress, the import fails."""
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"', re.ASCII)
_MANIFESTS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)


class RemoteImage(msgspec.Struct, frozen=True):
    """An image as its registry describes it.

    Attributes:
        digest: `sha256:…` of the manifest.
        size: bytes of its compressed layers; at least as many have to be fetched.
    """

    digest: str
    size: int


class NoRegistryAnswer(Exception):
    """The registry does not answer, or not without a password; its text says why, if known."""


class UntrustedRegistry(NoRegistryAnswer):
    """The registry's TLS certificate is not accepted."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Follow none."""


def ask_registry(
    image: Image, architecture: str, report: ReportProgress = ignore_progress
) -> RemoteImage | None:
    """Ask the registry for an image; None if it does not answer, or not without a password.

    Args:
        image: an image of a registry.
        architecture: the wanted architecture, as Docker names it.
        report: called if the registry's certificate is not accepted, though enroot may accept it.

    Raises:
        ImageError: when there is no such image, or none for that architecture.
    """
    if image.user is not None:
        return None
    try:
        data, table = RegistrySession(image).manifest(architecture)
    except UntrustedRegistry as error:
        report(f"digest and size of the image are not checked: {error}", LINE_STAYS, None)
        return None
    except NoRegistryAnswer:
        return None
    return RemoteImage(digest_of(data), sum(layer.size for layer in parse_manifest(table).layers))


class RegistrySession:
    """One image at its registry, with an anonymous token if the registry wants one."""

    def __init__(self, image: Image) -> None:
        given = os.environ.get("ENROOT_ALLOW_HTTP", "")
        official = "library/" if image.registry is None and "/" not in image.name else ""
        self._image = image
        self._scheme = "http" if given and not _NO.fullmatch(given) else "https"
        self._host = image.registry or _HUB
        self._name = f"{official}{image.name}"
        self._headers: dict[str, str] = {}

    def manifest(self, architecture: str) -> tuple[bytes, JsonObject]:
        """Fetch the image's manifest for an architecture; return its bytes and its content.

        Raises:
            ImageError: when there is none.
            NoRegistryAnswer: when the registry does not answer.
        """
        data, table = self._manifest(self._image.digest or self._image.tag or "latest")
        if not is_index(table):
            return data, table
        digests, available = images_for(table, architecture)
        if not digests:
            raise ImageError(
                f"image {self._image} does not exist for {architecture}, only for: {available}"
            )
        return self._manifest(digests[0])

    def blob(self, digest: str, begin: int = 0) -> IO[bytes]:
        """Open a layer or configuration. A redirect is followed without the token.

        Args:
            digest: digest of the blob.
            begin: index of the first byte wanted.

        Raises:
            NoRegistryAnswer: when the registry refuses it.
        """
        wanted = {"Range": f"bytes={begin}-"} if begin else {}
        return _skip_to(begin, self._blob(digest, wanted))

    def _blob(self, digest: str, headers: dict[str, str]) -> IO[bytes]:
        try:
            return self._open(f"blobs/{digest}", headers)
        except urllib.error.HTTPError as error:
            error.close()
            place = error.headers.get("Location", "")
            if error.code not in _REDIRECTS or not place.startswith(self._schemes):
                raise NoRegistryAnswer(_answered(error)) from error
        return _get_or_no_answer(place, headers, _FOLLOWS)

    @property
    def _schemes(self) -> tuple[str, ...]:
        return ("https://", f"{self._scheme}://")

    def _manifest(self, which: str) -> tuple[bytes, JsonObject]:
        try:
            with self._open(f"manifests/{which}", {"Accept": ", ".join(_MANIFESTS)}) as answer:
                data = _read_all(answer)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code != 404:
                raise NoRegistryAnswer(_answered(error)) from error
            words = f"there is no image {self._image} ({self._host} answered 404)"
            raise ImageError(words) from error
        if which.startswith("sha256:") and digest_of(data) != which:
            raise ImageError(
                f"{self._host} sent a manifest of {self._image} whose digest is not {which}"
            )
        return data, _table(data)

    def _open(self, what: str, headers: dict[str, str]) -> IO[bytes]:
        path = urllib.parse.quote(f"/v2/{self._name}/{what}", safe="/:")
        url = f"{self._scheme}://{self._host}{path}"
        try:
            return _get(url, headers | self._headers)
        except urllib.error.HTTPError as error:
            if error.code != 401:  # also with a token, which may have expired
                raise
            error.close()
            token = self._token(error.headers.get("WWW-Authenticate", ""))
            self._headers = {"Authorization": f"Bearer {token}"}
        return _get(url, headers | self._headers)

    def _token(self, challenge: str) -> str:
        """Fetch an anonymous token from the server that the registry names."""
        kind, _, rest = challenge.partition(" ")
        parameters = dict(_CHALLENGE.findall(rest))
        realm = parameters.pop("realm", "")
        if kind.lower() != "bearer" or not realm.startswith(self._schemes):
            raise NoRegistryAnswer(f"{self._host} wants a password")
        with _get_or_no_answer(f"{realm}?{urllib.parse.urlencode(parameters)}", {}) as answer:
            table = _table(_read_all(answer))
        token = table.get("token") or table.get("access_token")
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise NoRegistryAnswer
        return token


def _skip_to(begin: int, answer: IO[bytes]) -> IO[bytes]:
    """Skip to the byte `begin` if the server ignored the request for a range."""
    status, part = getattr(answer, "status", 200), getattr(answer, "headers", {})
    if begin and status == _PART:
        if not part.get("Content-Range", "").startswith(f"bytes {begin}-"):
            raise NoRegistryAnswer
        return answer
    while begin and (piece := read_registry_answer(answer, min(begin, _PIECE))):
        begin -= len(piece)
    return answer


def _get_or_no_answer(url: str, headers: dict[str, str], follows: int = 0) -> IO[bytes]:
    """Get a URL; an HTTP error counts as no answer, and up to `follows` redirects are followed."""
    try:
        return _get(url, headers)
    except urllib.error.HTTPError as error:
        error.close()
        place = error.headers.get("Location", "")
        if not follows or error.code not in _REDIRECTS or not place.startswith("https://"):
            raise NoRegistryAnswer(_answered(error)) from error
    return _get_or_no_answer(place, headers, follows - 1)


def _get(url: str, headers: dict[str, str]) -> IO[bytes]:
    opener = urllib.request.build_opener(_NoRedirect, _https())
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - https, or as enroot's
    try:
        answer: IO[bytes] = opener.open(request, timeout=_PATIENCE)
    except urllib.error.HTTPError:
        raise
    except (OSError, ValueError, HTTPException) as error:
        raise _no_answer(url, error) from error
    return answer


@cache
def _https() -> urllib.request.HTTPSHandler:
    """Return a handler that accepts the certificates which curl and enroot accept.

    From Python 3.13 on, the default also refuses CAs without keyUsage, as `openssl req -x509` makes
    them (RFC 5280, "strict").
    """
    context = ssl.create_default_context()
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return urllib.request.HTTPSHandler(context=context)


def _no_answer(url: str, error: Exception) -> NoRegistryAnswer:
    """Return the exception that says why a URL gave no answer."""
    why = getattr(error, "reason", error)
    host = urllib.parse.urlsplit(url).netloc
    if isinstance(why, ssl.SSLCertVerificationError):
        return UntrustedRegistry(
            f"the TLS certificate of {host} is not accepted ({why.verify_message}); if its CA is"
            " your site's own, name the CA's file in SSL_CERT_FILE"
        )
    if isinstance(why, ssl.SSLError) and why.reason == "WRONG_VERSION_NUMBER":
        return NoRegistryAnswer(f"{host} does not speak https; {HTTP_ADVICE}")
    return NoRegistryAnswer(f"{host}: {why}")


def _answered(error: urllib.error.HTTPError) -> str:
    host = urllib.parse.urlsplit(error.url or "").netloc
    return f"{host} answered {error.code} {error.reason}"


def read_registry_answer(answer: IO[bytes], most: int) -> bytes:
    """Read at most `most` bytes of an answer.

    Raises:
        NoRegistryAnswer: when the connection breaks.
    """
    try:
        return answer.read(most)
    except (OSError, HTTPException) as error:
        raise NoRegistryAnswer from error


def _read_all(answer: IO[bytes]) -> bytes:
    data = read_registry_answer(answer, _MOST + 1)
    if len(data) > _MOST:
        raise NoRegistryAnswer
    return data


def _table(data: bytes) -> JsonObject:
    try:
        table = parse_json(data)
    except ValueError as error:
        raise NoRegistryAnswer from error
    if not isinstance(table, dict):
        raise NoRegistryAnswer
    return table


def import_public_image(image: Image, file: Path, report: ReportProgress) -> ImageOrigin:
    """Fetch an image as an OCI layout, and write its squashfs file.

    Args:
        image: an image of a registry.
        file: the file to write; the layout is next to it during the import.
        report: called with the progress.

    Raises:
        ImageError: when the registry refuses it, it is damaged, or it does not fit on the disk.
    """
    need_mksquashfs()
    layout = file.parent / "layout"
    try:
        session = RegistrySession(image)
        data, table = session.manifest(local_architecture())
        _write_layout(session, parse_manifest(table), data, layout=layout, report=report)
    except UntrustedRegistry as error:
        raise ImageError(str(error)) from error
    except NoRegistryAnswer as error:
        why = f" ({error})" if str(error) else ""
        raise ImageError(
            f"{image.registry or 'Docker Hub'} does not give image {image} without a password, or"
            f" does not answer{why}; if it needs a password, import it where enroot is on the PATH,"
            " or from a file of docker save: slurmkit image import ./FILE.tar"
        ) from error
    made = import_path(layout, file, report)
    return msgspec.structs.replace(made, architecture=made.architecture or local_architecture())


def _write_layout(
    session: RegistrySession,
    manifest: Manifest,
    data: bytes,
    *,
    layout: Path,
    report: ReportProgress,
) -> None:
    """Fetch all blobs of a manifest, and write an OCI layout; `data` is the manifest's JSON."""
    blobs = layout / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    wanted = dict.fromkeys((manifest.config, *manifest.layers))
    total, done = sum(blob.size for blob in wanted), 0
    check_room(layout, total)
    for blob in wanted:

        def fetched(size: int, before: int = done) -> None:
            report(f"fetching {format_bytes(total)}", before + size, total)

        _fetch(session, blob, blobs, fetched=fetched, report=report)
        done += blob.size
    (blobs / digest_of(data).removeprefix("sha256:")).write_bytes(data)
    (layout / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}', "utf-8")
    index = {"manifests": [{"digest": digest_of(data)}]}
    (layout / "index.json").write_text(json.dumps(index), "utf-8")


def _fetch(
    session: RegistrySession,
    blob: Blob,
    blobs: Path,
    *,
    fetched: Callable[[int], None],
    report: ReportProgress,
) -> None:
    """Fetch a blob, at most as many bytes as the manifest says, and check its digest.

    If the connection breaks, go on from the last byte.

    Args:
        session: the image at its registry.
        blob: what to fetch.
        blobs: the folder to write to.
        fetched: called with the bytes that are there.
        report: called when the connection breaks.
    """
    digest, breaks = hashlib.sha256(), 0
    with (blobs / check_digest(blob.digest).removeprefix("sha256:")).open("wb") as file:
        while file.tell() < blob.size:
            before = file.tell()
            with _broken_if(before > 0 or breaks > 0):
                for piece in _pieces(session, blob, before):
                    file.write(piece)
                    digest.update(piece)
                    fetched(file.tell())
            breaks = 0 if file.tell() - before >= _PIECE else breaks + 1
            if file.tell() < blob.size:
                _wait(breaks, done=file.tell(), size=blob.size, report=report)
    if f"sha256:{digest.hexdigest()}" != blob.digest:
        raise ImageError(
            f"the data from the registry does not have the digest {blob.digest}; try again"
        )


def _pieces(session: RegistrySession, blob: Blob, begin: int) -> Iterator[bytes]:
    """Yield a blob from the byte `begin` on, until it is complete or the connection breaks."""
    left = blob.size - begin
    with session.blob(blob.digest, begin) as answer:
        while left and (piece := _read_unless_broken(answer, min(left, _PIECE))):
            left -= len(piece)
            yield piece


def _read_unless_broken(answer: IO[bytes], most: int) -> bytes:
    with suppress(NoRegistryAnswer):  # broken: keep what came before
        return read_registry_answer(answer, most)
    return b""


@contextmanager
def _broken_if(begun: bool) -> Iterator[None]:  # noqa: FBT001 - private
    """Suppress a missing answer once a part was fetched: the connection may come back."""
    try:
        yield
    except NoRegistryAnswer:
        if not begun:
            raise


def _wait(breaks: int, *, done: int, size: int, report: ReportProgress) -> None:
    """Wait until the connection may have come back.

    Args:
        breaks: how often it broke in a row without progress.
        done: bytes of the layer that are there.
        size: bytes of the layer.
        report: called with what happened.

    Raises:
        ImageError: when it broke too often.
    """
    where = f"{format_bytes(done)} of {format_bytes(size)} of a layer"
    if breaks > len(_PAUSES):
        raise ImageError(
            f"the connection to the registry broke {breaks} times in a row, at {where};"
            " the partial download is removed: import again when the network is better"
        )
    report(f"the connection broke at {where}: going on from there", LINE_STAYS, None)
    time.sleep(_PAUSES[breaks - 1] if breaks else 0)
