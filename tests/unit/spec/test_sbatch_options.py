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
from slurmkit.spec.sbatch_options import (
    merge_fields,
    option_lines,
    option_values,
    parse_options,
    with_options,
)

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
        "tmp": "10G",
    }


@pytest.mark.parametrize(
    ("gres", "fields"),
    [
        ("gpu:2", {"gpus": Gpus(2)}),
        ("gpu", {"gpus": Gpus(1)}),
        ("gpu:a100:2,nvme:1", {"gpus": Gpus(2, "a100"), "gres": "nvme:1"}),
        ("gres:gpu:a100:2", {"gpus": Gpus(2, "a100")}),
        ("gpu=1", {"gpus": Gpus(1)}),
        ("gpu:a100=2,nvme=1", {"gpus": Gpus(2, "a100"), "gres": "nvme:1"}),
        ("none", {"gpus": None, "gres": None}),
        ("shard:3", {"gpus": Gpus(shard=3)}),
        ("shard:h100:3", {"gpus": Gpus(shard=3, type="h100")}),
        ("mps:50", {"gpus": Gpus(mps=50)}),
        ("gpusim:2", {"gres": "gpusim:2"}),
    ],
)
def test_gres(gres: str, fields: dict[str, Any]) -> None:
    assert parse_options([("gres", gres)]) == fields


def test_a_count_of_gpus_may_follow_an_equals_sign() -> None:
    assert parse_options([("gpus-per-node", "a100=2")]) == {"gpus": Gpus(2, "a100")}


def test_gres_none_takes_back_what_a_weaker_source_asks_for() -> None:
    spec = JobSpec(command=("x",), gpus=Gpus(1), gres="nvme:1")
    none = with_options(spec, [("gres", "none")])
    assert (none.gpus, none.gres) == (None, None)


@pytest.mark.parametrize(
    ("pairs", "says"),
    [
        ([("nodes", "two")], "--nodes must be a whole number, not 'two'"),
        ([("gpus", "2"), ("gres", "shard:1")], "--gres asks for other GPUs than --gpus"),
        ([("gres", "gpu:1,shard:1")], "--gres=gpu:1,shard:1: a job has one kind of GPUs"),
        ([("gpu-bind", "none")], "--gpu-bind needs GPUs"),
        ([("wrap", "rm -rf")], "or the command after --"),
        ([("export", "ALL,NONE")], "is not ALL, NONE, NIL, or"),
        ([("export", "A B")], "with names of variables"),
        ([("export-file", "x")], "use environment"),
        ([("part", "gpu")], "abbreviation; write it in full, e.g. partition"),
        ([("no-requeue", "expedite")], "takes no value"),
        ([("uid", "0")], "how sbatch itself runs"),
        ([("mem_bind", "x")], "did you mean 'mem-bind'"),
        ([("network", "1\n#SBATCH --uid=0")], "without a line break"),
        ([("distribution", "plane")], "--distribution 'plane' is not a distribution"),
        ([("distribution", "arbitrary")], "sbatch does not take it with --nodes"),
        ([("gres-flags", "x")], "--gres-flags 'x' is not one of disable-binding"),
        ([("gres-flags", "disable-binding,enforce-binding")], "contradict each other"),
        ([("mem-bind", "near")], "--mem-bind 'near' is not a binding"),
        ([("wckey", "a b")], "--wckey 'a b' is not one word"),
        ([("cpu-bind", "cores")], "it is an option of srun"),
        ([("extra-node-info", "2:x")], "is not SOCKETS"),
        ([("extra-node-info", "1:2:3:4")], "is not SOCKETS"),
        ([("gpus-per-socket", "2")], "--gpus-per-socket needs --sockets-per-node"),
        ([("overcommit", "yes")], "takes no value"),
        ([("mincpus", "many")], "--mincpus must be a whole number"),
    ],
)
def test_options_that_are_refused(pairs: list[tuple[str, str]], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        parse_options(pairs)


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ("ntasks-per-gpu=2", {"ntasks_per_gpu": 2}),
        ("ntasks-per-tres=2", {"ntasks_per_gpu": 2}),
        ("extra-node-info=2", {"sockets_per_node": 2}),
        (
            "extra-node-info=2-4:*:1",
            {"sockets_per_node": 2, "threads_per_core": 1},
        ),
        ("overcommit spread-job", {"overcommit": True, "spread_job": True}),
        (
            "gpus-per-socket=a100:2 sockets-per-node=2",
            {"gpus": Gpus(4, "a100", sockets=2), "sockets_per_node": 2},
        ),
        (
            "extra-node-info=2 gpus-per-socket=2 gpus-per-node=a100:4",
            {"gpus": Gpus(4, "a100", sockets=2), "sockets_per_node": 2},
        ),
        ("hint=nomultithread tmp=1T", {"hint": "nomultithread", "tmp": "1T"}),
        ("mincpus=4 cpus-per-gpu=8", {"mincpus": 4, "cpus_per_gpu": 8}),
    ],
)
def test_options_about_processors(options: str, fields: dict[str, Any]) -> None:
    assert parse_options(_pairs(options)) == fields


