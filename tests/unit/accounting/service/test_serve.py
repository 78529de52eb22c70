"""`slurmkit ledger serve` as a process: starts only where it can be trusted, ends on SIGTERM."""

from __future__ import annotations

import grp
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import slurmkit_accounting
from service_lab import FakeMunge, free_port
from slurmkit_accounting.cli.ledger import ledger_group
from slurmkit_accounting.ledger.database import open_for_writing
from slurmkit_accounting.service import listening, server, trusted_files
from slurmkit_accounting.service.listening import Door, serving_all
from slurmkit_accounting.service.server import serve
from slurmkit_accounting.service.trusted_files import check_configuration_files
from waiting import PATIENCE, wait_until
from waitress.trigger import trigger

from slurmkit.cli.main import run_to_exit_code
from slurmkit.config import files
from slurmkit.errors import BadConfig, ServiceError


@pytest.fixture
def munge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMunge:
    return FakeMunge(tmp_path / "munge", monkeypatch)


def wait_for(url: str) -> bytes:
    end = time.monotonic() + PATIENCE
    while True:
        try:
            with urllib.request.urlopen(url) as page:  # noqa: S310
                return bytes(page.read())
        except urllib.error.HTTPError as error:  # 503: up, and nothing was ingested yet
            return error.read()
        except OSError:
            assert time.monotonic() < end
            time.sleep(0.05)


