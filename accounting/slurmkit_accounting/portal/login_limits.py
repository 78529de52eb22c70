"""Limits of logins: of failures, by name and address, and of those that are checked at a time."""

from __future__ import annotations

import ipaddress
import math
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

import msgspec

_MOST_KEYS = 20_000  # names and addresses that are remembered; the oldest are forgotten first
_LONGEST_NAME = 64
MOST_LOGINS = 3  # that are checked at a time
_LOGINS_PER_ADDRESS = 2  # of these, so that one client does not keep the others out
_IPV6_HOST_BITS = 64  # one network has so many bits for its hosts: all of them are one client


_Key: TypeAlias = "tuple[str | None, str | None]"
"""A name and an address; None for any."""


class Limit(msgspec.Struct, frozen=True):
    """At most so many failures within so many seconds."""

    failures: int
    seconds: int


# Somebody who wants to lock out another person needs many addresses for it.
PER_NAME_AND_ADDRESS = Limit(5, 300)
PER_NAME = Limit(50, 900)
PER_ADDRESS = Limit(60, 300)


class LoginLimits:
    """Counts failures; names count alike whether the directory has them or not.

    The name is None where nobody is named yet: then a try counts for its address only.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failures: OrderedDict[_Key, deque[float]] = OrderedDict()

    def wait_seconds(self, name: str | None, address: str) -> int:
        """Return the seconds until another try is allowed; 0 if it is allowed now."""
        with self._lock:
            waits = [self._wait(key, limit) for key, limit in _keys(name, address)]
        return max(waits)

    def count_failure(self, name: str | None, address: str) -> None:
        """Count a try before it is made; `forget` follows if it succeeds."""
        with self._lock:
            for key, limit in _keys(name, address):
                times = self._failures.setdefault(key, deque(maxlen=limit.failures))
                times.append(self._clock())
                self._failures.move_to_end(key)
            while len(self._failures) > _MOST_KEYS:
                self._failures.popitem(last=False)

    def forget(self, name: str | None, address: str) -> None:
        """Forget the failures of a name from an address, after a login from there."""
        with self._lock:
            for key, _ in _keys(name, address):
                if self._failures.get(key):
                    self._failures[key].pop()
            if name is not None:
                self._failures.pop(_keys(name, address)[0][0], None)

    def take_back(self, name: str, address: str) -> None:
        """Forget the last try of a name, which the directory did not answer.

        It still counts for the address: else nothing would limit tries while it does not answer.
        """
        with self._lock:
            for key, _ in _keys(name, address)[:2]:
                if self._failures.get(key):
                    self._failures[key].pop()

    def _wait(self, key: _Key, limit: Limit) -> int:
        times = self._failures.get(key)
        if times is None or len(times) < limit.failures:
            return 0
        left = times[0] + limit.seconds - self._clock()
        return math.ceil(left) if left > 0 else 0


class LoginTurns:
    """A limit of the logins that are checked at a time: each holds a thread of the service."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy: Counter[str] = Counter()

    @contextmanager
    def __call__(self, address: str) -> Iterator[bool]:
        """Hold a turn; yields at once whether there was one."""
        network = _network(address)
        with self._lock:
            free = self._busy.total() < MOST_LOGINS and self._busy[network] < _LOGINS_PER_ADDRESS
            if free:
                self._busy[network] += 1
        try:
            yield free
        finally:
            if free:
                with self._lock:
                    self._busy[network] -= 1
                    self._busy += Counter()  # drops those that are 0


def _keys(name: str | None, address: str) -> tuple[tuple[_Key, Limit], ...]:
    """Return what a try counts for; None stands for any, so an empty name is a name as well."""
    network = _network(address)
    of_address = ((None, network), PER_ADDRESS)
    if name is None:
        return (of_address,)
    lower = name[:_LONGEST_NAME].lower()
    return ((lower, network), PER_NAME_AND_ADDRESS), ((lower, None), PER_NAME), of_address


def _network(address: str) -> str:
    """Return what one client has: an IPv4 address, or a network of IPv6, any address of which."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if found.version == 4:
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Address(int(found) >> _IPV6_HOST_BITS << _IPV6_HOST_BITS))
