"""Homes of people: private, with an ssh key pair that opens the login node."""

import os
import shutil
import subprocess
from pathlib import Path

from directory import EVERYONE_NUMBER
from model import Person, Seed

HOMES = Path("/home")
SKELETON = Path("/etc/skel")


def apply(seed: Seed) -> int:
    """Make the homes that are missing; returns how many.

    A home that is there is its owner's: root follows no name in it.
    """
    missing = [person for person in seed.active if not os.path.lexists(HOMES / person.name)]
    for person in missing:
        _make(person)
    return len(missing)


def _make(person: Person) -> None:
    new = HOMES / ".new"
    shutil.rmtree(new, ignore_errors=True)
    shutil.copytree(SKELETON, new, symlinks=True)
    _make_key(new, person.name)
    for path in [new, *new.rglob("*")]:
        os.chown(path, person.number, EVERYONE_NUMBER, follow_symlinks=False)
    new.chmod(0o700)
    new.rename(HOMES / person.name)


def _make_key(home: Path, name: str) -> None:
    key = home / ".ssh" / "id_ed25519"
    key.parent.mkdir(mode=0o700)
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(key)]
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)
    public = key.with_suffix(".pub").read_text(encoding="ascii")
    authorized = key.parent / "authorized_keys"
    authorized.touch(mode=0o600)
    authorized.write_text(public, encoding="ascii")
