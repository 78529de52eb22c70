"""What AMD's driver says about the GPUs of this node, through the Python package `amdsmi` of ROCm.

The functions are those of ROCm's `amdsmi_interface.py`, releases 6.0 to 7.0; what a release lacks
is unknown. A value that a GPU does not have, or that cannot be true, is None, never 0.

Processes are not read: until July 2026 the library lists each process under every GPU. Which job
has a GPU says the prolog.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from slurmkit_plugins.gpu_exporter.readings import (
    DriverReading,
    GpuIdentity,
    GpuWatch,
    Log,
    NoDriver,
)

DEVICES = Path("/sys/bus/pci/devices")
DRI = Path("/dev/dri")
# Locks within this process. Else they are files in /dev/shm, which any user can make and hold.
_LOCKS = "RSMI_MUTEX_THREAD_ONLY"
# The GPU, the driver or the user does not have the value; that is no error (amdsmi.h).
_UNAVAILABLE = (2, 3, 10, 40)  # NOT_SUPPORTED, NOT_YET_IMPLEMENTED, NO_PERM, NO_DATA
_DRIVER_LOST = {32: "NOT_INIT", 34: "DRIVER_NOT_LOADED"}
_CANNOT_READ = (
    "AMD's GPUs cannot be read: {}; check that amd-smi works on this machine, and that this Python"
    " has ROCm's package amdsmi"
)
_NO_VALUE = ("N/A", 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)
_NO_SENSOR = 0xFFFF  # of 16 bits: percent, watts and degrees
_MOST_WATTS, _MOST_CELSIUS = 5000.0, 200.0
_MOST_MEMORY, _MOST_JOULES = 1 << 46, 1e15
_ECC_KINDS = {"corrected": "correctable_count", "uncorrected": "uncorrectable_count"}


class AmdReader:
    """Reader of all AMD GPUs of this node; each partition of one is a GPU of its own.

    Args:
        log: gets a line when a GPU or the driver is lost, or back.

    Attributes:
        errors, xids, driver: as of `GpuReader`; AMD has no Xid errors.
    """

    def __init__(self, log: Log) -> None:
        self.errors: Counter[str] = Counter()
        self.xids: Counter[tuple[str, int]] = Counter()
        self.driver = ""
        self._log = log
        self._smi: Any = None
        self._gpus: list[tuple[Any, GpuIdentity]] = []
        self._count = 0  # GPUs that the driver lists, also those that do not answer
        self._shared: set[str] = set()  # UUIDs that several GPUs have
        self._watch = GpuWatch(log)

    def open(self) -> None:
        """Load ROCm's library and find the GPUs.

        Raises:
            NoDriver: when there is no GPU, no library or no driver.
        """
        self._watch.start()
        os.environ.setdefault(_LOCKS, "1")
        try:
            # Without ROCm's library, it raises one of several errors, and prints.
            with contextlib.redirect_stdout(io.StringIO()):
                self._smi = importlib.import_module("amdsmi")
                self._smi.amdsmi_init(self._smi.AmdSmiInitFlags.INIT_AMD_GPUS)
                handles = self._smi.amdsmi_get_processor_handles()
            self._find_gpus(handles)
        except NoDriver:
            self.close()
            raise
        except Exception as error:  # its own errors are known only once it has been loaded
            self.close()
            raise NoDriver(_CANNOT_READ.format(f"{type(error).__name__}: {error}")) from error
        if not handles or not self._watch.seen:
            self.close()
            raise NoDriver("no GPU of this machine answers AMD's driver")

    def close(self) -> None:
        """Free what the library holds."""
        if self._smi is not None:
            with contextlib.suppress(Exception):
                self._smi.amdsmi_shut_down()
        self._smi, self._gpus, self._count, self.driver = None, [], 0, ""

    def read(self) -> list[DriverReading]:
        """Read all GPUs, those that do not answer as lost."""
        readings: list[DriverReading] = []
        had_driver = bool(self.driver)
        try:
            self._open_again()
            for handle, identity in self._gpus:
                if reading := self._read_gpu(handle, identity):
                    readings.append(reading)
        except NoDriver:
            self.errors["no_driver"] += 1
            if had_driver:
                self._log("the driver is lost; each reading tries it again")
                self.close()
            readings = []
        return self._watch.add_lost(readings)

    def _open_again(self) -> None:
        """Open the driver again if it was lost, or a GPU is lost for a while."""
        if not self.driver:
            self.open()
            self._log(f"the driver answers again: {self.driver}")
        elif self._watch.is_due(is_missing=len(self._gpus) < self._count):
            self.close()
            self.open()

    def _find_gpus(self, handles: list[Any]) -> None:
        found = [
            (handle, each, at)
            for at, handle in enumerate(handles)
            if (each := self._identify(handle))
        ]
        self._count = len(handles)
        # Partitions, and GPUs without a serial number, may have one UUID.
        uuids = Counter(identity.uuid for _, identity, _ in found)
        self._shared |= {uuid for uuid, count in uuids.items() if count > 1}
        self._gpus = [
            (handle, _with_own_uuid(each, at) if each.uuid in self._shared else each)
            for handle, each, at in found
        ]
        self.driver = self._read_driver(handles[0]) if handles else ""
        if not self._watch.seen:
            self._tell_closed_files()
        self._watch.forget([gpu for gpu in self._watch.seen.values() if self._has_others_uuid(gpu)])
        self._watch.find(identity for _, identity in self._gpus)

    def _has_others_uuid(self, gpu: GpuIdentity) -> bool:
        """Tell whether a UUID is of several GPUs, or has a place in the list, which may change."""
        by_place = gpu.minor is None and gpu.uuid.rpartition("-")[0] in self._shared
        return by_place or gpu.uuid in self._shared

    def _tell_closed_files(self) -> None:
        files = list(DRI.glob("renderD*"))
        if files and not any(os.access(path, os.R_OK | os.W_OK) for path in files):
            self._log(
                f"none of {DRI}/renderD* may be opened, so most values stay unknown; run the"
                f" exporter with the group {_group(files[0])}"
            )

    def _identify(self, handle: Any) -> GpuIdentity | None:
        uuid = self._ask("amdsmi_get_gpu_device_uuid", handle)
        pci = self._ask("amdsmi_get_gpu_device_bdf", handle)
        if not uuid or not pci:
            return None
        asic = self._ask("amdsmi_get_gpu_asic_info", handle) or {}
        return GpuIdentity(
            uuid=str(uuid),
            pci=str(pci),
            name=str(asic.get("market_name", "")),
            minor=self._render_minor(handle, str(pci)),
        )

    def _render_minor(self, handle: Any, pci: str) -> int | None:
        """Return N of /dev/dri/renderDN, the file that Slurm gives to a job."""
        known = self._ask("amdsmi_get_gpu_enumeration_info", handle) or {}
        if (minor := _number(known.get("drm_render"))) is not None:
            return int(minor)
        # Before ROCm 6.4. There a partition may have the address of its GPU, and then the file that
        # is found by it is the first partition's.
        if self._ask("amdsmi_get_gpu_compute_partition", handle) not in (None, "SPX", "N/A"):
            return None
        bus = pci.rpartition(".")[0]
        if sum(self._bus(each) == bus for each in self._smi.amdsmi_get_processor_handles()) > 1:
            return None
        files = [path.name.removeprefix("renderD") for path in (DEVICES / pci / "drm").glob("r*")]
        return int(files[0]) if len(files) == 1 and files[0].isdecimal() else None

    def _bus(self, handle: Any) -> str:
        return str(self._ask("amdsmi_get_gpu_device_bdf", handle)).rpartition(".")[0]

    def _read_driver(self, handle: Any) -> str:
        known = self._ask("amdsmi_get_gpu_driver_info", handle) or {}
        version = known.get("driver_version", "") if isinstance(known, dict) else known
        return str(version or "unknown")

    def _read_gpu(self, handle: Any, identity: GpuIdentity) -> DriverReading | None:
        """Read a GPU; None if it is lost."""
        before = self.errors.total()
        activity = self._ask("amdsmi_get_gpu_activity", handle)
        power = self._ask("amdsmi_get_power_info", handle)
        if activity is None and power is None and self.errors.total() > before:
            return None
        total = self._memory(handle, "amdsmi_get_gpu_memory_total")
        used = self._memory(handle, "amdsmi_get_gpu_memory_usage")
        return DriverReading(
            identity=identity,
            utilization=self._within("utilization", (activity or {}).get("gfx_activity"), 0, 100),
            memory_used=None if used is None or total is None or used > total else int(used),
            memory_total=None if total is None else int(total),
            power_watts=self._power(power or {}),
            temperature=self._temperature(handle),
            energy_joules=self._energy(handle),
            ecc=self._ecc(handle),
        )

    def _memory(self, handle: Any, name: str) -> float | None:
        kind = self._smi.AmdSmiMemoryType.VRAM
        return self._within(name, self._ask(name, handle, kind), 0, _MOST_MEMORY)

    def _power(self, power: dict[str, Any]) -> float | None:
        """Return the power now, or else its mean; MI300X has the former, older GPUs the latter."""
        for name in ("current_socket_power", "average_socket_power"):
            if (watts := self._within("power", power.get(name), 0, _MOST_WATTS)) is not None:
                return watts
        return None

    def _temperature(self, handle: Any) -> float | None:
        metric = self._smi.AmdSmiTemperatureMetric.CURRENT
        kinds = self._smi.AmdSmiTemperatureType
        for kind in (kinds.HOTSPOT, kinds.EDGE):
            celsius = self._ask("amdsmi_get_temp_metric", handle, kind, metric)
            if (known := self._within("temperature", celsius, -50, _MOST_CELSIUS)) is not None:
                return known
        return None

    def _energy(self, handle: Any) -> float | None:
        known = self._ask("amdsmi_get_energy_count", handle) or {}
        count = _number(known.get("energy_accumulator", known.get("power")))  # `power` up to 6.2
        micro = _number(known.get("counter_resolution"))  # joules of one count, in millionths
        if count is None or micro is None:
            return None
        return self._within("energy", count * micro / 1e6, 0, _MOST_JOULES)

    def _ecc(self, handle: Any) -> dict[str, int]:
        known = self._ask("amdsmi_get_gpu_total_ecc_count", handle) or {}
        counts = {kind: _number(known.get(name)) for kind, name in _ECC_KINDS.items()}
        return {kind: int(count) for kind, count in counts.items() if count is not None}

    def _ask(self, name: str, *values: Any) -> Any:
        """Call a function of the library; None if this release, GPU or driver has no answer.

        Raises:
            NoDriver: when the driver is gone.
        """
        function = getattr(self._smi, name, None)
        if function is None:
            return None
        try:
            return function(*values)
        except self._smi.AmdSmiLibraryException as error:
            code = error.get_error_code()
            if code in _DRIVER_LOST:
                raise NoDriver(_CANNOT_READ.format(_DRIVER_LOST[code])) from error
            if code not in _UNAVAILABLE:
                self.errors[f"amdsmi_{code}"] += 1
        except Exception as error:  # noqa: BLE001 - of numbers and texts in it that it cannot read
            self.errors[f"amdsmi_{type(error).__name__}"] += 1
        return None

    def _within(self, what: str, value: Any, least: float, most: float) -> float | None:
        """Return a number; None for one that cannot be true, which is counted."""
        number = _number(value)
        if number is None or (number == _NO_SENSOR and most < _NO_SENSOR):
            return None
        if least <= number <= most:
            return number
        self.errors[f"absurd_{what}"] += 1
        return None


def _with_own_uuid(gpu: GpuIdentity, at: int) -> GpuIdentity:
    """Add the number of the GPU's file to its UUID, or else its place in the driver's list."""
    own = at if gpu.minor is None else gpu.minor  # no place is as high as a number of a file
    return msgspec.structs.replace(gpu, uuid=f"{gpu.uuid}-{own}")


def _group(path: Path) -> str:
    try:
        return path.group()
    except (KeyError, OSError):
        return "of these files"


def _number(value: Any) -> float | None:
    """Return a number; None for "N/A" and the largest numbers, which say that there is none."""
    if value in _NO_VALUE or isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value
