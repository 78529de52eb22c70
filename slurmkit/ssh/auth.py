"""Log in: agent and keys, then one-time codes, then a password; several where all are wanted."""

from __future__ import annotations

import base64
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import paramiko

from slurmkit.errors import SshError

if TYPE_CHECKING:
    from slurmkit.ssh.asking import Ask
    from slurmkit.ssh.hosts import Host

_TRIES = 3
Step = Callable[[], list[str]]


def log_in(transport: Any, host: Host, ask: Ask) -> None:
    """Authenticate on a transport whose host key has been checked.

    Raises:
        SshError: naming what the server takes and what was tried.
    """
    tried: list[str] = []
    wanted = _first(transport, host)
    while not transport.is_authenticated():
        for name, step in _steps(transport, host, ask, wanted):
            tried.append(name)
            done = _tried(step)
            if done is not None:
                wanted = done
                break
        else:
            took = ", ".join(dict.fromkeys(tried)) or "nothing that was at hand"
            raise SshError(
                f"{host.user}@{host.alias} lets nobody in with {took}; it takes"
                f" {', '.join(wanted)}; try: ssh {host.alias}"
            )


def _first(transport: Any, host: Host) -> list[str]:
    """What the server takes at first; none where it asks for nothing."""
    try:
        transport.auth_none(host.user)
    except paramiko.BadAuthenticationType as error:
        return list(error.allowed_types)
    except paramiko.AuthenticationException:
        return ["publickey", "keyboard-interactive", "password"]
    return []


def _tried(step: Step) -> list[str] | None:
    """What is wanted next, empty once we are in; None when it was not taken."""
    try:
        return step()
    except paramiko.BadAuthenticationType:
        return None
    except paramiko.AuthenticationException:
        return None


def _steps(transport: Any, host: Host, ask: Ask, wanted: list[str]) -> Iterator[tuple[str, Step]]:
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


def _answers(host: Host, ask: Ask) -> Callable[[str, str, list[tuple[str, bool]]], list[str]]:
    def answer(title: str, said: str, prompts: list[tuple[str, bool]]) -> list[str]:
        told = " ".join(filter(None, [title.strip(), said.strip()]))
        lead = f"{host.alias}: {told + ' ' if told else ''}"
        return [ask(f"{lead}{prompt.strip()}") for prompt, _ in prompts]

    return answer


def _keys(host: Host, ask: Ask) -> Iterator[tuple[str, Any]]:
    """The agent's keys, then those in files; a file's own question comes only when it is tried."""
    files = [path for path in host.identities if path.is_file()]
    agents = _of_agent(host)
    public = {_public(path) for path in host.identities} - {b""}
    for key in agents:
        if not host.only_identities or key.asbytes() in public:
            yield "the agent's keys", key
    held = {key.asbytes() for key in agents}
    for path in files:
        if _public(path) in held:
            continue
        yield from ((f"the key {path}", key) for key in _loaded(str(path), ask))


class _Agent(paramiko.agent.AgentSSH):  # type: ignore[misc] # paramiko has no types
    """The agent behind a socket; paramiko's own knows that of SSH_AUTH_SOCK alone."""

    def __init__(self, path: str) -> None:
        super().__init__()
        line = socket.socket(socket.AF_UNIX)
        try:
            line.connect(path)
            self._connect(line)
        except BaseException:
            line.close()
            raise


def _of_agent(host: Host) -> list[Any]:
    path = os.environ.get("SSH_AUTH_SOCK", "") if host.agent == "" else host.agent
    try:
        return list(_Agent(path).get_keys()) if path else []
    except (paramiko.SSHException, OSError):
        return []


def _public(path: Path) -> bytes:
    """The public half that lies beside a key, or is all that lies there."""
    for each in (path.with_name(f"{path.name}.pub"), path):
        try:
            words = each.read_text("ascii").split()
            if len(words) > 1 and words[0].startswith(("ssh-", "ecdsa-", "sk-")):
                return base64.b64decode(words[1])
        except (OSError, ValueError):
            continue
    return b""


def _loaded(path: str, ask: Ask) -> Iterator[Any]:
    passphrase: bytes | None = None
    for _ in range(_TRIES + 1):
        try:
            yield paramiko.PKey.from_path(path, passphrase)
        except paramiko.PasswordRequiredException:
            passphrase = ask(f"passphrase of {path}:").encode()
        except (TypeError, ValueError) as error:
            if passphrase is None and "password" not in str(error).lower():
                return  # no key; one that was asked for may have been given wrongly
            passphrase = ask(f"passphrase of {path}:").encode()
        except (paramiko.SSHException, paramiko.pkey.UnknownKeyType, OSError):
            return
        else:
            return
