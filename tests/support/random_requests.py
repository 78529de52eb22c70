"""Random requests for a job, right and wrong ones, for the differential test of `plan`.

Each request has a generator of its own, seeded with the seed and its number, so that one of them
can be made again alone.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

Options = dict[str, str]


class RandomRequest(NamedTuple):
    """What a user asks sbatch for; a flag's value is empty."""

    number: int
    user: str
    options: Options

    def words(self) -> list[str]:
        return option_words(self.options)


def option_words(options: Options) -> list[str]:
    return [f"--{name}={value}" if value else f"--{name}" for name, value in options.items()]


def random_requests(seed: int, count: int) -> list[RandomRequest]:
    return [random_request(seed, number) for number in range(count)]


def random_request(seed: int, number: int) -> RandomRequest:
    """Return a request; most are made of what the cluster has, the wild ones of anything."""
    rng = Random(f"{seed}/{number}")
    wild = rng.random() < 0.3
    where = rng.choices(list(_PARTITIONS), _WEIGHTS)[0]
    users = _USERS if wild else _MEMBERS.get(where, _USERS)
    options = _partitions(rng, where, wild)
    for part in (_tasks, _memory, _limits, _nodes):
        options |= part(rng, wild)
    if rng.random() < (0.5 if wild else 0.7):
        options |= _gpus(rng, where, wild)
    if wild and rng.random() < 0.3:
        name = rng.choice(list(_RARE))
        options[name] = rng.choice(_RARE[name])
    if not wild:
        _make_mild(rng, options, where)
    return RandomRequest(number, rng.choice(users) if rng.random() < 0.97 else "trent", options)


def _make_mild(rng: Random, options: Options, where: str) -> None:
    """Take out most of what the partition or sbatch itself refuses at once."""
    if where == "urgent" and rng.random() < 0.8:
        options["qos"] = "high"
    if where in ("short", "judged") and rng.random() < 0.8:
        options["time"] = rng.choice(("5", "10:00"))
    if "gpus-per-task" in options and rng.random() < 0.8:
        options.setdefault("ntasks", rng.choice(("1", "2", "4")))
    if not any(name.startswith("gpus") for name in options):
        options.pop("mem-per-gpu", None)


_USERS = ("alice", "alice", "bob", "erin", "dave", "grace", "judy")
_MEMBERS = {
    "members": ("alice", "bob", "erin"),
    "others": ("dave", "judy", "grace"),
    "urgent": ("alice", "bob", "erin", "dave", "judy"),
    "team": ("dave", "erin"),
}
# Each partition, and the GPU types that its nodes have; an empty one is a GPU without a type.
_PARTITIONS: dict[str, tuple[str, ...]] = {
    "gpu": ("a100", "h100", "shard"),
    "cpu": (),
    "untyped": ("",),
    "mig": ("a100_3g.20gb", "a100_1g.5gb"),
    "mps": ("a100", "mps"),
    "big": ("a100", "h100"),
    "short": ("a100",),
    "memnode": (),
    "memcpu": ("a100",),
    "defgpu": ("a100",),
    "fewcpus": ("a100",),
    "members": ("h100", "shard"),
    "others": (),
    "urgent": ("a100", "h100"),
    "patient": (),
    "team": (),
    "excl": ("a100", "mps"),
    "mixed": ("a100", "h100", ""),
    "judged": ("a100",),
    "drained": (),
    "closed": (),
    "off": (),
}
_WEIGHTS = [8, 5, 3, 3, 3, *([2] * 14), 0.4, 0.4, 0.4]
_RARE: dict[str, tuple[str, ...]] = {
    "ntasks-per-socket": ("1", "2", "33"),
    "ntasks-per-core": ("1", "2"),
    "threads-per-core": ("1", "2"),
    "sockets-per-node": ("1", "2", "3"),
    "cores-per-socket": ("16", "33"),
    "mincpus": ("8", "16", "65"),
    "cpus-per-gpu": ("2", "4", "16"),
    "ntasks-per-gpu": ("1", "2"),
    "contiguous": ("",),
    "spread-job": ("",),
    "use-min-nodes": ("",),
    "overcommit": ("",),
    "prefer": ("intel", "amd", "nvlink"),
    "switches": ("1", "2@1:00"),
    "time-min": ("1", "2:00:00"),
}


def _partitions(rng: Random, where: str, wild: bool) -> Options:
    chance = rng.random()
    if where == "gpu" and chance < 0.5:
        return {}  # the default partition
    if chance < 0.12:
        return {"partition": f"{where},{rng.choice(list(_PARTITIONS))}"}
    if wild and chance > 0.97:
        return {"partition": "nowhere"}
    return {"partition": where}


