"""NVML's stub as a driver's library, built as the image of the Docker cluster builds it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from slurmkit_plugins.gpu_exporter.nvml import NvmlReader

ROOT = Path(__file__).parents[2]
STUB = ROOT / "docker" / "image" / "nvml-stub"
NODES = ROOT / "docker" / "conf" / "nvml"
GPU_0 = "GPU-aaaaaaaa-0000-4000-8000-000000000000"
GPU_1 = "GPU-bbbbbbbb-0000-4000-8000-000000000001"
# The driver's first GPU is /dev/nvidia1.
_REST = "name=NVIDIA_A100 memory_mib=40960 idle_watts=50"
TWO_GPUS = (
    f"gpu key=1 minor=1 pci=00000000:07:00.0 uuid={GPU_1} {_REST}",
    f"gpu key=0 minor=0 pci=00000000:0F:00.0 uuid={GPU_0} {_REST}",
)
RUN = """
import sys
from slurmkit.cli.main import cli, run_to_exit_code
sys.exit(run_to_exit_code(cli, ["gpu-exporter", *sys.argv[1:]]))
"""


def build(folder: Path, *flags: str) -> Path:
    """Build the library as the image does."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler; tests/tools installs gcc")
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(
        [STUB / "build", library, "-Werror", *flags], check=True, env=os.environ | {"CC": compiler}
    )
    return library


class Stub:
    """The state that the stub plays back.

    Attributes:
        said: what the readers have logged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said: list[str] = []

    def set_up(self, *lines: str) -> None:
        listed = self.folder.with_suffix(".gpus")
        listed.write_text("".join(f"{line}\n" for line in lines), "utf-8")
        self.set_up_node(listed)

    def set_up_node(self, listed: Path) -> None:
        subprocess.run([STUB / "set-up", listed], check=True)

    def play(self, gpu: int | str, *words: str) -> None:
        subprocess.run([STUB / "gpu-play", "--gpu", str(gpu), *words], check=True)

    def reader(self) -> NvmlReader:
        return NvmlReader(self.said.append)


def start(library: Path | None, *words: str, **more: str) -> subprocess.Popen[str]:
    """Start the exporter as a process that finds this library as a driver's."""
    env = os.environ | {"LD_LIBRARY_PATH": str(library.parent) if library else ""} | more
    return subprocess.Popen(
        [sys.executable, "-c", RUN, *words],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
