"""What is asked of a registry before an import: a server here stands in for one."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import shutil
import ssl
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from image_lab import ENROOT, MKSQUASHFS, config_of, digest, member, stand_in, tar
from slurmkit_containers.images import own_cache
from slurmkit_containers.importing import sources
from slurmkit_containers.importing.registry import (
    RegistrySession,
    RemoteImage,
    _https,
    ask_registry,
)

from slurmkit.cli.main import cli, run_to_exit_code
from slurmkit.errors import ImageError
from slurmkit.spec.images import Image

MANIFEST = json.dumps({"layers": [{"size": 700}, {"size": 300}, {"size": "x"}]}).encode()
ARM = json.dumps({"layers": []}).encode()
INDEX = json.dumps(
    {
        "manifests": [
            {"digest": digest(ARM), "platform": {"os": "linux", "architecture": "arm64"}},
            {"digest": digest(MANIFEST), "platform": {"os": "linux", "architecture": "amd64"}},
            {"digest": digest(b""), "platform": {"os": "unknown", "architecture": "unknown"}},
        ]
    }
).encode()


class Registry(BaseHTTPRequestHandler):
    """A registry of a few manifests by path."""

    manifests: dict[str, bytes]
    asked: list[tuple[str, str | None]]
    needs_token = False
    token = "t0k"
    most: int | None = None  # bytes of an answer before the connection breaks
    parts = True  # whether it heeds which part is asked for

    def do_GET(self) -> None:
        token = self.headers.get("Authorization")
        self.asked.append((self.path, token))
        if self.path.startswith("/token"):
            return self.answer(200, json.dumps({"token": self.token}).encode())
        if self.needs_token and token != f"Bearer {self.token}":
            host = self.headers["Host"]
            self.send_response(401)
            challenge = f'Bearer realm="http://{host}/token",service="lab",scope="a:b:pull"'
            self.send_header("WWW-Authenticate", challenge)
            self.end_headers()
            return None
        found = self.manifests.get(self.path)
        return self.answer(404 if found is None else 200, found or b"")

    def answer(self, code: int, data: bytes) -> None:
        away = data.removeprefix(b"away to ") if data.startswith(b"away to ") else None
        begin = int((self.headers["Range"] or "bytes=0-")[6:-1]) if self.parts else 0
        self.send_response(307 if away is not None else 206 if begin else code)
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
        data = data[begin:]
        if away is not None:
            self.send_header("Location", away.decode())
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: self.most])

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, type[Registry]]]:
    """Host and port of a registry, and the class that answers for it."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ENROOT_ALLOW_HTTP", "yes")
    made = type("Ours", (Registry,), {"manifests": {}, "asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), made) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"127.0.0.1:{server.server_port}", made
        server.shutdown()
        thread.join()


def test_the_manifest_for_this_machine_is_taken_from_an_index(
    registry: tuple[str, type[Registry]],
) -> None:
    host, made = registry
    made.manifests = {
        "/v2/lab/x/manifests/1": INDEX,
        f"/v2/lab/x/manifests/{digest(MANIFEST)}": MANIFEST,
    }
    assert ask_registry(Image.parse(f"{host}/lab/x:1"), "amd64") == RemoteImage(
        digest(MANIFEST), 1000
    )
    with pytest.raises(ImageError, match="does not exist for s390x, only for: amd64, arm64"):
        ask_registry(Image.parse(f"{host}/lab/x:1"), "s390x")


def test_a_token_for_anybody_is_fetched(registry: tuple[str, type[Registry]]) -> None:
    host, made = registry
    made.needs_token = True
    made.manifests = {"/v2/x/manifests/latest": MANIFEST}
    assert ask_registry(Image.parse(f"{host}/x"), "amd64") == RemoteImage(digest(MANIFEST), 1000)
    assert ("/token?service=lab&scope=a%3Ab%3Apull", None) in made.asked


def test_an_image_that_is_not_there(registry: tuple[str, type[Registry]]) -> None:
    with pytest.raises(ImageError, match=r"there is no image .*x:2 \(.* answered 404\)"):
        ask_registry(Image.parse(f"{registry[0]}/x:2"), "amd64")


def test_another_manifest_than_the_one_asked_for_is_refused(
    registry: tuple[str, type[Registry]],
) -> None:
    host, made = registry
    made.manifests = {f"/v2/x/manifests/{digest(ARM)}": MANIFEST}
    with pytest.raises(ImageError, match=r"sent a manifest of .* whose digest is not"):
        ask_registry(Image.parse(f"{host}/x@{digest(ARM)}"), "amd64")


@pytest.mark.parametrize(
    "data", [b"away to http://127.0.0.1:9/", b"{", b"[]", b"[" * 100_000, b" " * (5 << 20)]
)
def test_an_answer_that_is_none_is_as_no_answer(
    registry: tuple[str, type[Registry]], data: bytes
) -> None:
    host, made = registry
    made.manifests = {"/v2/x/manifests/latest": data}
    assert ask_registry(Image.parse(f"{host}/x"), "amd64") is None


def test_nobody_who_needs_a_password_or_is_not_there_is_asked(
    registry: tuple[str, type[Registry]], monkeypatch: pytest.MonkeyPatch
) -> None:
    host, made = registry
    assert ask_registry(Image.parse(f"me@{host}#x"), "amd64") is None
    assert made.asked == []
    assert ask_registry(Image.parse("127.0.0.1:9/x"), "amd64") is None
    monkeypatch.setenv("ENROOT_ALLOW_HTTP", "no")  # and TLS is not spoken here
    assert ask_registry(Image.parse(f"{host}/x"), "amd64") is None
    assert made.asked == []


def test_a_realm_that_is_no_url_is_not_asked(
    registry: tuple[str, type[Registry]], monkeypatch: pytest.MonkeyPatch
) -> None:
    host, made = registry

    def get(self: Registry) -> None:
        self.send_response(401)
        self.send_header("WWW-Authenticate", 'Bearer realm="file:///etc/passwd"')
        self.end_headers()

    monkeypatch.setattr(made, "do_GET", get)
    assert ask_registry(Image.parse(f"{host}/x"), "amd64") is None


def test_an_import_fetches_what_the_registry_said_and_refuses_what_cannot_fit(
    registry: tuple[str, type[Registry]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    host, made = registry
    stand_in(monkeypatch, tmp_path / "bin", enroot=ENROOT)
    monkeypatch.setenv("COUNT", str(tmp_path / "count"))
    huge = json.dumps({"layers": [{"size": 1 << 60}]}).encode()
    made.manifests = {"/v2/x/manifests/1": MANIFEST, "/v2/x/manifests/2": huge}
    assert run_to_exit_code(cli, ["image", "import", f"{host}/x:1"]) == 0
    assert f"docker://{host}#x:{digest(MANIFEST)}" in (tmp_path / "count").read_text("utf-8")
    assert run_to_exit_code(cli, ["image", "import", f"{host}/x:2"]) == 1
    assert "has no room: about 1024 PiB needed" in capsys.readouterr().err
    assert len((tmp_path / "count").read_text("utf-8").splitlines()) == 1


def serve(made: type[Registry], layers: list[bytes], **settings: Any) -> None:
    """Have `x:1` in a registry, of layers that are compressed."""
    config, packed = config_of(layers, **settings), list(map(gzip.compress, layers))
    listed = [{"digest": digest(blob), "size": len(blob)} for blob in (config, *packed)]
    manifest = json.dumps({"config": listed[0], "layers": listed[1:]}).encode()
    blobs = {f"/v2/x/blobs/{digest(blob)}": blob for blob in (config, *packed)}
    made.manifests = {"/v2/x/manifests/1": manifest, **blobs}


@pytest.fixture
def openly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No enroot, and an mksquashfs that keeps the archive it is given."""
    stand_in(monkeypatch, tmp_path / "bin", mksquashfs=MKSQUASHFS)
    (tmp_path / "bin" / "cat").symlink_to(shutil.which("cat") or "/bin/cat")  # which that needs
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(
        "slurmkit_containers.importing.registry.local_architecture", lambda: "amd64"
    )
    monkeypatch.setattr("slurmkit_containers.importing.registry._PAUSES", (0.0,) * 8)
    monkeypatch.setattr(
        "slurmkit_containers.importing.archives.local_architecture", lambda: "amd64"
    )


@pytest.mark.usefixtures("openly")
def test_without_enroot_the_layers_are_fetched(
    registry: tuple[str, type[Registry]], capsys: pytest.CaptureFixture[str]
) -> None:
    host, made = registry
    serve(made, [tar(member("one", b"1")), tar(member("two", b"2"), member(".wh.one"))])
    made.needs_token = True
    assert run_to_exit_code(cli, ["image", "import", f"{host}/x:1"]) == 0
    path = Path(capsys.readouterr().out.strip())
    assert path.stem == digest(made.manifests["/v2/x/manifests/1"]).replace(":", "-")
    with tarfile.open(fileobj=io.BytesIO(path.read_bytes()[96:])) as archive:
        assert {"two", "etc/rc"} <= set(archive.getnames())
        assert "one" not in archive.getnames()
    assert not list(path.parent.glob("import-*"))


@pytest.mark.usefixtures("openly")
def test_a_layer_that_lies_elsewhere_is_fetched_there_without_the_token(
    registry: tuple[str, type[Registry]],
) -> None:
    host, made = registry
    serve(made, [tar(member("one", b"1"))])
    for path in [path for path in made.manifests if "/blobs/" in path]:
        made.manifests[f"/cdn{path}"] = made.manifests[path]
        made.manifests[path] = f"away to http://{host}/cdn{path}".encode()
    assert run_to_exit_code(cli, ["image", "import", f"{host}/x:1"]) == 0
    assert [token for path, token in made.asked if path.startswith("/cdn")] == [None, None]


@pytest.mark.usefixtures("openly")
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda data: data[:-1] + b"x", "does not have the digest"),
        (lambda data: data + b"more", ""),
        (lambda data: data[:10], "broke 9 times in a row, at 10 B of 92 B of a layer"),
        (lambda _: b"away to ftp://127.0.0.1/", "does not give image"),
        (lambda _: b"away to http://127.0.0.1:9/", "does not give image"),
    ],
)
def test_a_layer_that_is_not_what_the_manifest_says(
    registry: tuple[str, type[Registry]],
    capsys: pytest.CaptureFixture[str],
    change: Callable[[bytes], bytes],
    why: str,
) -> None:
    host, made = registry
    serve(made, [tar(member("one", b"1"))])
    last = list(made.manifests)[-1]
    made.manifests[last] = change(made.manifests[last])
    assert run_to_exit_code(cli, ["image", "import", f"{host}/x:1"]) == bool(why)
    assert why in capsys.readouterr().err


@pytest.mark.usefixtures("openly")
@pytest.mark.parametrize("parts", [True, False])
def test_where_the_connection_breaks_it_goes_on_and_says_so(
    registry: tuple[str, type[Registry]], capsys: pytest.CaptureFixture[str], *, parts: bool
) -> None:
    """Only a registry that gives parts can break again and again."""
    host, made = registry
    data = random.Random(6).randbytes(30_000)  # which do not get smaller
    serve(made, [tar(member("one", data))])
    made.parts = parts
    made.most = 8_000 if parts else 20_000
    whole = [path for path in made.manifests if "/manifests/" in path]
    assert run_to_exit_code(cli, ["image", "import", f"{host}/x:1"]) == (0 if parts else 1)
    said = capsys.readouterr()
    assert ("broke at 7.812 KiB of 29.51 KiB of a layer: going on" in said.err) == parts
    folder = own_cache().folder
    assert bool(list(folder.glob("*.sqsh"))) == parts
    assert not list(folder.glob("import-*"))
    made.most = None  # and the next one begins cleanly
    assert run_to_exit_code(cli, ["image", "import", "--again", f"{host}/x:1"]) == 0
    path = Path(capsys.readouterr().out.strip())
    with tarfile.open(fileobj=io.BytesIO(path.read_bytes()[96:])) as archive:
        found = archive.extractfile("one")
        assert found is not None
        assert found.read() == data
    assert whole == ["/v2/x/manifests/1"]


def test_a_token_that_ran_out_is_fetched_anew(registry: tuple[str, type[Registry]]) -> None:
    host, made = registry
    made.needs_token = True
    made.manifests = {"/v2/x/manifests/1": MANIFEST, "/v2/x/blobs/sha256:1": b"layer"}
    session = RegistrySession(Image.parse(f"{host}/x:1"))
    session.manifest("amd64")
    made.token = "another"
    with session.blob("sha256:1") as answer:
        assert answer.read() == b"layer"


@pytest.fixture
def tls(
    registry: tuple[str, type[Registry]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, Path]]:
    """The registry with TLS: its host, and its certificate from a CA without keyUsage."""
    openssl = shutil.which("openssl", path=os.defpath)
    if openssl is None:
        pytest.skip("openssl is not installed")
    pem = tmp_path / "own.pem"
    made = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=x"
    names = "subjectAltName=IP:127.0.0.1"
    words = [openssl, *made.split(), "-addext", names, "-keyout", str(pem), "-out", f"{pem}.crt"]
    subprocess.run(words, check=True, capture_output=True)
    with pem.open("a", encoding="utf-8") as file:
        file.write(Path(f"{pem}.crt").read_text("utf-8"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    monkeypatch.delenv("ENROOT_ALLOW_HTTP")
    for name in ("https_proxy", "HTTPS_PROXY", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
    _https.cache_clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), registry[1]) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"127.0.0.1:{server.server_port}", Path(f"{pem}.crt")
        server.shutdown()
        thread.join()
    _https.cache_clear()


def test_a_ca_that_curl_accepts_is_accepted(
    tls: tuple[str, Path],
    registry: tuple[str, type[Registry]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python 3.13 and later refused a CA without keyUsage."""
    host, certificate = tls
    registry[1].manifests = {"/v2/x/manifests/latest": MANIFEST}
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    found = ask_registry(Image.parse(f"{host}/x"), "amd64")
    assert found == RemoteImage(digest(MANIFEST), 1000)


def test_a_certificate_that_is_not_accepted_is_told(tls: tuple[str, Path]) -> None:
    """A TLS failure was taken for "does not answer", without a word."""
    said: list[str] = []
    image = Image.parse(f"{tls[0]}/x")
    assert ask_registry(image, "amd64", lambda words, *_: said.append(words)) is None
    (words,) = said
    assert f"the TLS certificate of {tls[0]} is not accepted (self-signed certificate)" in words
    assert "SSL_CERT_FILE" in words


@pytest.mark.usefixtures("openly")
def test_without_enroot_the_reason_is_in_the_error(
    tls: tuple[str, Path],
    registry: tuple[str, type[Registry]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It said "does not give image … to anybody, or does not answer"."""
    for host, why in (
        (tls[0], "is not accepted (self-signed certificate); if its CA is your site's own"),
        (registry[0], "does not speak https; for a registry without TLS set ENROOT_ALLOW_HTTP=y"),
        ("127.0.0.1:9", "Connection refused"),
    ):
        assert run_to_exit_code(cli, ["image", "import", f"{host}/x:1"]) == 1
        assert why in capsys.readouterr().err


_FAILS = "#!/bin/sh\n[ \"$1\" = import ] || exit 1\ncat >&2 <<'END'\n{said}\nEND\nexit 1\n"


@pytest.mark.usefixtures("openly")
def test_where_enroot_fails_a_public_image_is_fetched_without_it(
    registry: tuple[str, type[Registry]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Login nodes without user namespaces could import nothing."""
    host, made = registry
    serve(made, [tar(member("one", b"1"))])
    manifest = made.manifests["/v2/x/manifests/1"]
    made.manifests[f"/v2/x/manifests/{digest(manifest)}"] = manifest
    fails = _FAILS.format(said="enroot-aufs2ovlfs: Operation not permitted")
    stand_in(monkeypatch, tmp_path / "bin", enroot=fails)
    monkeypatch.setattr(sources, "local_architecture", lambda: "amd64")
    assert run_to_exit_code(cli, ["image", "import", f"{host}/x:1"]) == 0
    said = capsys.readouterr()
    assert "Operation not permitted; slurmkit fetches the image itself" in said.err
    path = Path(said.out.strip())
    assert path.stem == digest(made.manifests["/v2/x/manifests/1"]).replace(":", "-")
    assert run_to_exit_code(cli, ["image", "import", f"me@{host}#x:1", "--as", "mine"]) == 1
    assert "itself" not in capsys.readouterr().err
    (tmp_path / "bin" / "mksquashfs").unlink()
    assert run_to_exit_code(cli, ["image", "import", "--again", f"{host}/x:1"]) == 1
    said = capsys.readouterr()
    assert "not permitted; slurmkit itself could not fetch the image: mksquashfs is" in said.err


@pytest.mark.usefixtures("openly")
@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "[INFO] Querying registry\n[INFO] Authenticating with user: <anonymous>",
            "to user <anonymous>: it wants a password, or refuses the one it got; write it into",
        ),
        (
            "[INFO] Authenticating with user: me\n[INFO] Using credentials from file: /x",
            "to user me: it wants a password",
        ),
        ("[ERROR] URL https://x/v2 returned error code: 401 Unauthorized", "wants a password"),
        (
            "curl: (35) OpenSSL/3.0: error:0A00010B:SSL routines::wrong version number",
            "does not speak https (enroot failed",
        ),
        ("[INFO] Authenticating with user: me\n[ERROR] no space", "code 1: [ERROR] no space"),
    ],
)
def test_what_enroot_does_not_say_is_said(
    said: str,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """ "[INFO] Authenticating with user" was all that one read."""
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # so that no registry answers
    stand_in(monkeypatch, tmp_path / "bin", enroot=_FAILS.format(said=said))
    assert run_to_exit_code(cli, ["image", "import", "r.example:5000/x:1"]) == 1
    shown = capsys.readouterr().err
    assert told in shown
    if "password" in told:
        assert "/.credentials, as a line: machine r.example login USER password PASS" in shown
    if "https" in told:
        assert "ENROOT_ALLOW_HTTP=y here, and in enroot.conf of the nodes" in shown
