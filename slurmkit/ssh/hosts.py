"""What OpenSSH's configuration says of a host: its own client is asked (`ssh -G`).

So Host, Match, Include and the rest mean here what they mean to ssh, whatever its release.
"""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from slurmkit.errors import BadConfig, SshError

if TYPE_CHECKING:
    from slurmkit.ssh.section import ClusterSection

_JUMP = re.compile(
    r"(?:ssh://)?(?:(?P<user>[^@\s]+)@)?(?P<host>\[[^\]]+\]|[^:\s]+)(?::(?P<port>\d+))?"
)
_MOST_HOPS = 8


class Host(msgspec.Struct, frozen=True):
    """A machine to log in to, as OpenSSH would.

    Attributes:
        alias: the name it was asked for by.
        name: where it is, a name or an address.
        known_as: the name its key is kept under.
        identities: files of keys that may exist; `only_identities` when no other key is offered.
        agent: socket of the agent, empty for that of SSH_AUTH_SOCK, None for none.
        known_hosts: files of host keys; the first is the user's own.
        proxy_command: what leads there, in place of a connection of ours.
        jumps: hosts on the way, in order.
        timeout: seconds until connecting is given up.
        alive: seconds between words to a silent server.
    """

    alias: str
    name: str
    port: int
    user: str
    known_as: str
    identities: tuple[Path, ...]
    only_identities: bool
    agent: str | None
    known_hosts: tuple[Path, ...]
    proxy_command: str | None
    jumps: tuple[Host, ...]
    timeout: float
    alive: int


def host_of(name: str, section: ClusterSection) -> Host:
    """The login node of a cluster.

    Raises:
        BadConfig: when OpenSSH's configuration cannot be read.
        SshError: when OpenSSH's client is not installed.
    """
    given = ["-l", section.user] if section.user else []
    given += ["-p", str(section.port)] if section.port else []
    given += ["-i", str(Path(section.identity).expanduser())] if section.identity else []
    config = str(Path(section.ssh_config).expanduser()) if section.ssh_config else ""
    return _read(section.host or name, given, config, ())


def _read(alias: str, given: list[str], config: str, via: tuple[str, ...]) -> Host:
    if len(via) > _MOST_HOPS:
        raise BadConfig(f"ProxyJump goes round in circles: {' → '.join(via)}")
    said = _asked(["ssh", "-G", *(["-F", config] if config else []), *given, "--", alias])
    return _host(alias, said, config, via)


def _asked(argv: list[str]) -> dict[str, list[str]]:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)
    except FileNotFoundError:
        raise SshError(
            "OpenSSH's client (ssh) is not installed here; it says what ~/.ssh/config means"
        ) from None
    except subprocess.TimeoutExpired:
        raise SshError("`ssh -G` gave no answer in 30 s; a Match exec may hang") from None
    if done.returncode:
        raise BadConfig(f"OpenSSH's configuration: {' '.join(done.stderr.split())}")
    found: dict[str, list[str]] = defaultdict(list)
    for line in done.stdout.splitlines():
        key, _, value = line.partition(" ")
        found[key].append(value)
    return found


def _host(alias: str, said: dict[str, list[str]], config: str, via: tuple[str, ...]) -> Host:
    def one(key: str, default: str = "") -> str:
        value = said.get(key, [default])[0]
        return default if value == "none" else value

    name, port, user = one("hostname", alias), int(one("port", "22")), one("user")
    tokens = {"%h": name, "%p": str(port), "%r": user, "%n": alias, "%%": "%"}
    command = one("proxycommand")
    agent = one("identityagent")
    known = [*one("userknownhostsfile").split(), *one("globalknownhostsfile").split()]
    timeout = one("connecttimeout")
    return Host(
        alias=alias,
        name=name,
        port=port,
        user=user,
        known_as=one("hostkeyalias") or (name if port == 22 else f"[{name}]:{port}"),
        identities=tuple(_path(each, tokens) for each in said.get("identityfile", [])),
        only_identities=one("identitiesonly") == "yes",
        agent=None if said.get("identityagent") == ["none"] else _agent(agent),
        known_hosts=tuple(_path(each, tokens) for each in known),
        proxy_command=_filled(command, tokens) if command else None,
        jumps=_jumps(one("proxyjump"), config, (*via, alias)),
        timeout=float(timeout) if timeout.isdecimal() else 30.0,
        alive=int(one("serveraliveinterval", "0")) or 30,
    )


def _agent(said: str) -> str:
    return "" if said in ("", "SSH_AUTH_SOCK", "$SSH_AUTH_SOCK") else str(Path(said).expanduser())


def _jumps(said: str, config: str, via: tuple[str, ...]) -> tuple[Host, ...]:
    """The hosts of a ProxyJump; what leads to the first goes before it, as with `ssh -J`."""
    found: list[Host] = []
    for word in filter(None, said.split(",")):
        match = _JUMP.fullmatch(word)
        if match is None:
            raise BadConfig(f"ProxyJump {word!r} is not [USER@]HOST[:PORT]")
        given = ["-l", match["user"]] if match["user"] else []
        given += ["-p", match["port"]] if match["port"] else []
        hop = _read(match["host"].strip("[]"), given, config, via)
        found += [*(() if found else hop.jumps), msgspec.structs.replace(hop, jumps=())]
    return tuple(found)


def _path(text: str, tokens: dict[str, str]) -> Path:
    home = str(Path("~").expanduser())
    return Path(_filled(text, tokens | {"%d": home})).expanduser()


def _filled(text: str, tokens: dict[str, str]) -> str:
    return re.sub(r"%.", lambda match: tokens.get(match[0], match[0]), text)
