"""The exporter's tests run on the real pynvml, which loads a stub of the driver's library."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import pytest
from nvml_stub import TWO_GPUS, Stub, build
from slurmkit_plugins.gpu_exporter.nvml import NvmlReader


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def stub(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stub:
    """Two GPUs. The library stays loaded: pynvml's own loading finds it by its name."""
    ctypes.CDLL(str(library))
    monkeypatch.setenv("NVML_STUB_STATE", str(tmp_path / "nvml"))
    made = Stub(tmp_path / "nvml")
    made.set_up(*TWO_GPUS)
    return made


@pytest.fixture
def reader(stub: Stub) -> Iterator[NvmlReader]:
    made = stub.reader()
    made.open()
    yield made
    made.close()
