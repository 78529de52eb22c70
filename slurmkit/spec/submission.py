"""One batch job as it is sent: its script, its sbatch options and what it comes after."""

from __future__ import annotations

import msgspec


class Chunk(msgspec.Struct, frozen=True):
    """One Slurm array, which holds some tasks of a user's array.

    Attributes:
        array: its indices as Slurm takes them, with its share of the throttle.
        offset: added to a Slurm array index, it gives the user's index.
        tasks: the user's indices.
        after: position of the chunk that must end first, where chunks run one after the other.
    """

    array: str
    offset: int
    tasks: tuple[int, ...]
    after: int | None = None


Options = tuple[tuple[str, str], ...]


class Submission(msgspec.Struct, frozen=True):
    """One batch job as Slurm gets it.

    Attributes:
        script: the whole batch script; its `#SBATCH` lines hold the same `options`.
        options: sbatch's long options without dashes, with their values, in order; the value
            of a flag is empty.
        after: positions in the plan of the submissions this one waits for.
        order: how it waits for them, as in Slurm's `--dependency`: `afterok` or `afterany`.
        part: the tasks of the plan's array that it holds. Set for a sweep, and where Slurm has only
            a part of the array or other indices.
    """

    script: str
    options: Options
    after: tuple[int, ...] = ()
    order: str = "afterok"
    part: Chunk | None = None
