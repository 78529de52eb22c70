"""The policy for a job that is ended before its work is done; no I/O."""

from __future__ import annotations

import re
from typing import Literal, get_args

import msgspec

from slurmkit.errors import BadInput
from slurmkit.formats.memory import parse_mib

SURVIVAL_LINE = "slurmkit_survive"

Action = Literal["requeue", "hold", "fail"]
ACTIONS: tuple[str, ...] = get_args(Action)
ENDINGS = ("timeout", "preempt", "node-fail", "oom")
"""What can end a run from outside; an error of the command itself is not among them."""
SIGNALS = ("USR1", "USR2", "TERM", "INT", "HUP", "QUIT", "CONT", "WINCH", "URG")
_SIZE = re.compile(r"(\d{1,9})([KMGT]?)B?", re.ASCII | re.IGNORECASE)
_DAY = 86400
MOST_RESTARTS, MOST_GRACE = 1000, 65535
"""The most requeues, and the most seconds of grace: sbatch(1), `--signal`, takes no more."""


class Survive(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab",
              omit_defaults=True):  # fmt: skip
    """What to do when a run is ended, and how the work is warned before.

    Attributes:
        on_timeout: at the time limit: `requeue`, `hold` (requeued, but held) or `fail`; None leaves
            it to Slurm. The same for `on_preempt`, `on_node_fail` and `on_oom`.
        max_restarts: how often one job is requeued at most, for any reason.
        restart_delay: seconds that a run of less than ten minutes waits for its next start, doubled
            each time; 0 for the delay that Slurm sets.
        checkpoint_signal: signal sent to processes that catch it; None for none.
        grace: seconds that they have after the signal, and before the time limit.
        oom_max_mem: after out of memory ask for twice the memory, up to this (per node, or per CPU
            if the job asks so); None asks for the same again.
    """

    on_timeout: Action | None = None
    on_preempt: Action | None = None
    on_node_fail: Action | None = None
    on_oom: Action | None = None
    max_restarts: int = 20
    restart_delay: int = 60
    checkpoint_signal: str | None = None
    grace: int = 60
    oom_max_mem: str | None = None

    def __post_init__(self) -> None:
        for name in ENDINGS:
            if (action := self.action(name)) not in (None, *ACTIONS):
                raise BadInput(f"--on-{name} must be one of {', '.join(ACTIONS)}, not {action!r}")
        _check_between("--max-restarts", self.max_restarts, 1, MOST_RESTARTS)
        _check_between("--restart-delay", self.restart_delay, 0, _DAY)
        _check_between("--grace", self.grace, 1, MOST_GRACE)
        if self.checkpoint_signal not in (None, *SIGNALS):
            raise BadInput(
                f"--checkpoint-signal must be one of {', '.join(SIGNALS)}, not"
                f" {self.checkpoint_signal!r}"
            )
        if self.oom_max_mem is not None and not size_in_mib(self.oom_max_mem):
            raise BadInput(f"--oom-max-mem {self.oom_max_mem!r} is not a size, e.g. 256G")
        if self.oom_max_mem is not None and self.on_oom != "requeue":
            raise BadInput("--oom-max-mem works only with --on-oom requeue; give that as well")
        defaults = (field.default for field in msgspec.structs.fields(type(self)))
        if not self and msgspec.structs.astuple(self) != tuple(defaults):
            ways = ", ".join(f"--on-{name}" for name in ENDINGS)
            raise BadInput(f"these options need an ending to act on; give at least one of {ways}")

    def __bool__(self) -> bool:
        """Return whether any policy is set."""
        return any(self.action(name) for name in ENDINGS)

    def action(self, ending: str) -> str | None:
        """Return the action at one of `ENDINGS`."""
        action: str | None = getattr(self, f"on_{ending.replace('-', '_')}")
        return action

    @property
    def requeues(self) -> bool:
        """Whether any policy requeues the job."""
        return any(self.action(name) in ("requeue", "hold") for name in ENDINGS)

    @property
    def signal(self) -> str:
        """The signal from Slurm to the batch shell, as sbatch's `--signal`."""
        return f"B:USR1@{self.grace}"


def size_in_mib(size: str) -> int:
    """Parse `64G`, or `64000`, to MiB, rounded down; 0 for text that is not a size."""
    match = _SIZE.fullmatch(size)
    return (match and parse_mib(match[1] + match[2], rounding="down")) or 0


def _check_between(name: str, value: object, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise BadInput(f"{name} must be a whole number from {least} to {most:,}, not {value!r}")
