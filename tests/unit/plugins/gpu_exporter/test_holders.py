"""Slurm's index of each GPU, and the jobs that hold it."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from slurmkit_plugins.gpu_exporter.holders import (
    JobFinder,
    JobShare,
    SlurmGpus,
    load_gpu_map,
    parse_gres_conf,
    parse_slurmd_gres,
    read_mig_minors,
    read_slurm_gpus,
)
from slurmkit_plugins.gpu_exporter.readings import DriverReading, GpuIdentity, GpuProcess

from slurmkit.errors import BadInput, Refused
from slurmkit.testing import FakeSlurm

GRES_CONF = Path(__file__).parents[4] / "docker" / "conf" / "slurm" / "gres.conf"
# What slurmd of 24.11.5 prints for gres.conf's File=/dev/nvidia[2-3,10], then File=/dev/nvidia0 and
# two instances by MultipleFiles, with shards; cut at the flags.
SLURMD_G = """\
slurmd-n1: Gres Name=shard Type=a100 Count=2 Index=2 ID=1918986455 File=/dev/nvidia2 Links=(null)
slurmd-n1: Gres Name=gpu Type=a100 Count=1 Index=2 ID=7696487 File=/dev/nvidia2 Links=(null)
slurmd-n1: Gres Name=gpu Type=a100 Count=1 Index=3 ID=7696487 File=/dev/nvidia3 Links=(null)
slurmd-n1: Gres Name=gpu Type=a100 Count=1 Index=10 ID=7696487 File=/dev/nvidia10 Links=(null)
slurmd-n1: Gres Name=gpu Type=a100 Count=1 Index=0 ID=7696487 File=/dev/nvidia0 Links=(null)
slurmd-n1: Gres Name=gpu Type=a100 Count=1 Index=22 ID=7696487 \
File=/dev/nvidia1,/dev/nvidia-caps/nvidia-cap21,/dev/nvidia-caps/nvidia-cap22 Links=(null)
slurmd-n1: Gres Name=gpu Type=a100 Count=1 Index=31 ID=7696487 \
File=/dev/nvidia1,/dev/nvidia-caps/nvidia-cap30,/dev/nvidia-caps/nvidia-cap31 Links=(null)
"""


def gpu(minor: int | None, **more: object) -> GpuIdentity:
    named = {"uuid": f"GPU-{minor}", "pci": f"00000000:0{minor}:00.0", "name": "A100", **more}
    return GpuIdentity(minor=minor, **named)  # type: ignore[arg-type]


def indices(found: SlurmGpus | None, *minors: int) -> list[int | None]:
    assert found
    return [found.index(gpu(minor), {}) for minor in minors]


def test_the_index_is_found_by_the_number_of_the_device_file() -> None:
    found = parse_gres_conf(GRES_CONF.read_text("utf-8"), "c2")
    assert indices(found, 3, 0, 7, 8) == [3, 0, 7, None]
    assert found
    assert not found.shared


def test_without_slurmd_gpus_have_the_order_of_gres_conf() -> None:
    """As slurmd of 24.11.5 numbers them: general lines first, and lists as they are written."""
    text = """
        NodeName=n[1-2] Name=gpu Type=h100 File=/dev/nvidia[10,8-9]   # not in this order
        nodename=n1 name=GPU type=h100 File=/dev/nvidia2 \\
            Cores=0-3
        NodeName=n3 Name=gpu File=/dev/nvidia1
        Name=gpu Type=h100 File=/dev/nvidia7,/dev/nvidia5
        NodeName=n1 Name=shard Count=8
    """
    found = parse_gres_conf(text, "n1")
    assert indices(found, 7, 5, 10, 8, 9, 2, 1) == [0, 1, 2, 3, 4, 5, None]
    assert found
    assert found.shared


@pytest.mark.parametrize(
    "text",
    [
        "Name=gpu Type=b File=/dev/nvidia0\nName=gpu Type=a File=/dev/nvidia1\n",
        "AutoDetect=nvml\nName=gpu File=/dev/nvidia0\n",
        "NodeName=n1 AutoDetect=nvidia Name=gpu\n",
    ],
)
def test_gres_conf_alone_may_not_tell_the_order(text: str) -> None:
    """Types have the order of slurm.conf, and with AutoDetect slurmd finds the GPUs."""
    assert parse_gres_conf(text, "n1") is None


def test_slurmd_is_asked_first_and_gres_conf_where_it_does_not_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = tmp_path / "gres.conf"
    conf.write_text("Name=gpu File=/dev/nvidia[2-3]\n", "utf-8")
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    said: list[str] = []

    def read(answer: str) -> SlurmGpus:
        slurm = FakeSlurm({"slurmd": lambda _argv, _stdin: answer})
        return read_slurm_gpus("n1", slurm, said.append)

    def refuse(_argv: Sequence[str], _stdin: str | None) -> str:
        raise Refused("no such node")

    failing = FakeSlurm({"slurmd": refuse})
    assert indices(read(SLURMD_G), 3) == [1]
    assert read(SLURMD_G).shared
    printed = tmp_path / "gres"
    printed.write_text(SLURMD_G, "utf-8")
    assert indices(read_slurm_gpus("n1", failing, said.append, printed), 10) == [2]
    assert indices(read_slurm_gpus("n1", failing, said.append, tmp_path / "no"), 3) == [1]
    assert indices(read("slurmd: WARNING: A line in gres.conf for GRES gpu\n"), 3) == [1]
    assert indices(read_slurm_gpus("n1", failing, said.append), 2) == [0]
    assert not said
    conf.write_text("AutoDetect=nvml\n", "utf-8")
    assert read("") == read_slurm_gpus("n1", failing, said.append) == SlurmGpus()
    assert ["prints no GPU" in said[0], "no such node" in said[1]] == [True, True]


def test_slurmds_index_is_a_number_of_a_file_and_not_used() -> None:
    """`Index=10` is printed for /dev/nvidia10, which is Slurm's GPU 2."""
    assert indices(parse_slurmd_gres(SLURMD_G), 2, 3, 10, 0, 1) == [0, 1, 2, 3, None]


