"""One read API for two ledgers: one that is opened here, and the site's, asked of its service.

A function of the read API marked with `served` takes either. At the service the same function
answers, within what the asker may see: the asker's own word for that (`scope`) is not asked.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    TypeAlias,
    TypeVar,
    cast,
    get_type_hints,
)

import msgspec

from slurmkit.config import nearest
from slurmkit.errors import BadInput
from slurmkit_accounting.ledger import Ledger, open_for_reading
from slurmkit_accounting.zones import zone

if TYPE_CHECKING:
    from slurmkit_accounting.reports.scope import Scope
    from slurmkit_accounting.service.client import Remote

P = ParamSpec("P")
AnswerT = TypeVar("AnswerT")
Books: TypeAlias = "Ledger | Remote"
"""What the functions of the read API read."""

_BOOKS, _SCOPE = "books", "scope"
_served: dict[str, Served[Any]] = {}


class Served(Generic[AnswerT]):
    """A function of the read API, as the service calls it."""

    def __init__(self, function: Callable[..., AnswerT]) -> None:
        self.function = function
        self.name = function.__name__

    def answer(self, ledger: Ledger, given: dict[str, Any], scope: Scope) -> AnswerT:
        """Call it with arguments from JSON.

        Raises:
            BadInput: for an argument that it does not have, or of another type.
        """
        wanted = self.types()
        for name in given:
            if name not in wanted:
                hint = nearest(name, sorted(wanted), "arguments")
                raise BadInput(f"{self.name} takes no {name!r}; {hint}")
        try:
            named = {name: msgspec.convert(value, wanted[name]) for name, value in given.items()}
        except msgspec.ValidationError as error:
            raise BadInput(f"{self.name}: {error}") from error
        return self.function(ledger, **named, scope=scope)

    @property
    def returns(self) -> type[AnswerT]:
        """The type of what it returns."""
        return cast("type[AnswerT]", get_type_hints(self.function)["return"])

    def arguments(self, *args: object, **named: object) -> dict[str, Any]:
        """Arguments by name, but the books and the scope."""
        bound = inspect.signature(self.function).bind(None, *args, **named).arguments
        for parameter in inspect.signature(self.function).parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                bound |= bound.pop(parameter.name, {})
        return {name: each for name, each in bound.items() if name not in {_BOOKS, _SCOPE}}

    def types(self) -> dict[str, Any]:
        """The types of those arguments."""
        hints = get_type_hints(self.function)
        found: dict[str, Any] = {}
        for parameter in inspect.signature(self.function).parameters.values():
            hint = hints[parameter.name]
            if parameter.kind is parameter.VAR_KEYWORD:  # **more: Unpack[SomeTypedDict]
                found |= get_type_hints(hint.__args__[0])
            elif parameter.name not in {_BOOKS, _SCOPE}:
                found[parameter.name] = hint
        return found


def served(
    function: Callable[Concatenate[Ledger, P], AnswerT],
) -> Callable[Concatenate[Books, P], AnswerT]:
    """Let a function of the read API read the site's ledger too."""
    whole = _served[function.__name__] = Served(function)

    @wraps(function)
    def either(books: Books, /, *args: P.args, **named: P.kwargs) -> AnswerT:
        if isinstance(books, Ledger):
            return function(books, *args, **named)
        arguments = whole.arguments(*args, **named)
        if "timezone" in whole.types():
            arguments["timezone"] = arguments.get("timezone") or _zone_here()
        answer: AnswerT = books.ask(whole.name, arguments, whole.returns)
        return answer

    return either


def find_served(name: str) -> Served[Any]:
    """The function of that name.

    Raises:
        BadInput: when the read API has none.
    """
    if name not in _served:
        raise BadInput(
            f"the ledger's service answers no {name!r}; {nearest(name, sorted(_served), 'names')}"
        )
    return _served[name]


@contextmanager
def open_books(db: str | None = None) -> Iterator[Books]:
    """Open the ledger that is named, else the site's by its service, else one's own.

    Args:
        db: URL of a database; also SLURMKIT_DB names one.

    Raises:
        BadInput: for a URL that cannot be meant.
        LedgerError: when there is none, or a newer or older one.
    """
    if not (db or os.environ.get("SLURMKIT_DB")):
        from slurmkit_accounting.service.client import (  # noqa: PLC0415 - few sites have one
            configured_remote,
        )

        if remote := configured_remote():
            yield remote
            return
    with open_for_reading(db) as ledger:
        yield ledger


def _zone_here() -> str:
    """The reader's zone, not that of the service's host."""
    name = zone().name
    if name.startswith("/"):
        raise BadInput(f"{name} does not say which time zone it is; name one with --timezone")
    return name
