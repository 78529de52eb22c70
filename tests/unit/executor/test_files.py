"""How calls are dealt out to tasks, and the files with what came of them."""

from __future__ import annotations

import ast
import tempfile
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmkit.executor import resultfiles, worker
from slurmkit.executor.runs import divide_calls


@given(st.integers(1, 500), st.integers(1, 40))
def test_every_call_is_of_one_task(count: int, tasks: int) -> None:
    found = divide_calls(count, tasks)
    assert sorted(index for own in found for index in own) == list(range(count))
    sizes = [len(own) for own in found]
    assert len(found) == min(count, tasks)
    assert max(sizes) - min(sizes) <= 1


@given(
    st.lists(st.binary(max_size=300), max_size=20),
    st.lists(st.booleans(), min_size=20, max_size=20),
)
def test_results_are_read_as_they_were_written(payloads: list[bytes], flush: list[bool]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        outbox = resultfiles.Outbox(folder, "7-0")
        for index, payload in enumerate(payloads):
            outbox.put(
                resultfiles.dumped(resultfiles.StoredResult(index, resultfiles.VALUE, payload))
            )
            if flush[index]:
                outbox.flush()
        outbox.flush()
        names = sorted(
            (each.name for each in Path(folder).iterdir()),
            key=lambda name: int(name.rpartition("-")[2]),
        )
        read = [resultfiles.read_private(f"{folder}/{name}") for name in names]
        found = [each for data in read for each in resultfiles.results_in(data)]
        assert [(each.call, each.payload) for each in found] == list(enumerate(payloads))
        assert outbox.done(7) == dict.fromkeys(range(len(payloads)), resultfiles.VALUE)


@pytest.mark.parametrize("module", [worker, resultfiles])
def test_the_worker_is_read_by_old_pythons(module: ModuleType) -> None:
    """What 3.6 knows: no walrus, no keyword-only marks, annotations that it can evaluate."""
    source = Path(str(module.__file__)).read_text("utf-8")
    ast.parse(source, feature_version=(3, 6))