def _tasks(rng: Random, wild: bool) -> Options:
    """Return sizes: of each option, the mild values and the wild ones."""
    asked: Options = {}
    for name, chance, mild, beyond in (
        ("nodes", 0.45, ("1", "1", "2", "2", "1-2", "2-3"), ("3", "4", "1-4", "2-8", "0")),
        ("ntasks", 0.4, ("1", "2", "3", "4", "8"), ("3", "16", "65", "128")),
        ("ntasks-per-node", 0.2, ("1", "2", "4"), ("3", "64", "65")),
        ("cpus-per-task", 0.4, ("1", "2", "3", "4"), ("5", "32", "64", "65")),
    ):
        if rng.random() < chance:
            asked[name] = rng.choice(beyond if wild else mild)
    return asked


def _memory(rng: Random, wild: bool) -> Options:
    if rng.random() < 0.5:
        return {}
    mild = ("mem=0", "mem=4G", "mem=20G", "mem=1000M", "mem-per-cpu=1G", "mem-per-cpu=3000M")
    beyond = ("mem=0", "mem=100G", "mem=600G", "mem-per-cpu=16G", "mem-per-gpu=32G", "mem=512000")
    name, value = rng.choice(beyond if wild else (*mild, "mem-per-gpu=8G")).split("=")
    return {name: value}


def _limits(rng: Random, wild: bool) -> Options:
    asked: Options = {}
    if rng.random() < 0.75:
        mild = ("5", "10:00", "00:08:00", "1:00:00", "12:00:00")
        beyond = ("1-00:00:00", "7-0", "8-00:00:00", "0:30", "20", "UNLIMITED")
        asked["time"] = rng.choice((*mild, *beyond) if wild else mild)
    if rng.random() < 0.25:
        beyond_qos = ("high", "wide", "narrow", "scavenger", "nope")
        asked["qos"] = rng.choice(beyond_qos if wild else ("normal", "high", "scavenger", "wide"))
    if rng.random() < (0.2 if wild else 0.04):
        asked["account"] = rng.choice(("vision", "genomics", "climate", "nope"))
    if rng.random() < 0.07:
        asked["licenses"] = rng.choice(
            ("matlab:6", "nolic:1", "ansys:1,matlab:2")
            if wild
            else ("matlab:1", "ansys:2", "matlab")
        )
    if rng.random() < 0.05:
        asked["array"] = rng.choice(("0-1", "1-3%1", "0-4:2"))
    return asked


def _nodes(rng: Random, wild: bool) -> Options:
    asked: Options = {}
    if rng.random() < 0.1:
        mild = ("intel", "amd", "nvlink", "intel&nvlink", "amd|intel", "[amd|intel]")
        beyond = ("nope", "[amd*1&intel*1]", "bigmem", "bigmem&nvlink", "intel&amd")
        asked["constraint"] = rng.choice(beyond if wild else mild)
    if rng.random() < 0.07:
        beyond_nodes = ("c[1-3]", "c4", "c5", "c9")
        asked["nodelist"] = rng.choice(beyond_nodes if wild else ("c1", "c2", "c[1-2]", "c3", "c7"))
    if rng.random() < 0.08:
        asked["exclude"] = rng.choice(("c[1-2]", "c[1-7]", "c3") if wild else ("c1", "c2", "c3"))
    if rng.random() < 0.05:
        asked["exclusive"] = rng.choice(("", "", "user"))
    return asked


def _gpus(rng: Random, where: str, wild: bool) -> Options:
    """Return one way to ask for GPUs, of a type that the partition has; wild ones of any type."""
    kinds = _PARTITIONS[where]
    if wild and rng.random() < 0.5:
        kinds = ("a100", "h100", "v100", "", "shard", "mps", "a100_1g.5gb")
    if not kinds:
        return {}
    kind = rng.choice(kinds)
    if kind in ("shard", "mps"):
        most = ("1", "4", "16", "17") if kind == "shard" else ("50", "100", "200", "300")
        return {"gres": f"{kind}:{rng.choice(most if wild else most[:3])}"}
    if rng.random() < 0.2:
        kind = ""
    count = rng.choice(("0", "3", "5", "8", "9", "16") if wild else ("1", "1", "2", "2", "3", "4"))
    value = f"{kind}:{count}" if kind else count
    ways = ("gpus-per-node", "gpus-per-node", "gpus", "gpus-per-task", "gres")
    way = rng.choice((*ways, "gpus-per-socket") if wild else ways)
    asked = {way: f"gpu:{value}" if way == "gres" else value}
    if way == "gpus-per-socket":
        asked["sockets-per-node"] = "2"
    if wild and rng.random() < 0.1:
        asked["gpus"] = rng.choice(("2", "a100:4", "8"))
    return asked
