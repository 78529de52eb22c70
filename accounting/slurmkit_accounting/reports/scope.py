"""Whose runs a reader may see."""

from __future__ import annotations

import msgspec


class Scope(msgspec.Struct, frozen=True):
    """Only runs of these people, and of these PIs' groups; everybody's where all are None.

    Attributes:
        people: numbers in `people`.
        pis: likewise, of PIs.
        uids: of users whom no directory knows; runs of whoever else had the number are not theirs.
    """

    people: frozenset[int] | None = None
    pis: frozenset[int] | None = None
    uids: frozenset[int] | None = None

    @property
    def is_everything(self) -> bool:
        """Whether nothing is left out."""
        return self.people is None and self.pis is None and self.uids is None

    def shows(self, person: int | None, pi: int | None, uid: int | None = None) -> bool:
        """Whether a run of a person, or of an unknown uid, charged to a PI may be seen."""
        if self.is_everything or person in (self.people or ()) or pi in (self.pis or ()):
            return True
        return person is None and uid in (self.uids or ())

    def shows_group(self, pi: int | None) -> bool:
        """Whether everything that is charged to a PI may be seen."""
        return self.is_everything or (pi is not None and pi in (self.pis or ()))


EVERYTHING = Scope()
