"""What a driver says about a GPU at one moment, and who reads it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import msgspec

from slurmkit.errors import SlurmkitError

Log = Callable[[str], None]
# Between two starts of a driver's library while a GPU is lost. The pause doubles up to an hour:
# with each start the library forgets what it had gathered about the other GPUs.
_RETRY_SECONDS = 60.0
_MOST_DOUBLINGS = 6


class NoDriver(SlurmkitError):
    """This machine has no GPU, or no driver for it."""

    exit_code = 69  # EX_UNAVAILABLE of sysexits.h; the systemd unit does not restart on it


class GpuIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Which GPU or MIG instance.

    Attributes:
        uuid: of the GPU, also for a MIG instance.
        pci: address as the driver prints it, such as `00000000:1B:00.0`.
        minor: the number of its file, /dev/nvidiaN or /dev/dri/renderDN; None if unknown.
        mig: UUID of the MIG instance; empty for a whole GPU.
    """

    uuid: str
    pci: str
    name: str
    minor: int | None = None
    mig: str = ""
    gpu_instance: int | None = None
    compute_instance: int | None = None


class GpuProcess(msgspec.Struct, frozen=True):
    """A process on a GPU: bytes of GPU memory and percent of time; None is unknown."""

    pid: int
    memory: int | None
    utilization: float | None


class DriverReading(msgspec.Struct, frozen=True, kw_only=True):
    """What one GPU or MIG instance did at one moment; None is unknown.

    Attributes:
        lost: whether the GPU does not answer; nothing else is known then.
        partitioned: whether the GPU is divided into MIG instances.
        utilization: percent of the time in which a kernel ran.
        sm_active: percent of the SMs that were busy since the last reading; not of AMD's.
        memory_used, memory_total: bytes.
        throttled: whether each reason holds the clocks back.
        energy_joules: counter since the driver was loaded.
        ecc: errors so far, by kind.
        processes: processes that compute; None if the driver does not say.
    """

    identity: GpuIdentity
    lost: bool = False
    partitioned: bool = False
    utilization: float | None = None
    sm_active: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    power_watts: float | None = None
    temperature: float | None = None
    throttled: Mapping[str, bool] | None = None
    energy_joules: float | None = None
    ecc: Mapping[str, int] = {}
    processes: tuple[GpuProcess, ...] | None = None


class GpuReader(Protocol):
    """Reader of all GPUs of this node.

    Attributes:
        errors: unexpected answers so far, by the driver's name; values that cannot be true as
            `absurd_NAME`.
        xids: NVIDIA's Xid errors since the start, by UUID of the GPU and number.
        driver: version of the driver; empty while it is lost.
    """

    errors: Counter[str]
    xids: Counter[tuple[str, int]]
    driver: str

    def open(self) -> None:
        """Load the driver's library and find the GPUs.

        Raises:
            NoDriver: when there is no GPU, no library or no driver.
        """

    def close(self) -> None:
        """Free what the library holds."""

    def read(self) -> list[DriverReading]:
        """Read all GPUs, those that do not answer as lost."""


class GpuWatch:
    """Which GPUs are lost, and when the driver's library is to be started again for them.

    Args:
        log: gets a line when a GPU is lost, or back.

    Attributes:
        seen: each GPU that ever answered, by UUID.
    """

    def __init__(self, log: Log) -> None:
        self.seen: dict[str, GpuIdentity] = {}
        self._log = log
        self._lost: set[str] = set()
        self._started = 0.0
        self._retries = 0  # starts of the library since the last change of the lost GPUs

    def start(self) -> None:
        """Say that the library starts now."""
        self._started = time.monotonic()

    def find(self, gpus: Iterable[GpuIdentity]) -> None:
        """Say which GPUs the library finds."""
        self.seen |= {gpu.uuid: gpu for gpu in gpus}

    def forget(self, gpus: Iterable[GpuIdentity]) -> None:
        """Forget GPUs whose UUID was none of their own."""
        for gpu in gpus:
            del self.seen[gpu.uuid]
            self._lost.discard(gpu.uuid)

    def is_due(self, *, is_missing: bool = False) -> bool:
        """Tell whether to start the library again: a GPU is lost, or missing, for a while."""
        pause = _RETRY_SECONDS * 2**self._retries
        if not (self._lost or is_missing) or time.monotonic() - self._started < pause:
            return False
        self._retries = min(self._retries + 1, _MOST_DOUBLINGS)
        return True

    def add_lost(self, readings: list[DriverReading]) -> list[DriverReading]:
        """Return the readings of the GPUs that answer, then those of the lost ones."""
        lost = self.seen.keys() - {reading.identity.uuid for reading in readings}
        if lost != self._lost:
            self._retries = 0
        for uuid in sorted(lost ^ self._lost):
            state = "does not answer" if uuid in lost else "answers again"
            self._log(f"{uuid} at {self.seen[uuid].pci} {state}")
        self._lost = lost
        absent = (gpu for uuid, gpu in self.seen.items() if uuid in lost)
        return [*readings, *(DriverReading(identity=gpu, lost=True) for gpu in absent)]
