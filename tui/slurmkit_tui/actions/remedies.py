"""The alternatives of `why`, as commands to confirm and run; nothing goes through a shell."""

from __future__ import annotations

import shlex
from typing import NamedTuple

from slurmkit.diagnose.model import Alternative, Explanation
from slurmkit.diagnose.respec import scontrol_update
from slurmkit.formats.display import format_moment
from slurmkit_tui.actions.commands import Argv

_SHELL = frozenset("| || ; & > >> < << ( )".split())


class Remedy(NamedTuple):
    """A change with which a pending job would start sooner.

    Attributes:
        label: the changed options.
        when: estimated start of the job with this change.
        line: the shell line as `why` writes it.
        commands: the same as single commands; empty if the line needs a shell.
    """

    label: str
    when: str
    line: str
    commands: list[Argv]


def remedies_for(explanation: Explanation) -> list[Remedy]:
    """Return the alternatives of an explanation as remedies, in its order."""
    waiting = explanation.waiting
    offered: list[Remedy] = []
    for each in waiting.alternatives if waiting else ():
        label = " ".join(f"--{n}={value}" if value else f"no --{n}" for n, value in each.changes)
        when = format_moment(each.start, explanation.taken)
        offered.append(Remedy(label, when, each.command, _commands(explanation.job_id, each)))
    return offered


def _commands(job_id: str, alternative: Alternative) -> list[Argv]:
    """Return the commands of an alternative; none if its line needs a shell."""
    line = alternative.command
    words = list(shlex.shlex(line, posix=True, punctuation_chars=True))
    if words[:2] == ["slurmkit", "update"]:  # run the scontrol command behind it
        return [shlex.split(scontrol_update(job_id, alternative.changes))]
    if _SHELL & set(words) or "$" in line or "`" in line:
        return []
    return split_commands(shlex.split(line))


def split_commands(words: list[str]) -> list[Argv]:
    """Split the words of a shell line into commands at each `&&`."""
    commands: list[Argv] = [[]]
    for word in words:
        if word == "&&":
            commands.append([])
        else:
            commands[-1].append(word)
    return commands
