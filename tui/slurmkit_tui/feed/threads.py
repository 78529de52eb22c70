"""Blocking calls beside the screen's event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from slurmkit.errors import SlurmkitError
from slurmkit_tui import logs

ResultT = TypeVar("ResultT")


async def in_thread(function: Callable[[], ResultT]) -> ResultT:
    """Run a blocking function in a daemon thread.

    The event loop's own threads are joined when it ends, so that `q` would hang for as long as
    slurmctld keeps squeue waiting.

    Raises:
        SlurmkitError: of the function; any other error of its is logged and told as one.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[ResultT] = loop.create_future()

    def settle(act: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the app has ended meanwhile
            loop.call_soon_threadsafe(lambda: None if future.done() else act())

    def work() -> None:
        try:
            result = function()
        except SlurmkitError as error:
            refused = error
            settle(lambda: future.set_exception(refused))
        except BaseException as error:  # noqa: BLE001 - a screen full of work outlives one mistake
            logs.note_mistake(error)
            mistake = SlurmkitError(f"slurmkit made a mistake ({error!r}); see {logs.mistakes()}")
            settle(lambda: future.set_exception(mistake))
        else:
            settle(lambda: future.set_result(result))

    threading.Thread(target=work, name="slurmkit-tui", daemon=True).start()
    return await future


class Latest:
    """Runs one function at a time in a thread; of those asked for meanwhile only the last one.

    Many at once, as somebody types, would keep the screen's own thread from the interpreter.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._wanted: object = None

    async def run(self, function: Callable[[], ResultT]) -> ResultT | None:
        """The function's result; None when another was asked for before it began.

        Raises:
            SlurmkitError: see `in_thread`.
        """
        self._wanted = function
        async with self._lock:
            return await in_thread(function) if self._wanted is function else None
