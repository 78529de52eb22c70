"""A node whose commands, devices and files are stand-ins."""

from __future__ import annotations

from pathlib import Path

import pytest
from node_lab import NodeLab


@pytest.fixture
def node(tmp_path: Path) -> NodeLab:
    return NodeLab(tmp_path)