def test_a_mig_instance_is_found_by_its_device_files(tmp_path: Path) -> None:
    minors = tmp_path / "driver" / "nvidia-caps" / "mig-minors"
    minors.parent.mkdir(parents=True)
    minors.write_text(
        "config 1\nmonitor 2\ngpu1/gi1/access 21\ngpu1/gi1/ci0/access 22\n"
        "gpu1/gi2/access 30\ngpu1/gi2/ci0/access 31\n", "ascii",
    )  # fmt: skip
    caps = read_mig_minors(tmp_path)
    found = parse_slurmd_gres(SLURMD_G)
    instances = [
        gpu(1, mig=f"MIG-{number}", gpu_instance=number, compute_instance=0) for number in (1, 2, 3)
    ]
    assert [found.index(each, caps) for each in instances] == [4, 5, None]
    assert found.index(instances[0], {}) is None
    assert found.index(gpu(1), caps) is None  # the GPU that is divided is no GPU of Slurm's
    assert read_mig_minors(tmp_path / "nowhere") == {}


def test_a_sites_own_map(tmp_path: Path) -> None:
    path = tmp_path / "map"
    path.write_text("# c5\n0 MIG-A\n1 00000000:0B:00.0\nshared\n", "utf-8")
    found = load_gpu_map(path)
    assert found.index(gpu(5, mig="MIG-a"), {}) == 0
    assert found.index(gpu(5, pci="00000000:0b:00.0"), {}) == 1
    assert found.index(gpu(0), {}) is None
    assert found.shared
    path.write_text("GPU-1 0\n", "utf-8")
    with pytest.raises(BadInput, match="line 1: write Slurm's index and"):
        load_gpu_map(path)
    with pytest.raises(BadInput, match="cannot be read"):
        load_gpu_map(tmp_path / "nowhere")


def record(folder: Path, index: int, job: str, start: int) -> None:
    (folder / str(index)).mkdir(parents=True, exist_ok=True)
    (folder / str(index) / job).write_text(f"job={job}\nuser=alice\nstart={start}\n", "utf-8")


def reading(*processes: GpuProcess) -> DriverReading:
    return DriverReading(identity=gpu(0), processes=processes)


def test_records_say_which_job_holds_a_gpu(tmp_path: Path) -> None:
    record(tmp_path, 1, "41", 100)
    (tmp_path / "1" / ".42").touch()  # the prolog is writing it
    (tmp_path / ".lock").touch()
    jobs = JobFinder(SlurmGpus(), tmp_path, tmp_path)
    assert jobs.jobs_on(1, reading()) == ("41",)
    assert jobs.jobs_on(0, reading()) == ()
    assert jobs.jobs_on(None, reading()) == ()


