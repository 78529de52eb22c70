from __future__ import annotations

from collections.abc import Iterator

import pytest
from fake_sacct import FakeSacct, job, step
from slurmkit_accounting.sacct.query import (
    CommandEnded,
    CommandStarted,
    SacctReader,
    TimeWindow,
    WindowDone,
    parse_fetched,
    sacct_layout,
)
from slurmkit_accounting.sacct.rows import RowBatch
from slurmkit_accounting.sacct.steps import StepBatch

from slurmkit.errors import DatabaseDown

DAY = 86400
WINDOW = TimeWindow(1_793_491_200, 1_793_491_200 + DAY)


def jobs(count: int) -> list[dict]:
    return [job(n, WINDOW.begin + n, WINDOW.begin + n, WINDOW.begin + n + 60) for n in range(count)]


def read(sacct: SacctReader, size: int = 100) -> list[RowBatch | StepBatch | WindowDone]:
    return list(parse_fetched(sacct.windows([WINDOW]), sacct_layout(), size))


def test_rows_then_steps_then_the_end_of_the_window() -> None:
    slurm = FakeSacct(*jobs(3))
    slurm.steps = {row["DBIndex"]: [step(row, "batch")] for row in slurm.jobs}
    rows, steps, done = read(SacctReader(slurm))
    assert isinstance(rows, RowBatch)
    assert [row[1] for row in rows.rows] == ["0", "1", "2"]
    assert isinstance(steps, StepBatch)
    keys = [((n, WINDOW.begin + n), "batch") for n in range(3)]
    assert [(key, one.step) for key, one in steps.steps] == keys
    assert done == WindowDone(WINDOW)


def test_a_command_that_breaks_off_within_a_row_is_asked_again_in_halves_and_rejects_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slurm, whole = FakeSacct(*jobs(5)), FakeSacct.stream
    asked: list[str] = []

    def broken(self: FakeSacct, argv: list[str], *, timeout: float | None = None) -> Iterator[str]:
        asked.append(argv[argv.index("-S") + 1])
        lines = list(whole(self, argv, timeout=timeout))
        if len(asked) > 1:
            yield from lines
            return
        yield from [*lines[:3], lines[3][:30]]
        raise DatabaseDown("slurmdbd does not answer")

    monkeypatch.setattr(FakeSacct, "stream", broken)
    *some, done = read(SacctReader(slurm, steps=False), size=2)
    assert not any(batch.rejects for batch in some)
    assert {row[1] for batch in some for row in batch.rows} == {"0", "1", "2", "3", "4"}
    assert asked == [f"uts{at}" for at in (WINDOW.begin, WINDOW.begin, WINDOW.begin + DAY // 2)]
    assert done == WindowDone(WINDOW)


def test_the_last_rows_of_a_command_do_not_wait_for_the_next_command() -> None:
    fetched = SacctReader(FakeSacct(*jobs(3))).windows([WINDOW])
    taken = []

    def seen() -> Iterator[object]:
        for item in fetched:
            taken.append(item)
            yield item

    first = next(parse_fetched(seen(), sacct_layout(), 100))
    assert len(first) == 3
    assert isinstance(taken[0], CommandStarted)
    assert taken[-1] == CommandEnded(whole=True)
    assert len(taken) == 3
