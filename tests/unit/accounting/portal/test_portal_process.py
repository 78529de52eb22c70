"""The process of the pages: the service starts it, starts it again, and takes it down."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from service_lab import FakeMunge, free_port
from slurmkit_accounting.portal import process as process_module
from slurmkit_accounting.portal.process import Start, Started, portal_process
from waiting import PATIENCE, wait_until

from slurmkit import __version__
from slurmkit.errors import BadConfig, MissingExtra, ServiceError

LDAP = '[ldap]\nuri = "ldap://ldap"\npeople_base = "ou=p"\ngroups_base = "ou=g"\n'
HANGS = (sys.executable, "-c", "import time; time.sleep(3600)  # portal.process")


class Lines:
    """A log that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, what: str, **facts: object) -> None:
        if what != "serving":
            self.lines.append(f"{what} {facts.get('why')}")


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def site(
    configure: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, port: int
) -> Callable[[str], None]:
    """Write the site's configuration, with pages on `port` and more settings of theirs."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("SLURMKIT_CONFIG", str(tmp_path / "config" / "slurmkit.toml"))

    def write(more: str = "") -> None:
        address = f'listen = "127.0.0.1:{port}"\nurl = "http://127.0.0.1:{port}"\n'
        configure(f"{LDAP}[ledger.portal]\n{address}{more}")

    return write


def login_page(port: int) -> str:
    """Return the page to log in; empty if nobody answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", "/login")
        answer = connection.getresponse()
        page = answer.read().decode()
    except (OSError, http.client.HTTPException):
        return ""
    finally:
        connection.close()
    return page if answer.status == 200 else ""


def children(pid: int) -> list[int]:
    """Return the processes of the pages that a process has started."""
    found = Path(f"/proc/{pid}/task").glob("*/children")
    pids = [int(number) for file in found for number in file.read_text().split()]
    return [one for one in pids if b"portal.process" in command_line(one)]


def command_line(pid: int) -> bytes:
    """Return the arguments of a process; nothing of one that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def signal_pages(by: signal.Signals = signal.SIGKILL) -> int:
    """Send the process of our pages a signal; return its number."""
    (pid,) = children(os.getpid())
    os.kill(pid, by)
    return pid


def test_without_an_address_there_is_no_process(configure: Callable[[str], None]) -> None:
    configure("")
    with portal_process(None, Lines()) as pages:
        assert pages is None
        assert children(os.getpid()) == []


def test_the_service_itself_needs_no_flask() -> None:
    code = (
        "import sys, slurmkit_accounting.portal.process, slurmkit_accounting.service.server\n"
        "print('flask' in sys.modules, 'jinja2' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "False False\n"


def test_pages_that_end_are_started_again(
    site: Callable[[str], None], port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_module, "_PAUSE_SECONDS", 0.05)
    site("")
    log = Lines()
    with portal_process(None, log) as pages:
        assert pages
        assert pages.address == f"127.0.0.1:{port}"
        assert pages.is_serving()
        assert "password" in login_page(port)
        signal_pages()
        wait_until(lambda: len(log.lines) == 1 and pages.is_serving())
        site("login = 5\n")  # somebody breaks the configuration; the running pages stay
        assert login_page(port)
        signal_pages()
        wait_until(lambda: len(log.lines) > 3)
        assert not pages.is_serving()
        # Nobody else on this host gets the port on which people log in.
        with pytest.raises(OSError, match="in use"):
            socket.create_server(("127.0.0.1", port))
        site("")
        wait_until(lambda: login_page(port))
    assert login_page(port) == ""
    assert children(os.getpid()) == []
    assert log.lines[:2] == ["failed the process of the pages ended (SIGKILL)"] * 2
    assert "failed the pages do not start: " in log.lines[2]
    assert "login" in log.lines[2]


def test_pages_that_say_what_nobody_understands(
    site: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor can there be a process where the Python was taken away: they are tried again."""
    monkeypatch.setattr(process_module, "_PAUSE_SECONDS", 0.05)
    site("")
    log = Lines()
    with portal_process(None, log) as pages:
        assert pages
        with monkeypatch.context() as changed:
            changed.setattr(process_module, "_ARGV", ("printf", '{"fault'))
            signal_pages()
            wait_until(lambda: len(log.lines) == 2)
            changed.setattr(process_module, "_ARGV", (str(tmp_path / "nowhere"),))
            wait_until(lambda: "nowhere" in log.lines[-1])
        wait_until(pages.is_serving)
    assert "their process ended (exit code 0)" in log.lines[1]


def test_a_service_that_stops_while_the_pages_are_away(
    site: Callable[[str], None], port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_module, "_PAUSE_SECONDS", 3600.0)
    site("")
    log = Lines()
    with portal_process(None, log):
        signal_pages()
        wait_until(lambda: log.lines)
    assert login_page(port) == ""


