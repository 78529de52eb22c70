"""The SSH hosts of the configured clusters, with their OpenSSH settings from `ssh -G`.

So Host, Match and Include mean here what they mean to the installed ssh.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import zlib
from collections import defaultdict
from pathlib import Path

import msgspec

from slurmkit.config.files import did_you_mean, load_tables
from slurmkit.errors import BadConfig, BadInput, SshError

_JUMP = re.compile(
    r"(?:ssh://)?(?:(?P<user>[^@\s]+)@)?(?P<host>\[[^\]]+\]|[^:\s]+)(?::(?P<port>\d+))?"
)
_MOST_HOPS = 8
ALGORITHMS = ("ciphers", "macs", "kexalgorithms", "hostkeyalgorithms")
# What a host or user name may not have where a shell runs the command it is put into (ssh.c,
# valid_hostname and valid_ruser).
_UNSAFE = re.compile(r"^-|[\s'\"`$\\;&<>|(){}]")


class SshHost(msgspec.Struct, frozen=True):
    """A machine to log in to, with its OpenSSH settings.

    Attributes:
        alias: the name in the configuration.
        name: host name or address (HostName).
        known_as: name in the files of host keys (HostKeyAlias).
        identities: key files, which need not exist.
        only_identities: offer no other key of the agent (IdentitiesOnly).
        agent: socket of the agent; empty for SSH_AUTH_SOCK, None for no agent.
        known_hosts: files of host keys; the first is the user's own.
        revoked: files of revoked host keys (RevokedHostKeys).
        algorithms: what OpenSSH allows, most preferred first, by its keyword (`ciphers`, `macs`,
            `kexalgorithms`, `hostkeyalgorithms`).
        proxy_command: command that connects to the host, in place of a TCP connection; it is run
            by the user's shell, as ssh does.
        jumps: jump hosts, in order.
        timeout: seconds after which to give up connecting.
        alive: seconds between keep-alive messages.
        accept: command that accepts its host key.
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
    revoked: tuple[Path, ...]
    algorithms: dict[str, tuple[str, ...]]
    proxy_command: str | None
    jumps: tuple[SshHost, ...]
    timeout: float
    alive: int
    accept: str


def read_ssh_host(name: str, section: ClusterSection) -> SshHost:
    """Read the settings of a cluster's login node.

    Raises:
        BadConfig: when OpenSSH's configuration cannot be read.
        SshError: when OpenSSH's client is not installed.
    """
    given = ["-l", section.user] if section.user else []
    given += ["-p", str(section.port)] if section.port else []
    given += ["-i", str(Path(section.identity).expanduser())] if section.identity else []
    config = str(Path(section.ssh_config).expanduser()) if section.ssh_config else ""
    host = _read(section.host or name, given, config, ())
    return msgspec.structs.replace(host, accept=f"slurmkit clusters trust {name}")


def _read(alias: str, given: list[str], config: str, via: tuple[str, ...]) -> SshHost:
    if len(via) > _MOST_HOPS:
        raise BadConfig(f"ProxyJump leads in a circle: {' → '.join(via)}; correct ~/.ssh/config")
    options = [*(["-F", config] if config else []), *given]
    host = _parse_host(alias, _run_ssh(["ssh", "-G", *options, "--", alias]), config, via)
    return msgspec.structs.replace(host, accept=shlex.join(["ssh", *options, alias]))


