"""The draft of a form that was not submitted yet, and the file that keeps it for the next start."""

from __future__ import annotations

from pathlib import Path

import msgspec

from slurmkit.config.paths import state_folder
from slurmkit.errors import BadInput
from slurmkit_tui.jobform.draft import Draft, FormTexts
from slurmkit_tui.state_files import write_state_file

_BEFORE = "your saved draft"


class DraftStore:
    """The draft of one cluster's form.

    Attributes:
        cluster: name of the cluster, the key in the file; None keeps no draft in the file.
        draft: the draft that the form was filled with last.
    """

    def __init__(self, cluster: str | None, draft: Draft | None = None) -> None:
        self.cluster = cluster
        self.draft = draft or Draft({})

    def with_texts(self, texts: FormTexts) -> Draft | None:
        """Return the draft with the form's current texts; None for an empty form."""
        return self.draft._replace(texts=texts) if texts else None

    def load(self) -> Draft | None:
        """Load the draft from the file; None if there is none or the file is broken."""
        saved = _load_all().get(self.cluster) if self.cluster is not None else None
        return Draft(saved.texts, saved.origin or _BEFORE, saved.notes) if saved else None

    def save(self, draft: Draft | None) -> None:
        """Save a draft in the file, in place of the one before; None deletes it.

        Raises:
            BadInput: when the file cannot be written.
        """
        if self.cluster is None:
            return
        drafts = _load_all()
        before = drafts.pop(self.cluster, None)
        now = _SavedDraft(dict(draft.texts), draft.origin, draft.notes) if draft else None
        if now == before:
            return
        try:
            write_state_file(
                drafts_path(), msgspec.json.encode(drafts | ({self.cluster: now} if now else {}))
            )
        except OSError as error:
            raise BadInput(f"{drafts_path()} cannot be written: {error.strerror}") from error


def drafts_path() -> Path:
    """Return the path of the file; a draft may hold secrets."""
    return state_folder() / "tui-drafts.json"


class _SavedDraft(msgspec.Struct):
    texts: dict[str, str]
    origin: str = ""
    notes: tuple[str, ...] = ()


def _load_all() -> dict[str, _SavedDraft]:
    try:
        return msgspec.json.decode(drafts_path().read_bytes(), type=dict[str, _SavedDraft])
    except (OSError, ValueError):  # msgspec's errors are ValueErrors
        return {}
