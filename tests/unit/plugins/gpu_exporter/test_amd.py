"""AMD's GPUs: a module with the calls of ROCm's `amdsmi`, and values recorded of an MI300X."""

from __future__ import annotations

import math
import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from slurmkit_plugins.gpu_exporter import amd, cli, readings
from slurmkit_plugins.gpu_exporter.amd import AmdReader
from slurmkit_plugins.gpu_exporter.readings import DriverReading, NoDriver

# Of `amd-smi metric --json` of ROCm 7.2 on MI300X: activity, power and memory.
BUSY = {
    "amdsmi_get_gpu_device_uuid": "a1ff74a1-0000-1000-8041-6d1a3a0dbf01",
    "amdsmi_get_gpu_device_bdf": "0000:05:00.0",
    "amdsmi_get_gpu_asic_info": {"market_name": "AMD Instinct MI300X"},
    "amdsmi_get_gpu_enumeration_info": {"drm_render": 128, "drm_card": 1},
    "amdsmi_get_gpu_driver_info": {"driver_version": "6.16.6"},
    "amdsmi_get_gpu_memory_total": 196592 << 20,
    "amdsmi_get_gpu_memory_usage": 17153 << 20,
    "amdsmi_get_gpu_activity": {"gfx_activity": 94, "umc_activity": 61, "mm_activity": "N/A"},
    "amdsmi_get_power_info": {"current_socket_power": 612, "average_socket_power": "N/A"},
    "amdsmi_get_temp_metric": 58,
    "amdsmi_get_energy_count": {"energy_accumulator": 2_000_000, "counter_resolution": 15.3},
    "amdsmi_get_gpu_total_ecc_count": {"correctable_count": 3, "uncorrectable_count": 0},
}
IDLE = BUSY | {
    "amdsmi_get_gpu_device_uuid": "a2ff74a1-0000-1000-8041-6d1a3a0dbf02",
    "amdsmi_get_gpu_device_bdf": "0000:26:00.0",
    "amdsmi_get_gpu_enumeration_info": {"drm_render": 136, "drm_card": 2},
    "amdsmi_get_gpu_activity": {"gfx_activity": 0, "umc_activity": "N/A"},
    "amdsmi_get_power_info": {"current_socket_power": "N/A", "average_socket_power": "N/A"},
}


