"""What becomes a field of PySlurm's, and what is left to sbatch."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmkit.errors import BadInput
from slurmkit.jobs.backends.commands import NO_OVERRIDES, SubmitOverrides
from slurmkit.jobs.backends.pyslurm import DescriptionFields, Inexpressible, describe_submission
from slurmkit.spec.sbatch_options import option_lines
from slurmkit.spec.submission import Submission

NOT_SET, NOT_SET16 = 0xFFFFFFFE, 0xFFFE
RECORDED = Path(__file__).parents[3] / "recorded" / "26.05"


def sent(*options: tuple[str, str], body: str = "true") -> Submission:
    header = "\n".join(option_lines(options))
    return Submission(f"#!/bin/bash\n{header}\n{body}\n", options)


def fields(
    *options: tuple[str, str], overrides: SubmitOverrides = NO_OVERRIDES
) -> DescriptionFields:
    return dict(describe_submission(sent(*options), overrides))


def test_a_job_of_every_day() -> None:
    found = fields(
        ("job-name", "train"), ("nodes", "2"), ("ntasks-per-node", "8"), ("cpus-per-task", "4"),
        ("gpus-per-node", "a100:8"), ("mem", "64G"), ("time", "1:00:00"), ("partition", "gpu"),
        ("chdir", "/home/alice"), ("output", "slurm-%j.out"),
    )  # fmt: skip
    del found["script"], found["mail_types"], found["profile_types"]
    assert found == {
        "name": "train",
        "nodes": "2-2",
        "ntasks": NOT_SET,
        "ntasks_per_node": 8,
        "cpus_per_task": 4,
        "min_cpus_per_node": 64,
        "gres_per_node": {"gpu:a100": 8},
        "memory_per_node": 65536,
        "time_limit": 60,
        "partitions": "gpu",
        "working_directory": "/home/alice",
        "standard_in": "/dev/null",
        "standard_output": "/home/alice/slurm-%j.out",
    }


def test_the_script_is_the_same_byte_for_byte() -> None:
    submission = sent(("comment", 'a "b" \\'), body="# ünïcode 🙂\t\n\n")
    assert describe_submission(submission, NO_OVERRIDES)["script"] == submission.script


def test_nothing_is_one_of_each() -> None:
    found = fields()
    assert found["nodes"] == f"{NOT_SET}-{NOT_SET}"
    assert (found["ntasks"], found["cpus_per_task"]) == (NOT_SET, NOT_SET16)
    assert found["min_cpus_per_node"] == 1


@pytest.mark.parametrize(
    ("options", "cpus"),
    [
        ({"nodes": "3"}, 3),
        ({"nodes": "2-4"}, 1),
        ({"nodes": "2-4", "ntasks-per-node": "8"}, 1),
        ({"ntasks": "7", "cpus-per-task": "2"}, 14),
        ({"ntasks-per-node": "8"}, 8),
        ({"nodes": "2", "ntasks": "5", "ntasks-per-node": "3"}, 5),
    ],
)
def test_cpus_of_a_job_as_sbatch_guesses_them(options: dict[str, str], cpus: int) -> None:
    assert fields(*options.items())["min_cpus_per_node"] == cpus


@pytest.mark.parametrize(
    ("name", "value", "field", "said"),
    [
        ("time", "90", "time_limit", 90),
        ("time", "0:30", "time_limit", 1),
        ("time", "1-2", "time_limit", 1560),
        ("mem", "1500K", "memory_per_node", 2),
        ("mem-per-cpu", "2g", "memory_per_cpu", 2048),
        ("mem", "1TB", "memory_per_node", 1048576),
        ("nice", "-9", "nice", -9),
        ("hold", "", "priority", 0),
        ("requeue", "", "is_requeueable", True),
        ("no-requeue", "", "is_requeueable", False),
        ("exclusive", "", "resource_sharing", "exclusive"),
        ("exclusive", "user", "resource_sharing", "user"),
        ("gpus", "4", "gpus", {"gpu": 4}),
        ("gpus", "mygpu:4", "gpus", {"gpu:mygpu": 4}),
        ("gres", "shard:3,tmp:2", "gres_per_node", {"shard": 3, "tmp": 2}),
        ("mail-type", "end,FAIL", "mail_types", ["END", "FAIL"]),
        ("output", "/tmp/a b", "standard_output", "/tmp/a b"),
        ("kill-on-invalid-dep", "yes", "kill_on_invalid_dependency", True),
    ],
)
def test_values(name: str, value: str, field: str, said: object) -> None:
    assert fields((name, value), ("chdir", "/x"))[field] == said


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("USR1", (10, 60, False, False)),
        ("B:SIGUSR1@120", (10, 120, True, False)),
        ("RB:12@5", (12, 5, True, True)),
    ],
)
def test_signals(value: str, said: tuple[object, ...]) -> None:
    at = fields(("signal", value))["signal"]
    assert isinstance(at, dict)
    names = ("signal", "time", "batch_only", "allow_reservation_overlap")
    assert tuple(at[name] for name in names) == said


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("time", "UNLIMITED"), ("time", "0"), ("mem", "0"), ("mem", "1.5G"), ("nodes", "1,3-5"),
        ("nodes", "2k"), ("ntasks", "0"), ("nodelist", "c1"), ("gpus-per-task", "1"), ("nice", ""),
        ("gres", "gpu"), ("gres", "gpu:a100"), ("gres", "shard:2K"), ("exclusive", "topo"),
        ("gres", "gpu:3g.20gb:1"), ("gres", "gpu:1,gpu:2"), ("mail-type", "ALL"),
        ("mail-type", "TIME_LIMIT"), ("signal", "USR1@0"), ("signal", "NOPE"), ("export", "NONE"),
        ("kill-on-invalid-dep", "no"), ("switches", "1"), ("gpu-bind", "closest"), ("hint", "x"),
        ("begin", "1600"), ("exclude", "./file"), ("requeue", "expedite"), ("chdir", "relative"),
        ("open-mode", "a"), ("parsable", ""), ("account", ""), ("container-image", "x"),
        ("cpus-per-task", "65534"), ("distribution", "block"), ("priority", "TOP"),
    ],
)  # fmt: skip
def test_what_is_left_to_sbatch(name: str, value: str) -> None:
    with pytest.raises(Inexpressible):
        fields((name, value))


@pytest.mark.parametrize(
    "options",
    [
        {"nodes": "4", "ntasks": "2"},
        {"mem-per-cpu": "1G", "cpus-per-task": "2"},
        {"gpus-per-node": "2", "gres": "gpu:1"},
        {"ntasks": "60000", "cpus-per-task": "2"},
    ],
)
def test_what_is_left_to_sbatch_together(options: dict[str, str]) -> None:
    with pytest.raises(Inexpressible):
        fields(*options.items())


def test_a_script_that_says_more_than_its_options() -> None:
    script = "#!/bin/bash\n#SBATCH --partition=cpu\n#SBATCH hetjob\ntrue\n"
    with pytest.raises(Inexpressible, match="#SBATCH"):
        describe_submission(Submission(script, (("partition", "cpu"),)), NO_OVERRIDES)
    with pytest.raises(Inexpressible, match="PBS"):
        describe_submission(Submission("#!/bin/bash\n#PBS -q x\ntrue\n", ()), NO_OVERRIDES)
    assert describe_submission(sent(("ignore-pbs", ""), body="#PBS -q x"), NO_OVERRIDES)


def test_what_stands_beside() -> None:
    found = fields(
        ("comment", "mine"), overrides=SubmitOverrides(("afterok:7",), hold=True, comment="token")
    )
    assert found["comment"] == "mine token"
    assert found["priority"] == 0
    assert found["dependencies"] == "afterok:7"
    assert found["kill_on_invalid_dependency"] is True
    assert fields(("hold", ""), ("priority", "5"))["priority"] == 0
    with pytest.raises(BadInput):
        fields(("dependency", "afterok:1?afterok:2"), overrides=SubmitOverrides(("afterok:7",)))


OPTION = re.compile(r"--([a-z][a-z0-9-]+)")


@given(
    st.sampled_from(sorted(set(OPTION.findall((RECORDED / "sbatch-help.txt").read_text("utf-8"))))),
    st.sampled_from(["", "1", "yes", "a:1", "now", "1G", "c[1-2]"]) | st.text(max_size=8),
)
def test_every_option_of_sbatch_is_said_or_left(name: str, value: str) -> None:
    """Nothing is dropped: an option either changes what is sent, or is left to sbatch."""
    value = "".join(sign for sign in value if sign.isprintable() and sign not in "\n\r\0")
    try:
        found = fields((name, value))
    except Inexpressible:
        return
    bare = fields()
    del found["script"], bare["script"]
    assert found != bare or (name, value.upper()) in {("ignore-pbs", ""), ("export", "ALL")}
