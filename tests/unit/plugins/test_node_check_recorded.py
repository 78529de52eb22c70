"""What nvidia-smi really printed, of twelve GPUs and drivers 418 to 595: nothing is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from node_lab import NodeLab

RECORDED = Path(__file__).parents[2] / "recorded" / "nvidia-smi"
# Slots of virtual machines, and of a workstation, that have eight lanes for a card with sixteen.
HALF = ("a10g", "quadro-p2000-v12", "tesla-t4")


@pytest.mark.parametrize("path", sorted(RECORDED.glob("*.xml")), ids=lambda path: path.stem)
def test_a_good_gpu_is_good(node: NodeLab, path: Path) -> None:
    settings = "CHECK_GPUS=1\nCHECK_SKIP='leftovers nvlink'\n"
    node.configure(settings)
    node.script("nvidia-smi", f"cat {path}")
    assert node.wrong() == []
    if path.stem in HALF:
        node.configure(f"{settings}CHECK_PCIE_WIDTH=16\n")
        (noted,) = node.wrong()
        assert noted.startswith("pcie note ")
        assert noted.endswith(" 8 of 16 PCIe lanes")


def test_the_links_of_eight_gpus(node: NodeLab) -> None:
    """`nvidia-smi nvlink -s` of a machine with eight A100, as in leptonai/gpud."""
    said = (RECORDED / "nvlink-a100.txt").read_text("utf-8")
    uuids = [line.split("UUID: ")[1].rstrip(")") for line in said.splitlines() if "UUID: " in line]
    node.configure("CHECK_GPUS=8\nCHECK_SKIP=leftovers")
    node.gpus(*({"uuid": uuid} for uuid in uuids), nvlink=said)
    assert node.wrong() == []
    node.gpus(
        *({"uuid": uuid} for uuid in uuids),
        nvlink=said.replace("Link 11: 25 GB/s", "Link 11: <inactive>", 1),
    )
    (wrong,) = node.wrong()
    assert wrong.startswith("nvlink ")
