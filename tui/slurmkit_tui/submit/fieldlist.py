"""The fields of the form, one below the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Static

from slurmkit_tui.submit.draft import Texts
from slurmkit_tui.submit.fields import FIELDS
from slurmkit_tui.submit.inputs import Row

if TYPE_CHECKING:
    from slurmkit_tui.submit.checked import Said
    from slurmkit_tui.submit.offers import Offers

_SELDOM = "reservation"  # on few clusters; shown once there is one
_FIRST, _MORE = 4, 2  # fields put on the screen at first, and then at a time


class FieldList(VerticalScroll, can_focus=False):
    """All fields; every one can be read and filled before it is on the screen.

    Attributes:
        rows: the fields by name.
    """

    def __init__(self, texts: Texts) -> None:
        super().__init__(id="form")
        self.rows = {field.name: Row(field, texts.get(field.name, "")) for field in FIELDS}
        self.rows[_SELDOM].display = _SELDOM in texts
        self._offers: Offers | None = None

    def compose(self) -> ComposeResult:
        """Put the first ones on the screen, below what is to be known of the draft."""
        yield Static("", id="form-notes", markup=False)
        yield from [*self.rows.values()][:_FIRST]

    def on_mount(self) -> None:
        """Go on with the others."""
        self.call_after_refresh(self._mount_more, _FIRST)

    async def _mount_more(self, at: int) -> None:
        """Put some more on the screen: all at once would stall."""
        if at < len(self.rows):
            await self.mount(*[*self.rows.values()][at : at + _MORE])
            self.call_after_refresh(self._mount_more, at + _MORE)

    @property
    def texts(self) -> dict[str, str]:
        """What stands in the fields; those with nothing in them are left out."""
        found = {name: row.text for name, row in self.rows.items()}
        return {name: text for name, text in found.items() if text.strip()}

    def fill(self, texts: Texts) -> None:
        """Put other texts into all fields."""
        for name, row in self.rows.items():
            row.text = texts.get(name, "")
            self._offer(row)

    def say(self, beside: Mapping[str, Said]) -> None:
        """Say beside each field what is wrong with it."""
        for name, row in self.rows.items():
            row.say(beside.get(name))

    def offer(self, offers: Offers | None) -> None:
        """Complete the fields; None where it is unknown what there is."""
        self._offers = offers
        if offers is None:
            self.rows[_SELDOM].display = True
        for row in self.rows.values():
            self._offer(row)

    def _offer(self, row: Row) -> None:
        """One that the cluster has no use for is there only with a text."""
        if self._offers is not None:
            name = row.field.name
            row.offer(self._offers.values.get(name, ()))
            row.display = name not in self._offers.absent or bool(row.text.strip())
