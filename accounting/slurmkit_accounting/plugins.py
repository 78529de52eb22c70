"""The kinds of plugins that the ledger has; `slurmkit.plugins` says how one is found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, cast

import msgspec

from slurmkit.errors import BrokenPlugin, SlurmkitError
from slurmkit.plugins import load

if TYPE_CHECKING:
    from slurmkit_accounting.reports.model import Report


class Renderer(Protocol):
    """Turns a report into a file of some format. The object of the entry point is its class.

    Every format shows the same numbers, and all that the report's meta says. What came from
    outside (names of users, accounts, jobs) is escaped as the format wants it.
    """

    def render(self, report: Report) -> bytes:
        """Make the whole file."""
        ...


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """Something to tell somebody.

    Attributes:
        kind: `month`, `budget` or `job`.
        identity: the same for the same notice sent again, so that a receiver can tell.
        to: mail addresses; a notifier that has no use for them tells all it knows.
        subject: one line.
        text: for people to read.
        html: the same, as one self-contained page; empty for none.
        facts: the same for programs, as JSON has it.
    """

    kind: str
    identity: str
    to: tuple[str, ...]
    subject: str
    text: str
    html: str = ""
    facts: Mapping[str, Any] = {}


class Notifier(Protocol):
    """Tells people. The object of the entry point is its class, called without arguments."""

    def send(self, notice: Notice) -> None:
        """Hand a notice over, once.

        Raises:
            NotSent: when it was not taken.
            MaybeSent: when the line broke so that it may have been taken.
            BadConfig: when this notifier's settings are not there.
        """
        ...


def notifier(name: str) -> Notifier:
    """Make the notifier of that name; raises as `slurmkit.plugins.load`."""
    made = cast("Callable[[], Notifier]", load("notifiers", name))
    try:
        return made()
    except SlurmkitError:
        raise
    except (Exception, SystemExit) as error:  # a plugin's code may raise anything
        words = f"{type(error).__name__}: {error}"
        raise BrokenPlugin(f"plugin {name!r} of slurmkit.notifiers: {words}") from error