def test_gpus_per_socket_take_the_sockets_of_a_weaker_source() -> None:
    weaker = {"sockets_per_node": 2}
    assert parse_options([("gpus-per-socket", "1")], weaker) == {"gpus": Gpus(2, sockets=2)}
    with pytest.raises(BadInput, match="--gpus-per-socket=3 and --gpus-per-node=4 do not agree"):
        parse_options([("gpus-per-socket", "3"), ("gpus-per-node", "4")], weaker)
    with pytest.raises(BadInput, match="ask for a part of a GPU per node"):
        parse_options([("gpus-per-socket", "shard:1")], weaker)


@pytest.mark.parametrize(
    ("value", "passed", "environment"),
    [
        ("all", "ALL", {}),
        ("NONE", "NONE", {}),
        ("nil", "NIL", {}),
        ("ALL,A=1,B", "ALL", {"A": "1"}),
        ("PATH,A=1", "PATH", {"A": "1"}),
        ("A=1", "NONE", {"A": "1"}),
        ("'A=1,2',B", "B", {"A": "1,2"}),
        ("A='1,2',B", "B", {"A": "'1,2'"}),
        ("PATH,HOME", "PATH,HOME", {}),
        ("A=", "NONE", {"A": ""}),
    ],
)
def test_values_of_variables_are_in_no_option(
    value: str, passed: str, environment: dict[str, str]
) -> None:
    """Slurm shows the options of a job to everybody, and a value may be a secret."""
    fields = parse_options([("export", value)])
    assert fields["options"] == {"export": passed}
    assert fields.get("environment", {}) == environment
    spec = JobSpec(command=("x",), **fields)
    assert option_values(spec)["export"] == passed


def test_a_value_of_a_variable_is_refused_as_an_option() -> None:
    with pytest.raises(BadInput, match="a variable with a value goes into environment"):
        JobSpec(command=("x",), options={"export": "A=1"})


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
    one = JobSpec(command=("x",), options={"batch": "x", "contiguous": ""})
    other = JobSpec(command=("x",), options={"contiguous": "", "batch": "x"})
    assert list(option_values(one)) == list(option_values(other))


def test_a_fix_is_applied() -> None:
    spec = JobSpec(command=("x",), gpus=Gpus(9, "a100"), constraint="ib", options={"batch": "x"})
    fixed = with_options(spec, [("gpus-per-node", "a100:8"), ("nodes", "2"), ("constraint", "")])
    assert fixed == JobSpec(command=("x",), gpus=Gpus(8, "a100"), nodes=2, options={"batch": "x"})


def test_a_fix_of_gpus_keeps_their_binding() -> None:
    spec = JobSpec(command=("x",), gpus=Gpus(9, "a100", "task", bind="closest"))
    fixed = with_options(spec, [("gpus-per-task", "a100:8")])
    assert fixed.gpus == Gpus(8, "a100", "task", bind="closest")
    assert with_options(spec, [("gres", "shard:1")]).gpus == Gpus(shard=1)


def test_a_fix_may_take_an_option_away_that_is_passed_on() -> None:
    spec = JobSpec(command=("x",), options={"batch": "x", "contiguous": ""})
    assert with_options(spec, [("contiguous", "")]).options == {"batch": "x"}


def test_a_fix_may_take_a_flag_away() -> None:
    spec = JobSpec(command=("x",), overcommit=True, requeue=False, exclusive=True)
    flags = [("overcommit", ""), ("no-requeue", ""), ("exclusive", "")]
    assert with_options(spec, flags) == JobSpec(command=("x",))


def test_a_fix_can_be_pasted_into_a_shell() -> None:
    fix = (("constraint", "a|b"), ("nodes", "2"), ("qos", ""))
    finding = Finding(severity="error", code="x", message="x", fix=fix)
    assert finding.fix_words == "--constraint='a|b' --nodes=2 no --qos"


