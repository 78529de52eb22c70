"""The examples of docs/portal.md for nginx and Apache are read by these servers as they stand."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

_PAGE = (Path(__file__).parents[3] / "docs" / "portal.md").read_text("utf-8")
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_MODULES = Path("/usr/lib/apache2/modules")
_LOADED = (
    "mpm_event", "authn_core", "authz_core", "authz_user", "ssl", "headers", "proxy", "proxy_http",
    "auth_openidc",
)  # fmt: skip
_SECRETS = 'OIDCClientSecret "x"\nOIDCCryptoPassphrase "y"\n'


def example(language: str) -> str:
    """The first example of a language."""
    found = re.search(rf"^```{language}\n(.*?)^```$", _PAGE, re.MULTILINE | re.DOTALL)
    assert found
    return found[1]


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate of the example's host and, beside it as `.key`, its key."""
    path = tmp_path / "gpu.example.org.pem"
    argv = [
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
        "-days", "2", "-subj", "/CN=gpu.example.org", "-keyout", path.with_suffix(".key"),
        "-out", path,
    ]  # fmt: skip
    subprocess.run(argv, check=True, capture_output=True)
    return path


def with_files_of(text: str, certificate: Path) -> str:
    for kept in ("/etc/ssl/gpu.example.org.pem", "/etc/ssl/private/gpu.example.org.key"):
        assert kept in text
        text = text.replace(kept, str(certificate.with_suffix(Path(kept).suffix)))
    return text


def check(*argv: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, check=False, capture_output=True, text=True)


def test_nginx_takes_the_example(tmp_path: Path, certificate: Path) -> None:
    nginx = shutil.which("nginx", path=_PATH)
    if nginx is None:
        pytest.skip("there is no nginx; tests/tools installs it")
    server = with_files_of(example("nginx"), certificate)
    path = tmp_path / "nginx.conf"
    for text, status in ((server, 0), (server.replace("proxy_pass ", "proxy_pas "), 1)):
        path.write_text(
            f"pid {tmp_path}/pid;\nerror_log stderr;\nevents {{}}\n"
            f"http {{ access_log off;\n{text}\n}}\n",
            "utf-8",
        )
        done = check(nginx, "-t", "-p", tmp_path, "-c", path)
        assert done.returncode == status, done.stderr


def test_apache_takes_the_example(tmp_path: Path, certificate: Path) -> None:
    apache = shutil.which("apache2", path=_PATH)
    missing = [name for name in _LOADED if not (_MODULES / f"mod_{name}.so").exists()]
    if apache is None or missing:
        pytest.skip("there is no Apache with mod_auth_openidc; tests/tools installs it")
    host = with_files_of(example("apache"), certificate)
    secrets = tmp_path / "secret"
    secrets.write_text(_SECRETS, "utf-8")
    host = host.replace("/etc/apache2/slurmkit-oidc.secret", str(secrets))
    loaded = "\n".join(f"LoadModule {name}_module {_MODULES}/mod_{name}.so" for name in _LOADED)
    path = tmp_path / "apache2.conf"
    for text, status in ((host, 0), (host.replace("OIDCClientID", "OIDCClientId_"), 1)):
        path.write_text(
            f"ServerRoot {tmp_path}\nDefaultRuntimeDir {tmp_path}\nPidFile {tmp_path}/pid\n"
            f"ErrorLog {tmp_path}/errors\nServerName gpu.example.org\n{loaded}\n{text}",
            "utf-8",
        )
        done = check(apache, "-t", "-f", path)
        assert done.returncode == status, done.stderr


def test_apache_removes_the_header_before_it_sets_it() -> None:
    host = example("apache")
    removed = host.index("RequestHeader unset X-Remote-User early")
    assert removed < host.index("<Location />") < host.index("RequestHeader set X-Remote-User")
