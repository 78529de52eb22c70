"""What the exporter reads from the driver, through the real pynvml and a stub of its library."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from nvml_stub import GPU_0, GPU_1, NODES, STUB, TWO_GPUS, Stub
from slurmkit_accounting.gpu_use.samples import MOST_WATTS
from slurmkit_plugins.gpu_exporter import nvml, readings
from slurmkit_plugins.gpu_exporter.nvml import NvmlReader
from slurmkit_plugins.gpu_exporter.readings import DriverReading, NoDriver
from waiting import wait_until


def by_uuid(readings: list[DriverReading]) -> dict[str, DriverReading]:
    return {reading.identity.mig or reading.identity.uuid: reading for reading in readings}


def test_a_gpu_is_read_as_it_is(stub: Stub, reader: NvmlReader) -> None:
    stub.play(0, "busy", "80", "memory", "20G", "power", "310", "temperature", "61")
    stub.play(0, "throttled", "hw_thermal", "ecc", "7,1")
    readings = by_uuid(reader.read())
    gpu, other = readings[GPU_0], readings[GPU_1]
    assert gpu.identity.minor == 0
    assert gpu.identity.pci == "00000000:0F:00.0"
    assert gpu.identity.name == "NVIDIA A100"
    assert (gpu.utilization, gpu.power_watts, gpu.temperature) == (80, 310, 61)
    assert (gpu.memory_used, gpu.memory_total) == (20 << 30, 40 << 30)
    assert gpu.ecc == {"corrected": 7, "uncorrected": 1}
    assert gpu.throttled
    assert [reason for reason, is_held in gpu.throttled.items() if is_held] == ["hw_thermal"]
    assert (other.utilization, other.power_watts, other.memory_used) == (0, 50, 0)
    assert not reader.errors


def test_what_a_gpu_does_not_have_is_unknown(reader: NvmlReader) -> None:
    """This one has neither GPM nor ECC, and nobody runs on it."""
    gpu = by_uuid(reader.read())[GPU_0]
    assert (gpu.sm_active, dict(gpu.ecc), gpu.processes) == (None, {}, ())
    assert not reader.errors


def test_energy_is_the_integral_of_power(stub: Stub) -> None:
    """50 W for half an hour, 360 W for the next quarter, 0 W since."""
    began = time.time() - 3600
    os.utime(stub.folder / "gpus", (began, began))
    history = f"{began + 1800} 360\n{began + 2700} 0\n"
    (stub.folder / "0" / "power").write_text(history, "utf-8")
    for _ in range(2):  # a new process, and the driver loaded anew, go on with the same counter
        reader = stub.reader()
        reader.open()
        assert by_uuid(reader.read())[GPU_0].energy_joules == pytest.approx(
            50 * 1800 + 360 * 900, rel=1e-6
        )
        reader.close()


def test_a_counter_that_wrapped_is_passed_on(stub: Stub) -> None:
    """A reader sees a reset; the exporter does not guess what was before."""
    first = TWO_GPUS[0] + " energy_base={} energy_bits=32"
    values = []
    for base in (2**32 / 1000 - 1000, 2**32 / 1000 + 100):
        stub.set_up(first.format(base))
        reader = stub.reader()
        reader.open()
        values.append(reader.read()[0].energy_joules or 0)
        reader.close()
    assert values[1] < 2**31 / 1000 < values[0]


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("busy", "250"), "utilization"),
        (("memory", "41G"), "memory_used"),
        (("temperature", "4000000"), "temperature"),
        (("power", f"{MOST_WATTS + 1:.0f}"), "power_watts"),
    ],
)
def test_what_cannot_be_true_is_unknown_and_counted(
    stub: Stub, reader: NvmlReader, words: tuple[str, str], name: str
) -> None:
    stub.play(0, *words)
    gpu = by_uuid(reader.read())[GPU_0]
    assert getattr(gpu, name) is None
    assert dict(reader.errors) == {f"absurd_{name.removesuffix('_watts')}": 1}
    known = {"utilization", "memory_used", "temperature", "power_watts"} - {name}
    assert None not in {getattr(gpu, other) for other in known}


def test_sm_activity_is_of_the_time_between_two_readings(stub: Stub) -> None:
    stub.set_up(TWO_GPUS[0] + " gpm=1")
    stub.play(1, "busy", "90", "sm", "42.5")
    reader = stub.reader()
    reader.open()
    assert [reader.read()[0].sm_active for _ in range(3)] == [None, 42.5, 42.5]
    stub.play(1, "sm", "nan")
    assert reader.read()[0].sm_active is None
    assert reader.read()[0].utilization == 90
    assert dict(reader.errors) == {"absurd_sm_active": 2}
    reader.close()


def test_mig_instances_are_gpus_of_their_own(stub: Stub) -> None:
    stub.set_up_node(NODES / "c5")
    stub.play(3, "busy", "80", "memory", "1G", "power", "30")
    reader = stub.reader()
    reader.open()
    reader.read()
    readings = reader.read()
    reader.close()
    assert [(bool(r.identity.mig), r.partitioned) for r in readings].count((True, False)) == 6
    instance = by_uuid(readings)["MIG-c5000003-0000-5000-8000-000001000008"]
    assert (instance.identity.gpu_instance, instance.identity.compute_instance) == (8, 0)
    assert instance.identity.uuid == "GPU-c5000001-0000-4000-8000-000000000001"
    assert (instance.utilization, instance.sm_active) == (80, 80)
    assert (instance.memory_used, instance.memory_total) == (1 << 30, 4864 << 20)
    # Power, energy and temperature are the whole GPU's.
    assert (instance.power_watts, instance.energy_joules) == (None, None)
    whole = next(r for r in readings if r.identity.uuid == instance.identity.uuid)
    assert (whole.partitioned, whole.utilization, whole.power_watts) == (True, None, 80)
    assert not reader.errors


def test_a_lost_gpu_is_said_once_and_found_again(stub: Stub, reader: NvmlReader) -> None:
    reader.read()
    stub.play(0, "error", "15")
    for _ in range(2):
        readings = by_uuid(reader.read())
        lost, other = readings[GPU_0], readings[GPU_1]
        assert lost == DriverReading(identity=lost.identity, lost=True)
        assert (other.lost, other.utilization) == (False, 0)
    stub.play(0, "error", "0")
    assert by_uuid(reader.read())[GPU_0].utilization == 0
    where = f"{GPU_0} at 00000000:0F:00.0"
    assert stub.said == [f"{where} does not answer", f"{where} answers again"]
    assert dict(reader.errors) == {"gpu_is_lost": 2}


def test_a_gpu_that_is_lost_at_the_start_is_looked_for(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub.play(0, "error", "15")
    reader = stub.reader()
    reader.open()
    assert set(by_uuid(reader.read())) == {GPU_1}
    stub.play(1, "error", "15")
    reader.read()
    stub.play(0, "error", "0")
    assert set(by_uuid(reader.read())) == {GPU_1}  # the driver is not begun anew each time
    monkeypatch.setattr(readings, "_RETRY_SECONDS", 0)
    read = by_uuid(reader.read())
    assert (read[GPU_0].lost, read[GPU_1].lost) == (False, True)
    reader.close()


class _Counted(NvmlReader):
    """A reader that counts the starts of the driver's library."""

    starts = 0

    def open(self) -> None:
        self.starts += 1
        super().open()


