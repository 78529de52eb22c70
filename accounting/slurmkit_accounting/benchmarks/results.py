"""The folder of a benchmark run: its record, and what its jobs wrote there.

It is in the shared home of whoever runs it. Results are read from it into the ledger, which knows
each one once, so they may be read again.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from slurmkit.config.files import did_you_mean
from slurmkit.config.paths import state_folder, write_private_file
from slurmkit.errors import BadInput, SlurmkitError
from slurmkit.formats.scontrol import fold_nodes
from slurmkit.planning.preflight import inside as preflight
from slurmkit_accounting.benchmarks import inside
from slurmkit_accounting.sacct.values import LATEST_TIME

FOLDER = "benchmarks"
NCCL = "nccl_all_reduce"
NO_GPU = "-"
UNITS = {**inside.UNITS, NCCL: "GB/s"}
_RECORD, _STORED, _PROGRAM = "run.json", "stored", "inside.py"
_NAME = re.compile(r"[A-Za-z0-9][\w.\-]*", re.ASCII)
_MOST_BYTES = 4 * 2**20  # of one job's results
_LONGEST = 500  # characters

Text = Annotated[str, msgspec.Meta(max_length=_LONGEST)]
Amount = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
Time = Annotated[int, msgspec.Meta(ge=0, le=LATEST_TIME)]


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement; an empty text is unknown, or not applicable.

    Attributes:
        nodes: the node; of a measurement between nodes all of them, separated by commas, or folded
            if they are many.
        gpu_type: Slurm's type of the node's GPUs; `-` if it has none.
        gpu: UUID of the GPU, else its index.
        benchmark: a key of `UNITS`.
        value: None if it could not be measured.
        method: what must be alike for values to be compared.
        trouble: why there is no value.
        at: epoch seconds.
        versions: others than the driver's and PyTorch's.
    """

    nodes: Text
    gpu_type: Text
    benchmark: Text
    value: Amount | None
    unit: Text
    at: Time
    job_id: Text = ""
    gpu: Text = ""
    gpu_serial: Text = ""
    gpu_name: Text = ""
    method: Text = ""
    trouble: Text = ""
    driver: Text = ""
    torch: Text = ""
    versions: dict[Text, Text] = {}


class BenchmarkJob(msgspec.Struct, frozen=True):
    """A job of a run, and the nodes it measures.

    Attributes:
        gpu_type: see `Measurement`.
        gpus: GPUs of each node.
        is_nccl: whether it measures between the nodes.
        is_mixed: whether the nodes have GPUs of several types; `gpu_type` is then empty.
    """

    nodes: tuple[str, ...]
    gpu_type: str
    gpus: int
    is_nccl: bool = False
    is_mixed: bool = False


class BenchmarkRecord(msgspec.Struct, frozen=True):
    """A run of `slurmkit benchmark`.

    Attributes:
        name: its name, which is also that of its workflow.
        cluster: name of the cluster.
        created: epoch seconds.
        tests: what it measures.
        jobs: its jobs by name.
    """

    name: str
    cluster: str
    created: int
    tests: tuple[str, ...]
    jobs: dict[str, BenchmarkJob]


class _PreflightLine(msgspec.Struct, frozen=True):
    """A line of the preflight; see `slurmkit.planning.preflight.inside.add_line`."""

    nodes: tuple[str, ...]
    bandwidth: Amount | None
    wrong: int
    ranks: int
    at: Time
    job_id: Text = ""
    trouble: str = ""


class RunFolder:
    """The folder of one run.

    Args:
        path: the folder.
        record: what is in its record.
    """

    def __init__(self, path: Path, record: BenchmarkRecord) -> None:
        self.path = path
        self.record = record

    @classmethod
    def create(cls, record: BenchmarkRecord, base: Path | None = None) -> RunFolder:
        """Make the folder with the record and the program of the jobs.

        Args:
            record: the run.
            base: where to make it; the folder of state of this user by default.

        Raises:
            SlurmkitError: when it cannot be made.
        """
        path = (base or state_folder(FOLDER) / record.cluster) / record.name
        folder = cls(path, record)
        try:
            path.mkdir(mode=0o700, parents=True)
            folder.write(record)
            write_private_file(path / _PROGRAM, Path(inside.__file__).read_bytes())
        except OSError as error:
            raise SlurmkitError(
                f"cannot make the folder of results {path}: {error.strerror}; name a folder that"
                " all nodes share: --folder PATH"
            ) from error
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Open the folder of a run.

        Raises:
            BadInput: when it has no record that can be read.
        """
        try:
            record = msgspec.json.decode(_read_file(path / _RECORD), type=BenchmarkRecord)
        except PermissionError as error:
            raise BadInput(
                f"you may not read {path}; its owner can make a copy that you may read: cp -r"
                " RUN FOLDER; chmod -R a+rX FOLDER"
            ) from error
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise BadInput(f"{path} is not the folder of a benchmark run: {error}") from error
        # It may be another user's, and names are printed, stored, and parts of paths.
        nodes = (node for job in record.jobs.values() for node in job.nodes)
        for name in (record.name, *record.jobs, *nodes):
            if not _NAME.fullmatch(name):
                raise BadInput(f"{path}: {name!r} is not the name of a run, a job or a node")
        return cls(path, record)

    @property
    def program(self) -> Path:
        """The program of the jobs."""
        return self.path / _PROGRAM

    def results_of(self, job: str) -> Path:
        """Return the file with the results of a job."""
        return self.path / f"{job}.jsonl"

    def log_of(self, job: str) -> Path:
        """Return the log of a job."""
        return self.path / f"{job}.log"

    def write(self, record: BenchmarkRecord) -> None:
        """Write the record."""
        self.record = record
        write_private_file(self.path / _RECORD, msgspec.json.encode(record))

    def remove(self) -> None:
        """Remove the folder of a run that was not sent."""
        shutil.rmtree(self.path, ignore_errors=True)

    def measurements(self) -> tuple[list[Measurement], list[str]]:
        """Return what the jobs measured so far, and what is wrong with their files.

        A last line that is still being written is left out.
        """
        found: list[Measurement] = []
        wrong: list[str] = []
        for name, job in self.record.jobs.items():
            path = self.results_of(name)
            try:
                data = _read_file(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                wrong.append(f"{path}: {error.strerror}")
                continue
            if len(data) > _MOST_BYTES:
                wrong.append(f"{path} is larger than {_MOST_BYTES} bytes; the rest is not read")
            for number, line in enumerate(data[:_MOST_BYTES].split(b"\n")[:-1], 1):
                try:
                    found.append(_parse_line(line, job))
                except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
                    wrong.append(f"{path}, line {number}: {error}")
        return found, wrong

    @property
    def stored(self) -> int:
        """The number of measurements that were stored before."""
        try:
            return int((self.path / _STORED).read_text("utf-8"))
        except (OSError, ValueError):
            return 0

    def note_stored(self, count: int) -> None:
        """Note how many measurements are in the ledger; someone else's folder stays as it is."""
        try:
            write_private_file(self.path / _STORED, str(count).encode())
        except OSError:
            return


