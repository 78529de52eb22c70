"""Keys as a person wants them: action name = key, checked before the app starts."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

from textual.keys import Keys, _character_to_key

from slurmkit.config import nearest
from slurmkit.errors import BadInput
from slurmkit_tui.actions import ACTIONS, CHANGES, FOCUSED

VIEW_KEYS = "12345678"
_FIXED = {"ctrl+p": "the palette", "ctrl+q": "quit", "tab": "the next field",
          "shift+tab": "the field before"}  # fmt: skip
# Also there while a job is open.
_OVER_JOBS = frozenset(
    {"help", "jump", "theme", "quit", "actions", "new-job", "submit-again"}
    | {action.id for action in CHANGES}
)
_NAMES = frozenset(key.value for key in Keys)


def keymap(wanted: Mapping[str, str]) -> dict[str, str]:
    """The keys of actions as Textual names them.

    Args:
        wanted: keys, several with commas, by the name of the action.

    Raises:
        BadInput: for an action or a key that does not exist, and for a key used twice.
    """
    known = list(dict.fromkeys(action.id for action in (*ACTIONS, *FOCUSED)))
    for name in wanted:
        if name not in known:
            raise BadInput(f"no action {name!r}; {nearest(name, known, 'actions')}")
    made = {name: ",".join(_key(each, name) for each in keys.split(","))
            for name, keys in wanted.items()}  # fmt: skip
    _refuse_twice(made)
    return made


def _key(text: str, name: str) -> str:
    key = text if text == " " else text.strip()
    if len(key) == 1 and key.isprintable():
        return _character_to_key(key)
    held, _, last = key.rpartition("+")
    if key.lower() in _NAMES:
        return key.lower()
    if last and all(each in ("ctrl", "shift", "alt") for each in held.split("+") if held):
        plain = _character_to_key(last) if len(last) == 1 else last
        if len(last) == 1 or plain in _NAMES or plain in _of_ours():
            return f"{held}+{plain}" if held else plain
    raise BadInput(f"{name}: no key {text!r}; write x, X, ctrl+x, f5, space, enter, pagedown, ?")


def _of_ours() -> set[str]:
    return set(chain.from_iterable(a.keys.split(",") for a in (*ACTIONS, *FOCUSED)))


def _refuse_twice(made: Mapping[str, str]) -> None:
    """Two actions that are there at the same time may not have the same key."""
    held = [
        (key, each.id, _rooms(each.home, each.id))
        for each in (*ACTIONS, *FOCUSED)
        for key in (made.get(each.id) or each.keys).split(",")
        if key
    ]
    for key, name, rooms in held:
        if name not in made:
            continue
        if key in _FIXED:
            raise BadInput(f"{name}: {key} is the key of {_FIXED[key]}; choose another")
        if key in VIEW_KEYS:
            raise BadInput(f"{name}: {key} shows a view; choose another key")
        for other_key, other, others in held:
            if key == other_key and name != other and rooms & others:
                raise BadInput(f"the key {key} is used twice: for {name!r} and {other!r}")


def _rooms(home: str, name: str) -> frozenset[str]:
    """The screens and widgets on which an action's key is listened to."""
    if home in ("app", "view"):
        over = {"job", "log"} if name in _OVER_JOBS else set()
        return frozenset({"table", "map", "utilization", *over})
    if home == "job":
        return frozenset({"job", "log"})
    return frozenset({home, *({"table"} if home == "utilization" else ())})