@pytest.mark.parametrize(
    ("value", "field", "line"),
    [("", True, "#SBATCH --requeue"), ("expedite", "expedite", "#SBATCH --requeue=expedite")],
)
def test_requeue_may_be_expedited(value: str, field: object, line: str) -> None:
    fields = parse_options([("requeue", value)])
    assert fields == {"requeue": field}
    given = option_values(JobSpec(command=("x",), **fields))
    assert option_lines([("requeue", given["requeue"])]) == [line]


def test_requeue_takes_no_other_value() -> None:
    with pytest.raises(BadInput, match="--requeue 'soon' is not expedite"):
        JobSpec(command=("x",), **parse_options([("requeue", "soon")]))


def test_every_field_is_written() -> None:
    """A field that nobody renders would be silently ignored."""
    elsewhere = {"command", "container", "script", "gpus", "environment", "launch", "options"}
    elsewhere |= {"sweep", "array_throttle"}  # of the array's own option
    elsewhere |= {"survive"}  # lines of the script
    flags = {"hold", "requeue", "exclusive", "overcommit", "spread_job", "use_min_nodes"}
    spec = JobSpec(command=("x",))
    plain = [n for n in spec.__struct_fields__ if n not in elsewhere | flags]
    numbers = (
        "nodes ntasks ntasks_per_node ntasks_per_socket ntasks_per_core cpus_per_task cpus_per_gpu"
        " mincpus sockets_per_node cores_per_socket threads_per_core segment"
    )
    sample = dict.fromkeys(numbers.split(), 3)
    texts = {
        "gres": "nvme:1", "mem": "1G", "mem_per_cpu": "1G", "mem_per_gpu": "1G", "time": "10",
        "time_min": "5", "switches": "1", "array": "1-3", "dependency": "singleton",
        "begin": "now", "deadline": "now", "signal": "USR1@60", "mail_type": "END",
        "chdir": "/", "open_mode": "append", "licenses": "a:1", "nodelist": "c1", "tmp": "1G",
        "hint": "nomultithread",
    }  # fmt: skip
    counted = JobSpec(command=("x",), gpus=Gpus(2), ntasks_per_gpu=3)
    assert option_values(counted)["ntasks-per-gpu"] == "3"
    for name in (name for name in plain if name != "ntasks_per_gpu"):
        value: object = {"nice": 5, **sample, **texts}.get(name, "x")
        made = JobSpec(command=("x",), **{name: value})  # type: ignore[arg-type]
        assert option_values(made)[name.replace("_", "-")] == str(value)
    made = JobSpec(
        command=("x",), hold=True, requeue=False, exclusive=True, overcommit=True,
        spread_job=True, use_min_nodes=True,
    )  # fmt: skip
    names = {"hold", "no-requeue", "exclusive", "overcommit", "spread-job", "use-min-nodes"}
    assert names <= option_values(made).keys()


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
        ("--cpu-freq high --gres-flags enforce-binding", {"cpu-freq": "high",
                                                          "gres-flags": "enforce-binding"}),
        ("--contiguous --exclusive", {"contiguous": ""}),
        ("-m block:cyclic -s -k", {"distribution": "block:cyclic", "oversubscribe": "",
                                   "no-kill": ""}),
        ("--get-user-env -N1", {"get-user-env": ""}),
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
    contiguous = true
    reboot = false
    distribution = "block:cyclic"
    [environment]
    OMP_NUM_THREADS = "8"
    [launch]
    mpi = "pmix"
    [options]
    tmp = "10G"
    wckey = "physics"
    """
    spec = JobSpec(**toml(tmp_path, text))
    assert spec.gpus == Gpus(4, "a100")
    assert (spec.nodes, spec.time, spec.mem, spec.exclusive) == (2, "1:00:00", "64", True)
    assert (spec.environment, spec.launch.mpi) == ({"OMP_NUM_THREADS": "8"}, "pmix")
    passed = {"contiguous": "", "distribution": "block:cyclic", "wckey": "physics"}
    assert (spec.tmp, spec.options) == ("10G", passed)


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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("gpus", "0"), ("gpus-per-node", "a100:0"), ("gpus-per-task", "0")),
        *(
            ("gres", "gpu:0"),
            ("gres", "gpu:a100:0"),
            ("gres", "gpu:3g.20gb:0"),
            ("gres", "shard:0"),
        ),
    ],
)
def test_a_count_of_zero_means_no_gpus(name: str, value: str) -> None:
    """Scripts whose count is a variable need it."""
    assert parse_options([(name, value)]) == {"gpus": None}
    assert parse_options([(name, value), ("gpus-per-node", "2")])["gpus"] == Gpus(2)
    script = parse_options([("gpus-per-node", "4")])
    assert merge_fields(script, parse_options([(name, value)]))["gpus"] is None
