"""Text from outside is never read as markup."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import slurmkit_tui
from fake_queue import Scene, expect_text, job, running, text

SOURCES = sorted(Path(slurmkit_tui.__file__).parent.rglob("*.py"))


@pytest.mark.parametrize("typed", ["cpus>[/", "[/", "x[bold]y", "/[/"])
async def test_a_filter_with_brackets_is_only_text(typed: str) -> None:
    app = Scene([job("11", UserName="alice")]).app()
    async with running(app) as pilot:
        await pilot.press("slash", *typed)
        await expect_text(pilot, typed)
        assert "filter" in text(app)


@pytest.mark.parametrize("source", SOURCES, ids=[path.stem for path in SOURCES])
def test_no_text_widget_reads_markup(source: Path) -> None:
    """Static and Label read markup unless they are told not to."""
    for call in ast.walk(ast.parse(source.read_text("utf-8"))):
        name = getattr(getattr(call, "func", None), "id", "")
        if isinstance(call, ast.Call) and name in ("Static", "Label"):
            assert "markup" in {each.arg for each in call.keywords}, (source, call.lineno)
