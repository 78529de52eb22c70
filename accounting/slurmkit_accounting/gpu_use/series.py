"""The curve of one GPU over one run: at most 300 points, packed into some hundred bytes.

A point is the mean of the samples of `step` seconds. When a run grows beyond the last point, two
neighbouring points become one and the step doubles, so that memory stays bounded however long the
run is. Points without a sample are unknown, not zero.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from operator import add

from slurmkit.state.gpu_use import CurvePoint
from slurmkit_accounting.gpu_use.samples import GpuReading

MOST_POINTS = 300
_VERSION = b"\x01"
_UNKNOWN = 0xFFFF
_MOST = _UNKNOWN - 1
_COLUMNS = 4  # samples, utilization, memory, power
_MEMORY_UNIT = 16  # MiB
_MOST_BYTES = MOST_POINTS * _COLUMNS * 2


class Curve:
    """A curve that grows with each sample; with 300 points it takes some 10 KB of memory.

    Attributes:
        begin: epoch seconds at which the first point begins.
        step: seconds of one point.
    """

    def __init__(self, begin: int, step: int) -> None:
        self.begin = begin
        self.step = max(step, 1)
        # Of each point: the number of samples; sum and number of the known utilizations (1/1000)
        # and powers (watts); the most memory (MiB), -1 if unknown.
        self._samples = array("I")
        self._utilization, self._utilization_known = array("d"), array("I")
        self._watts, self._watts_known = array("d"), array("I")
        self._memory = array("i")

    def add(self, reading: GpuReading) -> None:
        """Add a sample; one from before the begin is left out."""
        if reading.at < self.begin:
            return
        place = int(reading.at - self.begin) // self.step
        while place >= MOST_POINTS:
            self._halve()
            place = int(reading.at - self.begin) // self.step
        if (missing := place + 1 - len(self._samples)) > 0:
            self._extend(missing)
        self._samples[place] += 1
        if reading.utilization is not None:
            self._utilization[place] += reading.utilization * 10
            self._utilization_known[place] += 1
        if reading.watts is not None:
            self._watts[place] += reading.watts
            self._watts_known[place] += 1
        if reading.memory_mib is not None:
            self._memory[place] = max(self._memory[place], reading.memory_mib)

    def points(self) -> Iterator[CurvePoint]:
        """Yield all points; those before the last sample without samples too."""
        for place, samples in enumerate(self._samples):
            known, watts = self._utilization_known[place], self._watts_known[place]
            memory = self._memory[place]
            yield CurvePoint(
                at=self.begin + place * self.step,
                samples=samples,
                # As it is stored; else a point is judged otherwise once it was stored.
                utilization=_permille(self._utilization[place], known) / 10 if known else None,
                memory_mib=memory if memory >= 0 else None,
                watts=round(self._watts[place] / watts) if watts else None,
            )

    def _extend(self, count: int) -> None:
        """Add points without samples."""
        for column in (self._samples, self._utilization_known, self._watts_known):
            column.extend([0] * count)
        for sums in (self._utilization, self._watts):
            sums.extend([0.0] * count)
        self._memory.extend([-1] * count)

    def _halve(self) -> None:
        """Make one point of each two neighbours."""
        if len(self._samples) % 2:
            self._extend(1)
        for name in ("_samples", "_utilization_known", "_watts_known", "_utilization", "_watts"):
            column = getattr(self, name)
            setattr(self, name, array(column.typecode, map(add, column[::2], column[1::2])))
        self._memory = array("i", map(max, self._memory[::2], self._memory[1::2]))
        self.step *= 2

    def pack(self, level: int = 6) -> bytes:
        """Return the points as bytes: four columns of 16 bits, low and high bytes apart."""
        columns = array("H", (min(each, _MOST) for each in self._samples))
        columns.extend(_means(self._utilization, self._utilization_known, _permille))
        columns.extend(
            min(each // _MEMORY_UNIT, _MOST) if each >= 0 else _UNKNOWN for each in self._memory
        )
        columns.extend(_means(self._watts, self._watts_known, _whole))
        if sys.byteorder == "big":
            columns.byteswap()
        plain = columns.tobytes()
        return _VERSION + zlib.compress(plain[::2] + plain[1::2], level)

    @classmethod
    def unpack(cls, begin: int, step: int, packed: bytes) -> Curve:
        """Return the curve that `pack` made.

        Raises:
            ValueError: for bytes that `pack` cannot have made.
        """
        curve = cls(begin, step)
        columns = _unpack_columns(packed)
        count = len(columns) // _COLUMNS
        parts = (columns[place * count : (place + 1) * count] for place in range(_COLUMNS))
        for samples, permille, memory, watts in zip(*parts, strict=True):
            # How many samples were known is not stored: all were, or none.
            known = max(samples, 1)
            curve._samples.append(samples)
            is_known = permille != _UNKNOWN
            curve._utilization_known.append(known if is_known else 0)
            curve._utilization.append(float(permille * known) if is_known else 0.0)
            curve._memory.append(-1 if memory == _UNKNOWN else memory * _MEMORY_UNIT)
            curve._watts_known.append(0 if watts == _UNKNOWN else known)
            curve._watts.append(0.0 if watts == _UNKNOWN else watts * known)
        return curve


def _means(
    sums: array[float], known: array[int], mean: Callable[[float, int], int]
) -> Iterator[int]:
    for total, count in zip(sums, known, strict=True):
        yield min(mean(total, count), _MOST) if count else _UNKNOWN


def _permille(total: float, count: int) -> int:
    """Return a mean; 0 only if all samples were, so that no short burst of work is lost."""
    return round(total / count) or int(total > 0)


def _whole(total: float, count: int) -> int:
    return round(total / count)


def unpack_utilization(packed: bytes) -> tuple[Sequence[int], list[int | None]]:
    """Return of each point of a packed curve the number of samples and the permille; quickly.

    Raises:
        ValueError: for bytes that `Curve.pack` cannot have made.
    """
    columns = _unpack_columns(packed)
    count = len(columns) // _COLUMNS
    permilles = columns[count : 2 * count]
    return columns[:count], [None if each == _UNKNOWN else each for each in permilles]


def _unpack_columns(packed: bytes) -> array[int]:
    """Return the columns one after the other."""
    if packed[:1] != _VERSION:
        raise ValueError("not a packed curve")
    unpacker = zlib.decompressobj()
    try:
        halves = unpacker.decompress(packed[1:], _MOST_BYTES)
    except zlib.error as error:
        raise ValueError(f"not a packed curve: {error}") from error
    if len(halves) % (2 * _COLUMNS) or not unpacker.eof:
        raise ValueError("not a packed curve: its length is wrong")
    plain = bytearray(len(halves))
    middle = len(halves) // 2
    plain[::2], plain[1::2] = halves[:middle], halves[middle:]
    columns = array("H")
    columns.frombytes(bytes(plain))
    if sys.byteorder == "big":
        columns.byteswap()
    return columns
