"""Read ahead in a thread: the next window is fetched while the last one is stored."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator
from contextlib import closing
from typing import TypeVar

ItemT = TypeVar("ItemT")
_LOOK_UP = 0.1  # seconds after which a full queue looks whether it is still wanted
_GIVE_UP = 5.0  # seconds to wait for a command that does not print; it ends with this process


class _End:
    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def ahead(source: Generator[ItemT, None, None], items: int) -> Generator[ItemT, None, None]:
    """Yield what `source` yields, which runs in a thread up to `items` ahead.

    What it raises is raised here. It is closed in its thread when this is closed.
    """
    made: queue.Queue[ItemT | _End] = queue.Queue(items)
    unwanted = threading.Event()

    def put(item: ItemT | _End) -> None:
        while not unwanted.is_set():
            try:
                made.put(item, timeout=_LOOK_UP)
            except queue.Full:
                continue
            break

    def work() -> None:
        end = _End(None)
        try:
            with closing(source):
                for item in source:
                    put(item)
                    if unwanted.is_set():
                        break
        except BaseException as error:  # noqa: BLE001  raised again where it is waited for
            end = _End(error)
        put(end)

    worker = threading.Thread(target=work, name="read ahead", daemon=True)
    worker.start()
    try:
        while not isinstance(item := made.get(), _End):
            yield item
        if item.error is not None:
            raise item.error
    finally:
        unwanted.set()
        worker.join(_GIVE_UP)
