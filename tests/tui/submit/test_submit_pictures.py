"""The form as it looks at three widths, dark, light and without colour."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fake_queue import until
from form_scene import FormScene, looked_at, the_form
from slurmkit_tui.submit.form import SubmitForm
from textual.pilot import Pilot

Compare = Callable[..., bool]
GOOD = {
    "what": "#!/bin/bash\nmodule load cuda\nfor seed in 1 2 3; do\n  python train.py --seed $seed\n"
    "done",
    "job-name": "数据 [bold]not markup",
    "gpus": "a100:2",
    "cpus-per-task": "8",
    "mem": "32G",
    "time": "4:00:00",
    "chdir": "/home/alice",
    "mail-type": "END,FAIL",
}
WRONG = GOOD | {"gpus": "a100:99", "qos": "nonsense", "time": "30-0", "job-name": "evil\x1b[2J"}


def filled(texts: dict[str, str], *keys: str) -> Callable[[Pilot[Any]], Any]:
    async def fill(pilot: Pilot[Any]) -> None:
        app: Any = pilot.app
        await until(pilot, lambda: app.session.site is not None)
        await pilot.press("n")
        await until(pilot, lambda: isinstance(app.screen, SubmitForm))
        await until(pilot, lambda: the_form(app)._offers is not None)
        for name, text in texts.items():
            the_form(app).row(name).text = text
        await looked_at(pilot)
        the_form(app).row("gpus").enter()
        await pilot.pause()
        await pilot.press("end", *keys)
        await pilot.pause()

    return fill


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 50)])
@pytest.mark.parametrize("texts", [GOOD, WRONG], ids=["good", "wrong"])
def test_dark(texts: dict[str, str], size: tuple[int, int], snap_compare: Compare) -> None:
    app = FormScene().app()
    assert snap_compare(app, terminal_size=size, run_before=filled(texts))


@pytest.mark.parametrize("texts", [GOOD, WRONG], ids=["good", "wrong"])
@pytest.mark.parametrize("look", ["light", "no-colour"])
def test_other_looks(look: str, texts: dict[str, str], snap_compare: Compare) -> None:
    app = FormScene().app(theme=look)
    assert snap_compare(app, terminal_size=(120, 40), run_before=filled(texts))


@pytest.mark.parametrize("look", ["dark", "light", "no-colour"])
def test_the_preview_on_a_narrow_screen(look: str, snap_compare: Compare) -> None:
    app = FormScene().app(theme=look)
    assert snap_compare(app, terminal_size=(80, 24), run_before=filled(GOOD, "ctrl+t"))


def test_the_question(snap_compare: Compare) -> None:
    app = FormScene().app()
    assert snap_compare(app, terminal_size=(120, 40), run_before=filled(GOOD, "ctrl+s"))