def _run_ssh(argv: list[str]) -> dict[str, list[str]]:
    """Run `ssh -G` and return all values by key."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)
    except FileNotFoundError:
        raise SshError(
            "OpenSSH's client (ssh) is not installed here; install it: slurmkit uses it to read"
            " ~/.ssh/config"
        ) from None
    except subprocess.TimeoutExpired:
        raise SshError(
            "`ssh -G` gave no answer in 30 s; a `Match exec` in ~/.ssh/config may hang"
        ) from None
    if done.returncode:
        raise BadConfig(f"OpenSSH's configuration: {' '.join(done.stderr.split())}")
    settings: dict[str, list[str]] = defaultdict(list)
    for line in done.stdout.splitlines():
        key, _, value = line.partition(" ")
        settings[key].append(value)
    return settings


def _parse_host(
    alias: str, settings: dict[str, list[str]], config: str, via: tuple[str, ...]
) -> SshHost:
    def one(key: str, default: str = "") -> str:
        value = settings.get(key, [default])[0]
        return default if value == "none" else value

    name, port, user = one("hostname", alias), int(one("port", "22")), one("user")
    tokens = {"%h": name, "%p": str(port), "%r": user, "%n": alias, "%%": "%"}
    command = one("proxycommand")
    agent = one("identityagent")
    known = [*one("userknownhostsfile").split(), *one("globalknownhostsfile").split()]
    timeout = one("connecttimeout")
    return SshHost(
        alias=alias,
        name=name,
        port=port,
        user=user,
        known_as=one("hostkeyalias") or (name if port == 22 else f"[{name}]:{port}"),
        identities=tuple(_path(each, tokens) for each in settings.get("identityfile", [])),
        only_identities=one("identitiesonly") == "yes",
        agent=None if settings.get("identityagent") == ["none"] else _agent_socket(agent),
        known_hosts=tuple(_path(each, tokens) for each in known),
        revoked=tuple(_path(each, tokens) for each in one("revokedhostkeys").split()),
        algorithms={key: tuple(one(key).split(",")) for key in ALGORITHMS if one(key)},
        proxy_command=_fill_command(command, tokens) if command else None,
        jumps=_jumps(one("proxyjump"), config, (*via, alias)),
        timeout=float(timeout) if timeout.isdecimal() else 30.0,
        alive=int(one("serveraliveinterval", "0")) or 30,
        accept="",
    )


def _agent_socket(value: str) -> str:
    return "" if value in ("", "SSH_AUTH_SOCK", "$SSH_AUTH_SOCK") else str(Path(value).expanduser())


def _jumps(value: str, config: str, via: tuple[str, ...]) -> tuple[SshHost, ...]:
    """Read the hosts of a ProxyJump; only the first keeps its own jump hosts, as with `ssh -J`."""
    jumps: list[SshHost] = []
    for word in filter(None, value.split(",")):
        match = _JUMP.fullmatch(word)
        if match is None:
            raise BadConfig(f"ProxyJump {word!r} is not [USER@]HOST[:PORT]")
        given = ["-l", match["user"]] if match["user"] else []
        given += ["-p", match["port"]] if match["port"] else []
        hop = _read(match["host"].strip("[]"), given, config, via)
        jumps += [*(() if jumps else hop.jumps), msgspec.structs.replace(hop, jumps=())]
    return tuple(jumps)


def _path(text: str, tokens: dict[str, str]) -> Path:
    home = str(Path("~").expanduser())
    return Path(_fill_tokens(text, tokens | {"%d": home})).expanduser()


def _fill_command(command: str, tokens: dict[str, str]) -> str:
    for token, value in tokens.items():
        if token in command and _UNSAFE.search(value):
            raise BadConfig(f"{value!r} cannot be part of a ProxyCommand; correct ~/.ssh/config")
    return _fill_tokens(command, tokens)


def _fill_tokens(text: str, tokens: dict[str, str]) -> str:
    return re.sub(r"%.", lambda match: tokens.get(match[0], match[0]), text)


class ClusterSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Section `[clusters.NAME]`. Keys that are not set are taken from ~/.ssh/config.

    Attributes:
        host: login node of the cluster, or a Host of ~/.ssh/config; NAME by default.
        user: login name on the cluster.
        port: port of its sshd.
        identity: file with the key to log in with.
        ssh_config: file to read instead of ~/.ssh/config and /etc/ssh/ssh_config.
        path: folder of Slurm's commands on the login node, or several separated by colons; by
            default slurmkit searches for them.
        folder: folder on the login node where jobs start and where code is sent; the home by
            default.
    """

    host: str = ""
    user: str = ""
    port: int = 0
    identity: str = ""
    ssh_config: str = ""
    path: str = ""
    folder: str = ""


def load_clusters() -> dict[str, ClusterSection]:
    """Load all clusters in the configuration, by name."""
    return load_tables("clusters", ClusterSection)


def cluster_cache_key(name: str, section: ClusterSection) -> str:
    """Return the cache key of a cluster; any other setting gives another key."""
    return f"{name}-ssh-{zlib.crc32(repr(section).encode()):08x}"


def cluster_record_name(name: str, section: ClusterSection) -> str:
    """Return the name of a cluster in records of jobs; it differs by host, user and port only."""
    where = (section.host, section.user, section.port)
    return f"{name}-ssh-{zlib.crc32(repr(where).encode()):08x}"


def load_cluster(name: str) -> ClusterSection:
    """Load the section of one cluster.

    Raises:
        BadInput: when there is none; the message has the nearest name.
    """
    known = load_clusters()
    if name in known:
        return known[name]
    hint = (
        did_you_mean(name, sorted(known), "clusters")
        if known
        else f'none is configured; write [clusters.{name}] and host = "…" into your config.toml'
    )
    raise BadInput(f"no cluster {name!r}; {hint}")
