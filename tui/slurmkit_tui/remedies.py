"""What `why` proposes, as commands that can be confirmed and run; nothing goes through a shell."""

from __future__ import annotations

import shlex
from typing import NamedTuple

from slurmkit.why.commands import update
from slurmkit.why.model import Alternative, Explanation
from slurmkit.why.words import moment
from slurmkit_tui.commands import Argv

_SHELL = frozenset("| || ; & > >> < << ( )".split())


class Remedy(NamedTuple):
    """One proposal.

    Attributes:
        label: what it changes, in words.
        when: the job would start then.
        line: the shell line as `why` writes it.
        commands: the same, to be run one after another; none where only a shell can do it.
    """

    label: str
    when: str
    line: str
    commands: list[Argv]


def remedies(told: Explanation) -> list[Remedy]:
    """The proposals of an explanation, in its order."""
    found = told.waiting.alternatives if told.waiting else ()
    return [
        Remedy(_label(each), moment(each.start, told.taken), each.command,
               _commands(told.job_id, each))
        for each in found
    ]  # fmt: skip


def _label(each: Alternative) -> str:
    return " ".join(f"--{n}={value}" if value else f"no --{n}" for n, value in each.changes)


def _commands(job_id: str, each: Alternative) -> list[Argv]:
    words = list(shlex.shlex(each.command, posix=True, punctuation_chars=True))
    if words[:2] == ["slurmkit", "update"]:  # what that runs
        return [shlex.split(update(job_id, each.changes))]
    if _SHELL & set(words) or "$" in each.command or "`" in each.command:
        return []
    return split(shlex.split(each.command))


def split(words: list[str]) -> list[Argv]:
    """The commands of a list that `&&` joins."""
    commands: list[Argv] = [[]]
    for word in words:
        if word == "&&":
            commands.append([])
        else:
            commands[-1].append(word)
    return commands
