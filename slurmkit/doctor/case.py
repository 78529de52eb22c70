"""A check of the doctor, its findings, and the cluster data it reads.

Each command of Slurm runs at most once.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Literal

import msgspec

from slurmkit.errors import ControllerDown, SlurmError
from slurmkit.formats import scontrol as slurm_text
from slurmkit.slurm.commands import SlurmCommands
from slurmkit.state.capabilities import parse_partitions
from slurmkit.state.model import Partition
from slurmkit.state.nodes import NODES_COMMAND, NodeRow, parse_nodes

_PING_LINE = re.compile(r"^Slurmctld\((?P<role>[^)]*)\) at (?P<host>\S*) is (?P<state>\w+)", re.M)
Severity = Literal["ok", "note", "warning", "error", "unknown"]


class CheckContext:
    """One cluster as one user sees it from one machine.

    A command that failed is not run again; its SlurmError is raised each time.
    """

    def __init__(self, slurm: SlurmCommands) -> None:
        self.slurm = slurm
        self._outputs: dict[tuple[str, ...], str | SlurmError] = {}
        self.config_asked = (0.0, 0.0)

    def ask(self, *argv: str, stdin: str | None = None) -> str:
        """Run a command and return its output; a second call returns the same output.

        Raises:
            SlurmError: when the command failed.
        """
        if argv not in self._outputs:
            try:
                self._outputs[argv] = self.slurm.run(argv, stdin=stdin)
            except SlurmError as error:
                self._outputs[argv] = error
        output = self._outputs[argv]
        if isinstance(output, SlurmError):
            raise output
        return output

    def ask_controller(self, *argv: str) -> str:
        """Run a command that asks slurmctld, unless slurmctld is down: that would take 20 s."""
        self.require_controller()
        return self.ask(*argv)

    def require_controller(self) -> None:
        """Raise ControllerDown unless a slurmctld answered `scontrol ping`."""
        if not any(state == "UP" for _, _, state in self.controllers):
            raise ControllerDown("slurmctld is down")

    @cached_property
    def controllers(self) -> tuple[tuple[str, str, str], ...]:
        """Role, host and state of each slurmctld, from `scontrol ping`."""
        try:
            output = self.ask("scontrol", "ping")
        except SlurmError as error:  # scontrol fails if one is down, and names it
            output = str(error).replace("; ", "\n")
            if not _PING_LINE.search(output):
                raise
        return tuple((m["role"], m["host"], m["state"]) for m in _PING_LINE.finditer(output))

    @cached_property
    def config_text(self) -> str:
        """The output of `scontrol show config`; `config_asked` is the time before and after it."""
        if not self.config_asked[0]:
            before = time.time()
            try:
                self.ask_controller("scontrol", "show", "config")
            finally:
                self.config_asked = (before, time.time())
        return self.ask_controller("scontrol", "show", "config")

    @cached_property
    def config(self) -> dict[str, str]:
        """The settings of slurm.conf; a setting that is not set is empty."""
        settings = slurm_text.parse_settings(self.config_text)
        return {key: slurm_text.optional(value) or "" for key, value in settings.items()}

    def words(self, key: str) -> set[str]:
        """Return the words of a setting that is a list, in lower case."""
        return {word.strip().lower() for word in self.config.get(key, "").split(",")} - {"", "none"}

    @property
    def release(self) -> tuple[int, ...]:
        """The release of slurmctld, as `(24, 11, 5)`."""
        return parse_release(self.config.get("SLURM_VERSION", ""))

    @cached_property
    def nodes(self) -> tuple[NodeRow, ...]:
        """All nodes as they are now."""
        return parse_nodes(self.ask_controller(*NODES_COMMAND))

    @cached_property
    def partitions(self) -> tuple[Partition, ...]:
        """Partitions that accept jobs."""
        output = self.ask_controller("scontrol", "--all", "--oneliner", "show", "partition")
        return tuple(each for each in parse_partitions(output) if each.state == "UP")

    @property
    def gpu_nodes(self) -> tuple[NodeRow, ...]:
        """Nodes with GPUs."""
        return tuple(node for node in self.nodes if node.count("gpu"))

    def gpu_partitions(self) -> tuple[Partition, ...]:
        """Return the partitions with GPUs."""
        names = {name for node in self.gpu_nodes for name in node.partitions}
        return tuple(each for each in self.partitions if each.name in names)

    def accounting(self, what: str, fields: Sequence[str]) -> list[dict[str, str]]:
        """Return the rows of `sacctmgr show WHAT`, by field."""
        shown = f"format={','.join(fields)}"
        output = self.ask("sacctmgr", "--noheader", "--parsable2", "show", what, shown)
        rows = (line.split("|") for line in output.splitlines())
        return [dict(zip(fields, row, strict=True)) for row in rows if len(row) == len(fields)]


def parse_release(version: str) -> tuple[int, ...]:
    """Parse the release in `slurm-wlm 24.11.5-1` to `(24, 11, 5)`."""
    found = re.search(r"\d+(?:\.\d+)+", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


class Diagnosis(msgspec.Struct, frozen=True):
    """The result of a check.

    Attributes:
        check: short stable name of the check.
        severity: `error` if users cannot work or see wrong numbers, `warning` if it will hurt
            them, `note` if they lack something useful; `unknown` if the check could not run.
        message: the finding, with the setting and its value.
        meaning: what the finding means for the cluster's users.
        fix: the exact setting to change, or the command to run.
        where: the file to change, or the account to run the command as.
    """

    check: str
    severity: Severity
    message: str
    meaning: str = ""
    fix: str = ""
    where: str = ""


class CheckFinding(msgspec.Struct, frozen=True):
    """A diagnosis without the name of its check."""

    severity: Severity
    message: str
    meaning: str = ""
    fix: str = ""
    where: str = "slurm.conf"


class Check(msgspec.Struct, frozen=True):
    """One check.

    Attributes:
        name: short and stable, e.g. `gpu-tres`.
        fine: message if nothing is wrong.
        look: yields what is wrong; raises a SlurmkitError if it cannot check.
    """

    name: str
    fine: str
    look: Callable[[CheckContext], Iterator[CheckFinding]]
