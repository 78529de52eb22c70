"""Sbatch's options as text, in scripts and job files, and the fields they mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slurmkit.errors import BadInput
from slurmkit.spec.findings import Finding
from slurmkit.spec.gpus import Gpus
from slurmkit.spec.jobfile import load_job_file, load_script, sbatch_only_options
from slurmkit.spec.jobspec import JobSpec
from slurmkit.spec.sbatch_options import option_values, parse_options, with_options

SCRIPT = """#!/bin/bash -l
# a comment
#SBATCH --job-name="my job" --time=1:00:00   # two on a line
#SBATCH -N2 -p gpu
#SBATCH --gres gpu:a100:2,nvme:1
#SBATCH --exclusive
#SBATCH --contiguous --mem-bind=local

module load cuda
#SBATCH --nodes=9
srun ./a.out
"""


def test_options_are_read() -> None:
    pairs = [("nodes", "2"), ("gpus-per-task", "a100:1"), ("gpu-bind", "none"), ("hold", "")]
    fields = parse_options([*pairs, ("no-requeue", ""), ("exclusive", "user"), ("tmp", "10G")])
    assert fields == {
        "nodes": 2,
        "gpus": Gpus(1, "a100", "task", bind="none"),
        "hold": True,
        "requeue": False,
        "exclusive": "user",
        "options": {"tmp": "10G"},
    }


@pytest.mark.parametrize(
    ("gres", "fields"),
    [
        ("gpu:2", {"gpus": Gpus(2)}),
        ("gpu", {"gpus": Gpus(1)}),
        ("gpu:a100:2,nvme:1", {"gpus": Gpus(2, "a100"), "gres": "nvme:1"}),
        ("gres:gpu:a100:2", {"gpus": Gpus(2, "a100")}),
        ("shard:3", {"gpus": Gpus(shard=3)}),
        ("shard:h100:3", {"gpus": Gpus(shard=3, type="h100")}),
        ("mps:50", {"gpus": Gpus(mps=50)}),
        ("gpusim:2", {"gres": "gpusim:2"}),
    ],
)
def test_gres(gres: str, fields: dict[str, Any]) -> None:
    assert parse_options([("gres", gres)]) == fields


@pytest.mark.parametrize(
    ("pairs", "says"),
    [
        ([("nodes", "two")], "--nodes must be a whole number, not 'two'"),
        ([("gpus", "2"), ("gres", "shard:1")], "--gres asks for other GPUs than --gpus"),
        ([("gres", "gpu:1,shard:1")], "--gres=gpu:1,shard:1: a job has one kind of GPUs"),
        ([("gpu-bind", "none")], "--gpu-bind needs GPUs"),
        ([("wrap", "rm -rf")], "give the command after --"),
        ([("export", "A=1")], "use environment"),
        ([("part", "gpu")], "abbreviation; write it in full, e.g. partition"),
        ([("requeue", "expedite")], "takes no value"),
        ([("uid", "0")], "how sbatch itself runs"),
        ([("mem_bind", "x")], "did you mean 'mem-bind'"),
        ([("tmp", "1\n#SBATCH --uid=0")], "without a line break"),
    ],
)
def test_options_that_are_refused(pairs: list[tuple[str, str]], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        parse_options(pairs)


def test_numbers_that_sbatch_takes_too() -> None:
    assert parse_options([("nodes", "3-3"), ("nice", "")]) == {"nodes": 3, "nice": 100}
    assert parse_options([("nice", "-5")]) == {"nice": -5}
    assert parse_options([("nodes", "1-4")]) == {"nodes": "1-4"}
    assert parse_options([("nodes", "1k")]) == {"nodes": 1024}


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ("gpus-per-node=4 gpus=8", {"gpus": Gpus(4), "nodes": 2}),
        ("gpus=8 gpus-per-node=a100:4 nodes=2", {"gpus": Gpus(4, "a100"), "nodes": 2}),
        ("gpus=8 gpus-per-node=4 nodes=1-4", {"gpus": Gpus(4), "nodes": 2}),
        ("gpus=8 gpus-per-task=2", {"gpus": Gpus(2, per="task"), "ntasks": 4}),
        ("gpus-per-node=4 gpus-per-task=1", {"gpus": Gpus(4), "ntasks_per_node": 4}),
        (
            "gpus-per-node=4 gpus-per-task=1 ntasks=8",
            {"gpus": Gpus(4), "ntasks": 8, "ntasks_per_node": 4, "nodes": 2},
        ),
        (
            "nodes=2 ntasks-per-node=2 gres=gpu:A100:4 gpus-per-task=a100:2 gpus=8",
            {"gpus": Gpus(4, "A100"), "nodes": 2, "ntasks_per_node": 2, "ntasks": 4},
        ),
        ("gpus=2 gpus=3", {"gpus": Gpus(3, per="job")}),
    ],
)
def test_options_for_gpus_that_agree(options: str, fields: dict[str, Any]) -> None:
    assert parse_options(_pairs(options)) == fields


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("nodes=3 gpus=8 gpus-per-node=4", "--gpus=8 and --gpus-per-node=4 do not agree with --n"),
        ("nodes=3-4 gpus=8 gpus-per-node=4", "do not agree"),
        ("gpus=8 gpus-per-task=3", "--gpus=8 and --gpus-per-task=3 do not agree;"),
        ("nodes=2 ntasks-per-node=2 gpus=8 gpus-per-task=1", "do not agree"),
        ("ntasks=8 gpus-per-node=4 gpus-per-task=3", "do not agree with --ntasks=8;"),
        ("gpus-per-node=4 gres=gpu:2", "--gpus-per-node=4 and --gres=gpu:2 do not agree"),
        ("gpus-per-node=a100:4 gpus=h100:4", "--gpus asks for other GPUs"),
    ],
)
def test_options_for_gpus_that_do_not_agree(options: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        parse_options(_pairs(options))


def _pairs(options: str) -> list[tuple[str, str]]:
    return [(name, value) for name, _, value in (o.partition("=") for o in options.split())]


def test_options_that_are_passed_on_have_one_order() -> None:
    one = JobSpec(command=("x",), options={"tmp": "1G", "contiguous": ""})
    other = JobSpec(command=("x",), options={"contiguous": "", "tmp": "1G"})
    assert list(option_values(one)) == list(option_values(other))


def test_a_fix_is_applied() -> None:
    spec = JobSpec(command=("x",), gpus=Gpus(9, "a100"), constraint="ib", options={"tmp": "1G"})
    fixed = with_options(spec, [("gpus-per-node", "a100:8"), ("nodes", "2"), ("constraint", "")])
    assert fixed == JobSpec(command=("x",), gpus=Gpus(8, "a100"), nodes=2, options={"tmp": "1G"})


def test_a_fix_of_gpus_keeps_their_binding() -> None:
    spec = JobSpec(command=("x",), gpus=Gpus(9, "a100", "task", bind="closest"))
    fixed = with_options(spec, [("gpus-per-task", "a100:8")])
    assert fixed.gpus == Gpus(8, "a100", "task", bind="closest")
    assert with_options(spec, [("gres", "shard:1")]).gpus == Gpus(shard=1)


def test_a_fix_may_take_an_option_away_that_is_passed_on() -> None:
    spec = JobSpec(command=("x",), options={"tmp": "1G", "contiguous": ""})
    assert with_options(spec, [("contiguous", "")]).options == {"tmp": "1G"}


def test_a_fix_can_be_pasted_into_a_shell() -> None:
    fix = (("constraint", "a|b"), ("nodes", "2"), ("qos", ""))
    finding = Finding(severity="error", code="x", message="x", fix=fix)
    assert finding.fix_words == "--constraint='a|b' --nodes=2 no --qos"


def test_every_field_is_written() -> None:
    """A field that nobody renders would be silently ignored."""
    elsewhere = {"command", "container", "script", "gpus", "environment", "launch", "options"}
    elsewhere |= {"sweep", "array_throttle"}  # of the array's own option
    elsewhere |= {"survive"}  # lines of the script
    flags = {"hold", "requeue", "exclusive"}
    spec = JobSpec(command=("x",))
    plain = [n for n in spec.__struct_fields__ if n not in elsewhere | flags]
    sample = {"nodes": 3, "ntasks": 3, "ntasks_per_node": 3, "cpus_per_task": 3, "segment": 3}
    texts = {
        "gres": "nvme:1", "mem": "1G", "mem_per_cpu": "1G", "mem_per_gpu": "1G", "time": "10",
        "time_min": "5", "switches": "1", "array": "1-3", "dependency": "singleton",
        "begin": "now", "deadline": "now", "signal": "USR1@60", "mail_type": "END",
        "chdir": "/", "open_mode": "append", "licenses": "a:1", "nodelist": "c1",
    }  # fmt: skip
    for name in plain:
        value: object = {"nice": 5, **sample, **texts}.get(name, "x")
        made = JobSpec(command=("x",), **{name: value})  # type: ignore[arg-type]
        assert option_values(made)[name.replace("_", "-")] == str(value)
    made = JobSpec(command=("x",), hold=True, requeue=False, exclusive=True)
    assert {"hold", "no-requeue", "exclusive"} <= option_values(made).keys()


def test_a_script_is_read_as_sbatch_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text(SCRIPT, "utf-8")
    fields = load_script(path)
    body = fields.pop("script")
    assert fields == {
        "job_name": "my job",
        "time": "1:00:00",
        "nodes": 2,
        "partition": "gpu",
        "gpus": Gpus(2, "a100"),
        "gres": "nvme:1",
        "exclusive": True,
        "options": {"contiguous": "", "mem-bind": "local"},
    }
    assert body == (
        "#!/bin/bash -l\n# a comment\n\nmodule load cuda\n#SBATCH --nodes=9\nsrun ./a.out\n"
    )


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        ("--cpus-per-gpu 8 --hint nomultithread", {"cpus-per-gpu": "8", "hint": "nomultithread"}),
        ("--contiguous --exclusive", {"contiguous": ""}),
        ("-m block:cyclic -s -O -k", {"distribution": "block:cyclic", "oversubscribe": "",
                                      "overcommit": "", "no-kill": ""}),
        ("--export=NONE", {"export": "NONE"}),
        ("--export ALL", {"export": "ALL"}),
    ],
)  # fmt: skip
def test_options_that_are_not_modelled_pass(
    tmp_path: Path, line: str, fields: dict[str, str]
) -> None:
    path = tmp_path / "job.sh"
    path.write_text(f"#!/bin/sh\n#SBATCH {line}\n", "utf-8")
    assert load_script(path)["options"] == fields


def test_what_is_about_sbatch_itself_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "job.sh"
    path.write_text("#!/bin/sh\n#SBATCH -W --parsable -Q -N 2 --wait\ndate\n", "utf-8")
    assert sbatch_only_options(path) == ("wait", "parsable", "quiet")
    assert load_script(path) == {"job_name": "job.sh", "nodes": 2, "script": "#!/bin/sh\ndate\n"}


def test_options_after_an_indented_comment_are_read(tmp_path: Path) -> None:
    path = tmp_path / "job.sh"
    path.write_text("#!/bin/sh\n  # about\n#SBATCH --tasks-per-node=4\n#SLURM -N2\ndate\n", "utf-8")
    fields = load_script(path)
    assert (fields["ntasks_per_node"], fields["nodes"]) == (4, 2)
    assert fields["script"] == "#!/bin/sh\n  # about\ndate\n"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("hetjob", "line 2: slurmkit does not support heterogeneous jobs"),
        ("--time", "line 2: --time needs a value"),
        ("hello", "line 2: 'hello' is not an option"),
        ("-Z 3", "line 2: slurmkit does not know -Z"),
        ('--comment="open', 'line 2: a quote " is not closed'),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, says: str) -> None:
    path = tmp_path / "bad.sh"
    path.write_text(f"#!/bin/sh\n#SBATCH {line}\n", "utf-8")
    with pytest.raises(BadInput, match=says):
        load_script(path)


def toml(tmp_path: Path, text: str) -> dict[str, Any]:
    path = tmp_path / "job.toml"
    path.write_text(text, "utf-8")
    return load_job_file(path)


def test_a_job_file_has_the_same_names(tmp_path: Path) -> None:
    text = """
    command = ["python", "train.py"]
    nodes = 2
    gpus-per-node = "a100:4"
    time = "1:00:00"
    mem = 64
    exclusive = true
    [environment]
    OMP_NUM_THREADS = "8"
    [launch]
    mpi = "pmix"
    [options]
    tmp = "10G"
    """
    spec = JobSpec(**toml(tmp_path, text))
    assert spec.gpus == Gpus(4, "a100")
    assert (spec.nodes, spec.time, spec.mem, spec.exclusive) == (2, "1:00:00", "64", True)
    assert (spec.environment, spec.launch.mpi) == ({"OMP_NUM_THREADS": "8"}, "pmix")


def test_nodes_in_a_job_file_as_on_the_command_line(tmp_path: Path) -> None:
    assert toml(tmp_path, 'nodes = "1-4"') == {"nodes": "1-4"}
    assert toml(tmp_path, 'nodes = "2"') == toml(tmp_path, "nodes = 2") == {"nodes": 2}


def test_gpus_in_a_job_file_as_on_the_command_line(tmp_path: Path) -> None:
    fields = toml(tmp_path, 'gres = "gpu:a100:2,nvme:1"\ngpu-bind = "none"\n')
    assert fields == {"gpus": Gpus(2, "a100", bind="none"), "gres": "nvme:1"}


def test_gpus_as_a_table(tmp_path: Path) -> None:
    text = '[gpus]\ncount = 2\ntype = "a100"\nper = "task"\n'
    assert toml(tmp_path, text)["gpus"] == Gpus(2, "a100", "task")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nodez = 2", "no key 'nodez'; did you mean 'nodes'"),
        ('nodes = "two"', "--nodes must be a whole number, not 'two'"),
        ("nodes = 2.5", "nodes: expected `str`, got `float`"),
        ("time = 10:00", 'time must be in quotes: time = "10:00"'),
        ("\n\ntime = 1:00:00 # x", 'time must be in quotes: time = "1:00:00"'),
        ("time = 10:00:00", 'time must be in quotes: time = "10:00:00"'),
        ('[launch]\nnccl-debug = "x"', r"toml: launch\.nccl-debug must be one of VERSION, WARN"),
        ("[launch]\nlabl = true", "launch.labl: no such key; did you mean 'label'"),
        ('gres = "gpu:1"\n[gpus]\ncount = 1', "given twice: in .gpus. and by a GPU option"),
        ('gpu-bind = "none"', "--gpu-bind needs GPUs"),
        ("[gpus]\ncoun = 2", "gpus.coun: no such key; did you mean 'count'"),
        ('[gpus]\ncount = "2"', "gpus.count: expected `int`"),
        ("gpus = 1\ngpus-per-node = 2", "--gpus=1 and --gpus-per-node=2 do not agree"),
        ("[gpus-per-node]\ncount = 2", r"only \[gpus\] is a table"),
        ("gpus = true", "a number, text such as"),
        ('command = "python train.py"', "command: expected `array`"),
        ("[environment]\nA = 1", "environment.*: expected `str`"),
        ("x", "Expected '='"),
    ],
)
def test_a_bad_job_file_names_the_key(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(BadInput, match=says) as error:
        toml(tmp_path, text)
    assert str(error.value).startswith(str(tmp_path))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"cannot read .*No such file"):
        load_job_file(tmp_path / "none.toml")
    (tmp_path / "latin.sh").write_bytes(b"#!/bin/sh\n\xff")
    with pytest.raises(BadInput, match="not UTF-8"):
        load_script(tmp_path / "latin.sh")
