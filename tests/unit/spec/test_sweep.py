"""Sweeps: how they are written, what each task gets, and how a large array is divided."""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from launcher_lab import lines as launched
from launcher_lab import step

from slurmkit.errors import BadInput
from slurmkit.formats.job_ids import parse_index_spans
from slurmkit.planning.arrays import (
    ArrayLimits,
    array_indices,
    array_task_lines,
    check_split_array,
    split_array,
    throttle_shares,
    with_sweep_marks,
)
from slurmkit.spec.jobfile import format_job_file, load_job_file
from slurmkit.spec.jobspec import JobSpec, Launch, with_array
from slurmkit.spec.sweep import (
    Sweep,
    expand_marks,
    load_points,
    parse_sweep_options,
    parse_sweep_word,
)

VALUES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
SHOW = 'srun() { while [ "$1" != -- ]; do shift; done; shift; "$@"; }\n'
PRINT = ("printf", "%s\\0")


def spec(**fields: object) -> JobSpec:
    fields = {"command": ("train", "{lr}"), "sweep": Sweep.grid(lr=["1", "2"])} | fields
    return JobSpec(**fields)  # type: ignore[arg-type]


# --- how they are written -------------------------------------------------------------------------


def test_a_grid_of_words() -> None:
    made = parse_sweep_options(["lr=1e-3,1e-4", "seed=0..2", "wide=8..16..4"])
    assert made is not None
    assert (made.names, len(made)) == (("lr", "seed", "wide"), 18)
    assert made.values(0) == {"lr": "1e-3", "seed": "0", "wide": "8"}
    assert made.values(1) == {"lr": "1e-3", "seed": "0", "wide": "12"}
    assert made.values(17) == {"lr": "1e-4", "seed": "2", "wide": "16"}
    assert parse_sweep_options([]) is None


def test_a_value_with_a_comma_is_quoted() -> None:
    assert parse_sweep_word('x="a,b",c d,,"e ""f"""') == ("x", ["a,b", "c d", "", 'e "f"'])


def test_points_from_files(tmp_path: Path) -> None:
    table, toml = tmp_path / "points.csv", tmp_path / "points.toml"
    table.write_text('lr,name\n1e-3,"a,\nb"\n\n1e-4,c\n', "utf-8")
    toml.write_text("[[point]]\nn = 1\nb = true\n[[point]]\nb = false\nn = 2\n", "utf-8")
    assert load_points(table).points == (("1e-3", "a,\nb"), ("1e-4", "c"))
    assert load_points(toml).points == (("1", "true"), ("2", "false"))
    both = parse_sweep_options(["seed=0..1"], [table])
    assert both is not None
    assert [p[0] + p[2] for p in both.points] == ["1e-30", "1e-31", "1e-40", "1e-41"]


