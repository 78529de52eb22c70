"""The views, in the order of their digits."""

from __future__ import annotations

from slurmkit_tui.view import View
from slurmkit_tui.views.gpus import GpusView
from slurmkit_tui.views.nodes import NodesView
from slurmkit_tui.views.queue import QueueView

VIEWS: tuple[type[View], ...] = (QueueView, GpusView, NodesView)
