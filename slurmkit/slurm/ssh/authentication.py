"""Authentication: agent and keys, then one-time codes, then a password, or several in a row.

A function asks the user: at the terminal, from the main thread alone, or nobody.
"""

from __future__ import annotations

import base64
import getpass
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import paramiko

from slurmkit.errors import SshError
from slurmkit.formats.display import printable

if TYPE_CHECKING:
    from slurmkit.slurm.ssh.hosts import SshHost

_TRIES = 3
LoginStep = Callable[[], list[str]]
AskUser = Callable[[str], str]
"""Function from a prompt to the answer; raises `SshError` where nobody can be asked."""


def log_in(transport: Any, host: SshHost, ask: AskUser) -> None:
    """Authenticate on a transport whose host key has been checked.

    Raises:
        SshError: naming the methods that the server takes and those tried.
    """
    tried: list[str] = []
    wanted = _first_methods(transport, host)
    while not transport.is_authenticated():
        for name, step in _steps(transport, host, ask, wanted):
            tried.append(name)
            next_methods = _try_step(step)
            if next_methods is not None:
                wanted = next_methods
                break
        else:
            took = ", ".join(dict.fromkeys(tried)) or "nothing (no key or method fits)"
            if tried and tried[-1] == "a password":
                took += "; the password was not right"
            raise SshError(
                f"cannot log in to {host.user}@{host.alias}; tried: {took}; it accepts:"
                f" {', '.join(wanted)}; to find the cause, run: ssh {host.alias}"
            )


def _first_methods(transport: Any, host: SshHost) -> list[str]:
    """Return the methods that the server offers first; empty if it wants none."""
    try:
        transport.auth_none(host.user)
    except paramiko.BadAuthenticationType as error:
        return list(error.allowed_types)
    except paramiko.AuthenticationException:
        return ["publickey", "keyboard-interactive", "password"]
    return []


def _try_step(step: LoginStep) -> list[str] | None:
    """Return the methods wanted next, empty once logged in; None if the step was refused."""
    try:
        return step()
    except paramiko.BadAuthenticationType:
        return None
    except paramiko.AuthenticationException:
        return None


def _steps(
    transport: Any, host: SshHost, ask: AskUser, wanted: list[str]
) -> Iterator[tuple[str, LoginStep]]:
    """Yield what can be tried, by name, for the wanted methods."""
    user = host.user
    if "publickey" in wanted:
        for name, key in _keys(host, ask):
            yield name, lambda key=key: transport.auth_publickey(user, key)  # type: ignore[misc]
    if "keyboard-interactive" in wanted:
        for _ in range(_TRIES):
            yield "a one-time code", lambda: transport.auth_interactive(user, _answers(host, ask))
    if "password" in wanted:
        for _ in range(_TRIES):
            words = f"{user}@{host.alias}'s password:"
            yield (
                "a password",
                lambda words=words: transport.auth_password(  # type: ignore[misc]
                    user, ask(words), fallback=False
                ),
            )


def _answers(
    host: SshHost, ask: AskUser
) -> Callable[[str, str, list[tuple[str, bool]]], list[str]]:
    def answer(title: str, instructions: str, prompts: list[tuple[str, bool]]) -> list[str]:
        text = " ".join(filter(None, [title.strip(), instructions.strip()]))
        lead = f"{host.alias}: {text + ' ' if text else ''}"
        return [ask(f"{lead}{prompt.strip()}") for prompt, _ in prompts]

    return answer


def _keys(host: SshHost, ask: AskUser) -> Iterator[tuple[str, Any]]:
    """Yield the agent's keys, then those in files; a passphrase is asked for only when needed."""
    files = [path for path in host.identities if path.is_file()]
    agent_keys = _agent_keys(host)
    public = {_public_key(path) for path in host.identities} - {b""}
    for key in agent_keys:
        if not host.only_identities or key.asbytes() in public:
            yield "the agent's keys", key
    in_agent = {key.asbytes() for key in agent_keys}
    for path in files:
        if _public_key(path) in in_agent:
            continue
        yield from ((f"the key {path}", key) for key in _load_key(str(path), ask))


class _Agent(paramiko.agent.AgentSSH):  # type: ignore[misc] # paramiko has no types
    """The agent of any socket; paramiko's own agent only uses SSH_AUTH_SOCK."""

    def __init__(self, path: str) -> None:
        super().__init__()
        line = socket.socket(socket.AF_UNIX)
        try:
            line.connect(path)
            self._connect(line)
        except BaseException:
            line.close()
            raise


def _agent_keys(host: SshHost) -> list[Any]:
    path = os.environ.get("SSH_AUTH_SOCK", "") if host.agent == "" else host.agent
    try:
        return list(_Agent(path).get_keys()) if path else []
    except (paramiko.SSHException, OSError):
        return []


def _public_key(path: Path) -> bytes:
    """Read the public key from PATH.pub, or from PATH itself; empty if there is none."""
    for each in (path.with_name(f"{path.name}.pub"), path):
        try:
            words = each.read_text("ascii").split()
            if len(words) > 1 and words[0].startswith(("ssh-", "ecdsa-", "sk-")):
                return base64.b64decode(words[1])
        except (OSError, ValueError):
            continue
    return b""


def _load_key(path: str, ask: AskUser) -> Iterator[Any]:
    """Yield the private key of a file, and ask for its passphrase if it has one."""
    passphrase: bytes | None = None
    for _ in range(_TRIES + 1):
        try:
            yield paramiko.PKey.from_path(path, passphrase)
        except paramiko.PasswordRequiredException:
            passphrase = ask(f"passphrase of {path}:").encode()
        except (TypeError, ValueError) as error:
            if passphrase is None and "password" not in str(error).lower():
                return  # not a key (after a question it may be a wrong passphrase)
            passphrase = ask(f"passphrase of {path}:").encode()
        except (paramiko.SSHException, paramiko.pkey.UnknownKeyType, OSError):
            return
        else:
            return


def ask_at_terminal(words: str) -> str:
    """Ask at the terminal, without echo.

    Raises:
        SshError: when there is no terminal.
    """
    try:
        with open("/dev/tty", "rb"):  # noqa: PTH123 - a Path says no more
            pass
    except OSError:
        raise SshError(
            f"the login needs an answer to {printable(words)!r}, but there is no terminal here;"
            " run this in a terminal"
        ) from None
    with suppress(ValueError):
        sys.stdout.flush()
    try:
        return getpass.getpass(f"{printable(words).rstrip()} ")
    except EOFError:
        raise SshError(f"the login needs an answer to {printable(words)!r} and got none") from None


def ask_in_main_thread(ask: AskUser) -> AskUser:
    """Let only the main thread ask: otherwise the user may be typing something else."""

    def asked(words: str) -> str:
        here = threading.current_thread() is threading.main_thread()
        return (ask if here else ask_nobody)(words)

    return asked


def ask_nobody(words: str) -> str:
    """Refuse to ask, e.g. while a full-screen program runs.

    Raises:
        SshError: always.
    """
    raise SshError(
        f"the login needs an answer to {printable(words)!r}, which you cannot type now; end this"
        " program and start it again"
    )
