"""What a call returns that goes on from where it stands; it needs the standard library alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any


class Resumable:
    """What is to be called next: a function that runs as a job returns it to keep where it stands.

        def train(model, epoch=0):
            if epoch == 100:
                return model
            fit(model)
            return Resumable(train, model, epoch + 1)

    It is kept beside the results, and called at once, or in the job's next run once the job is to
    stop. The last value that is none of these is the call's result.

    Args:
        function: called next, by a process that has nothing else of the last one.
        args: its arguments; they are pickled.
        kwargs: likewise.
    """

    def __init__(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
        self.function = function
        self.args = args
        self.kwargs = kwargs

    def __repr__(self) -> str:
        """What is called."""
        return f"<Resumable {getattr(self.function, '__qualname__', self.function)}>"


def checkpoint_wanted() -> bool:
    """Whether this job is to stop soon; False where it has no policy for its ends.

    It looks for one file: cheap enough for a training loop, not for each of a million rounds.
    """
    path = os.environ.get("SLURMKIT_CHECKPOINT_FILE")  # docs/survive.md
    return bool(path) and os.path.exists(path or "")  # noqa: PTH110 - 10 times as fast
