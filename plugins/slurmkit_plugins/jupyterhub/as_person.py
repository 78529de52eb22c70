"""Run `person.py` with a person's own rights, from a hub that is root or may use sudo."""

from __future__ import annotations

import asyncio
import os
import pwd
import signal
import sys
from collections import defaultdict
from contextlib import suppress
from subprocess import PIPE
from typing import Any, TypeVar

import msgspec

from slurmkit.errors import SlurmkitError
from slurmkit.formats.display import printable
from slurmkit_plugins.jupyterhub.person import Answer, Failed, Request

AnswerT = TypeVar("AnswerT", bound=Answer)
_SECONDS = 90.0
_KILL_SECONDS = 5.0
_MOST_BYTES, _MOST_LETTERS = 1 << 20, 1000
_MOST_AT_ONCE = 8
_KEPT = ("LANG", "LC_ALL", "SLURM_CONF", "SLURMKIT_CONFIG", "TZ")
_slots = asyncio.Semaphore(_MOST_AT_ONCE)
# Who hangs their own process must not hold the slots of others.
_of_person: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)


async def ask_as(name: str, request: Request, kind: type[AnswerT]) -> AnswerT:
    """Return the answer to a request, made with the rights of a person.

    The person can change what their own process says. So nothing of the answer is believed about
    anybody else, and it is small.

    Args:
        name: login name.
        request: the request.
        kind: type of its answer.

    Raises:
        SlurmkitError: when there is no such person, or no answer.
    """
    try:
        async with asyncio.timeout(_SECONDS), _of_person[name], _slots:
            answer = await _run(name, msgspec.json.encode(request))
    except TimeoutError as error:
        raise SlurmkitError(
            f"slurmkit did not answer as {name} within {_SECONDS:g} s; try again later"
        ) from error
    except (OSError, TypeError) as error:  # TypeError: profiles that are no JSON
        raise SlurmkitError(f"slurmkit cannot be run as {name}: {error}") from error
    if isinstance(answer, Failed):
        raise SlurmkitError(printable(answer.message)[:_MOST_LETTERS])
    if not isinstance(answer, kind):
        raise SlurmkitError(f"slurmkit gave another answer as {name}: {type(answer).__name__}")
    return answer


def find_person(name: str) -> pwd.struct_passwd:
    """Return the account of a person on this machine.

    Raises:
        SlurmkitError: when there is none, or it is root.
    """
    try:
        person = pwd.getpwnam(name)
    except KeyError as error:
        raise SlurmkitError(
            f"no account {name!r} on the hub's machine: servers are jobs, and Slurm needs the same"
            f" accounts everywhere; see: getent passwd {name}"
        ) from error
    if person.pw_uid == 0:
        raise SlurmkitError(f"{name} is root, and the hub starts no jobs as root")
    return person


async def _run(name: str, request: bytes) -> Answer:
    argv, rights = await asyncio.to_thread(lambda: command_as(find_person(name)))
    process = await asyncio.create_subprocess_exec(
        *argv, stdin=PIPE, stdout=PIPE, stderr=PIPE, cwd="/", start_new_session=True, **rights
    )
    try:
        said, errors = await _talk(process, request)
        code = await process.wait()
    finally:
        await _end(process)
    try:
        return msgspec.json.decode(said, type=Answer)  # type: ignore[no-any-return]
    except msgspec.MsgspecError as error:
        lines = errors.decode("utf-8", "replace").strip().splitlines()
        last = f": {printable(lines[-1])[:_MOST_LETTERS]}" if lines else ""
        raise SlurmkitError(
            f"slurmkit gave no answer as {name} (exit code {code}){last}"
        ) from error


async def _talk(process: asyncio.subprocess.Process, request: bytes) -> tuple[bytes, bytes]:
    """Write a request; return the answer, and the last of what the process says of errors.

    Raises:
        SlurmkitError: for a large answer.
    """
    assert process.stdin is not None  # noqa: S101 - all three are pipes
    assert process.stdout is not None  # noqa: S101
    assert process.stderr is not None  # noqa: S101
    errors = asyncio.create_task(_read_last(process.stderr))
    with suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(request)
        await process.stdin.drain()
        process.stdin.close()
    said = b""
    while more := await process.stdout.read(65536):
        said += more
        if len(said) > _MOST_BYTES:
            raise SlurmkitError("slurmkit's answer as this person is larger than 1 MiB")
    return said, await errors


async def _read_last(stream: asyncio.StreamReader) -> bytes:
    last = b""
    while more := await stream.read(4096):
        last = (last + more)[-4096:]
    return last


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a process that may hang, or that a hub without root may not kill."""
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _KILL_SECONDS)
    # A child of it could keep the pipes open. There is no public way to close them.
    with suppress(PermissionError):
        process._transport.close()  # type: ignore[attr-defined] # noqa: SLF001


def command_as(person: pwd.struct_passwd) -> tuple[list[str], dict[str, Any]]:
    """Return the command that answers one request of a person, and the rights it gets.

    Returns:
        The argv, and keyword arguments of `subprocess.Popen`. A hub that is not root uses sudo.
    """
    # -I: nothing of the person's folders or variables is imported.
    argv = [sys.executable, "-I", "-m", "slurmkit_plugins.jupyterhub.person"]
    variables = {name: os.environ[name] for name in _KEPT if name in os.environ}
    variables |= {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": person.pw_dir,
        "USER": person.pw_name,
        "LOGNAME": person.pw_name,
        "SHELL": person.pw_shell,
    }
    if os.geteuid() == person.pw_uid:
        return argv, {"env": variables}
    if os.geteuid() != 0:
        return ["sudo", "-n", "-u", person.pw_name, "--", *argv], {}
    groups = os.getgrouplist(person.pw_name, person.pw_gid)
    return argv, {
        "env": variables,
        "user": person.pw_uid,
        "group": person.pw_gid,
        "extra_groups": groups,
    }
