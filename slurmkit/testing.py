"""A stand-in for Slurm at its border, for tests of code that uses slurmkit."""

from __future__ import annotations

import io
from collections.abc import Callable, Generator, Sequence


class FakeSlurm:
    """Answers commands from functions instead of running them.

    Args:
        answers: command name to a function of (argv, stdin) that returns standard output, or
            raises the `SlurmError` the real command would have been translated to.

    Attributes:
        asked: every argv that was run, in order.
    """

    def __init__(self, answers: dict[str, Callable[[Sequence[str], str | None], str]]) -> None:
        self._answers = answers
        self.asked: list[list[str]] = []

    @property
    def calls(self) -> int:
        """Commands run so far."""
        return len(self.asked)

    def run(self, argv: Sequence[str], *, stdin: str | None = None, timeout: float = 60) -> str:
        """See `slurmkit.slurm.Slurm.run`."""
        del timeout
        self.asked.append(list(argv))
        return self._answers[argv[0]](argv, stdin)

    def stream(self, argv: Sequence[str]) -> Generator[str, None, None]:
        """See `slurmkit.slurm.Slurm.stream`."""
        yield from io.StringIO(self.run(argv), newline="\n")
