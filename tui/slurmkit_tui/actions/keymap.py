"""Configured keys (action name = key), checked before the app starts."""

from __future__ import annotations

from collections.abc import Mapping

from textual.keys import Keys, _character_to_key

from slurmkit.config.files import did_you_mean
from slurmkit.errors import BadInput
from slurmkit_tui.actions.registry import ACTIONS, CHANGE_ACTIONS, WIDGET_ACTIONS

VIEW_KEYS = "12345678"
_FIXED = {"ctrl+p": "the palette", "ctrl+q": "quit", "tab": "the next field",
          "shift+tab": "the field before"}  # fmt: skip
# Actions that also work while a job is open.
_OVER_JOBS = frozenset(
    {"help", "jump", "theme", "quit", "actions", "new-job", "submit-again"}
    | {action.id for action in CHANGE_ACTIONS}
)
_NAMES = frozenset(key.value for key in Keys)


def parse_keymap(wanted: Mapping[str, str]) -> dict[str, str]:
    """Return the configured keys in Textual's names.

    Args:
        wanted: keys, several with commas, by the name of the action.

    Raises:
        BadInput: for an action or a key that does not exist, and for a key used twice.
    """
    known = list(dict.fromkeys(action.id for action in (*ACTIONS, *WIDGET_ACTIONS)))
    for name in wanted:
        if name not in known:
            raise BadInput(f"there is no action {name!r}; {did_you_mean(name, known, 'actions')}")
    parsed = {
        name: ",".join(_parse_key(each, name) for each in keys.split(","))
        for name, keys in wanted.items()
    }
    _refuse_conflicts(parsed)
    return parsed


def _parse_key(text: str, name: str) -> str:
    """Return Textual's name of a key, as typed in the configuration for the action `name`."""
    key = text if text == " " else text.strip()
    if len(key) == 1 and key.isprintable():
        return _character_to_key(key)
    modifiers, _, last = key.rpartition("+")
    if key.lower() in _NAMES:
        return key.lower()
    default_keys = {key for each in (*ACTIONS, *WIDGET_ACTIONS) for key in each.keys.split(",")}
    if last and all(each in ("ctrl", "shift", "alt") for each in modifiers.split("+") if modifiers):
        plain = _character_to_key(last) if len(last) == 1 else last
        if len(last) == 1 or plain in _NAMES or plain in default_keys:
            return f"{modifiers}+{plain}" if modifiers else plain
    raise BadInput(
        f"{name}: there is no key {text!r};"
        " write a key as x, X, ctrl+x, f5, space, enter, pagedown, ?"
    )


def _refuse_conflicts(configured: Mapping[str, str]) -> None:
    """Raise BadInput if two actions that are available at the same time have the same key."""
    in_use = [
        (key, each.id, _listeners(each.home, each.id))
        for each in (*ACTIONS, *WIDGET_ACTIONS)
        for key in (configured.get(each.id) or each.keys).split(",")
        if key
    ]
    for key, name, listeners in in_use:
        if name not in configured:
            continue
        if key in _FIXED:
            raise BadInput(f"{name}: {key} always means {_FIXED[key]}; choose another key")
        if key in VIEW_KEYS:
            raise BadInput(f"{name}: {key} switches to a view; choose another key")
        for other_key, other, other_listeners in in_use:
            if key == other_key and name != other and listeners & other_listeners:
                raise BadInput(
                    f"the key {key} is used twice: for {name!r} and {other!r};"
                    " choose another key for one of them"
                )


def _listeners(home: str, name: str) -> frozenset[str]:
    """Return the screens and widgets on which the key of an action works."""
    if home in ("app", "view"):
        over_jobs = {"job", "log", "gpu-page"} if name in _OVER_JOBS else set()
        return frozenset({"table", "map", "utilization", *over_jobs})
    if home == "job":
        return frozenset({"job", "log", "gpu-page"})
    return frozenset({home, *({"table"} if home == "utilization" else ())})
