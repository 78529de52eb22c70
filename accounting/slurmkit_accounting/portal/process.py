"""The process of the pages: their threads would take the time of the service's ingest.

The service starts it, starts it again if it ends, and stops it by closing its standard input. So it
also stops when the service is killed.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

import msgspec

from slurmkit.config.files import load_section
from slurmkit.errors import ServiceError, SlurmkitError
from slurmkit_accounting.portal.listener import portal_doors
from slurmkit_accounting.portal.settings import PortalSection
from slurmkit_accounting.remote.client import fault_error
from slurmkit_accounting.remote.protocol import ServiceFault
from slurmkit_accounting.service.log import Log
from slurmkit_accounting.service.server import service_parts, serving_all

_ARGV = (sys.executable, "-P", "-m", "slurmkit_accounting.portal.process")
_PAUSE_SECONDS = 5.0  # after which a process that ended is started again
_STOP_SECONDS = 60.0


class _Start(msgspec.Struct):
    """The first line of its standard input: a URL can hold a password, so it is no argument."""

    db: str | None


class _Started(msgspec.Struct):
    """The first line of its standard output: that it serves, or why it does not."""

    fault: ServiceFault | None = None


@contextmanager
def portal_process(db: str | None, log: Log) -> Iterator[str | None]:
    """Serve the pages in a process of their own until the end of the `with` block.

    Args:
        db: database URL of the ledger; None for the configured one.
        log: gets a line if the process ends by itself.

    Yields:
        The address; None where `[ledger.portal]` names none, and there are no pages.

    Raises:
        SlurmkitError: any error of `portal_doors` and `serving_all`.
    """
    address = load_section("ledger.portal", PortalSection).listen
    if not address:
        yield None
        return
    keeper = _Keeper(db, log)
    try:
        yield address
    finally:
        keeper.stop()


class _Keeper:
    """Starts the process, and again if it ends."""

    def __init__(self, db: str | None, log: Log) -> None:
        self._db, self._log = db, log
        self._stopping = threading.Event()
        self._lock = threading.Lock()  # held where the process is replaced or told to stop
        self._process = _start(db)
        self._thread = threading.Thread(target=self._keep, daemon=True, name="portal process")
        self._thread.start()

    def stop(self) -> None:
        """Let it answer what it was asked, and end."""
        with self._lock:
            self._stopping.set()
            _let_end(self._process)
        self._thread.join(_STOP_SECONDS)
        if self._thread.is_alive():
            self._process.kill()
            self._thread.join()

    def _keep(self) -> None:
        while True:
            code = self._process.wait()
            _let_end(self._process)
            if self._stopping.is_set():
                return
            self._log("failed", why=f"the process of the pages ended ({_named(code)})")
            self._start_again()

    def _start_again(self) -> None:
        while not self._stopping.wait(_PAUSE_SECONDS):
            try:
                process = _start(self._db)
            except SlurmkitError as error:
                self._log("failed", why=f"the pages do not start: {error}")
                continue
            with self._lock:
                self._process = process
                if self._stopping.is_set():
                    _let_end(process)
            return


def _start(db: str | None) -> subprocess.Popen[bytes]:
    """Start the process; return it once it serves.

    Raises:
        SlurmkitError: why it does not.
    """
    process = subprocess.Popen(_ARGV, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None  # noqa: S101 - for the type checker
    assert process.stdout is not None  # noqa: S101
    try:
        process.stdin.write(msgspec.json.encode(_Start(db)) + b"\n")
        process.stdin.flush()
        line = process.stdout.readline()
    except BrokenPipeError:
        line = b""
    process.stdout.close()
    fault = msgspec.json.decode(line, type=_Started).fault if line else None
    if line and fault is None:
        return process
    _let_end(process)
    code = process.wait()
    if fault is None:
        raise ServiceError(f"the process of the pages ended ({_named(code)}); see the log")
    raise fault_error(fault.kind, fault.message)


def _let_end(process: subprocess.Popen[bytes]) -> None:
    """Close its standard input; it may have ended before."""
    assert process.stdin is not None  # noqa: S101 - for the type checker
    with suppress(BrokenPipeError):
        process.stdin.close()


def _named(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


def main() -> None:
    """Serve the pages until standard input ends, or SIGTERM."""
    signal.signal(signal.SIGTERM, _leave)
    # Ctrl-C on a terminal reaches both; the service ends, and so does its end of the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    db = msgspec.json.decode(sys.stdin.buffer.readline(), type=_Start).db
    try:
        with portal_doors(service_parts(db)) as doors, serving_all(doors):
            _tell(_Started())
            sys.stdin.buffer.read()
    except SlurmkitError as error:
        _tell(_Started(ServiceFault(type(error).__name__, str(error))))
        sys.exit(1)


def _tell(started: _Started) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(started) + b"\n")
    sys.stdout.flush()


def _leave(_number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(0)


if __name__ == "__main__":
    main()
