"""Resumable functions in jobs; needs the standard library only, because jobs import it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any


class Resumable:
    """The next call of a function that runs as a job: it returns one to save its progress.

        def train(model, epoch=0):
            if epoch == 100:
                return model
            fit(model)
            return Resumable(train, model, epoch + 1)

    It is saved with the results. It is called at once, or in the job's next run if the job has to
    stop. The first value that is no `Resumable` is the result.

    Args:
        function: called next, possibly in a new process that has only these arguments.
        args: its arguments; they are pickled.
        kwargs: its keyword arguments; they are pickled.
    """

    def __init__(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
        self.function = function
        self.args = args
        self.kwargs = kwargs

    def __repr__(self) -> str:
        """Name the function that is called."""
        return f"<Resumable {getattr(self.function, '__qualname__', self.function)}>"


def checkpoint_wanted() -> bool:
    """Tell whether this job has to stop soon; always False in a job without `survive`.

    It checks for one file: cheap enough for each epoch, too slow for each of a million steps.
    """
    path = os.environ.get("SLURMKIT_CHECKPOINT_FILE")  # docs/survive.md
    return bool(path) and os.path.exists(path or "")  # noqa: PTH110 - 10 times as fast