def test_a_job_file_says_it_back(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text(
        'command = ["train", "{lr}", "{x}", "{y}"]\narray-throttle = 2\n[sweep.grid]\nlr = [1, 0.5]'
        '\ny = "0..1"\n[[sweep.point]]\nx = "a\\"b"\n',
        "utf-8",
    )
    made = JobSpec(**load_job_file(file))
    assert made.sweep == Sweep.of([{"x": 'a"b'}]).times(Sweep.grid(lr=[1, 0.5], y=range(2)))
    file.write_text(format_job_file(made), "utf-8")
    assert JobSpec(**load_job_file(file)) == made
    assert msgspec.json.decode(msgspec.json.encode(made), type=JobSpec) == made


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["lr"], "NAME=VALUE"),
        (["lr="], "NAME=VALUE"),
        (["PATH=a"], "Slurm or the shell itself sets PATH"),
        (["SLURM_X=a"], "Slurm or the shell itself sets SLURM_X"),
        (["a-b=1"], "'a-b' is not the name of a variable"),
        (["a=1", "a=2"], "given twice"),
        (["a=9..0"], "write FIRST..LAST"),
        (["a=0..2000000"], "1,000,000"),
        (["a=0..9999", "b=0..9999"], "100,000,000 points"),
        (['a="x'], "put quotes around"),
    ],
)
def test_what_is_wrong_is_named(wrong: list[str], said: str) -> None:
    with pytest.raises(BadInput, match=said.replace("(", r"\(")):
        parse_sweep_options(wrong)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n1\n", "line 2 has 1 values for 2 columns"),
        ("a,a\n1,2\n", "a is given twice"),
        ("a\n", "no points"),
        ("", "no points"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "p.csv"
    file.write_text(text, "utf-8")
    with pytest.raises(BadInput, match=f"p.csv.*{said}"):
        load_points(file)


def test_a_spec_refuses_what_does_not_fit_its_sweep() -> None:
    with pytest.raises(BadInput, match=r"contains \{rate\}, but the sweep has only \{lr\}"):
        spec(command=("train", "{rate}"))
    with pytest.raises(BadInput, match="write the brace twice"):
        spec(command=("train", "a}"))
    with pytest.raises(BadInput, match="no point 7, only the points 0 to 1"):
        spec(array="0-7")
    with pytest.raises(BadInput, match="lr is both a parameter of the sweep and a variable"):
        spec(environment={"lr": "3"})
    with pytest.raises(BadInput, match="this script's interpreter is not a shell"):
        spec(command=(), script="#!/usr/bin/python3\n")
    with pytest.raises(BadInput, match="both set the throttle"):
        spec(array="0-1%2", array_throttle=2)
    with pytest.raises(BadInput, match="--array or --sweep"):
        JobSpec(command=("a",), array_throttle=2)
    assert JobSpec(command=("awk", "{print}")).command[1] == "{print}"


def test_array_says_it_all() -> None:
    assert with_array(spec(array_throttle=3)).array == "0-1%3"
    assert with_array(spec(array="1")).array == "1"
    again = with_array(with_array(spec(array_throttle=3)))
    assert (again.array, again.array_throttle) == ("0-1%3", None)


# --- what each task gets --------------------------------------------------------------------------


def run_task(job: JobSpec, task: int, size: int = 1001) -> list[str]:
    """Run the lines of a job as bash would as one task; what `printf` was given."""
    job = with_array(job)
    (chunk,) = (c for c in split_array(job.array or "", ArrayLimits(size)) if task in c.tasks)
    given = launched(step(with_sweep_marks(job)))
    script = "\n".join([SHOW, *array_task_lines(job, chunk), *map(expand_marks, given.split("\n"))])
    environment = {"PATH": "/usr/bin:/bin", "SLURM_ARRAY_TASK_ID": str(task - chunk.offset)}
    environment |= {"SLURM_JOB_ID": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    environment |= {"SLURM_NTASKS": "1", "SLURM_NODEID": "0"}
    done = subprocess.run(
        ["bash", "-eu"], input=script.encode(), capture_output=True, check=True, env=environment
    )
    return done.stdout.decode().split("\0")[:-1]


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(VALUES, min_size=1, max_size=4), VALUES)
def test_values_reach_the_command_whatever_they_hold(values: list[str], around: str) -> None:
    plain = around.replace("\x1e", "")
    word = plain.replace("{", "{{").replace("}", "}}")
    command = (*PRINT, "{v}", f"{word}{{v}}{word}{{v}}", "{{v}}")
    for launch in (Launch(), Launch(launcher="none")):
        job = JobSpec(command=command, sweep=Sweep.grid(v=values), launch=launch)
        for task, value in enumerate(values):
            assert run_task(job, task, size=2) == [value, f"{plain}{value}{plain}{value}", "{v}"]


def test_a_task_without_a_point_ends() -> None:
    job = with_array(spec())
    (chunk,) = split_array(job.array or "", ArrayLimits())
    script = "\n".join(array_task_lines(job, chunk))
    done = subprocess.run(
        ["sh"],
        input=script,
        capture_output=True,
        text=True,
        check=False,
        env={"SLURM_ARRAY_TASK_ID": "9"},
    )
    assert (done.returncode, done.stderr) == (2, "slurmkit: there is no point 9\n")


def test_a_script_stands_as_it_is_unless_it_must_be_told() -> None:
    plain = JobSpec(script="#!/bin/sh\ndate\n", array="0-9")
    (chunk,) = split_array("0-9", ArrayLimits())
    assert array_task_lines(plain, chunk) == ()
    (later,) = split_array("2000-2009", ArrayLimits())
    said = "export SLURMKIT_ARRAY_TASK_ID=$((SLURM_ARRAY_TASK_ID + 2000))"
    assert array_task_lines(plain, later) == (said,)
    assert array_task_lines(JobSpec(command=("date",), array="0-9"), chunk)[0].endswith(
        "=$SLURM_ARRAY_TASK_ID"
    )


def codes(job: JobSpec) -> list[tuple[str, str]]:
    return [
        (f.code, f.severity)
        for f in check_split_array(job, split_array(job.array or "", ArrayLimits(10)))
    ]


def test_what_a_divided_array_means_is_said() -> None:
    note = ("array-split", "note")
    command = ("sh", "-c", "echo $SLURMKIT_ARRAY_TASK_ID")
    assert codes(JobSpec(command=command, array="0-9")) == []
    assert codes(JobSpec(command=command, array="0-10")) == [note]
    own = ("sh", "-c", "echo $SLURM_ARRAY_TASK_ID")
    assert codes(JobSpec(command=own, array="0-10")) == [note, ("array-index", "error")]
    assert codes(JobSpec(command=("a",), array="0-10")) == [note, ("array-index", "warning")]
    python = JobSpec(script="#!/usr/bin/python3\n", array="0-10")
    assert codes(python) == [note, ("array-script", "error")]
    files = JobSpec(command=command, array="0-10", output="x-%a.out", error="y-%4a-%A")
    assert codes(files) == [note, ("array-files", "error")]
    found = list(check_split_array(files, split_array("0-10", ArrayLimits(10))))
    assert found[-1].fix == (("output", "x-%A_%a.out"),)
    after = JobSpec(command=command, array="0-10", dependency="aftercorr:7")
    assert codes(after) == [note, ("array-aftercorr", "error")]


# --- how a large array is divided -----------------------------------------------------------------

ARRAYS = st.lists(st.integers(0, 9000), min_size=1, max_size=60)


@given(ARRAYS, st.integers(2, 2000), st.none() | st.integers(1, 40), st.none() | st.integers(1, 50))
def test_each_index_is_in_one_chunk(
    wanted: list[int], size: int, most: int | None, tasks: int | None
) -> None:
    array = ",".join(map(str, wanted)) + (f"%{most}" if most else "")
    made = split_array(array, ArrayLimits(size, tasks))
    assert [task for chunk in made for task in chunk.tasks] == array_indices(array)
    for chunk in made:
        own = [at for span in parse_index_spans(chunk.array) for at in span]
        assert sorted(set(own)) == [task - chunk.offset for task in chunk.tasks]
        assert 0 <= min(own) <= max(own) < size
        assert len(chunk.tasks) <= (tasks or len(wanted))
    assert [chunk.offset for chunk in made] == sorted(chunk.offset for chunk in made)
    if most:
        chained = [chunk for chunk in made if chunk.after is not None]
        limits = [int(chunk.array.partition("%")[2]) for chunk in made]
        if chained:
            assert len(made) > most
            assert [chunk.after for chunk in made] == [None, *range(len(made) - 1)]
            assert set(limits) == {most}
        else:
            assert len(made) == 1 or sum(limits) <= most
            assert min(limits) >= 1


@given(st.lists(st.integers(1, 1001), min_size=1, max_size=20), st.integers(0, 3000))
def test_no_share_is_wasted(sizes: list[int], more: int) -> None:
    most = len(sizes) + more
    found = throttle_shares(most, sizes)
    assert sum(found) == min(most, sum(sizes))
    assert all(1 <= share <= size for share, size in zip(found, sizes, strict=True))


def test_five_thousand() -> None:
    made = split_array("0-4999%50", ArrayLimits(1001))
    assert [(c.array, c.offset) for c in made] == [
        ("0-1000%10", 0),
        ("0-1000%10", 1001),
        ("0-1000%10", 2002),
        ("0-1000%10", 3003),
        ("0-995%10", 4004),
    ]
    assert [c.after for c in split_array("0-4999%3", ArrayLimits(1001))] == [None, 0, 1, 2, 3]
    assert split_array("1001-2000", ArrayLimits(1001))[0].array == "0-999"
    assert split_array("0-9%0", ArrayLimits(5))[0].array == "0-4"
    assert split_array("0-9", ArrayLimits(1))[0].array == "0-9"


def test_the_same_bytes_for_the_same_spec_and_a_small_script() -> None:
    job = with_array(JobSpec(command=("a", "{i}"), sweep=Sweep.grid(i=range(5000), x=["y" * 20])))
    made = [
        array_task_lines(job, chunk) for chunk in split_array(job.array or "", ArrayLimits(1001))
    ]
    assert made == [
        array_task_lines(job, chunk) for chunk in split_array(job.array or "", ArrayLimits(1001))
    ]
    assert max(len("\n".join(each)) for each in made) < 50_000
