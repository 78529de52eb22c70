"""The Docker cluster that is measured, and what a measurement is."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CLUSTER = Path(__file__).parents[2] / "docker" / "cluster"
PYTHON = "/opt/slurmkit/venv/bin/python"
RUNS = 7
_INSIDE = Path(__file__).parent / "inside"


@dataclass(frozen=True)
class Budget:
    """One line of the table.

    Attributes:
        what: what was measured.
        measured: its median, in `unit`.
        limit: the budget in words.
        peer: what the limit is made of, measured in the same run, in `unit`; None for a fixed one.
        holds: whether the budget holds; None without the peer.
    """

    what: str
    measured: float
    limit: str
    peer: float | None
    holds: bool | None
    unit: str = "ms"

    def row(self) -> str:
        """The line, for Markdown."""
        peer = "" if self.peer is None else f"{self.peer:,.0f} {self.unit}"
        holds = {True: "yes", False: "NO", None: "unknown"}[self.holds]
        return (
            f"| {self.what} | {self.measured:,.0f} {self.unit} | {self.limit} | {peer} | {holds} |"
        )


class Lab:
    """A running cluster."""

    def __init__(self, name: str) -> None:
        self.name = name

    def run(self, *argv: str, user: str = "alice", stdin: str = "", service: str = "login") -> str:
        """Run a command in a service, as root without a user, and return what it printed."""
        who = ["--user", user] if user else []
        command = [str(CLUSTER), "exec", service, "--name", self.name, *who, "--", *argv]
        done = subprocess.run(command, input=stdin, stdout=subprocess.PIPE, check=True, text=True)
        return done.stdout

    def exists(self) -> bool:
        """Whether there is such a cluster, or data of one that is down."""
        label = f"label=com.docker.compose.project=slurmkit-{self.name}"
        asked = ["docker", "volume", "ls", "--quiet", "--filter", label]
        return bool(subprocess.run(asked, check=True, capture_output=True).stdout)

    def jobs(self, of: str = "") -> int:
        """How many jobs are in the queue, or how many of one user."""
        whose = [f"--user={of}"] if of else []
        return len(self.run("squeue", "--noheader", "--array", "--format=%i", *whose).split())

    def cluster(self, *words: str) -> None:
        """Run docker/cluster; what it says is progress."""
        command = [str(CLUSTER), *words, "--name", self.name]
        subprocess.run(command, check=True, stdout=sys.stderr)

    def measure(self, script: str, *args: str) -> dict[str, Any]:
        """Run a script of `inside/` on the login node, so that the way there does not count."""
        text = (_INSIDE / f"{script}.py").read_text("utf-8")
        found: dict[str, Any] = json.loads(self.run(PYTHON, "-", *args, stdin=text))
        return found

    def median_ms(self, *commands: Sequence[str]) -> list[float]:
        """Medians of commands that are run in turn, in milliseconds, from start to end."""
        times = self.measure("commands", str(RUNS), json.dumps([list(c) for c in commands]))
        return [median_ms(each) for each in times["seconds"]]


def median_ms(seconds: Sequence[float]) -> float:
    """The median, in milliseconds."""
    return statistics.median(seconds) * 1000


def say(words: str) -> None:
    """Tell of progress."""
    print(f"{time.strftime('%H:%M:%S')} {words}", file=sys.stderr, flush=True)


class Progress:
    """Tells how far something long has got, and how long it will take yet."""

    def __init__(self, what: str, wanted: int) -> None:
        self._what = what
        self._wanted = wanted
        self._began = time.monotonic()

    def done(self, number: int) -> None:
        """So many are done."""
        seconds = time.monotonic() - self._began
        rest = (self._wanted - number) * seconds / number
        say(
            f"  {number:,} of {self._wanted:,} {self._what}, {number / seconds:,.0f}/s,"
            f" {rest / 60:.0f} min to go"
        )