def test_a_service_that_stops_while_the_pages_start_again(
    site: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_module, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(process_module, "_STOP_SECONDS", 0.1)
    site("")
    with portal_process(None, Lines()):
        monkeypatch.setattr(process_module, "_ARGV", HANGS)
        pid = signal_pages()
        wait_until(lambda: children(os.getpid()) not in ([], [pid]))
    assert children(os.getpid()) == []


def test_pages_that_do_not_answer_at_the_start(
    site: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_module, "_START_SECONDS", 0.1)
    monkeypatch.setattr(process_module, "_ARGV", HANGS)
    site("")
    with pytest.raises(ServiceError, match="SIGKILL"), portal_process(None, Lines()):
        pass
    assert children(os.getpid()) == []


def test_pages_that_do_not_stop_are_killed(
    site: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_module, "_STOP_SECONDS", 0.1)
    site("")
    with portal_process(None, Lines()):
        signal_pages(signal.SIGSTOP)
    assert children(os.getpid()) == []


@pytest.mark.parametrize(
    ("release", "address", "words"),
    [("0.0.1", "127.0.0.1:1", "was installed"), (__version__, "127.0.0.1:2", "listen has changed")],
)
def test_pages_that_another_service_would_start(
    site: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    release: str,
    address: str,
    words: str,
) -> None:
    """A service that runs on after an upgrade, or after its settings were changed."""
    site("")
    start = msgspec.json.encode(Start(None, release, address, 0))
    argv = process_module._ARGV
    done = subprocess.run(argv, input=start + b"\n", capture_output=True, check=False)
    fault = msgspec.json.decode(done.stdout, type=Started).fault
    assert fault
    assert words in fault.message
    assert "restart the service" in fault.message


def test_why_the_pages_do_not_start(
    site: Callable[[str], None], port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the error that they would have in the service's own process."""
    site('login = ["oidc"]\n')
    with pytest.raises(BadConfig, match="issuer"), portal_process(None, Lines()):
        pass
    site("")
    taken = socket.create_server(("127.0.0.1", port))
    with (
        taken,
        pytest.raises(ServiceError, match="cannot listen on"),
        portal_process(None, Lines()),
    ):
        pass
    (tmp_path / "flask.py").write_text("raise ModuleNotFoundError('no flask', name='flask')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(MissingExtra, match="accounting"), portal_process(None, Lines()):
        pass
    (tmp_path / "flask.py").write_text("import os; os._exit(7)\n")
    with pytest.raises(ServiceError, match="exit code 7"), portal_process(None, Lines()):
        pass
    assert children(os.getpid()) == []


def test_a_module_in_the_folder_of_the_service_is_not_run(
    site: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator may start it where other users write."""
    site("")
    (tmp_path / "flask.py").write_text("raise AssertionError\n")
    monkeypatch.chdir(tmp_path)
    with portal_process(None, Lines()):
        pass


class Service:
    """`slurmkit ledger serve` with pages."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        FakeMunge(tmp_path / "munge", monkeypatch)
        queries, monitor, self.port = free_port(), free_port(), free_port()
        config = tmp_path / "site.toml"
        config.write_text(
            f'{LDAP}[ledger.service]\nuser = "{os.getuid()}"\nlisten = "127.0.0.1:{queries}"\n'
            f'monitor = "127.0.0.1:{monitor}"\n[ledger.schedule]\ningest = ""\npeople = ""\n'
            f'[ledger.portal]\nlisten = "127.0.0.1:{self.port}"\n'
            f'url = "http://127.0.0.1:{self.port}"\n'
        )
        environ = {"SLURMKIT_CONFIG": str(config), "XDG_STATE_HOME": str(tmp_path / "state")}
        self.process = subprocess.Popen(
            [
                sys.executable, "-m", "slurmkit", "ledger", "serve",
                "--db", f"sqlite:///{tmp_path}/a-secret.db",
            ],
            env=os.environ | environ, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def wait_until_serving(self) -> str:
        """Return the line of the log that says so."""
        assert self.process.stderr
        line = self.process.stderr.readline()
        wait_until(lambda: _catches_sigterm(self.process.pid))
        return line


@pytest.mark.parametrize("stopped_by", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_the_service_serves_the_pages_while_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped_by: signal.Signals
) -> None:
    service = Service(tmp_path, monkeypatch)
    try:
        said = service.wait_until_serving()
        assert f"also=127.0.0.1:{service.port}" in said
        assert 'name="password"' in login_page(service.port)
        (pages,) = children(service.process.pid)
        assert b"a-secret" not in command_line(pages)
        if stopped_by == signal.SIGTERM:  # who stops a service may send it to all its processes
            os.kill(pages, stopped_by)
        service.process.send_signal(stopped_by)
        _, more = service.process.communicate(timeout=PATIENCE)
        wait_until(lambda: not command_line(pages))
    finally:
        service.process.kill()
    assert "failed" not in more
    assert "Traceback" not in more
    if stopped_by != signal.SIGKILL:
        assert service.process.returncode == 0, more
    assert login_page(service.port) == ""
    assert stat.S_IMODE((tmp_path / "state/slurmkit/portal/key").stat().st_mode) == 0o600


def _catches_sigterm(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    (caught,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)
