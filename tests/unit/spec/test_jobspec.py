"""What cannot be meant is refused where it is written."""

from __future__ import annotations

import msgspec
import pytest

from slurmkit.errors import BadInput
from slurmkit.spec.gpus import Gpus
from slurmkit.spec.jobspec import JobSpec, Launch


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"command": ()}, "no command"),
        ({"script": "#!/bin/sh\n"}, "both a command and a script"),
        ({"command": (), "script": "echo hi"}, "first line must name its interpreter"),
        ({"command": (), "script": "#!/bin/sh\r\necho"}, "DOS line ends"),
        ({"command": (), "script": "#!/bin/sh\n\0"}, "not text"),
        (
            {"command": (), "script": "#!/bin/sh\n # x\n#SBATCH -N9\n"},
            "which slurmkit would not check",
        ),
        ({"command": (), "script": "#!/bin/sh\n#SLURM -N9\n"}, "which slurmkit would not check"),
        (
            {"command": (), "script": "#!/usr/bin/env python3\n", "environment": {"A": "1"}},
            "this script's interpreter is not a shell",
        ),
        ({"nodes": "2"}, "--nodes must be a whole number, or a range such as '1-4', not '2'"),
        ({"nodes": "4-2"}, "the maximum is below the minimum"),
        ({"nodes": "0-2"}, "--nodes must be a whole number, or a range"),
        ({"nodes": 2.5}, "--nodes must be a whole number, not 2.5"),
        ({"nodes": True}, "--nodes must be a whole number"),
        ({"time": 10}, "--time must be text, e.g. '10', not 10"),
        ({"mem": 64}, "--mem must be text"),
        ({"gpus": 2}, "gpus must be Gpus"),
        ({"gpus": "a100:2"}, "gpus must be Gpus"),
        ({"gres": "nvme:1,gpu:2"}, "give them as gpus"),
        ({"gres": "shard:2"}, "give them as gpus"),
        ({"environment": {"A": 8}}, "environment: the value of A must be text, e.g. '8', not 8"),
        ({"environment": ["A=8"]}, "environment must be a table"),
        ({"options": {"tmp": 1}}, "options: the value of tmp must be text"),
        ({"nodes": 0}, "--nodes must be at least 1"),
        ({"ntasks_per_node": -1}, "--ntasks-per-node must be at least 1"),
        ({"command": "hostname"}, "not one text"),
        ({"command": ("\udcff",)}, "not UTF-8"),
        ({"command": ("a\0b",)}, "NUL"),
        ({"output": ""}, "--output may not be empty"),
        ({"chdir": "here"}, "--chdir 'here' is not an absolute path"),
        ({"time": "99999999999999"}, "longer than Slurm can store"),
        ({"time": "soon"}, "not one of Slurm's forms"),
        ({"mem": "lots"}, "--mem 'lots' is not a size"),
        ({"mem": "1G", "mem_per_gpu": "1G"}, "--mem and --mem-per-gpu cannot be combined"),
        ({"cpus_per_gpu": 2, "cpus_per_task": 2}, "--cpus-per-task and --cpus-per-gpu cannot"),
        ({"ntasks_per_gpu": 2, "ntasks_per_node": 2}, "--ntasks-per-node and --ntasks-per-gpu"),
        ({"cpus_per_gpu": 2, "options": {"tres-per-task": "cpu=2"}}, "--tres-per-task=cpu cannot"),
        ({"exclusive": True, "options": {"oversubscribe": ""}}, "--exclusive and --oversubscribe"),
        ({"options": {"core-spec": "1", "thread-spec": "1"}}, "--core-spec and --thread-spec"),
        ({"ntasks_per_gpu": 2}, "--ntasks-per-gpu=2 needs GPUs"),
        ({"ntasks_per_gpu": 2, "ntasks": 3}, "--ntasks as a multiple of 2"),
        ({"ntasks_per_gpu": 2, "gpus": Gpus(shard=1)}, "needs whole GPUs"),
        ({"ntasks_per_gpu": 2, "gpus": Gpus(1, per="task")}, "give --gpus-per-node or --gpus"),
        ({"ntasks_per_gpu": 1, "gpus": Gpus(1), "nodes": "1-2"}, "does not go with --nodes=1-2"),
        ({"gpus": Gpus(4, sockets=2)}, "--sockets-per-node is not given"),
        ({"gpus": Gpus(4, sockets=2), "sockets_per_node": 4}, "--sockets-per-node is 4"),
        ({"ntasks_per_core": 2, "threads_per_core": 1}, "--ntasks-per-core=2 may not be greater"),
        ({"hint": "fast"}, "--hint 'fast' is not one of compute_bound"),
        ({"tmp": "much"}, "--tmp 'much' is not a size"),
        ({"mincpus": 0}, "--mincpus must be at least 1"),
        ({"partition": "gpu;rm"}, "--partition 'gpu;rm' is not a Slurm name"),
        ({"array": "1-"}, "--array '1-' is not a list of indexes"),
        ({"array": "0-3,5-1"}, "--array=0-3,5-1: 5-1 contains no index"),
        ({"array": "0-9:0"}, "0-9:0 contains no index"),
        ({"array": "0-4294967295"}, "the highest that Slurm can store is 4000000"),
        ({"dependency": "afterok"}, "--dependency 'afterok' is not a dependency"),
        ({"dependency": "afterok:1,afterany:2?afterok:3"}, "is not a dependency"),
        ({"exclusive": "mine"}, "one of user, mcs and topo"),
        ({"signal": "USR1@x"}, "--signal"),
        ({"mail_type": "SOMETIMES"}, "--mail-type"),
        ({"open_mode": "w"}, "one of append and truncate"),
        ({"nodelist": "/etc/passwd"}, "a list of nodes"),
        ({"environment": {"A B": "x"}}, "not the name of a variable"),
        ({"environment": {"SLURM_CONF": "x"}}, "Slurm reads .* as an option"),
        ({"environment": {"PYXIS_X": "x"}}, "Slurm reads .* as an option"),
        ({"environment": {"A": "\0"}}, "contains a NUL"),
        ({"options": {"wrap": "x"}}, "or the command after --"),
        ({"options": {"nodes": "2"}}, "has a field of its own"),
        ({"options": {"--tmp": "2"}}, "did you mean 'tmp'"),
    ],
)
def test_bad_specs_are_refused(options: dict[str, object], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        JobSpec(**{"command": ("x",), **options})  # type: ignore[arg-type]


@pytest.mark.parametrize("option", ["output", "chdir", "comment", "job_name", "time", "error"])
@pytest.mark.parametrize("sign", ["\n", "\r", "\0"])
def test_line_breaks_in_options_are_refused(option: str, sign: str) -> None:
    with pytest.raises(BadInput, match="without a line break"):
        JobSpec(command=("x",), **{option: f"/a{sign}b"})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "dependency", ["afterok:12", "afterok:12:13_4,afterany:14", "after:1?afterok:2", "singleton"]
)
def test_dependencies(dependency: str) -> None:
    assert JobSpec(command=("x",), dependency=dependency).dependency == dependency


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("mail_type", "end,fail"),
        ("mem", "64GB"),
        ("mem_per_cpu", "4gb"),
        ("signal", "b:usr1@60"),
        ("qos", "high,normal"),
        ("open_mode", "Append"),
        ("licenses", "a:1;b:2"),
        ("constraint", "(a=1|b)&c"),
    ],
)
def test_forms_that_sbatch_takes_too(option: str, value: str) -> None:
    assert getattr(JobSpec(command=("x",), **{option: value}), option) == value  # type: ignore[arg-type]


