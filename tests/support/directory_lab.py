"""A real LDAP server, OpenLDAP's slapd, with StartTLS; the test is skipped where it is missing."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from mail_lab import certificate
from waiting import PATIENCE

SUFFIX = "dc=lab,dc=example"
_PEOPLE = ("alice", "bob", "vogel", "chen")
_GROUPS = {"vision": ("vogel", ("alice", "vogel")), "climate": ("chen", ("bob", "chen"))}


class RunningDirectory(NamedTuple):
    """A server with people, a service account elsewhere, and two groups: URI and CA."""

    uri: str
    ca_file: Path


@contextmanager
def slapd(folder: Path) -> Iterator[RunningDirectory]:
    """Run a server in a folder of its own."""
    search = os.environ.get("PATH", "") + ":/usr/sbin"
    program = shutil.which("slapd", path=search)
    if program is None:
        pytest.skip("there is no slapd; install it with: apt install slapd")
    folder.mkdir()
    pem, _ = certificate(folder)
    config = _write(folder, Path(program).resolve().parents[2], pem)
    port = _free_port()
    uri = f"ldap://127.0.0.1:{port}"
    seed = folder / "seed.ldif"
    seed.write_text(_seed(), "utf-8")
    subprocess.run(
        [program, "-T", "add", "-f", config, "-l", seed], check=True, capture_output=True
    )
    with subprocess.Popen(
        [program, "-f", config, "-h", uri, "-d", "0"], stderr=subprocess.DEVNULL
    ) as process:
        try:
            _wait_for(port)
            yield RunningDirectory(uri, pem)
        finally:
            process.terminate()


def _write(folder: Path, root: Path, pem: Path) -> Path:
    (folder / "data").mkdir()
    schemas = "".join(
        f"include {root}/etc/ldap/schema/{name}.schema\n"
        for name in ("core", "cosine", "nis", "inetorgperson")
    )
    config = folder / "slapd.conf"
    config.write_text(
        f"{schemas}modulepath {root}/usr/lib/ldap\nmoduleload back_mdb\n"
        f"TLSCertificateFile {pem}\nTLSCertificateKeyFile {pem.with_suffix('.key')}\n"
        f'database mdb\nsuffix "{SUFFIX}"\ndirectory {folder}/data\naccess to * by * read\n',
        "utf-8",
    )
    return config


def _seed() -> str:
    entries = [f"dn: {SUFFIX}\nobjectClass: dcObject\nobjectClass: organization\no: lab\ndc: lab\n"]
    entries += [
        f"dn: ou={name},{SUFFIX}\nobjectClass: organizationalUnit\nou: {name}\n"
        for name in ("people", "research", "system")
    ]
    entries += [
        f"dn: uid={name},ou=people,{SUFFIX}\nobjectClass: inetOrgPerson\n"
        f"objectClass: posixAccount\ncn: {name.title()}\nsn: {name}\nuid: {name}\n"
        f"uidNumber: {10000 + number}\ngidNumber: 10000\nhomeDirectory: /home/{name}\n"
        for number, name in enumerate(_PEOPLE)
    ]
    entries.append(
        f"dn: uid=backup,ou=system,{SUFFIX}\nobjectClass: account\nobjectClass: posixAccount\n"
        "cn: backup\nuid: backup\nuidNumber: 400\ngidNumber: 400\nhomeDirectory: /\n"
    )
    for name, (owner, members) in _GROUPS.items():
        listed = "".join(f"member: uid={one},ou=people,{SUFFIX}\n" for one in members)
        entries.append(
            f"dn: cn={name},ou=research,{SUFFIX}\nobjectClass: groupOfNames\ncn: {name}\n"
            f"owner: uid={owner},ou=people,{SUFFIX}\n{listed}"
        )
    return "\n".join(entries)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _wait_for(port: int) -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.05)
    raise TimeoutError(f"slapd does not answer on port {port}")