@pytest.mark.usefixtures("munge")
def test_it_serves_until_sigterm(tmp_path: Path) -> None:
    monitor = free_port()
    config, key = tmp_path / "site.toml", tmp_path / "jwt_hs256.key"
    key.write_bytes(os.urandom(32))
    key.chmod(0o600)
    config.write_text(
        f'[ledger.service]\njwt_socket = "{tmp_path}/tokens"\njwt_key = "{key}"\n'
        f'user = "{os.getuid()}"\nlisten = "127.0.0.1:{free_port()}"\n'
        f'monitor = "127.0.0.1:{monitor}"\n[ledger.schedule]\ntimezone = "UTC"\n'
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "slurmkit", "ledger", "serve"],
        env=os.environ | {"SLURMKIT_CONFIG": str(config)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        health = json.loads(wait_for(f"http://127.0.0.1:{monitor}/health"))
        assert "nothing was ingested yet" in health["reasons"][0]
        assert b"slurmkit_ledger_up 1.0" in wait_for(f"http://127.0.0.1:{monitor}/metrics")
        while b"is not on the PATH" not in wait_for(f"http://127.0.0.1:{monitor}/health"):
            time.sleep(0.05)  # the ingest that every first start begins with fails: no Slurm here
        key.unlink()
        health = json.loads(wait_for(f"http://127.0.0.1:{monitor}/health"))
        assert f"cannot read {key}" in health["reasons"][-1]
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    lines = said.splitlines()
    assert process.returncode == 0
    assert lines[0].startswith(f"serving ledger={tmp_path}/data/slurmkit/ledger.db")
    assert any(line.startswith("failed task=ingest why=") for line in lines)
    assert lines[-3:] == ["received signal=SIGTERM", "stopping", "stopped"]


@pytest.mark.usefixtures("munge")
def test_it_runs_as_the_account_that_clients_trust(configure: Callable[[str], None]) -> None:
    configure('[ledger.service]\nuser = "12345"\n')
    with pytest.raises(BadConfig, match=r"but \[ledger.service\] user is '12345'"):
        serve(None)


def test_it_does_not_start_without_munge(
    munge: FakeMunge, configure: Callable[[str], None]
) -> None:
    configure(f'[ledger.service]\nuser = "{os.getuid()}"\n')
    munge.say(6)
    with pytest.raises(ServiceError, match="is munged running"):
        serve(None)


@pytest.mark.usefixtures("munge")
@pytest.mark.parametrize("kind", ["configuration", "folder", "overrides", "budgets"])
@pytest.mark.parametrize("mode", [0o020, 0o002])
def test_it_does_not_start_where_others_can_write_what_it_obeys(
    kind: str, mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "etc"
    folder.mkdir()
    places = {
        "configuration": folder / "site.toml", "folder": folder,
        "overrides": tmp_path / "pis.toml", "budgets": folder / "budgets.toml",
    }  # fmt: skip
    places["configuration"].write_text(
        f'[ledger]\noverrides = "{places["overrides"]}"\n[ledger.service]\nuser = "12345"\n'
    )
    for name in ("overrides", "budgets"):
        places[name].write_text("")
    _read_only(places["configuration"], monkeypatch)
    monkeypatch.setattr(trusted_files, "_is_own_group", lambda _: False)
    with pytest.raises(BadConfig, match="user is '12345'"):
        serve(None)
    places[kind].chmod(places[kind].stat().st_mode | mode)
    with pytest.raises(BadConfig, match=f"write {places[kind]}, .*run: chmod go-w"):
        serve(None)


@pytest.mark.usefixtures("munge")
def test_it_does_not_start_with_a_configuration_of_somebody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "site.toml"
    path.write_text("[ledger]\n")
    _read_only(path, monkeypatch)
    monkeypatch.setattr(trusted_files.os, "getuid", lambda: 54321)
    if path.stat().st_uid == 0:
        os.chown(path, 777, -1)
    with pytest.raises(BadConfig, match=r"belongs to uid .*; run: chown root"):
        serve(None)


def _read_only(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let there be one configuration file."""
    reading = (
        "slurmkit.config.files",
        trusted_files.__name__,
        "slurmkit_accounting.reports.budget",
    )
    for module in reading:
        monkeypatch.setattr(f"{module}.config_paths", lambda: [path])


@pytest.mark.parametrize("writable", ["real", "real/deep", "links", "real/deep/site.toml"])
def test_all_folders_above_the_configuration_and_above_its_links_are_checked(
    writable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, links = tmp_path / "real" / "deep", tmp_path / "links"
    for folder in (real, links, tmp_path / "start"):
        folder.mkdir(parents=True)
    (real / "site.toml").write_text("[ledger]\n")
    (links / "there").symlink_to("../real")
    (tmp_path / "start" / "etc").symlink_to(links)
    _read_only(tmp_path / "start" / "etc" / "there" / "deep" / "site.toml", monkeypatch)
    check_configuration_files()
    place = tmp_path / writable
    place.chmod(place.stat().st_mode | 0o002)
    with pytest.raises(BadConfig, match=f"other users can write {place}, "):
        check_configuration_files()


def test_what_is_missing_in_a_folder_for_everybody_could_be_made_by_anybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "like-tmp"
    folder.mkdir()
    folder.chmod(0o1777)
    _read_only(folder / "site.toml", monkeypatch)
    with pytest.raises(BadConfig, match=f"other users can write {folder}, "):
        check_configuration_files()
    (folder / "site.toml").write_text("[ledger]\n")
    check_configuration_files()


@pytest.mark.parametrize(
    ("name", "members", "own"),
    [
        (None, [], True), ("users", [], False), (None, ["eve"], False), (None, ["root"], True),
    ],
)  # fmt: skip
def test_a_primary_group_that_others_share_may_not_write(
    name: str | None,
    members: list[str],
    own: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "site.toml"
    path.write_text("[ledger]\n")
    path.chmod(0o664)
    if os.getuid() == 0:
        os.chown(path, -1, 777)
    _read_only(path, monkeypatch)
    account = pwd.struct_passwd(("slurmkit", "x", os.getuid(), path.stat().st_gid, "", "/", ""))
    group = grp.struct_group((name or "slurmkit", "x", account.pw_gid, members))
    monkeypatch.setattr(trusted_files.pwd, "getpwuid", lambda _: account)
    monkeypatch.setattr(trusted_files.grp, "getgrgid", lambda _: group)
    if own:
        check_configuration_files()
        return
    with pytest.raises(BadConfig, match="other users can write"):
        check_configuration_files()


@pytest.mark.parametrize("mode", [0o1777, 0o777, 0o755])
@pytest.mark.parametrize("file", [None, 0o644, 0o666])
def test_the_folder_of_further_files_is_checked(
    mode: int, file: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who can make a file there changes what the service does, also in a folder like /tmp."""
    folder = tmp_path / "etc" / "conf.d"
    folder.mkdir(parents=True)
    monkeypatch.setattr(files, "SITE_FOLDER", folder.parent)
    monkeypatch.setenv("XDG_CONFIG_DIRS", "none")
    if file is not None:
        (folder / "10-site.toml").write_text("[ledger]\n")
        (folder / "10-site.toml").chmod(file)
    folder.chmod(mode)
    if mode == 0o755 and file != 0o666:
        check_configuration_files()
        return
    blamed = folder / "10-site.toml" if file == 0o666 and mode != 0o777 else folder
    with pytest.raises(BadConfig, match=f"other users can write {blamed}, "):
        check_configuration_files()


def test_what_cannot_be_looked_at_is_an_error_of_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, loop = tmp_path / "site.toml", tmp_path / "pis.toml"
    loop.symlink_to(loop)
    path.write_text(f'[ledger]\noverrides = "{loop}"\n')
    _read_only(path, monkeypatch)
    with pytest.raises(BadConfig, match=f"cannot find out who may write {loop}: .*too many links"):
        check_configuration_files()


def test_who_may_write_is_checked_again_by_each_query_and_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "site.toml"
    path.write_text("[ledger]\n")
    _read_only(path, monkeypatch)
    with server._open_if_trusted(open_for_writing) as ledger:
        assert ledger.source
    path.chmod(0o666)
    with pytest.raises(BadConfig, match="other users can write"):
        server._open_if_trusted(open_for_writing)


@pytest.mark.usefixtures("munge")
def test_an_address_that_is_taken(configure: Callable[[str], None]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        configure(f'[ledger.service]\nuser = "{os.getuid()}"\nlisten = "{address}"\n')
        with pytest.raises(ServiceError, match=f"cannot listen on {address}"):
            serve(None)


def test_the_unit_starts_what_there_is_and_kills_nothing_for_a_refused_call() -> None:
    unit = (
        Path(slurmkit_accounting.__file__).parent / "assets/slurmkit-ledger.service"
    ).read_text()
    settings = dict(line.split("=", 1) for line in unit.splitlines() if "=" in line[1:])
    _, _, *words = settings["ExecStart"].split()
    assert run_to_exit_code(ledger_group, [*words, "--help"]) == 0
    assert settings["SystemCallErrorNumber"] == "EPERM"
    assert int(settings["RestartPreventExitStatus"]) == BadConfig("").exit_code


def test_the_commands_of_the_units_are_ones() -> None:
    assets = Path(slurmkit_accounting.__file__).parent / "assets"
    lines = [
        line.partition("=")[2].lstrip("-").split()
        for unit in assets.glob("*.service")
        for line in unit.read_text().splitlines()
        if line.startswith("ExecStart=")
    ]
    assert len(lines) == 3
    for program, _, *words in lines:
        assert program == "/opt/slurmkit/bin/slurmkit"
        assert run_to_exit_code(ledger_group, [*words, "--help"]) == 0


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
@pytest.mark.parametrize("name", ["slurmkit-ledger.service", "slurmkit-ingest.timer"])
def test_systemd_reads_the_units(name: str, tmp_path: Path) -> None:
    """With a program that is there, in the place of slurmkit's."""
    assets = Path(slurmkit_accounting.__file__).parent / "assets"
    for unit in (*assets.glob("*.service"), *assets.glob("*.timer")):
        text = unit.read_text().replace("/opt/slurmkit/bin/slurmkit", "/bin/true")
        (tmp_path / unit.name).write_text(text.replace("User=slurmkit", "User=root"))
    command = ["systemd-analyze", "verify", "--man=no", str(tmp_path / name)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    said = [line for line in done.stderr.splitlines() if "slurmkit" in line]
    assert (done.returncode, said) == (0, [])


def test_the_unit_limits_memory() -> None:
    folder = Path(slurmkit_accounting.__file__).parent / "assets"
    unit = (folder / "slurmkit-ledger.service").read_text().splitlines()
    assert "MemoryMax=4G" in unit
    assert "Restart=on-failure" in unit


def large(_: object, start: Callable[[str, list[tuple[str, str]]], object]) -> list[bytes]:
    start("200 OK", [])
    return [b"x" * 2**20] * 64


def test_who_sends_much_is_refused_at_once() -> None:
    address = f"127.0.0.1:{free_port()}"
    with (
        serving_all({address: Door(large, 1)}),
        socket.create_connection(_there(address), 5) as client,
    ):
        client.sendall(b"POST /v1/query HTTP/1.1\r\nContent-Length: 1000000000\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 413 ")


# waitress leaves the file into which a large answer overflows to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_who_reads_no_answer_keeps_nobody_else_waiting() -> None:
    address = f"127.0.0.1:{free_port()}"
    with (
        serving_all({address: Door(large, 1)}),
        socket.create_connection(_there(address), 5) as idle,
    ):
        idle.sendall(b"GET / HTTP/1.0\r\n\r\n")
        with urllib.request.urlopen(f"http://{address}", timeout=5) as page:
            assert len(page.read()) == 64 * 2**20


@pytest.mark.parametrize("trickle", [b"x", b"\r\n"])
def test_a_request_that_never_ends_is_closed(
    trickle: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A byte now and then keeps no connection open."""
    monkeypatch.setattr(listening, "_REQUEST_SECONDS", 0.5)
    address = f"127.0.0.1:{free_port()}"
    with (
        serving_all({address: Door(large, 1)}),
        socket.create_connection(_there(address)) as client,
    ):
        client.settimeout(0.05)

        def closed() -> bool:
            try:
                client.sendall(trickle)
                return client.recv(1) == b""
            except TimeoutError:
                return False
            except ConnectionError:
                return True

        wait_until(closed)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_answer_that_nobody_reads_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[object] = []
    close = listening._Connection.handle_close
    monkeypatch.setattr(listening, "_ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(
        listening._Connection, "handle_close", lambda one: (closed.append(one), close(one))
    )
    address = f"127.0.0.1:{free_port()}"
    with (
        serving_all({address: Door(large, 1)}),
        socket.create_connection(_there(address), 5) as idle,
    ):
        idle.sendall(b"GET / HTTP/1.0\r\n\r\n")
        wait_until(lambda: closed)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_unread_answers_are_dropped_when_all_are_too_much_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: list[int] = []
    close = listening._Connection.handle_close
    monkeypatch.setattr(
        listening._Connection, "handle_close", lambda one: (closed.append(one.addr[1]), close(one))
    )
    monkeypatch.setattr(listening, "_MOST_UNREAD", 100 * 2**20)  # of 64 MiB each, one may wait
    address = f"127.0.0.1:{free_port()}"
    with serving_all({address: Door(large, 1)}), ExitStack() as stack:
        ports = []
        for _ in range(2):
            client = stack.enter_context(socket.create_connection(_there(address), PATIENCE))
            client.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert client.recv(12) == b"HTTP/1.0 200"
            ports.append(client.getsockname()[1])
        wait_until(lambda: closed)
        assert len(closed) == 1
        assert closed[0] in ports


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("stalled", [10.0, 0.0])
def test_a_client_that_reads_on_keeps_its_answer_though_it_is_the_oldest(
    stalled: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listening, "_STALLED_SECONDS", stalled)
    closed: list[int] = []
    close = listening._Connection.handle_close
    monkeypatch.setattr(
        listening._Connection, "handle_close", lambda one: (closed.append(one.addr[1]), close(one))
    )
    written: list[str] = []

    def app(environ: dict[str, Any], start: Callable[..., object]) -> Iterator[bytes]:
        yield from large(environ, start)
        written.append("an answer")

    address = f"127.0.0.1:{free_port()}"
    with serving_all({address: Door(app, 1)}), ExitStack() as stack:
        reader, idle = (stack.enter_context(_with_small_buffer(address)) for _ in range(2))
        reader.sendall(b"GET / HTTP/1.0\r\n\r\n")
        left = 32 * 2**20
        while left > 0:
            left -= len(reader.recv(2**16))
        idle.sendall(b"GET / HTTP/1.0\r\n\r\n")

        def read_on(until: Callable[[], object]) -> None:
            wait_until(lambda: reader.recv(2**15) and until())

        # Before it is written as a whole, the answer of the idle one may be the smaller one.
        read_on(lambda: len(written) == 2)
        # Less than an answer of 64 MiB, even without what is in the kernel's buffers.
        monkeypatch.setattr(listening, "_MOST_UNREAD", 40 * 2**20)
        read_on(lambda: closed)
        assert closed == [idle.getsockname()[1]]


def test_one_address_cannot_take_all_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "_REQUEST_SECONDS", 10 * PATIENCE)
    monkeypatch.setattr(listening, "_CONNECTIONS_PER_ADDRESS", 3)
    address = f"127.0.0.1:{free_port()}"
    with serving_all({address: Door(large, 1)}), ExitStack() as stack:
        idle = [
            stack.enter_context(socket.create_connection(_there(address), PATIENCE))
            for _ in range(5)
        ]
        assert [client.recv(1) for client in idle[3:]] == [b"", b""]
        with socket.create_connection(
            _there(address), PATIENCE, source_address=("127.0.0.2", 0)
        ) as other:
            other.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert other.recv(100).startswith(b"HTTP/1.0 200 OK")


def test_that_some_wait_is_no_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    go, address = threading.Event(), f"127.0.0.1:{free_port()}"

    def slow(_: object, start: Callable[[str, list[tuple[str, str]]], object]) -> list[bytes]:
        go.wait(PATIENCE)
        start("200 OK", [])
        return [b"well"]

    with serving_all({address: Door(slow, 1)}), ExitStack() as stack:
        clients = [
            stack.enter_context(socket.create_connection(_there(address), 5)) for _ in range(4)
        ]
        for client in clients:
            client.sendall(b"GET / HTTP/1.0\r\n\r\n")
        time.sleep(0.2)
        go.set()
        assert all(client.recv(12) == b"HTTP/1.0 200" for client in clients)
    assert caplog.records == []


# waitress leaves the file into which a large answer overflows to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_door_that_is_closed_leaves_nothing_behind() -> None:
    address, before = f"127.0.0.1:{free_port()}", threading.active_count()
    with (
        serving_all({address: Door(large, 1)}),
        socket.create_connection(_there(address), 5) as idle,
    ):
        idle.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert idle.recv(100).startswith(b"HTTP/1.1 200 OK")
    assert threading.active_count() == before
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(_there(address), 5)


def test_a_door_closes_while_another_thread_wakes_its_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other's wake-up may be what closes the pipe, through which this one still wakes it."""
    address, pull = f"127.0.0.1:{free_port()}", trigger._physical_pull

    def two_pulls(of: trigger) -> None:
        pull(of)
        time.sleep(0.1)
        pull(of)

    with serving_all({address: Door(large, 1)}):
        monkeypatch.setattr(trigger, "_physical_pull", two_pulls)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(_there(address), 5)


def _with_small_buffer(address: str) -> socket.socket:
    """Connect; the kernel could else take the rest of an answer from the server."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**18)
    client.settimeout(PATIENCE)
    client.connect(_there(address))
    return client


def _there(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)