@pytest.mark.parametrize("time", ["0", "UNLIMITED", "infinite", "-1"])
def test_no_time_limit_is_refused_for_what_it_is(time: str) -> None:
    with pytest.raises(BadInput, match="would mean no limit"):
        JobSpec(command=("x",), time=time)


def test_options_after_the_first_command_are_comments() -> None:
    text = "#!/usr/bin/env -S bash -l\ndate\n#SBATCH --nodes=9\n"
    assert JobSpec(script=text, environment={"A": "1"}).script == text


def test_launchers_are_names() -> None:
    with pytest.raises(BadInput, match="is not a name"):
        Launch(mpi="pmix; rm")


def test_the_time_limit_in_seconds() -> None:
    assert JobSpec(command=("x",), time="1-0").seconds == 86400
    assert JobSpec(command=("x",)).seconds is None


@pytest.mark.parametrize(
    ("nodes", "least", "most"), [(None, None, None), (2, 2, 2), ("1-4", 1, 4), ("2,4-9:2", 2, 9)]
)
def test_ranges_of_nodes(nodes: int | str | None, least: int | None, most: int | None) -> None:
    spec = JobSpec(command=("x",), nodes=nodes)
    assert (spec.least_nodes, spec.most_nodes) == (least, most)


def test_options_of_0_1_are_the_fields_that_they_became() -> None:
    """Programs and records of the version before have them."""
    options = {"mincpus": "8", "hint": "nomultithread", "overcommit": "", "contiguous": ""}
    spec = JobSpec(command=("true",), options=options)
    assert (spec.mincpus, spec.hint, spec.overcommit) == (8, "nomultithread", True)
    assert spec.options == {"contiguous": ""}
    record = b'{"command":["true"],"options":{"cpus-per-gpu":"4"}}'
    assert msgspec.json.decode(record, type=JobSpec).cpus_per_gpu == 4
    assert JobSpec(command=("true",), mincpus=4, options={"mincpus": "8"}).mincpus == 4
