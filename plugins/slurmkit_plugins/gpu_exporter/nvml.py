"""What NVIDIA's driver says about the GPUs of this node, through NVML.

The functions are those of the NVML API Reference Guide (docs.nvidia.com/deploy/nvml-api). A value
that a GPU does not have, or that cannot be true, is None, never 0.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, cast

import msgspec
import pynvml

from slurmkit_plugins.gpu_exporter.readings import (
    DriverReading,
    GpuIdentity,
    GpuProcess,
    GpuWatch,
    Log,
    NoDriver,
)

_ERROR_NAMES: dict[int, str] = {
    value: name.removeprefix("NVML_ERROR_").lower()
    for name, value in vars(pynvml).items()
    if name.startswith("NVML_ERROR_") and isinstance(value, int)
}
# The GPU, the driver or the user does not have the value; that is no error.
_UNAVAILABLE = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_NOT_FOUND,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_NO_DATA,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        pynvml.NVML_ERROR_DEPRECATED,
    }
)
# The GPU, or the driver below it, is gone: no other question about it would be answered.
_LOST = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_GPU_NOT_FOUND})
_DRIVER_LOST = frozenset(
    {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    }
)
_THROTTLE_REASONS: dict[str, int] = {
    "sw_power_cap": pynvml.nvmlClocksEventReasonSwPowerCap,
    "hw_slowdown": pynvml.nvmlClocksEventReasonHwSlowdown,
    "sync_boost": pynvml.nvmlClocksEventReasonSyncBoost,
    "sw_thermal": pynvml.nvmlClocksEventReasonSwThermalSlowdown,
    "hw_thermal": pynvml.nvmlClocksEventReasonHwThermalSlowdown,
    "hw_power_brake": pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown,
}
_ECC_KINDS = {
    "corrected": pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED,
    "uncorrected": pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
}
_ACTIVITY = {
    "graphics": pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL,
    "sm": pynvml.NVML_GPM_METRIC_SM_UTIL,
}
_MOST_WATTS = 5000.0  # as in the ledger
_MOST_CELSIUS = 200.0
_MOST_MEMORY = 1 << 46  # bytes
_MOST_XIDS = 1000  # in one reading


class NvmlReader:
    """Reader of all GPUs of this node.

    A GPU or a driver that is lost is logged once, and looked for again at each reading.

    Args:
        log: gets a line when a GPU or the driver is lost, or back.

    Attributes:
        errors: unexpected answers so far, by NVML's name; values that cannot be true as
            `absurd_NAME`.
        xids: Xid errors since the start, by UUID of the GPU and number.
        driver: version of the driver; empty while it is lost.
    """

    def __init__(self, log: Log) -> None:
        self.errors: Counter[str] = Counter()
        self.xids: Counter[tuple[str, int]] = Counter()
        self.driver = ""
        self._log = log
        self._gpus: list[_Gpu] = []
        self._count = 0  # GPUs that the driver lists, also those that do not answer
        self._watch = GpuWatch(log)
        self._events: Any = None

    def open(self) -> None:
        """Load the driver's library and find the GPUs.

        Raises:
            NoDriver: when there is no GPU, no library or no driver.
        """
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise NoDriver(
                f"the NVIDIA driver cannot be used: {error_name(error)}; check that nvidia-smi"
                " works on this machine, or do not run the exporter here"
            ) from error
        self._watch.start()
        try:
            self._find_gpus()
        except pynvml.NVMLError as error:
            self.close()
            raise NoDriver(f"the GPUs cannot be listed: {error_name(error)}") from error
        if not self._watch.seen:
            self.close()
            raise NoDriver("no GPU of this machine answers the NVIDIA driver")

    def close(self) -> None:
        """Free what the library holds; the library itself stays loaded."""
        for gpu in self._gpus:
            gpu.activity.close()
        with suppress(pynvml.NVMLError):
            if self._events is not None:
                pynvml.nvmlEventSetFree(self._events)
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
        self._gpus, self._count, self._events, self.driver = [], 0, None, ""

    def read(self) -> list[DriverReading]:
        """Read all GPUs, those that do not answer as lost."""
        readings: list[DriverReading] = []
        had_driver = bool(self.driver)
        try:
            self._open_again()
            readings = [reading for gpu in self._gpus for reading in self._read_if_there(gpu)]
            self._count_xids()
        except (pynvml.NVMLError, NoDriver) as error:
            why = "no_driver" if isinstance(error, NoDriver) else error_name(error)
            self.errors[why] += 1
            if had_driver:
                self._log(f"the driver is lost ({why}); each reading tries it again")
                self.close()
            readings = []
        return self._watch.add_lost(readings)

    def _open_again(self) -> None:
        """Open the driver again if it was lost, has other GPUs, or a GPU is lost for a while.

        A GPU that was reset needs it too: the driver's library keeps what it knew of it.
        """
        if not self.driver:
            self.open()
            self._log(f"the driver answers again: {self.driver}")
            return
        is_due = self._watch.is_due(is_missing=len(self._gpus) < self._count)
        if is_due or pynvml.nvmlDeviceGetCount() != self._count:
            self.close()
            self.open()

    def _find_gpus(self) -> None:
        self._count = pynvml.nvmlDeviceGetCount()
        self._events = self._ask(pynvml.nvmlEventSetCreate)
        self._gpus = [gpu for at in range(self._count) if (gpu := self._find_gpu(at))]
        self._watch.find(gpu.identity for gpu in self._gpus)
        self.driver = str(pynvml.nvmlSystemGetDriverVersion())

    def _find_gpu(self, ordinal: int) -> _Gpu | None:
        """Return a GPU; None if it does not answer."""
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(ordinal)
            identity = GpuIdentity(
                uuid=str(pynvml.nvmlDeviceGetUUID(handle)),
                pci=_text(pynvml.nvmlDeviceGetPciInfo(handle).busId),
                name=str(pynvml.nvmlDeviceGetName(handle)),
                minor=self._ask(pynvml.nvmlDeviceGetMinorNumber, handle),
            )
        except pynvml.NVMLError as error:
            if error.value in _DRIVER_LOST:
                raise
            self.errors[error_name(error)] += 1
            return None
        if self._events is not None:
            event = pynvml.nvmlEventTypeXidCriticalError
            self._ask(pynvml.nvmlDeviceRegisterEvents, handle, event, self._events)
        support = self._ask(pynvml.nvmlGpmQueryDeviceSupport, handle)
        has_activity = bool(support and support.isSupportedDevice)
        return _Gpu(handle, identity, _ActivityReader(self._ask, is_supported=has_activity))

    def _read_if_there(self, gpu: _Gpu) -> list[DriverReading]:
        """Read a GPU and its MIG instances; nothing if it is lost."""
        try:
            return list(self._read_gpu(gpu))
        except pynvml.NVMLError as error:
            if error.value not in _LOST:
                raise
            self.errors[error_name(error)] += 1
            gpu.activity.close()
            return []

    def _read_gpu(self, gpu: _Gpu) -> Iterator[DriverReading]:
        handle = gpu.handle
        mode = self._ask(pynvml.nvmlDeviceGetMigMode, handle)
        partitioned = bool(mode and mode[0])
        used, total = self._read_memory(handle)
        activity = {} if partitioned else gpu.activity.read("", handle, None)
        rates = self._ask(pynvml.nvmlDeviceGetUtilizationRates, handle)
        busy = None if rates is None else self._percent("utilization", rates.gpu)
        milliwatts = self._ask(pynvml.nvmlDeviceGetPowerUsage, handle)
        watts = None if milliwatts is None else milliwatts / 1000
        millijoules = self._ask(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle)
        yield DriverReading(
            identity=gpu.identity,
            partitioned=partitioned,
            utilization=busy,
            sm_active=self._percent("sm_active", activity.get("sm")),
            memory_used=used,
            memory_total=total,
            power_watts=self._within("power", watts, 0, _MOST_WATTS),
            temperature=self._within("temperature", self._temperature(handle), -50, _MOST_CELSIUS),
            throttled=self._throttled(handle),
            energy_joules=None if millijoules is None else millijoules / 1000,
            ecc=self._ecc(handle),
            processes=None if partitioned else self._processes(handle, gpu),
        )
        if partitioned:
            yield from self._read_instances(gpu)

    def _read_instances(self, gpu: _Gpu) -> Iterator[DriverReading]:
        """Read the MIG instances of a GPU; they come and go while the exporter runs."""
        count = self._ask(pynvml.nvmlDeviceGetMaxMigDeviceCount, gpu.handle) or 0
        for at in range(count):
            handle = self._ask(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu.handle, at)
            uuid = None if handle is None else self._ask(pynvml.nvmlDeviceGetUUID, handle)
            if uuid is None:
                continue
            identity = msgspec.structs.replace(
                gpu.identity,
                mig=str(uuid),
                gpu_instance=self._ask(pynvml.nvmlDeviceGetGpuInstanceId, handle),
                compute_instance=self._ask(pynvml.nvmlDeviceGetComputeInstanceId, handle),
            )
            used, total = self._read_memory(handle)
            activity = gpu.activity.read(identity.mig, gpu.handle, identity.gpu_instance)
            yield DriverReading(
                identity=identity,
                # NVML has no utilization of MIG instances; GPM has it, from Hopper on.
                utilization=self._percent("utilization", activity.get("graphics")),
                sm_active=self._percent("sm_active", activity.get("sm")),
                memory_used=used,
                memory_total=total,
                processes=self._processes(handle, None),
            )

    def _read_memory(self, handle: Any) -> tuple[int | None, int | None]:
        """Read used and total bytes; the first version of the call counts reserved ones as used."""
        memory = self._ask(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
        memory = memory or self._ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
        if memory is None:
            return None, None
        total = self._within("memory_total", memory.total, 1, _MOST_MEMORY)
        if total is None:
            return None, None
        return self._within("memory_used", memory.used, 0, total), total

    def _temperature(self, handle: Any) -> Any:
        sensor = pynvml.NVML_TEMPERATURE_GPU
        value = self._ask(pynvml.nvmlDeviceGetTemperatureV, handle, sensor)
        if value is None:  # drivers before 560
            value = self._ask(pynvml.nvmlDeviceGetTemperature, handle, sensor)
        return value

    def _throttled(self, handle: Any) -> dict[str, bool] | None:
        bits = self._ask(pynvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
        if bits is None:  # drivers before 535
            bits = self._ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
        if bits is None:
            return None
        return {reason: bool(bits & bit) for reason, bit in _THROTTLE_REASONS.items()}

    def _ecc(self, handle: Any) -> dict[str, int]:
        counter = pynvml.NVML_AGGREGATE_ECC  # over the life of the GPU, also over restarts
        counts = {
            kind: self._ask(pynvml.nvmlDeviceGetTotalEccErrors, handle, number, counter)
            for kind, number in _ECC_KINDS.items()
        }
        return {kind: count for kind, count in counts.items() if count is not None}

    def _processes(self, handle: Any, gpu: _Gpu | None) -> tuple[GpuProcess, ...] | None:
        """Read the processes that compute, with their utilization on a whole GPU."""
        # By version: without one, pynvml raises an error of its own where a driver lacks it.
        running = self._ask(pynvml.nvmlDeviceGetComputeRunningProcesses_v3, handle)
        if running is None:  # drivers before 510
            running = self._ask(pynvml.nvmlDeviceGetComputeRunningProcesses_v2, handle)
        if running is None:
            return None
        by_mps = self._ask(pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3, handle) or []
        # What the clients of MPS do counts for its server: without a sample, it is unknown.
        of_mps = {process.pid for process in by_mps}
        by_pid = {process.pid: process.usedGpuMemory for process in (*running, *by_mps)}
        busy = self._process_utilization(gpu) if gpu is not None and by_pid else None
        return tuple(
            GpuProcess(
                pid,
                self._within("process_memory", memory, 0, _MOST_MEMORY),
                None if busy is None else busy.get(pid, None if pid in of_mps else 0.0),
            )
            for pid, memory in by_pid.items()
        )

    def _process_utilization(self, gpu: _Gpu) -> dict[int, float] | None:
        """Read the mean utilization of each process since the last reading, in percent.

        The driver has samples only of processes that were busy at all (nvml.h,
        nvmlDeviceGetProcessUtilization), so the others were at 0.
        """
        try:
            samples = pynvml.nvmlDeviceGetProcessUtilization(gpu.handle, gpu.last_sample)
        except pynvml.NVMLError as error:
            if error.value in {pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_FOUND}:
                return {} if gpu.has_samples else None
            if error.value in _LOST | _DRIVER_LOST:
                raise
            if error.value not in _UNAVAILABLE:
                self.errors[error_name(error)] += 1
            return None
        gpu.has_samples = True
        values: dict[int, list[float]] = {}
        for sample in samples:
            gpu.last_sample = max(gpu.last_sample, sample.timeStamp)
            if (busy := self._percent("process_utilization", sample.smUtil)) is not None:
                values.setdefault(sample.pid, []).append(busy)
        return {pid: sum(own) / len(own) for pid, own in values.items()}

    def _count_xids(self) -> None:
        """Count the Xid errors that the driver has reported since the last reading."""
        if self._events is None:
            return
        by_address = {_address(gpu.handle): gpu.identity.uuid for gpu in self._gpus}
        for _ in range(_MOST_XIDS):
            try:
                event = pynvml.nvmlEventSetWait(self._events, 0)
            except pynvml.NVMLError as error:
                if error.value != pynvml.NVML_ERROR_TIMEOUT:
                    self.errors[error_name(error)] += 1
                return
            if uuid := by_address.get(_address(event.device)):
                self.xids[uuid, int(event.eventData)] += 1

    def _ask(self, function: Callable[..., Any], *values: Any) -> Any:
        """Call a function of NVML; None if this GPU or driver has no answer.

        Raises:
            pynvml.NVMLError: when the GPU or the driver is lost.
        """
        try:
            return function(*values)
        except pynvml.NVMLError as error:
            if error.value in _LOST | _DRIVER_LOST:
                raise
            if error.value not in _UNAVAILABLE:
                self.errors[error_name(error)] += 1
        return None

    def _percent(self, what: str, value: float | None) -> float | None:
        return cast("float | None", self._within(what, value, 0, 100))

    def _within(self, what: str, value: Any, least: float, most: float) -> Any:
        """Return a value; None for one that cannot be true, which is counted."""
        if value is None or least <= value <= most:  # never true of NaN
            return value
        self.errors[f"absurd_{what}"] += 1
        return None


class _Gpu:
    """A GPU as the library knows it, and what is stored of it between two readings."""

    def __init__(self, handle: Any, identity: GpuIdentity, activity: _ActivityReader) -> None:
        self.handle = handle
        self.identity = identity
        self.activity = activity
        self.last_sample = 0  # NVML's time of the newest sample of processes
        self.has_samples = False


class _ActivityReader:
    """GPM of one GPU: what its parts did between two samples, from Hopper on."""

    def __init__(self, ask: Callable[..., Any], *, is_supported: bool) -> None:
        self._ask = ask
        self._is_supported = is_supported
        self._samples: dict[str, tuple[Any, Any]] = {}

    def read(self, key: str, handle: Any, gpu_instance: int | None) -> dict[str, float]:
        """Return percent by name, since the last call with the same key; empty at the first.

        Args:
            key: names the GPU or MIG instance.
            handle: of the GPU.
            gpu_instance: of a MIG instance; None for the whole GPU.
        """
        if not self._is_supported:
            return {}
        earlier, spare = self._samples.get(key, (None, None))
        newest = spare or self._ask(pynvml.nvmlGpmSampleAlloc)
        if newest is None:
            return {}
        if gpu_instance is None:
            taken = self._ask(pynvml.nvmlGpmSampleGet, handle, newest)
        else:
            taken = self._ask(pynvml.nvmlGpmMigSampleGet, handle, gpu_instance, newest)
        if taken is None:
            self._samples[key] = earlier, newest
            return {}
        self._samples[key] = newest, earlier
        return self._between(earlier, newest) if earlier is not None else {}

    def _between(self, earlier: Any, newest: Any) -> dict[str, float]:
        request = pynvml.c_nvmlGpmMetricsGet_t()
        request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(_ACTIVITY)
        request.sample1, request.sample2 = earlier, newest
        for at, number in enumerate(_ACTIVITY.values()):
            request.metrics[at].metricId = number
        if self._ask(pynvml.nvmlGpmMetricsGet, request) is None:
            return {}
        answers = zip(_ACTIVITY, request.metrics, strict=False)
        return {name: m.value for name, m in answers if m.nvmlReturn == pynvml.NVML_SUCCESS}

    def close(self) -> None:
        """Free the samples; those from before a GPU was lost are useless when it is back."""
        for sample in (each for pair in self._samples.values() for each in pair if each):
            with suppress(pynvml.NVMLError):
                pynvml.nvmlGpmSampleFree(sample)
        self._samples = {}


def error_name(error: pynvml.NVMLError) -> str:
    """Return NVML's name of an error, such as `gpu_is_lost`."""
    return _ERROR_NAMES.get(error.value, f"error_{error.value}")


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _text(value: bytes | str) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else value
