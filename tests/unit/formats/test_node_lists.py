"""Node lists: as Slurm prints them, as users type them, and as a job's name may forge them."""

from __future__ import annotations

from itertools import islice

import pytest
from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet
from hypothesis import given
from hypothesis import strategies as st

from slurmkit.formats.scontrol import expand_nodes, expand_typed_nodes, iterate_nodes


def test_lists_of_slurm_and_of_users() -> None:
    assert expand_nodes("c[1-3],d5") == ("c1", "c2", "c3", "d5")
    assert expand_nodes("(null)") == expand_nodes(None) == ()
    assert len(expand_nodes("a[1-1000],b[1-1000],c[1-1000]")) == 3000
    assert expand_typed_nodes("r[1-2]n[01-02]") == ("r1n01", "r1n02", "r2n01", "r2n02")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("c[1-1][2-3]", ("c12", "c13")),
        ("c[1-2][09-10]x,d5", ("c109x", "c110x", "c209x", "c210x", "d5")),
        ("r[1,3][2]n[1-2]", ("r12n1", "r12n2", "r32n1", "r32n2")),
        ("c1[9-11]", ("c19", "c110", "c111")),
        ("c[0-1][0-1][7]", ("c007", "c017", "c107", "c117")),
    ],
)
def test_brackets_of_a_user_are_expanded_as_slurm_does(text: str, names: tuple[str, ...]) -> None:
    assert set(expand_typed_nodes(text)) == set(names)


@pytest.mark.parametrize(
    "text",
    [
        "c[1-2][1-999999]",
        "c[1-2][a]",
        "c[1-2][]",
        "c[1-2]d[3-4]1000000000000",
        "19[1-65535]-",
        "c[1-99999999999]",
        "a[1-300]b[1-300]",
        "c[1-2]9[1-9]0000000",
        f"c[1-{'9' * 5000}]",
        "c[1",
        "c[a-b]",
        "c[]",
    ],
)
def test_what_names_too_many_nodes_or_none_is_no_list(text: str) -> None:
    """Neither ClusterShell's own exceptions nor all the memory."""
    with pytest.raises(ValueError, match="is not a list of nodes"):
        expand_nodes(text)


def test_names_come_one_by_one() -> None:
    assert list(islice(iterate_nodes("c[1-999999999],d5"), 2)) == ["c1", "c2"]
    assert list(islice(iterate_nodes("19[1-65535]"), 2)) == ["191", "192"]
    for text in ("c[1-2]d[3-4]", "c[1-2]5", "c[1-2-3]", "c[1", "@x", "c1,", "", "c[1-]", "c[]"):
        with pytest.raises(ValueError, match="is not a list of nodes"):
            next(iterate_nodes(text))


NAMES = st.from_regex(r"[a-z]{1,3}-?(0[0-9]{2}|[1-9][0-9]{0,2})", fullmatch=True)


@given(st.sets(NAMES, min_size=1, max_size=20))
def test_what_is_folded_is_iterated(names: set[str]) -> None:
    folded = str(NodeSet.fromlist(sorted(names), resolver=RESOLVER_NOGROUP))
    assert set(iterate_nodes(folded)) == names