def test_a_record_whose_epilog_never_ran_holds_nothing(tmp_path: Path) -> None:
    record(tmp_path, 0, "900", 100)
    record(tmp_path, 0, "41", 200)
    assert JobFinder(SlurmGpus(), tmp_path, tmp_path).jobs_on(0, reading()) == ("41",)
    shared = JobFinder(SlurmGpus(shared=True), tmp_path, tmp_path)
    assert shared.jobs_on(0, reading()) == ("900", "41")


def in_cgroup(proc: Path, pid: int, cgroup: str, comm: str = "python") -> None:
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "cgroup").write_text(cgroup, "utf-8")
    (proc / str(pid) / "comm").write_text(f"{comm}\n", "utf-8")


@pytest.mark.parametrize(
    "cgroup",
    [
        "0::/system.slice/slurmstepd.scope/job_41/step_0/user/task_0\n",
        "5:devices:/slurm/uid_1000/job_41/step_batch\n1:name=systemd:/\n",
        "4:freezer:/slurm/uid_1000/job_41\n",
    ],
)
def test_without_records_processes_name_their_job(tmp_path: Path, cgroup: str) -> None:
    in_cgroup(tmp_path, 7, cgroup)
    jobs = JobFinder(SlurmGpus(), tmp_path / "records", tmp_path)
    assert jobs.jobs_on(0, reading(GpuProcess(7, 1, 50))) == ("41",)
    assert jobs.jobs_on(0, reading(GpuProcess(8, 1, 50))) == ()


@pytest.mark.parametrize(
    ("cgroup", "folder"),
    [
        ("0::/system.slice/slurmstepd.scope/job_{}/step_0\n", "system.slice/slurmstepd.scope"),
        ("5:devices:/slurm/uid_1000/job_{}/step_batch\n", "devices/slurm/uid_1000"),
    ],
)
def test_a_job_holds_its_gpu_also_while_no_process_is_on_it(
    tmp_path: Path, cgroup: str, folder: str
) -> None:
    """Without records, the time in which a job does nothing was left out of its mean use."""
    for pid, job in ((7, "41"), (8, "42")):
        in_cgroup(tmp_path, pid, cgroup.format(job))
        (tmp_path / "cgroup" / folder / f"job_{job}").mkdir(parents=True)
    jobs = JobFinder(SlurmGpus(), tmp_path / "records", tmp_path, tmp_path / "cgroup")
    assert jobs.jobs_on(0, reading()) == ()
    assert jobs.jobs_on(0, reading(GpuProcess(7, 1, 50))) == ("41",)
    assert jobs.jobs_on(0, reading()) == ("41",)
    # Another job has it now, although the first has not ended.
    assert jobs.jobs_on(0, reading(GpuProcess(8, 1, 50))) == ("42",)
    assert jobs.jobs_on(0, reading()) == ("42",)
    (tmp_path / "cgroup" / folder / "job_42").rmdir()
    assert jobs.jobs_on(0, reading()) == ()


SCOPE = "system.slice/slurmstepd.scope"
SLUID = "sEKNKTV3WPV500"


def test_a_cgroup_named_by_sluid_has_the_job_of_its_slurmstepd(tmp_path: Path) -> None:
    """Slurm 26.05 with cgroup/v2; the environment is the user's to change."""
    in_cgroup(tmp_path, 7, f"0::/{SCOPE}/{SLUID}/step_0/user/task_0\n")
    (tmp_path / "7" / "environ").write_bytes(b"SLURM_JOB_ID=99\0")
    in_cgroup(tmp_path, 5, f"0::/{SCOPE}/{SLUID}/step_0/slurm\n", comm="slurmstepd")
    (tmp_path / "5" / "cmdline").write_bytes(b"slurmstepd: [41.0]\0")
    daemon = tmp_path / "cgroup" / SCOPE / SLUID / "step_0" / "slurm"
    daemon.mkdir(parents=True)
    jobs = JobFinder(SlurmGpus(), tmp_path / "records", tmp_path, tmp_path / "cgroup")
    assert jobs.jobs_on(0, reading(GpuProcess(7, 1, 50))) == ("99",)  # slurmstepd is not seen
    (daemon / "cgroup.procs").write_text("4\n5\n", "ascii")  # 4 has ended meanwhile
    assert jobs.jobs_on(0, reading(GpuProcess(7, 1, 50))) == ("41",)
    assert jobs.jobs_on(0, reading()) == ("41",)  # it holds the GPU until its cgroup is gone
    shutil.rmtree(tmp_path / "cgroup" / SCOPE / SLUID)
    assert jobs.jobs_on(0, reading()) == ()


