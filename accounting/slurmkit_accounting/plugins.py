"""Plugin kinds of the ledger: renderers and notifiers; see `slurmkit.plugins` for discovery."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, cast

import msgspec

from slurmkit.config.plugins import load_plugin
from slurmkit.errors import BrokenPlugin, SlurmkitError

if TYPE_CHECKING:
    from slurmkit_accounting.reports.model import Report


class Renderer(Protocol):
    """Converter of a report to a file format. The entry point names the class.

    Every format shows the same numbers and the whole meta of the report. Names of users, accounts
    and jobs come from outside: escape them as the format requires.
    """

    def render(self, report: Report) -> bytes:
        """Return the content of the file."""
        ...


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """A message to people.

    Attributes:
        kind: `month`, `budget`, `job` or `reclaim` (idle GPUs).
        identity: the same when a notice is sent again, so that a receiver can detect it.
        to: mail addresses; a notifier that does not use mail ignores them.
        subject: one line.
        text: the message as plain text.
        html: the same as one self-contained page; empty for none.
        facts: the same for programs, as JSON values.
    """

    kind: str
    identity: str
    to: tuple[str, ...]
    subject: str
    text: str
    html: str = ""
    facts: Mapping[str, Any] = {}


class Notifier(Protocol):
    """Sender of notices. The entry point names the class, which is called without arguments."""

    def send(self, notice: Notice) -> None:
        """Send a notice once.

        Raises:
            NotSent: when the notice was not accepted.
            MaybeSent: when the connection broke and the notice may have been accepted.
            BadConfig: when the settings of this notifier are missing.
        """
        ...


def notifier(name: str) -> Notifier:
    """Make the notifier of a name. Raises the errors of `slurmkit.config.plugins.load_plugin`."""
    notifier_class = cast("Callable[[], Notifier]", load_plugin("notifiers", name))
    try:
        return notifier_class()
    except SlurmkitError:
        raise
    except (Exception, SystemExit) as error:  # a plugin's code may raise anything
        words = f"{type(error).__name__}: {error}"
        raise BrokenPlugin(f"plugin {name!r} of slurmkit.notifiers: {words}") from error
