"""Options of a job that survives: what becomes of it at which ending."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from slurmkit.survive.model import ACTIONS, SIGNALS, Survive

_ENDINGS = (
    ("on-timeout", "At the time limit: come back (requeue), come back held, or fail."),
    ("on-preempt", "When preempted; as --on-timeout."),
    ("on-node-fail", "When a node is lost; as --on-timeout."),
    ("on-oom", "Out of memory; as --on-timeout."),
)
_NUMBERS = (
    ("max-restarts", "Come back so often at most.  [default: 20]"),
    ("restart-delay", "Seconds a short run waits for its next start, doubled each.  [default: 60]"),
    ("grace", "Seconds the work has for its checkpoint, before the time limit.  [default: 60]"),
)
_SIGNAL = "Signal that asks the work for a checkpoint; processes that do not catch it get none."
_MEMORY = "With --on-oom requeue: ask for twice the memory, up to so much, e.g. 256G."


def survive_options() -> list[Callable[..., Any]]:
    """The options, as decorators."""
    signal = click.Choice(SIGNALS, case_sensitive=False)
    return [
        *(click.option(f"--{name}", type=click.Choice(ACTIONS), help=text)
          for name, text in _ENDINGS),
        *(click.option(f"--{name}", type=int, metavar="N", help=text) for name, text in _NUMBERS),
        click.option("--checkpoint-signal", type=signal, help=_SIGNAL),
        click.option("--oom-max-mem", metavar="SIZE", help=_MEMORY),
    ]  # fmt: skip


def survive_from(take: Callable[[str], Any], below: Survive) -> Survive:
    """The policy that the options ask for, over that of a job file.

    Args:
        take: gives the value of an option and forgets it.
        below: what a job file asks for.

    Raises:
        BadInput: for what cannot be meant.
    """
    given = {name: take(name) for name in Survive.__struct_fields__}
    kept = {name: getattr(below, name) for name in Survive.__struct_fields__}
    return Survive(**kept | {name: value for name, value in given.items() if value is not None})
