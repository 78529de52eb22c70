"""What GPUs are asked for, in one text."""

from __future__ import annotations

import pytest

from slurmkit.errors import BadInput
from slurmkit.spec.gpus import Gpus


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("2", Gpus(2)),
        ("a100:2", Gpus(2, "a100")),
        ("gpu:a100:2", Gpus(2, "a100")),
        ("a100", Gpus(1, "a100")),
        ("0.5", Gpus(fraction=0.5)),
        (".25", Gpus(fraction=0.25)),
        ("a100:0.5", Gpus(type="a100", fraction=0.5)),
        ("shard:3", Gpus(shard=3)),
        ("mps:50", Gpus(mps=50)),
        ("3g.20gb", Gpus(1, mig="3g.20gb")),
        ("3g.20gb:2", Gpus(2, mig="3g.20gb")),
        ("1g.5gb+me:1", Gpus(1, mig="1g.5gb+me")),
        ("a100_3g.20gb:2", Gpus(2, "a100_3g.20gb")),
        ("a100_1g.5gb+me:2", Gpus(2, "a100_1g.5gb+me")),
    ],
)
def test_forms(text: str, meant: Gpus) -> None:
    assert Gpus.parse(text) == meant


@pytest.mark.parametrize("text", ["2", "a100:2", "shard:3", "mps:50", "3g.20gb:2", "a100:0.5"])
def test_the_text_reads_back(text: str) -> None:
    assert str(Gpus.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "cannot read GPUs"),
        ("a100:", "cannot read GPUs"),
        (":2", "cannot read GPUs"),
        ("a100:x", "cannot read GPUs"),
        ("a b:1", "cannot read GPUs"),
        ("a100:2,h100:1", "cannot read GPUs"),
        ("shard", "cannot read GPUs"),
        ("shard:0.5", "cannot read GPUs"),
        ("2.5", "between 0 and 1"),
        ("0.0", "between 0 and 1"),
        ("0", "number of GPUs must be at least 1, not 0"),
        ("shard:0", "at least 1"),
        ("-1", "cannot read GPUs"),
        ("²", "cannot read GPUs"),
    ],
)
def test_other_forms_are_refused(text: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        Gpus.parse(text)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"shard": 2, "mps": 50}, "shard and mps cannot be combined"),
        ({"shard": 2, "mig": "3g.20gb"}, "shard and mig cannot be combined"),
        ({"shard": 1, "count": 2}, "of one GPU"),
        ({"fraction": 0.5, "per": "task"}, "per node"),
        ({"fraction": float("nan")}, "between 0 and 1"),
        ({"type": "a100;x"}, "may hold only"),
        ({"bind": "somewhere"}, "GPU binding"),
        ({"mig": "3g 20gb"}, "MIG profile"),
    ],
)
def test_what_cannot_be_meant(options: dict[str, object], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        Gpus(**options)  # type: ignore[arg-type]
