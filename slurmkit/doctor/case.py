"""What the checks look at: each answer of Slurm is asked for once, and only if a check wants it."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from functools import cached_property

from slurmkit.capabilities import text as slurm_text
from slurmkit.capabilities.model import Partition
from slurmkit.capabilities.read import parse_partitions
from slurmkit.errors import ControllerDown, SlurmError
from slurmkit.nodes.read import NODES_ASKED, NodeRow, parse_rows
from slurmkit.slurm import Slurm

_CONTROLLER = re.compile(r"^Slurmctld\((?P<role>[^)]*)\) at (?P<host>\S*) is (?P<state>\w+)", re.M)


class Case:
    """One cluster, seen from one machine by one person.

    What cannot be read raises the same SlurmError each time, without asking again.
    """

    def __init__(self, slurm: Slurm) -> None:
        self.slurm = slurm
        self._said: dict[tuple[str, ...], str | SlurmError] = {}
        self.config_asked = (0.0, 0.0)

    def ask(self, *argv: str, stdin: str | None = None) -> str:
        """Run a command, once.

        Raises:
            SlurmError: as the command failed.
        """
        if argv not in self._said:
            try:
                self._said[argv] = self.slurm.run(argv, stdin=stdin)
            except SlurmError as error:
                self._said[argv] = error
        said = self._said[argv]
        if isinstance(said, SlurmError):
            raise said
        return said

    def ask_controller(self, *argv: str) -> str:
        """Run a command that asks slurmctld, unless it is known to be down: it would wait 20 s."""
        if not any(state == "UP" for _, _, state in self.controllers):
            raise ControllerDown("slurmctld is down")
        return self.ask(*argv)

    @cached_property
    def controllers(self) -> tuple[tuple[str, str, str], ...]:
        """Role, host and state of each slurmctld, from `scontrol ping`."""
        try:
            said = self.ask("scontrol", "ping")
        except SlurmError as error:  # it fails when one is down, and says which
            said = str(error).replace("; ", "\n")
            if not _CONTROLLER.search(said):
                raise
        return tuple((m["role"], m["host"], m["state"]) for m in _CONTROLLER.finditer(said))

    @cached_property
    def config_text(self) -> str:
        """`scontrol show config`."""
        if not self.config_asked[0]:
            before = time.time()
            try:
                self.ask_controller("scontrol", "show", "config")
            finally:
                self.config_asked = (before, time.time())
        return self.ask_controller("scontrol", "show", "config")

    @cached_property
    def config(self) -> dict[str, str]:
        """Its settings; what is not set is empty."""
        found = slurm_text.settings(self.config_text)
        return {key: slurm_text.optional(value) or "" for key, value in found.items()}

    def words(self, key: str) -> set[str]:
        """The words of a setting that is a list, in lower case."""
        return {word.strip().lower() for word in self.config.get(key, "").split(",")} - {"", "none"}

    @property
    def release(self) -> tuple[int, ...]:
        """Of slurmctld: `(24, 11, 5)`."""
        return numbers(self.config.get("SLURM_VERSION", ""))

    @cached_property
    def nodes(self) -> tuple[NodeRow, ...]:
        """All nodes as they are now."""
        return parse_rows(self.ask_controller(*NODES_ASKED))

    @cached_property
    def partitions(self) -> tuple[Partition, ...]:
        """Partitions that take jobs."""
        said = self.ask_controller("scontrol", "--all", "--oneliner", "show", "partition")
        return tuple(each for each in parse_partitions(said) if each.state == "UP")

    @property
    def gpu_nodes(self) -> tuple[NodeRow, ...]:
        """Nodes with GPUs."""
        return tuple(node for node in self.nodes if node.count("gpu"))

    def gpu_partitions(self) -> tuple[Partition, ...]:
        """Partitions with GPUs."""
        names = {name for node in self.gpu_nodes for name in node.partitions}
        return tuple(each for each in self.partitions if each.name in names)

    def accounting(self, what: str, fields: Sequence[str]) -> list[dict[str, str]]:
        """Rows of `sacctmgr show WHAT`, by field."""
        shown = f"format={','.join(fields)}"
        said = self.ask("sacctmgr", "--noheader", "--parsable2", "show", what, shown)
        rows = (line.split("|") for line in said.splitlines())
        return [dict(zip(fields, row, strict=True)) for row in rows if len(row) == len(fields)]


def numbers(version: str) -> tuple[int, ...]:
    """`slurm-wlm 24.11.5-1` as `(24, 11, 5)`."""
    found = re.search(r"\d+(?:\.\d+)+", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()
