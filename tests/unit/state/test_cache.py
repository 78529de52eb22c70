"""What is kept of a cluster on disk."""

from __future__ import annotations

import math
import os
import stat
import time
import zlib
from pathlib import Path

import msgspec
import pytest

from slurmkit.cli.completion import cached_names
from slurmkit.errors import ControllerDown
from slurmkit.formats.tres import Gres
from slurmkit.slurm.commands import LocalSlurmCommands
from slurmkit.state import cache
from slurmkit.state.associations import SlurmdbdDetails
from slurmkit.state.cache import load_cached, load_capabilities, local_cluster_key, save_cached
from slurmkit.state.capabilities import CAPABILITY_COMMANDS
from slurmkit.state.model import Capabilities, Node, Partition
from slurmkit.testing import FakeSlurm

RECORDED = Path(__file__).parents[2] / "recorded" / "24.11"
FILES = {"mpi": "srun-mpi", "srun": "srun-help"}


def answer(argv: list[str], _: str | None) -> str:
    what = next(name for name, asked in CAPABILITY_COMMANDS.items() if list(asked) == list(argv))
    return (RECORDED / f"{FILES.get(what, f'scontrol-{what}')}.txt").read_text("utf-8")


def fake() -> FakeSlurm:
    return FakeSlurm({"scontrol": answer, "srun": answer})


def down(argv: list[str], _: str | None) -> str:
    raise ControllerDown("slurmctld does not answer")


def no_cluster() -> FakeSlurm:
    return FakeSlurm({"scontrol": down, "srun": down})


def folder() -> Path:
    return Path.home() / ".cache" / "slurmkit"


def the_file() -> Path:
    (found,) = folder().iterdir()
    return found


def test_a_copy_saves_every_command() -> None:
    slurm = fake()
    first = load_capabilities(slurm, key="lab")
    asked = slurm.calls
    assert load_capabilities(slurm, key="lab") == first
    assert slurm.calls == asked == len(CAPABILITY_COMMANDS)


def test_only_its_owner_may_read_it() -> None:
    load_capabilities(fake(), key="lab")
    assert stat.S_IMODE(folder().stat().st_mode) == 0o700
    assert stat.S_IMODE(the_file().stat().st_mode) == 0o600


def test_refresh_and_age() -> None:
    slurm = fake()
    first = load_capabilities(slurm, key="lab")
    assert load_capabilities(slurm, key="lab", refresh=True).taken > first.taken
    assert load_capabilities(slurm, key="lab", max_age=0).taken > first.taken
    assert slurm.calls == 3 * len(CAPABILITY_COMMANDS)


def test_a_copy_from_the_future_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_capabilities(fake(), key="lab")
    monkeypatch.setattr(cache.time, "time", lambda: first.taken - 3600)
    slurm = fake()
    load_capabilities(slurm, key="lab")
    assert slurm.calls == len(CAPABILITY_COMMANDS)


def test_clusters_do_not_meet() -> None:
    load_capabilities(fake(), key="lab")
    slurm = fake()
    load_capabilities(slurm, key="other")
    assert slurm.calls == len(CAPABILITY_COMMANDS)


def test_keys_that_look_alike_do_not_meet() -> None:
    """Both would be kept in the same file."""
    save_cached("details", "lab-a/b", SlurmdbdDetails(1.0))
    assert load_cached("details", "lab-a b", SlurmdbdDetails) is None
    assert load_cached("details", "lab-a/b", SlurmdbdDetails) == SlurmdbdDetails(1.0)
    assert the_file().parent == folder()


@pytest.mark.parametrize("key", ["../../etc/x", "/etc/x", "a\nb", "ä" * 10])
def test_a_key_names_a_file_in_the_folder(key: str) -> None:
    save_cached("details", key, SlurmdbdDetails(1.0))
    assert the_file().is_file()
    assert load_cached("details", key, SlurmdbdDetails) == SlurmdbdDetails(1.0)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b'{"schema": 0, "key": "lab", "body": {}}',
        b'{"schema": 1, "key": "lab", "body": {"taken": "now"}}',
        b"[]",
    ],
)
def test_a_damaged_copy_is_made_anew(content: bytes) -> None:
    first = load_capabilities(fake(), key="lab")
    the_file().write_bytes(content)
    slurm = fake()
    second = load_capabilities(slurm, key="lab")
    assert slurm.calls == len(CAPABILITY_COMMANDS)
    assert second.nodes == first.nodes
    assert load_cached("capabilities", "lab", Capabilities) == second


def test_a_copy_of_another_schema_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    load_capabilities(fake(), key="lab")
    monkeypatch.setattr(cache, "SCHEMA", cache.SCHEMA + 1)
    assert load_cached("capabilities", "lab", Capabilities) is None


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    load_capabilities(fake(), key="lab")
    the_file().rename(tmp_path / "elsewhere.json")
    (folder() / "capabilities-lab.json").symlink_to(tmp_path / "elsewhere.json")
    assert load_cached("capabilities", "lab", Capabilities) is None


def test_a_copy_of_somebody_else_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    load_capabilities(fake(), key="lab")
    monkeypatch.setattr(cache.os, "getuid", lambda: os.geteuid() + 1)
    assert load_cached("capabilities", "lab", Capabilities) is None


