"""The service's log: one line a thing, whatever is in it."""

from __future__ import annotations

import pytest
from slurmkit_accounting.service.wsgi import log


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("usage", "usage"),
        ("", '""'),
        ('x" uid=0 y="', r'"x\" uid=0 y=\""'),
        ("x=y", '"x=y"'),
        ("a\nanswered uid=0", r'"a\\nanswered uid=0"'),
        ('\\" uid=0', r'"\\\" uid=0"'),
        ("z" * 1000, "z" * 300),
    ],
)
def test_no_fact_forges_another(text: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    log("answered", ask=text, fault=None)
    assert capsys.readouterr().err == f"answered ask={shown}\n"
