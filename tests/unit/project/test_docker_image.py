"""docker/compose.yaml and docker/Dockerfile: what enroot needs there, and the order of layers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

_DOCKER = Path(__file__).parents[3] / "docker"
_COMPOSE = (_DOCKER / "compose.yaml").read_text("utf-8")


def _block(begin: str) -> str:
    """Return a block of compose.yaml: its first line, and all lines that are indented more."""
    indent = len(begin) - len(begin.lstrip())
    found = re.search(
        rf"^{re.escape(begin)}.*\n((?:\s*\n| {{{indent + 1},}}\S.*\n)*)", _COMPOSE, re.MULTILINE
    )
    assert found, begin
    return found[1]


def _volumes(block: str) -> list[str]:
    found = re.search(r"^( +)volumes:\n((?:\1 +.*\n)+)", block, re.MULTILINE)
    assert found
    return re.findall(r"^ +- ([^#\s]+)", found[2], re.MULTILINE)


@pytest.mark.parametrize("service", ["x-node: &node", "  login:"])
def test_enroot_unpacks_on_a_volume_not_on_the_overlay(service: str) -> None:
    """overlayfs refuses the whiteouts of an image's layers."""
    assert "/var/tmp" in _volumes(_block(service))
    script = (_DOCKER / "image/build/install-site-packages").read_text("utf-8")
    assert "ENROOT_TEMP_PATH /var/tmp\n" in script


def test_every_node_has_that_volume() -> None:
    nodes = re.findall(r"^  (c\d+):\n((?:    .*\n)+)", _COMPOSE, re.MULTILINE)
    assert len(nodes) == 7
    for _, block in nodes:
        assert "<<: *node" in block
        assert "volumes:" not in block  # would replace those of *node


def test_a_sites_packages_are_the_last_layer() -> None:
    """Each new .deb built Python's and PySlurm's layers anew."""
    text = (_DOCKER / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
    steps = [line for line in text.splitlines() if re.match(r"(COPY|RUN|ADD|ARG|ENV) ", line)]
    (at,) = (at for at, line in enumerate(steps) if line.startswith("COPY packages/ "))
    assert all("install-site-packages" in line for line in steps[at + 1 :])
    assert any("install-python" in line for line in steps[:at])
    assert any("install-pyslurm" in line for line in steps[:at])
