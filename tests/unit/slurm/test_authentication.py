"""What one is told when the login over SSH fails."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import paramiko
import pytest

from slurmkit.errors import SshError
from slurmkit.slurm.ssh.authentication import log_in


class PasswordsOnly:
    """A server that takes a password, and has one."""

    def __init__(self, password: str) -> None:
        self.password = password
        self.is_in = False

    def is_authenticated(self) -> bool:
        return self.is_in

    def auth_none(self, user: str) -> None:
        raise paramiko.BadAuthenticationType("none", ["password"])

    def auth_password(self, user: str, given: str, *, fallback: bool) -> list[str]:
        if given != self.password:
            raise paramiko.AuthenticationException("no")
        self.is_in = True
        return []


HOST: Any = SimpleNamespace(user="alice", alias="lab", identities=(), only_identities=True)


def test_a_wrong_password_is_named_as_the_cause() -> None:
    """It said that the server lets nobody in with a password."""
    prompts: list[str] = []

    def ask(prompt: str) -> str:
        prompts.append(prompt)
        return "wrong"

    with pytest.raises(SshError, match="tried: a password; the password was not right; it accepts"):
        log_in(PasswordsOnly("right"), HOST, ask)
    assert prompts == ["alice@lab's password:"] * 3


def test_the_right_password_after_a_wrong_one_is_taken() -> None:
    given = iter(("wrong", "right"))
    server = PasswordsOnly("right")
    log_in(server, HOST, lambda _: next(given))
    assert server.is_in