class LibraryError(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code

    def get_error_code(self) -> int:
        return self.code


class Library(types.ModuleType):
    """The module; a value that is an exception is raised."""

    AmdSmiLibraryException = LibraryError
    AmdSmiInitFlags = types.SimpleNamespace(INIT_AMD_GPUS=2)
    AmdSmiMemoryType = types.SimpleNamespace(VRAM=0)
    AmdSmiTemperatureType = types.SimpleNamespace(EDGE=0, HOTSPOT=1)
    AmdSmiTemperatureMetric = types.SimpleNamespace(CURRENT=0)

    def __init__(self, *gpus: dict[str, Any]) -> None:
        super().__init__("amdsmi")
        self.gpus = gpus
        self.init_error: Exception | None = None

    def amdsmi_init(self, _flag: int) -> None:
        if self.init_error:
            raise self.init_error

    def amdsmi_shut_down(self) -> None:
        pass

    def amdsmi_get_processor_handles(self) -> list[int]:
        return list(range(len(self.gpus)))

    def __getattr__(self, name: str) -> Any:
        if not any(name in gpu for gpu in self.__dict__.get("gpus", ())):
            raise AttributeError(name)

        def call(handle: int, *_: object) -> Any:
            answer = self.gpus[handle][name]
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library(dict(BUSY), dict(IDLE))
    monkeypatch.setitem(sys.modules, "amdsmi", made)
    return made


def read(said: list[str] | None = None) -> tuple[AmdReader, list[DriverReading]]:
    reader = AmdReader((said if said is not None else []).append)
    reader.open()
    return reader, reader.read()


def test_a_gpu_has_the_values_that_amd_smi_shows(library: Library) -> None:
    reader, (busy, idle) = read()
    assert reader.driver == "6.16.6"
    assert (busy.identity.minor, busy.identity.pci) == (128, "0000:05:00.0")
    assert busy.identity.name == "AMD Instinct MI300X"
    assert (busy.utilization, busy.power_watts, busy.temperature) == (94, 612, 58)
    assert (busy.memory_used, busy.memory_total) == (17153 << 20, 196592 << 20)
    assert busy.energy_joules == pytest.approx(30.6)
    assert busy.ecc == {"corrected": 3, "uncorrected": 0}
    assert busy.processes is None
    assert (idle.utilization, idle.power_watts, idle.identity.minor) == (0, None, 136)
    assert not reader.errors


@pytest.mark.parametrize("nothing", ["N/A", 0xFFFF, 0xFFFFFFFF, None])
def test_what_is_not_known_is_none(library: Library, nothing: object) -> None:
    library.gpus[0]["amdsmi_get_gpu_activity"] = {"gfx_activity": nothing}
    library.gpus[0]["amdsmi_get_temp_metric"] = nothing
    reader, (busy, _) = read()
    assert (busy.utilization, busy.temperature) == (None, None)
    assert not reader.errors


def test_what_cannot_be_true_is_counted(library: Library) -> None:
    library.gpus[0]["amdsmi_get_gpu_activity"] = {"gfx_activity": 140}
    reader, (busy, _) = read()
    assert busy.utilization is None
    assert reader.errors == {"absurd_utilization": 1}


def test_a_release_without_a_function_is_read(library: Library) -> None:
    for gpu in library.gpus:
        del gpu["amdsmi_get_gpu_total_ecc_count"], gpu["amdsmi_get_gpu_enumeration_info"]
    reader, (busy, _) = read()
    assert (busy.ecc, busy.identity.minor) == ({}, None)
    assert not reader.errors


def test_errors_are_counted_unless_the_gpu_lacks_the_value(library: Library) -> None:
    library.gpus[0]["amdsmi_get_energy_count"] = LibraryError(2)
    library.gpus[0]["amdsmi_get_gpu_total_ecc_count"] = LibraryError(13)
    reader, (busy, _) = read()
    assert (busy.energy_joules, busy.ecc) == (None, {})
    assert reader.errors == {"amdsmi_13": 1}


def test_an_answer_that_the_library_cannot_read_costs_one_value(library: Library) -> None:
    library.gpus[0]["amdsmi_get_gpu_asic_info"] = ValueError("serial")
    library.gpus[0]["amdsmi_get_temp_metric"] = TypeError("none")
    reader, (busy, _) = read()
    assert (busy.identity.name, busy.temperature, busy.utilization) == ("", None, 94)
    assert reader.errors == {"amdsmi_ValueError": 1, "amdsmi_TypeError": 2}


def test_energy_of_the_oldest_releases(library: Library) -> None:
    library.gpus[0]["amdsmi_get_energy_count"] = {"power": 10, "counter_resolution": 15.3}
    library.gpus[1]["amdsmi_get_energy_count"] = {"power": 10, "counter_resolution": math.inf}
    reader, (busy, idle) = read()
    assert busy.energy_joules == pytest.approx(153e-6)
    assert idle.energy_joules is None
    assert reader.errors == {"absurd_energy": 1}


def test_a_number_of_sixteen_bits_is_none_of_a_sensor_only(library: Library) -> None:
    library.gpus[0]["amdsmi_get_power_info"] = {"current_socket_power": 65535}
    library.gpus[0]["amdsmi_get_gpu_total_ecc_count"] = {"correctable_count": 65535}
    reader, (busy, _) = read()
    assert (busy.power_watts, busy.ecc) == (None, {"corrected": 65535})
    assert not reader.errors


def test_partitions_with_one_uuid_are_told_apart(library: Library) -> None:
    library.gpus[1]["amdsmi_get_gpu_device_uuid"] = BUSY["amdsmi_get_gpu_device_uuid"]
    _, found = read()
    uuid = BUSY["amdsmi_get_gpu_device_uuid"]
    assert [each.identity.uuid for each in found] == [f"{uuid}-128", f"{uuid}-136"]


@pytest.mark.parametrize(
    ("partition", "other", "minor"),
    [("SPX", "0000:26:00.0", 128), (LibraryError(2), "0000:26:00.0", 128),
     ("CPX", "0000:26:00.0", None), (LibraryError(2), "0000:05:00.1", None)],
)  # fmt: skip
def test_the_device_file_before_rocm_6_4(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    partition: object, other: str, minor: int | None,
) -> None:  # fmt: skip
    """By the PCI address, where that is the address of one GPU."""
    (tmp_path / "0000:05:00.0/drm/renderD128").mkdir(parents=True)
    (tmp_path / "0000:05:00.0/drm/card1").mkdir()
    monkeypatch.setattr(amd, "DEVICES", tmp_path)
    for gpu in library.gpus:
        del gpu["amdsmi_get_gpu_enumeration_info"]
        gpu["amdsmi_get_gpu_compute_partition"] = partition
    library.gpus[1]["amdsmi_get_gpu_device_bdf"] = other
    _, (busy, _) = read()
    assert busy.identity.minor == minor


def test_partitions_of_which_nothing_else_is_known_are_told_apart(library: Library) -> None:
    """By their place; a UUID stays when another partition does not answer."""
    for gpu in library.gpus:
        gpu["amdsmi_get_gpu_device_uuid"] = "u"
        gpu["amdsmi_get_gpu_device_bdf"] = BUSY["amdsmi_get_gpu_device_bdf"]
        del gpu["amdsmi_get_gpu_enumeration_info"]
    reader, found = read()
    assert [each.identity.uuid for each in found] == ["u-0", "u-1"]
    library.gpus[0]["amdsmi_get_gpu_device_uuid"] = LibraryError(30)
    reader.close()
    assert {each.identity.uuid: each.lost for each in reader.read()} == {"u-1": False}


def test_a_uuid_that_turns_out_to_be_shared_is_no_lost_gpu(library: Library) -> None:
    for gpu in library.gpus:
        gpu["amdsmi_get_gpu_device_uuid"] = "u"
    library.gpus[0]["amdsmi_get_gpu_device_uuid"] = LibraryError(30)
    reader, found = read()
    assert [each.identity.uuid for each in found] == ["u"]
    library.gpus[0]["amdsmi_get_gpu_device_uuid"] = "u"
    reader.close()
    assert {each.identity.uuid: each.lost for each in reader.read()} == {
        "u-128": False, "u-136": False,
    }  # fmt: skip
    file = library.gpus[1].pop("amdsmi_get_gpu_enumeration_info")
    library.gpus[1]["amdsmi_get_gpu_enumeration_info"] = {}
    reader.close()
    assert {each.identity.uuid: each.lost for each in reader.read()} == {
        "u-128": False, "u-1": False, "u-136": True,
    }  # fmt: skip
    library.gpus[1]["amdsmi_get_gpu_enumeration_info"] = file
    reader.close()
    assert {each.identity.uuid: each.lost for each in reader.read()} == {
        "u-128": False, "u-136": False,
    }  # fmt: skip


def test_a_driver_without_gpus_stays_lost(library: Library) -> None:
    said: list[str] = []
    reader, _ = read(said)
    reader.close()
    library.gpus = ()
    assert [each.lost for each in reader.read()] == [True, True]
    assert reader.errors == {"no_driver": 1}
    assert not any("answers again" in line for line in said)


def test_a_gpu_that_stays_lost_has_the_library_started_again(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, _ = read()
    kept = dict(library.gpus[0])
    library.gpus[0].update({name: LibraryError(30) for name in BUSY})
    reader.read()
    starts: list[int] = []
    monkeypatch.setattr(library, "amdsmi_init", starts.append)
    reader.read()
    assert not starts
    monkeypatch.setattr(readings, "_RETRY_SECONDS", 0)
    library.gpus[0].update(kept)
    assert not any(each.lost for each in reader.read())
    assert starts == [2]


def test_the_library_takes_no_lock_that_others_can_hold(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RSMI_MUTEX_THREAD_ONLY", raising=False)
    seen: list[str | None] = []
    monkeypatch.setattr(
        library, "amdsmi_init", lambda _: seen.append(os.environ.get("RSMI_MUTEX_THREAD_ONLY"))
    )
    read()
    assert seen == ["1"]


def test_a_driver_that_is_not_loaded_is_named(library: Library) -> None:
    library.gpus[0]["amdsmi_get_gpu_device_uuid"] = LibraryError(34)
    with pytest.raises(NoDriver, match="cannot be read: DRIVER_NOT_LOADED; check"):
        AmdReader(print).open()


def test_who_may_not_see_values_has_lost_no_gpu(library: Library) -> None:
    for name in ("amdsmi_get_gpu_activity", "amdsmi_get_power_info"):
        library.gpus[0][name] = LibraryError(10)
    _, (busy, _) = read()
    assert not busy.lost


def test_a_driver_that_went_is_opened_again(library: Library) -> None:
    said: list[str] = []
    reader, _ = read(said)
    gpus, library.gpus = (
        library.gpus,
        tuple({name: LibraryError(34) for name in BUSY} for _ in "ab"),
    )
    assert [each.lost for each in reader.read()] == [True, True]
    assert reader.driver == ""
    library.init_error = OSError("no driver")
    assert [each.lost for each in reader.read()] == [True, True]
    library.gpus, library.init_error = gpus, None
    assert [each.lost for each in reader.read()] == [False, False]
    assert reader.driver == "6.16.6"
    assert reader.errors == {"no_driver": 2}
    assert [line for line in said if "driver" in line] == [
        "the driver is lost; each reading tries it again", "the driver answers again: 6.16.6",
    ]  # fmt: skip


def test_device_files_that_are_closed_are_said(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "renderD128").touch()
    monkeypatch.setattr(amd, "DRI", tmp_path)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    said: list[str] = []
    read(said)
    group = (tmp_path / "renderD128").group()
    assert [line.rpartition(" with ")[2] for line in said] == [f"the group {group}"]


@pytest.mark.parametrize(
    ("vendors", "expected"), [(["0x1002"], True), (["0x1002", "0x10de"], False), ([], True)]
)
def test_amds_driver_beside_nvidias_is_for_the_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vendors: list[str], expected: bool
) -> None:
    for number, vendor in enumerate(vendors):
        (device := tmp_path / f"0000:0{number}:00.0").mkdir()
        (device / "vendor").write_text(f"{vendor}\n", "ascii")
        (device / "class").write_text("0x030200\n", "ascii")
    monkeypatch.setattr(cli, "AMDGPU", tmp_path)
    monkeypatch.setattr(cli, "DEVICES", tmp_path)
    assert cli._has_amd_only() is expected
    monkeypatch.setattr(cli, "AMDGPU", tmp_path / "none")
    assert not cli._has_amd_only()


def test_a_gpu_that_does_not_answer_is_lost_and_said_once(library: Library) -> None:
    said: list[str] = []
    reader, _ = read(said)
    kept = dict(library.gpus[0])
    library.gpus[0].update({name: LibraryError(30) for name in BUSY})
    assert [each.lost for each in reader.read()] == [False, True]  # the lost ones come last
    reader.read()
    library.gpus[0].update(kept)
    assert not any(each.lost for each in reader.read())
    assert [line.rsplit(" ", 3)[-3:] for line in said] == [
        ["does", "not", "answer"], ["0000:05:00.0", "answers", "again"],
    ]  # fmt: skip


@pytest.mark.parametrize("error", [KeyError("libamd_smi.so"), OSError("no driver")])
def test_no_driver_is_said(library: Library, error: Exception) -> None:
    library.init_error = error
    with pytest.raises(NoDriver, match="check that amd-smi works"):
        AmdReader(print).open()


def test_a_python_without_amdsmi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    with pytest.raises(NoDriver, match="ROCm's package amdsmi"):
        AmdReader(print).open()
