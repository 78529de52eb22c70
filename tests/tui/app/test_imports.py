"""What is imported before the first paint, and that the static tables tell the truth."""

from __future__ import annotations

import subprocess
import sys

import pytest
from slurmkit_tui.feed import SOURCE_NAMES
from slurmkit_tui.feed.kinds import QUESTION_KINDS
from slurmkit_tui.views import VIEWS, ViewEntry

_LATER = (
    "slurmkit_tui.widgets.dialogs",
    "slurmkit_tui.screens.job",
    "slurmkit_tui.screens.tables",
    "slurmkit_tui.widgets.filters",
    "slurmkit_tui.feed.kinds",
    "slurmkit_tui.feed.recording",
    "slurmkit_tui.views.gpus",
    "slurmkit_tui.views.mine",
    "slurmkit_tui.views.overview",
    "slurmkit_tui.views.utilization",
    "slurmkit.state.nodes",
    "slurmkit.state.gpumap",
    "slurmkit.state.model",
    "ClusterShell",
    "plotext",
)


def test_home_is_painted_without_what_other_views_and_dialogs_need() -> None:
    code = (
        "import sys, slurmkit_tui.cli, slurmkit.cluster.cluster\n"
        "from slurmkit_tui.app.app import SlurmkitApp\n"
        "from slurmkit_tui.feed.live import LiveFeed\n"
        "SlurmkitApp(LiveFeed(slurmkit.cluster.cluster.Cluster()))\n"
        "print(*sys.modules, sep='\\n')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert sorted(set(_LATER) & set(done.stdout.split())) == []


@pytest.mark.parametrize("place", VIEWS, ids=[each.name for each in VIEWS])
def test_a_view_is_where_the_table_says(place: ViewEntry) -> None:
    view = place.load()
    assert place.name == view.NAME
    assert SOURCE_NAMES[view.ASK.what] == QUESTION_KINDS[view.ASK.what].source


def test_digits_are_in_order() -> None:
    assert [each.key for each in VIEWS] == [str(at) for at in range(len(VIEWS))]