@pytest.mark.parametrize("at_the_start", [False, True])
def test_a_gpu_that_stays_lost_begins_the_driver_anew_ever_more_seldom(
    stub: Stub, monkeypatch: pytest.MonkeyPatch, at_the_start: bool
) -> None:
    """What the library gathers about the other GPUs must not be lost each minute for days."""
    now = [0.0]
    monkeypatch.setattr(readings, "time", SimpleNamespace(monotonic=lambda: now[0]))
    if at_the_start:
        stub.play(0, "error", "15")
    reader = _Counted(stub.said.append)
    reader.open()
    reader.read()
    stub.play(0, "error", "15")
    reader.read()
    starts = []
    for minute in range(1, 4 * 60):
        now[0], before = minute * 60.0, reader.starts
        reader.read()
        starts += [minute] * (reader.starts - before)
    assert starts == [1, 3, 7, 15, 31, 63, 127, 191]
    stub.play(0, "error", "0")
    now[0] += 3840
    assert {each.lost for each in reader.read()} == {False}
    stub.play(0, "error", "15")
    reader.read()
    now[0], before = now[0] + 60, reader.starts
    reader.read()
    assert reader.starts == before + 1  # lost anew: it is looked for soon again
    reader.close()


def test_a_driver_that_is_reloaded_is_opened_again(stub: Stub, reader: NvmlReader) -> None:
    reader.read()
    error = stub.folder / "error"
    error.write_text("9", "ascii")
    for _ in range(3):
        assert {r.lost for r in reader.read()} == {True}
        assert reader.driver == ""
    error.unlink()
    (stub.folder / "driver").write_text("580.65.06\n", "ascii")
    assert {r.lost for r in reader.read()} == {False}
    assert reader.driver == "580.65.06"
    assert [line for line in stub.said if "driver" in line] == [
        "the driver is lost (driver_not_loaded); each reading tries it again",
        "the driver answers again: 580.65.06",
    ]


