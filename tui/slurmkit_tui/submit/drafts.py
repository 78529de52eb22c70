"""Drafts that outlive the TUI: one for each cluster, in a file for its owner alone."""

from __future__ import annotations

from pathlib import Path

import msgspec

from slurmkit.errors import BadInput
from slurmkit_tui.logs import folder
from slurmkit_tui.remembered import write
from slurmkit_tui.submit.draft import Draft

_BEFORE = "the draft of before"


class _Kept(msgspec.Struct):
    texts: dict[str, str]
    origin: str = ""
    notes: tuple[str, ...] = ()


def path() -> Path:
    """The file they are in; what stands in a form may be secret."""
    return folder() / "tui-drafts.json"


def kept(cluster: str) -> Draft | None:
    """The draft for a cluster; a broken file is as good as none."""
    found = _all().get(cluster)
    return Draft(found.texts, found.origin or _BEFORE, found.notes) if found else None


def keep(cluster: str, draft: Draft | None) -> None:
    """Keep the draft for a cluster in the place of the one before; None when it was sent.

    Raises:
        BadInput: when the file cannot be written.
    """
    drafts = _all()
    before = drafts.pop(cluster, None)
    now = _Kept(dict(draft.texts), draft.origin, draft.notes) if draft else None
    if now == before:
        return
    try:
        write(path(), msgspec.json.encode(drafts | ({cluster: now} if now else {})))
    except OSError as error:
        raise BadInput(f"{path()} cannot be written: {error.strerror}") from error


def _all() -> dict[str, _Kept]:
    try:
        return msgspec.json.decode(path().read_bytes(), type=dict[str, _Kept])
    except (OSError, msgspec.MsgspecError):
        return {}
