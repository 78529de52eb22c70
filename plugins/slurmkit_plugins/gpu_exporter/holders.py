"""Which job holds which GPU of this node: Slurm's index of each GPU, and the jobs on it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from slurmkit.errors import BadInput, SlurmError
from slurmkit.formats.scontrol import expand_typed_nodes
from slurmkit.slurm.commands import SlurmCommands
from slurmkit_plugins.gpu_exporter.readings import DriverReading, GpuIdentity, GpuProcess, Log

RECORDS = Path("/run/slurmkit/gpus")  # plugins/slurmkit_plugins/slurm/gpus.sh writes it
PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")
_CONF_FOLDERS = ("/etc/slurm", "/run/slurm/conf")  # the second where slurmd is configless
_SLURMD_SECONDS = 30.0
_SACK = Path("/run/slurm/sack.socket")
_HIDE_SACK = (  # but not a configuration that slurmctld sent
    "cd /run/slurm && mount -t tmpfs none /run/slurm && { [ ! -d conf ] || cp -r conf /run/slurm; }"
    " && cd / && exec slurmd -G"
)
_WORD = re.compile(r"(\w+)=(\S+)")
_LISTED = re.compile(r"(?:[^,\[]|\[[^\]]*\])+")
_BRACKET = re.compile(r"([^\[]*)\[([^\]]*)\](.*)")
_JOB_ID = re.compile(r"[0-9]{1,10}")
_START = re.compile(r"^start=([0-9]+)$", re.MULTILINE)
# `0::/system.slice/slurmstepd.scope/job_41/step_0`; of version 1 `4:freezer:/slurm/uid_7/job_41`.
# From Slurm 26.05 on `0::/system.slice/slurmstepd.scope/sEKNKTV3WPV500/step_0`, with the SLUID of
# the job, unless cgroup.conf has CgroupJobIdPaths=yes (cgroup.conf(5)).
_JOB_CGROUP = re.compile(
    r"^\d+:([^:\n]*):(/\S*?/(?:job_[0-9]{1,10}|s[0-9A-HJKMNP-TV-Z]{13}))(?:/|$)", re.MULTILINE
)
_STEP_DAEMON = re.compile(rb"slurmstepd: \[([0-9]{1,10})[].]")
_SETTLED = 600.0  # seconds; a record is older than the cgroup of its job, by the prolog's length
_MPS_SERVER = "nvidia-cuda-mps"  # the name as the kernel cuts it
_JOB_VARIABLE = re.compile(rb"(?:^|\0)SLURM_JOB_ID=([0-9]{1,10})(?=\0|$)")


class SlurmGpus(msgspec.Struct, frozen=True):
    """The GPUs of this node as Slurm numbers them.

    Attributes:
        by_name: index by UUID of a GPU or MIG instance, or by PCI address, in small letters.
        by_files: index by the names of a GPU's device files.
        shared: whether jobs can hold parts of a GPU (shard, MPS).
    """

    by_name: Mapping[str, int] = {}
    by_files: Mapping[frozenset[str], int] = {}
    shared: bool = False

    def index(self, gpu: GpuIdentity, caps: Mapping[str, int]) -> int | None:
        """Return Slurm's index of a GPU or MIG instance; None if it is unknown.

        Args:
            gpu: the GPU; its place in the driver's list means nothing to Slurm.
            caps: numbers of the nvidia-cap files, as `read_mig_minors` returns them.
        """
        if gpu.mig:
            named = self.by_name.get(gpu.mig.lower())
            return named if named is not None else self._instance_index(gpu, caps)
        for name in (gpu.uuid, gpu.pci):
            if name.lower() in self.by_name:
                return self.by_name[name.lower()]
        if gpu.minor is None:
            return None
        found = [
            index
            for files, index in self.by_files.items()
            if len(files) == 1 and _number_at_end(min(files)) == gpu.minor
        ]
        return found[0] if len(found) == 1 else None

    def _instance_index(self, gpu: GpuIdentity, caps: Mapping[str, int]) -> int | None:
        place = f"gpu{gpu.minor}/gi{gpu.gpu_instance}"
        names = (f"{place}/access", f"{place}/ci{gpu.compute_instance}/access")
        if not all(name in caps for name in names):
            return None
        wanted = {f"/dev/nvidia-caps/nvidia-cap{caps[name]}" for name in names}
        found = [index for files, index in self.by_files.items() if wanted <= files]
        return found[0] if len(found) == 1 else None


def read_slurm_gpus(
    node: str, slurm: SlurmCommands, log: Log, printed: Path | None = None
) -> SlurmGpus:
    """Read how Slurm numbers this node's GPUs: from slurmd, else from gres.conf.

    Args:
        node: name of this node in Slurm.
        slurm: runs `slurmd -G`.
        log: gets a line when the indices stay unknown.
        printed: a file with what `slurmd -G` printed, so that it is not run here.
    """
    try:
        if printed is None:
            output = slurm.run(_ask_slurmd(), timeout=_SLURMD_SECONDS, errors=True)
        else:
            output = printed.read_text("utf-8")
        found, why = parse_slurmd_gres(output), "slurmd -G prints no GPU"
    except (SlurmError, OSError, ValueError) as error:
        found, why = SlurmGpus(), f"slurmd -G fails: {error}"
    if found.by_files:
        return found
    folders = [str(Path(own).parent)] if (own := os.environ.get("SLURM_CONF")) else _CONF_FOLDERS
    for folder in folders:
        with suppress(OSError, ValueError):
            in_file = parse_gres_conf(Path(folder, "gres.conf").read_text("utf-8"), node)
            if in_file is not None and in_file.by_files:
                return in_file
    log(
        f"Slurm's indices of the GPUs are unknown: {why}, and gres.conf does not tell them;"
        " write them into a file and name it with --gpu-map"
    )
    return found


def _ask_slurmd() -> list[str]:
    """Return `slurmd -G`; with auth/slurm, where it cannot reach the socket of the node's slurmd.

    That of 24.11 takes the socket's place, and then no command of the node can be certified, nor
    can a job end.
    """
    if os.geteuid() == 0 and _SACK.is_socket():
        return ["unshare", "--mount", "sh", "-c", _HIDE_SACK]
    return ["slurmd", "-G"]


def parse_gres_conf(text: str, node: str) -> SlurmGpus | None:
    """Parse gres.conf where it alone says how Slurm numbers the GPUs, in the order of the lines.

    slurmd puts lines without NodeName first (src/interfaces/gres.c, `gres_g_node_config_load`).

    Returns:
        None with AutoDetect, where slurmd finds the GPUs, and with several types, which have the
        order of slurm.conf.

    Raises:
        ValueError: for a NodeName or File that cannot be read.
    """
    general: list[frozenset[str]] = []
    named: list[frozenset[str]] = []
    types = set()
    shared = False
    for line in text.replace("\\\n", " ").splitlines():
        words = {name.lower(): value for name, value in _WORD.findall(line.partition("#")[0])}
        nodes = words.get("nodename")
        if nodes and node not in expand_typed_nodes(nodes):
            continue
        if words.get("autodetect", "off").lower() not in {"off", "no"}:
            return None
        kind = words.get("name", "").lower()
        shared = shared or kind in {"shard", "mps"}
        if kind == "gpu":
            types.add(words.get("type"))
            (named if nodes else general).extend(_devices(words))
    if len(types) > 1:
        return None
    in_order = enumerate([*general, *named])
    return SlurmGpus(by_files={files: at for at, files in in_order}, shared=shared)


def parse_slurmd_gres(text: str) -> SlurmGpus:
    """Parse what `slurmd -G` prints: one line a GRES, in the order of Slurm's indices.

    `Index=` there is the number of the device file (src/interfaces/gres.c,
    `_log_gres_slurmd_conf`), not Slurm's index.

    Raises:
        ValueError: for a File that cannot be read.
    """
    rows = [dict(_WORD.findall(line)) for line in text.splitlines() if "Gres Name=" in line]
    files: list[frozenset[str]] = []
    for row in rows:
        if row["Name"] == "gpu" and "File" in row:
            several = row.get("Count", "1") != "1"
            files += _devices({"file" if several else "multiplefiles": row["File"]})
    return SlurmGpus(
        by_files={each: at for at, each in enumerate(files)},
        shared=any(row["Name"] in {"shard", "mps"} for row in rows),
    )


def load_gpu_map(path: Path) -> SlurmGpus:
    """Load a site's own file with lines of `INDEX UUID-OR-PCI-ADDRESS`.

    Raises:
        BadInput: when it cannot be read, or a line is of another form.
    """
    by_name: dict[str, int] = {}
    shared = False
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if words == ["shared"]:
            shared = True
        elif len(words) == 2 and words[0].isdecimal():
            by_name[words[1].lower()] = int(words[0])
        elif words:
            raise BadInput(
                f"{path}, line {number}: write Slurm's index and the GPU's UUID or PCI address,"
                " for example `0 GPU-1c5b…`, or `shared` where jobs share GPUs"
            )
    return SlurmGpus(by_name=by_name, shared=shared)


def read_mig_minors(proc: Path = PROC) -> dict[str, int]:
    """Read the driver's numbers of /dev/nvidia-caps/nvidia-capN, by `gpu0/gi1/ci0/access`."""
    try:
        text = (proc / "driver/nvidia-caps/mig-minors").read_text("ascii", "replace")
    except OSError:
        return {}
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def _devices(words: Mapping[str, str]) -> Iterator[frozenset[str]]:
    """Yield the device files of each GPU that one line of gres.conf names."""
    if several := words.get("multiplefiles"):
        yield frozenset(expand_typed_nodes(several))
    elif names := words.get("file"):
        yield from (frozenset({name}) for name in _expand_in_order(names))