def test_records_are_all_valid_where_no_cgroup_names_a_job(tmp_path: Path) -> None:
    """With SLUIDs no cgroup tells whether the job of an older record has ended."""
    (tmp_path / "cgroup" / SCOPE / SLUID).mkdir(parents=True)
    for job, start in (("40", 100), ("41", 200)):
        record(tmp_path, 0, job, start)
    in_cgroup(tmp_path, 7, f"0::/{SCOPE}/{SLUID}/step_0/user/task_0\n")
    jobs = JobFinder(SlurmGpus(shared=True), tmp_path, tmp_path, tmp_path / "cgroup")
    assert jobs.jobs_on(0, reading(GpuProcess(7, 1, 50))) == ("40", "41")


def test_a_record_of_a_job_without_a_cgroup_makes_no_gpu_shared(tmp_path: Path) -> None:
    home = tmp_path / "cgroup" / "system.slice" / "slurmstepd.scope"
    (home / "job_41").mkdir(parents=True)
    now = int(time.time())
    for job, start in (("900", 100), ("41", 200), ("43", now)):
        record(tmp_path, 0, job, start)
    jobs = JobFinder(SlurmGpus(shared=True), tmp_path, tmp_path, tmp_path / "cgroup")
    # No job's cgroup was seen yet: perhaps jobs have none on this node.
    assert jobs.jobs_on(0, reading()) == ("900", "41", "43")
    in_cgroup(tmp_path, 7, "0::/system.slice/slurmstepd.scope/job_41/step_0\n")
    # Job 43's prolog still runs, so its cgroup is not there yet.
    assert jobs.jobs_on(0, reading(GpuProcess(7, 1, 50))) == ("41", "43")
    (home / "job_41").rmdir()
    (tmp_path / "0" / "43").unlink()
    assert jobs.jobs_on(0, reading()) == ("900", "41")  # one of them it must be


@pytest.fixture
def sleeping() -> Iterator[dict[str, int]]:
    """Real processes whose environment names a job, or none."""
    env = {name: value for name, value in os.environ.items() if name != "SLURM_JOB_ID"}
    started = {
        job: subprocess.Popen(["sleep", "600"], env=env | ({"SLURM_JOB_ID": job} if job else {}))
        for job in ("41", "")
    }
    yield {job: process.pid for job, process in started.items()}
    for process in started.values():
        process.kill()
        process.wait()


def test_the_environment_names_a_job_where_there_is_no_cgroup(
    tmp_path: Path, sleeping: dict[str, int]
) -> None:
    jobs = JobFinder(SlurmGpus(), tmp_path)
    processes = [GpuProcess(pid, 1, 50) for pid in sleeping.values()]
    assert jobs.jobs_on(0, reading(*processes)) == ("41",)


def test_jobs_on_a_shared_gpu_have_their_processes_use(tmp_path: Path) -> None:
    for pid, job in ((7, "41"), (8, "41"), (9, "42")):
        in_cgroup(tmp_path, pid, f"0::/system.slice/slurmstepd.scope/job_{job}/step_0\n")
    in_cgroup(tmp_path, 10, "0::/init.scope\n", comm="nvidia-cuda-mps")
    server = GpuProcess(10, 30, 0)
    busy = (GpuProcess(7, 100, 25), GpuProcess(8, 50, 50), GpuProcess(9, None, 12.5))
    jobs = JobFinder(SlurmGpus(shared=True), tmp_path, tmp_path)
    assert jobs.shares(["41", "42", "43"], reading(*busy, server)) == [
        JobShare("41", 75, 150),
        JobShare("42", 12.5, None),
        JobShare("43", 0, 0),  # it has no process there, and every process is another job's
    ]


def test_a_process_of_nobody_knows_makes_all_shares_unknown(tmp_path: Path) -> None:
    in_cgroup(tmp_path, 7, "0::/system.slice/slurmstepd.scope/job_41/step_0\n")
    jobs = JobFinder(SlurmGpus(shared=True), tmp_path, tmp_path)
    unknown = GpuProcess(99, 1, 10)
    assert jobs.shares(["41", "42"], reading(GpuProcess(7, 1, 50), unknown)) == [
        JobShare("41", None, None)
    ]
    assert jobs.shares(["41"], DriverReading(identity=gpu(0))) == []