def test_a_pipe_does_not_stop_us() -> None:
    folder().mkdir(parents=True)
    os.mkfifo(folder() / "capabilities-lab.json")
    assert load_cached("capabilities", "lab", Capabilities) is None


def test_a_copy_from_before_an_edit_is_old(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also one that was read before slurmctld was told of it."""
    conf, nodes = tmp_path / "slurm.conf", tmp_path / "nodes.conf"
    conf.touch()
    nodes.touch()
    monkeypatch.setenv("SLURM_CONF", str(conf))
    os.utime(conf, (0, 0))
    for edited, asked in ((3600, False), (59, True), (-1, True)):
        slurm = fake()
        first = load_capabilities(slurm, key="lab", refresh=True)
        os.utime(nodes, (0, first.taken - edited))
        load_capabilities(slurm, key="lab")
        assert (slurm.calls > len(CAPABILITY_COMMANDS)) is asked
    assert load_capabilities(no_cluster(), key="lab", max_age=math.inf).taken >= first.taken


def test_without_slurmctld() -> None:
    with pytest.raises(ControllerDown):
        load_capabilities(no_cluster(), key="lab", max_age=math.inf)
    first = load_capabilities(fake(), key="lab")
    assert load_capabilities(no_cluster(), key="lab", max_age=math.inf) == first
    with pytest.raises(ControllerDown):
        load_capabilities(no_cluster(), key="lab", max_age=0)


def test_a_folder_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")
    assert load_capabilities(fake(), key="lab").nodes
    assert load_cached("capabilities", "lab", Capabilities) is None


def test_the_folder_can_be_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    load_capabilities(fake(), key="lab")
    assert len(list((tmp_path / "cache" / "slurmkit").iterdir())) == 1
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # which the specification says to ignore
    load_capabilities(fake(), key="lab")
    assert the_file().is_file()


def test_a_failed_write_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: Path, target: Path) -> None:
        raise OSError(28, "No space left on device", str(target))

    monkeypatch.setattr(Path, "replace", full)
    load_capabilities(fake(), key="lab")
    assert list(folder().iterdir()) == []


def test_a_stand_in_for_slurm_leaves_nothing() -> None:
    load_capabilities(fake())
    assert not folder().exists()
    assert cache.cluster_key(LocalSlurmCommands()) == local_cluster_key()


def test_the_key_is_the_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A home may be shared by clusters whose slurm.conf has the same path."""
    conf = tmp_path / "slurm.conf"
    monkeypatch.setenv("SLURM_CONF", str(conf))
    conf.write_text("# ClusterName=old\nclustername = first\n")
    first = local_cluster_key()
    conf.write_text("ClusterName=second # the new one\n")
    second = local_cluster_key()
    assert (first.rpartition("-")[0], second.rpartition("-")[0]) == ("first", "second")
    conf.write_text("ClusterName=second\nSlurmctldHost=elsewhere(10.0.0.1)\n")
    assert local_cluster_key() != second
    conf.write_text("Include cluster.conf\n")
    assert local_cluster_key().startswith(f"{os.uname().nodename}-")
    monkeypatch.setenv("SLURM_CONF_SERVER", "ctl1,ctl2")
    assert local_cluster_key() != first


def test_names_for_completion() -> None:
    assert cached_names("partition", key="lab") == []
    load_capabilities(fake(), key="lab")
    assert cached_names("partition", key="lab") == ["cpu", "gpu", "mig", "mps", "untyped"]
    assert cached_names("gpu", key="lab") == ["a100", "a100_1g.5gb", "a100_3g.20gb", "h100"]
    assert cached_names("node", key="lab")[0] == "c1"
    assert cached_names("unheard of", key="lab") == []


def many(count: int) -> Capabilities:
    names = tuple(f"node{number:05}" for number in range(count))
    nodes = tuple(
        Node(
            name=name,
            states=("IDLE", "CLOUD"),
            cpus=128,
            sockets=2,
            cores_per_socket=32,
            threads_per_core=2,
            memory=1_000_000,
            features=("a100", "nvlink", "ib"),
            gres=(Gres("gpu", "a100", 8), Gres("shard", "a100", 32)),
            partitions=("gpu", "long", "debug"),
        )
        for name in names
    )
    partitions = tuple(Partition(name=name, nodes=names) for name in ("gpu", "long", "debug"))
    return Capabilities(
        taken=time.time(),
        release=(24, 11, 5),
        cluster_name="big",
        config={},
        nodes=nodes,
        partitions=partitions,
    )


def test_a_big_cluster_comes_back_whole() -> None:
    big = many(5000)
    save_cached("capabilities", "big", big)
    assert load_cached("capabilities", "big", Capabilities) == big


def test_a_change_of_what_is_kept_raises_the_schema() -> None:
    """When this fails: raise SCHEMA in cache.py, then take over both numbers here."""
    kinds = (Capabilities, Node, Partition, Gres, SlurmdbdDetails)
    fields = [
        f"{each.name}: {each.type}" for kind in kinds for each in msgspec.structs.fields(kind)
    ]
    assert (cache.SCHEMA, zlib.crc32("\n".join(fields).encode())) == (2, 4124536125)
