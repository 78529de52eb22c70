"""Lines of options in a batch script, as sbatch takes them apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmkit.spec.jobfile import parse_directive, split_directive
from slurmkit.spec.sbatch_options import _sbatch_quote


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (" -N 2\t--time=5 ", ["-N", "2", "--time=5"]),
        (r"--comment=a\ b", ["--comment=a b"]),
        (r"--comment='a\'b'", ["--comment=a'b"]),  # a shell would not end the quote there
        (r'--comment="a\nb\\"', ["--comment=anb\\"]),
        (r"--output=a\#b", ["--output=a#b"]),
        ("--comment=a#b --time=5", ["--comment=a"]),
        ("--comment='a#b' # c", ["--comment=a#b"]),
        ("""--comment=a"b 'c"d'e f'""", ["--comment=ab 'cde f"]),
        ("--comment=''", ["--comment="]),
        ("--comment=a\\", ["--comment=a"]),
    ],
)
def test_words_are_those_of_sbatch(line: str, words: list[str]) -> None:
    assert split_directive(line) == words


@given(st.text(st.characters(exclude_characters="\n\0", exclude_categories=["Cs"]), min_size=1))
def test_what_we_write_we_read(value: str) -> None:
    assert parse_directive(f" --comment={_sbatch_quote(value)}") == [("comment", value)]