def _expand_in_order(names: str) -> Iterator[str]:
    """Yield the names of a list such as `/dev/nvidia[3,0-1]`, which keeps its order in Slurm."""
    for name in filter(None, _LISTED.findall(names)):
        if bracket := _BRACKET.fullmatch(name):
            for number in bracket[2].split(","):
                yield from expand_typed_nodes(f"{bracket[1]}[{number}]{bracket[3]}")
        else:
            yield name


def _number_at_end(path: str) -> int | None:
    digits = re.search(r"\d+$", path)
    return int(digits[0]) if digits else None


class JobShare(msgspec.Struct, frozen=True):
    """What one job did on a shared GPU; None is unknown. Units as in `DriverReading`."""

    job: str
    utilization: float | None
    memory: int | None


class JobFinder:
    """Finder of the jobs on this node's GPUs.

    Args:
        gpus: how Slurm numbers them.
        records: folder of the prolog's records, INDEX/JOBID.
        proc: where /proc is.
        cgroups: where cgroups are.
    """

    def __init__(
        self,
        gpus: SlurmGpus,
        records: Path = RECORDS,
        proc: Path = PROC,
        cgroups: Path = CGROUPS,
    ) -> None:
        self.gpus = gpus
        self._records = records
        self._proc = proc
        self._cgroups = cgroups
        # By GPU the jobs whose processes were seen on it, with their cgroups.
        self._seen: dict[str, dict[str, Path]] = {}
        self._homes: set[Path] = set()  # folders in which jobs have their cgroups

    def jobs_on(self, index: int | None, reading: DriverReading) -> tuple[str, ...]:
        """Return the ids (as Slurm numbers them, also of array tasks) of the jobs on a GPU.

        The prolog's records say it; where there is none, the processes on the GPU do. A job that
        had a process there holds the GPU until its cgroup is gone: else the time in which it has
        none would be left out of its mean use.
        """
        by_pid = self._jobs_by_pid(reading)
        if recorded := self._recorded(index):
            return recorded
        gpu = reading.identity.mig or reading.identity.uuid
        now = {job for job in by_pid.values() if job}
        seen = self._seen.get(gpu, {}) if self.gpus.shared or not now else {}
        there = {job: folder for job, folder in seen.items() if folder.exists()}
        folders = {job: self._folder(pid) for pid, job in by_pid.items() if job}
        self._seen[gpu] = there | {job: each for job, each in folders.items() if each is not None}
        return tuple(sorted(now | there.keys()))

    def shares(self, jobs: Iterable[str], reading: DriverReading) -> list[JobShare]:
        """Return what each job's processes did, as far as every process is known to be a job's."""
        processes = reading.processes
        if processes is None:
            return []
        by_pid = self._jobs_by_pid(reading)
        all_known = None not in by_pid.values()
        found = []
        for job in jobs:
            own = [process for process in processes if by_pid[process.pid] == job]
            if own or all_known:
                found.append(_share(job, own, is_partial=not all_known))
        return found

    def _recorded(self, index: int | None) -> tuple[str, ...]:
        """Return the jobs that the prolog recorded on a GPU.

        An older record may be left of a job whose epilog did not run. So where jobs share no GPU,
        only the newest holds it; where they do, those whose cgroups are there.
        """
        if index is None:
            return ()
        started: dict[str, int] = {}
        folder = self._records / str(index)
        with suppress(OSError):  # no record yet
            for record in folder.iterdir():
                if not _JOB_ID.fullmatch(record.name):
                    continue
                with suppress(OSError):  # the job has ended meanwhile
                    found = _START.search(record.read_text("utf-8", "replace"))
                    started[record.name] = int(found[1]) if found else 0
        in_order = sorted(started, key=lambda job: (started[job], int(job)))
        if not self.gpus.shared or len(in_order) < 2:
            return tuple(in_order[-1:])
        left = [job for job in in_order if not self._is_over(job, started[job])]
        return tuple(left or in_order)

    def _is_over(self, job: str, started: int) -> bool:
        """Return whether a job has ended, as far as the cgroups of this node's jobs say."""
        if not self._homes or time.time() - started < _SETTLED:
            return False
        names = (f"job_{job}", f"../uid_*/job_{job}")
        return not any(any(home.glob(name)) for home in self._homes for name in names)

    def _jobs_by_pid(self, reading: DriverReading) -> dict[int, str | None]:
        return {process.pid: self._job_of(process.pid) for process in reading.processes or ()}

    def _job_of(self, pid: int) -> str | None:
        """Return the job of a process, by its cgroup or its environment.

        Empty for a process of no job, such as the MPS server; None where it cannot be seen.
        """
        place = self._proc / str(pid)
        folder = self._folder(pid)
        if folder and (job := self._job_of_cgroup(folder)):
            return job
        try:
            if (place / "comm").read_text("utf-8", "replace").startswith(_MPS_SERVER):
                return ""
            named = _JOB_VARIABLE.search((place / "environ").read_bytes())
        except OSError:
            return None
        return named[1].decode() if named else ""

    def _job_of_cgroup(self, folder: Path) -> str | None:
        """Return the job of a job's cgroup; None where it has a SLUID and none of its steps runs.

        The title of slurmstepd names the job. It is alone in `STEP/slurm`, where users have no
        process (Slurm's Control Group v2 plugin, "Slurm cgroup v2 hierarchy").
        """
        if folder.name.startswith("job_"):
            return folder.name.removeprefix("job_")
        pids = list[str]()
        for listed in folder.glob("step_*/slurm/cgroup.procs"):
            with suppress(OSError):  # the step has ended meanwhile
                pids += listed.read_text("ascii").split()
        for pid in pids:
            with suppress(OSError):
                title = (self._proc / pid / "cmdline").read_bytes()
                if named := _STEP_DAEMON.match(title):
                    return named[1].decode()
        return None

    def _folder(self, pid: int) -> Path | None:
        """Return the cgroup of the job of a process; None without one."""
        try:
            text = (self._proc / str(pid) / "cgroup").read_text("utf-8", "replace")
        except OSError:
            return None
        found = _JOB_CGROUP.search(text)
        if found is None:
            return None
        folder = self._cgroups / found[1] / found[2].lstrip("/")
        if folder.name.startswith("job_"):  # where the name has the SLUID, `_is_over` knows no job
            self._homes.add(folder.parent)
        return folder


def _share(job: str, processes: Iterable[GpuProcess], *, is_partial: bool) -> JobShare:
    """Add up a job's processes; what one of them does not tell is unknown of all."""
    own = list(processes)
    busy = [process.utilization for process in own if process.utilization is not None]
    memory = [process.memory for process in own if process.memory is not None]
    is_busy_known = len(busy) == len(own) and not is_partial
    is_memory_known = len(memory) == len(own) and not is_partial
    return JobShare(
        job,
        min(sum(busy), 100.0) if is_busy_known else None,
        sum(memory) if is_memory_known else None,
    )