def test_errors_of_one_question_leave_the_others(stub: Stub, reader: NvmlReader) -> None:
    stub.play(0, "error", "999")
    gpu = by_uuid(reader.read())[GPU_0]
    assert (gpu.lost, gpu.utilization, gpu.processes) == (False, None, None)
    assert set(reader.errors) == {"unknown"}


@pytest.mark.parametrize(("there", "why"), [(False, "driver_not_loaded"), (True, "no GPU")])
def test_without_a_gpu_there_is_one_error(stub: Stub, there: bool, why: str) -> None:
    (stub.folder / "gpus").unlink()
    if there:
        stub.set_up("# none")
    with pytest.raises(NoDriver, match=why) as error:
        stub.reader().open()
    assert error.value.exit_code == 69


def test_xid_errors_are_counted_from_the_start_on(stub: Stub) -> None:
    stub.play(0, "xid", "13")
    reader = stub.reader()
    reader.open()
    stub.play(0, "xid", "79", "xid", "79")
    stub.play(1, "xid", "31")
    reader.read()
    assert dict(reader.xids) == {(GPU_0, 79): 2, (GPU_1, 31): 1}
    reader.read()
    assert sum(reader.xids.values()) == 3
    reader.close()


def test_processes_with_what_the_driver_says_of_each(stub: Stub, reader: NvmlReader) -> None:
    stub.play(0, "process", "11,1048576,50", "process", "12,-,0")
    reader.read()
    processes = by_uuid(reader.read())[GPU_0].processes
    assert processes
    assert [(p.pid, p.memory, p.utilization) for p in processes] == [
        (11, 1048576, 50),
        (12, None, 0),
    ]


def test_a_client_of_mps_without_a_sample_is_unknown_and_not_idle(
    stub: Stub, reader: NvmlReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What clients do may count for the MPS server; the stub has no such list."""
    clients = [SimpleNamespace(pid=12, usedGpuMemory=512), SimpleNamespace(pid=13, usedGpuMemory=9)]
    monkeypatch.setattr(
        nvml.pynvml, "nvmlDeviceGetMPSComputeRunningProcesses_v3", lambda _: clients
    )
    stub.play(0, "process", "11,1048576,50", "process", "13,9,20", "process", "14,9,0")
    reader.read()
    processes = by_uuid(reader.read())[GPU_0].processes
    assert processes
    known = {each.pid: each.utilization for each in processes}
    assert known == {11: 50, 12: None, 13: 20, 14: 0}


def test_no_sample_of_processes_yet_is_unknown(stub: Stub, reader: NvmlReader) -> None:
    stub.play(0, "process", "11,1048576,0")
    processes = by_uuid(reader.read())[GPU_0].processes
    assert processes
    assert processes[0].utilization is None


def test_each_node_of_the_docker_cluster_has_distinct_gpus() -> None:
    seen: set[str] = set()
    for node in sorted(path for path in NODES.iterdir() if path.suffix == ""):
        listed = [line.split() for line in node.read_text("utf-8").splitlines()]
        names = [word for words in listed for word in words if word.startswith("uuid=")]
        assert len(names) == len(set(names))
        assert not seen & set(names)
        seen |= set(names)
    assert seen


def test_the_first_gpu_of_the_driver_is_not_slurms_first_on_c2(stub: Stub) -> None:
    stub.set_up_node(Path(NODES, "c2"))
    reader = stub.reader()
    reader.open()
    assert [r.identity.minor for r in reader.read()] == [3, 2, 1, 0, 7, 6, 5, 4]
    reader.close()


def test_a_job_that_plays_leaves_its_gpu_idle(stub: Stub, reader: NvmlReader) -> None:
    argv = [STUB / "gpu-play", "--gpu", "0", "--for", "600", "busy", "80", "power", "310"]
    with subprocess.Popen(argv) as job:
        wait_until(lambda: by_uuid(reader.read())[GPU_0].power_watts == 310)
        assert by_uuid(reader.read())[GPU_0].utilization == 80
        job.terminate()
    gpu = by_uuid(reader.read())[GPU_0]
    assert (gpu.utilization, gpu.power_watts) == (0, 50)


def test_a_job_plays_on_its_own_gpus(stub: Stub, reader: NvmlReader) -> None:
    env = os.environ | {"SLURM_JOB_GPUS": "1"}
    subprocess.run([STUB / "gpu-play", "busy", "70"], check=True, env=env)
    readings = by_uuid(reader.read())
    assert (readings[GPU_0].utilization, readings[GPU_1].utilization) == (0, 70)
