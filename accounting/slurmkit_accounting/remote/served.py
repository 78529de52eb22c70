"""One read API for two kinds of ledgers: opened here, or the site's ledger behind its service.

A function of the read API marked with `also_remote` takes either. The service calls the same
function with the scope that the user may see; a `scope` given by the client is not sent. The same
holds for `uid`, the user who asks. A function marked with `changes_remote` changes the ledger.
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

from slurmkit.config.files import did_you_mean
from slurmkit.errors import BadInput
from slurmkit_accounting.calendar import find_zone
from slurmkit_accounting.ledger.database import Ledger, open_for_reading
from slurmkit_accounting.remote.client import configured_remote

if TYPE_CHECKING:
    from slurmkit_accounting.remote.client import RemoteLedger
    from slurmkit_accounting.reports.question import Scope

P = ParamSpec("P")
AnswerT = TypeVar("AnswerT")
AnyLedger: TypeAlias = "Ledger | RemoteLedger"
"""A ledger that the read API can read: opened here or remote."""

_LEDGER, _SCOPE, _UID = "ledger", "scope", "uid"
_BY_SERVICE = frozenset((_LEDGER, _SCOPE, _UID))
_remote_functions: dict[str, RemoteFunction[Any]] = {}


class RemoteFunction(Generic[AnswerT]):
    """A function of the read API, as the service calls it; `changes` if it changes the ledger."""

    def __init__(self, function: Callable[..., AnswerT], *, changes: bool = False) -> None:
        self.function = function
        self.name = function.__name__
        self.changes = changes
        if not {_SCOPE, _UID} & inspect.signature(function).parameters.keys():
            raise TypeError(f"{self.name} must take `scope` or `uid`, or it tells all to everybody")
        self._needed = {
            parameter.name
            for parameter in inspect.signature(function).parameters.values()
            if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
        } - _BY_SERVICE

    def answer(
        self, ledger: Ledger, given: dict[str, Any], scope: Scope, uid: int | None = None
    ) -> AnswerT:
        """Call the function with arguments from JSON.

        Args:
            ledger: open for writing if the function changes it.
            given: the arguments.
            scope: what the user who asks may see.
            uid: the user who asks; needed by functions about this user.

        Raises:
            BadInput: for an unknown argument, one of a wrong type, or a missing one.
        """
        types = self.types()
        if missing := self._needed - given.keys():
            raise BadInput(f"{self.name} needs the argument {sorted(missing)[0]!r}")
        for name in given:
            if name not in types:
                hint = did_you_mean(name, sorted(types), "arguments")
                raise BadInput(f"{self.name} has no argument {name!r}; {hint}")
        try:
            named = {name: msgspec.convert(value, types[name]) for name, value in given.items()}
        except msgspec.ValidationError as error:
            raise BadInput(f"{self.name}: {error}") from error
        wanted = inspect.signature(self.function).parameters
        if _UID in wanted:
            named[_UID] = uid
        if _SCOPE in wanted:
            named[_SCOPE] = scope
        return self.function(ledger, **named)

    @property
    def returns(self) -> type[AnswerT]:
        """The return type of the function."""
        return cast("type[AnswerT]", get_type_hints(self.function)["return"])

    def arguments(self, *args: object, **named: object) -> dict[str, Any]:
        """Return the arguments of a call by name, without the ledger and the scope."""
        bound = inspect.signature(self.function).bind(None, *args, **named).arguments
        for parameter in inspect.signature(self.function).parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                bound |= bound.pop(parameter.name, {})
        return {name: each for name, each in bound.items() if name not in _BY_SERVICE}

    def types(self) -> dict[str, Any]:
        """Return the types of those arguments, by name."""
        hints = get_type_hints(self.function)
        types: dict[str, Any] = {}
        for parameter in inspect.signature(self.function).parameters.values():
            hint = hints[parameter.name]
            if parameter.kind is parameter.VAR_KEYWORD:  # **more: Unpack[SomeTypedDict]
                types |= get_type_hints(hint.__args__[0])
            elif parameter.name not in _BY_SERVICE:
                types[parameter.name] = hint
        return types


def also_remote(
    function: Callable[Concatenate[Ledger, P], AnswerT],
) -> Callable[Concatenate[AnyLedger, P], AnswerT]:
    """Let a function of the read API also read the site's ledger through its service."""
    return _either(function, RemoteFunction(function))


def changes_remote(
    function: Callable[Concatenate[Ledger, P], AnswerT],
) -> Callable[Concatenate[AnyLedger, P], AnswerT]:
    """Let a function also change the site's ledger through its service."""
    return _either(function, RemoteFunction(function, changes=True))


def _either(
    function: Callable[Concatenate[Ledger, P], AnswerT], remote: RemoteFunction[AnswerT]
) -> Callable[Concatenate[AnyLedger, P], AnswerT]:
    _remote_functions[remote.name] = remote

    @wraps(function)
    def either(ledger: AnyLedger, /, *args: P.args, **named: P.kwargs) -> AnswerT:
        if isinstance(ledger, Ledger):
            return function(ledger, *args, **named)
        arguments = remote.arguments(*args, **named)
        if "timezone" in remote.types():
            arguments["timezone"] = arguments.get("timezone") or _zone_here()
        answer: AnswerT = ledger.ask(remote.name, arguments, remote.returns)
        return answer

    return either


def find_remote_function(name: str) -> RemoteFunction[Any]:
    """Return the function of the read API with a name.

    Raises:
        BadInput: when the read API has none.
    """
    if name not in _remote_functions:
        raise BadInput(
            f"the ledger's service has no function {name!r};"
            f" {did_you_mean(name, sorted(_remote_functions), 'functions')}"
        )
    return _remote_functions[name]


def changes_ledger(name: str) -> bool:
    """Return whether the function of the read API with a name changes the ledger."""
    found = _remote_functions.get(name)
    return found is not None and found.changes


@contextmanager
def open_any_ledger(db: str | None = None) -> Iterator[AnyLedger]:
    """Open the named ledger; without a name the site's, through its service, or the user's own.

    Args:
        db: URL of a database; SLURMKIT_DB may name one too.

    Raises:
        BadInput: for an invalid URL.
        LedgerError: when there is no ledger, or its schema is newer or older.
    """
    if not (db or os.environ.get("SLURMKIT_DB")) and (remote := configured_remote()):
        yield remote
        return
    with open_for_reading(db) as ledger:
        yield ledger


def _zone_here() -> str:
    """Return the time zone of this machine; the service's host may have another."""
    name = find_zone().name
    if name.startswith("/"):
        raise BadInput(
            f"{name} does not contain the name of its time zone; give it with --timezone"
        )
    return name