def _read_file(path: Path) -> bytes:
    """Read a regular file, at most a byte more than is allowed; a pipe would block.

    Raises:
        OSError: when it is none, or cannot be read.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        return file.read(_MOST_BYTES + 1)


def run_folders(cluster: str | None = None) -> Iterator[RunFolder]:
    """Yield the folders of this user's runs, the newest first.

    Args:
        cluster: only its runs; of all clusters when left out.
    """
    folders = []
    for path in state_folder(FOLDER).glob(f"{cluster or '*'}/*/{_RECORD}"):
        try:
            folders.append(RunFolder.open(path.parent))
        except BadInput:
            continue
    yield from sorted(folders, key=lambda folder: folder.record.created, reverse=True)


def find_run(word: str) -> RunFolder:
    """Return a run by name, or by the path of its folder.

    Raises:
        BadInput: when there is none.
    """
    if "/" in word:
        return RunFolder.open(Path(word))
    known = {folder.record.name: folder for folder in run_folders()}
    if word not in known:
        hint = did_you_mean(word, list(known)) if known else "there are none yet"
        raise BadInput(f"there is no benchmark run {word!r}; {hint}")
    return known[word]


def _parse_line(line: bytes, job: BenchmarkJob) -> Measurement:
    """Parse a line of results.

    Raises:
        ValueError: when it is not one; also as a subclass of it.
    """
    if line.startswith(b'{"nodes"'):
        return _parse_preflight_line(line, job)
    facts = msgspec.json.decode(line, type=dict[str, Any])
    node = facts.pop("node", "")
    if node not in ("", *job.nodes):  # somebody moved the job while it waited
        raise ValueError(f"it was measured on {_clean(str(node))}, not on {_join_nodes(job.nodes)}")
    if isinstance(trouble := facts.get("trouble"), str):
        facts["trouble"] = _clean(trouble)  # PyTorch's errors may be longer than a `Text`
    facts |= {"nodes": _join_nodes(job.nodes), "gpu_type": _clean(job.gpu_type)}
    own = msgspec.convert(facts, Measurement)
    if inside.UNITS.get(own.benchmark) != own.unit:
        raise ValueError(f"there is no benchmark {own.benchmark!r} in {own.unit!r}")
    values = msgspec.structs.asdict(own)
    texts = {name: _clean(text) for name, text in values.items() if isinstance(text, str)}
    if job.is_mixed and own.gpu:
        # Slurm does not say which of several types a GPU has, so the driver's name stands for it.
        texts["gpu_type"] = texts["gpu_name"]
    versions = {_clean(name): _clean(text) for name, text in own.versions.items()}
    return msgspec.structs.replace(own, versions=versions, **texts)


def _parse_preflight_line(line: bytes, job: BenchmarkJob) -> Measurement:
    own = msgspec.json.decode(line, type=_PreflightLine)
    if not own.nodes or not set(own.nodes) <= set(job.nodes):
        raise ValueError("it is about other nodes than those of the job")
    trouble = own.trouble
    if own.wrong and not trouble:
        trouble = f"{own.wrong} values came out wrong"
    if own.bandwidth is None and not trouble:
        trouble = "it measured nothing"
    number = "1 node" if len(own.nodes) == 1 else f"{len(own.nodes)} nodes"
    return Measurement(
        nodes=_join_nodes(sorted(own.nodes)),
        gpu_type=_clean(job.gpu_type),
        benchmark=NCCL,
        value=None if trouble else own.bandwidth,
        unit=UNITS[NCCL],
        at=own.at,
        job_id=_clean(own.job_id),
        method=f"1 GiB over {number} with {job.gpus} GPUs each",
        trouble=_clean(trouble.strip().splitlines()[-1] if trouble.strip() else trouble),
    )


def _join_nodes(names: Sequence[str]) -> str:
    """Join names by commas; a list that is too long for a `Measurement` is folded."""
    joined = ",".join(names)
    return joined if len(joined) <= _LONGEST else fold_nodes(names)[:_LONGEST]


def _clean(text: str) -> str:
    """Return a text of a job as one line of printable characters."""
    return "".join(char if char.isprintable() else "?" for char in text)[:_LONGEST]


PREFLIGHT_RESULTS = preflight.RESULTS
