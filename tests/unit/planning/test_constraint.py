"""`--constraint` as Slurm reads it."""

from __future__ import annotations

import pytest
from recorded_lab import capabilities

from slurmkit.errors import BadInput
from slurmkit.planning.request import feature_names, satisfies, selected_by_spec
from slurmkit.spec.jobspec import JobSpec


@pytest.mark.parametrize(
    ("constraint", "features", "holds"),
    [
        ("a", ("a",), True),
        ("a", ("b",), False),
        ("a&b", ("a",), False),
        ("a,b", ("a", "b"), True),
        ("a,b", ("a",), False),
        ("a|b", ("b",), True),
        ("(a|b)&c", ("b", "c"), True),
        ("(a|b)&c", ("a", "b"), False),
        ("c&(a|(b&d))", ("c", "b"), False),
        ("c&(a|(b&d))", ("c", "b", "d"), True),
        ("a|b&c", ("a",), False),  # left to right: (a|b)&c
        ("a&b|c", ("c",), True),
        ("[rack1|rack2]", ("rack2",), True),
        ("[rack1|rack2]", ("rack3",), False),
        ("ib&[rack1|rack2]", ("rack1",), False),
        ("a*2", ("b",), True),  # so many have it, the others need not
        ("c&a*2", ("b",), False),
        ("[a*2&b*1]", ("a",), True),  # each node counts for one of them
        ("[a*2&b*1]", ("b",), True),
        ("[a*2&b*1]", ("c",), False),
        ("[(a&b)*4&c*1]", ("a",), False),
        ("[(a&b)*4&c*1]", ("a", "b"), True),
        ("!a", ("b",), False),
        ("nps=4&cuda:12.1", ("nps=4", "cuda:12.1"), True),
        (None, (), True),
        ("", (), True),
    ],
)
def test_features_of_a_node(constraint: str | None, features: tuple[str, ...], holds: bool) -> None:
    assert satisfies(constraint, features) is holds


def test_names() -> None:
    assert feature_names("[(a&b-1)*4|c:2*1]") == ["a", "b-1", "c:2"]


@pytest.mark.parametrize("option", ["nodelist", "exclude"])
def test_a_bad_list_of_nodes_names_its_option(option: str) -> None:
    spec = JobSpec(command=("x",), **{option: "c[1-"})  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=f"--{option}: 'c.1-' is not a list of nodes"):
        selected_by_spec(spec, capabilities().nodes)
