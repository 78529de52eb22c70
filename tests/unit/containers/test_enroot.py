"""enroot without pyxis: its words as its own documentation has them, and the scripts run.

A stand-in for enroot shows its words and keeps containers as folders; its `start` reads the
configuration script as enroot's runtime.sh does.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from container_lab import cluster
from hypothesis import given
from hypothesis import strategies as st
from slurmkit_containers.runtimes import enroot
from slurmkit_containers.runtimes.enroot import Enroot

from slurmkit.errors import BadInput
from slurmkit.spec.containers import Container, ContainerLaunch

ENROOT = r"""#!/bin/bash
set -eu
verb=$1
printf '%s\0' "$@" '' >>"$LAB/$verb"
case $verb in
import) [ -z "${FAILS-}" ] || { : >"$3"; exit 1; }; [ ! -e "$3" ]; echo "$4" >"$3" ;;
create) mkdir -p "$LAB/data/$3/etc"; cp -- "$4" "$LAB/data/$3/image" ;;
list) ls -1 "$LAB/data" ;;
remove) rm -r -- "$LAB/data/$3" ;;
start)
    config=$3
    shift 3
    while [[ $1 == -* ]]; do shift; done
    export ENROOT_ROOTFS=$LAB/data/$1
    (source "$config"; environ >"$LAB/environ"; ! declare -F hooks >/dev/null || hooks)
    shift
    exec "$@"
    ;;
esac
"""
ON_TWO_NODES = r"""
export LAB SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES=2
srun() {
    local options=()
    while [ "$1" != -- ]; do options+=("$1"); shift; done
    shift
    printf '%s\n' "${options[*]}" >>"$LAB/srun"
    "$@"
}
"""
PREPARE = "--nodes=2 --ntasks=2 --ntasks-per-node=1 --mpi=none --kill-on-bad-exit=1"


class Lab:
    """A node with the stand-in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "data").mkdir(parents=True)
        (folder / "tmp").mkdir()
        program = folder / "bin" / "enroot"
        program.parent.mkdir()
        program.write_text(ENROOT, "utf-8")
        program.chmod(0o755)

    def run(self, script: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
        given = {
            "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "LAB": str(self.folder),
            "TMPDIR": str(self.folder / "tmp"),
            **environment,
        }
        return subprocess.run(
            ["bash", "-c", ON_TWO_NODES + script], capture_output=True, check=False, env=given
        )

    def told(self, verb: str) -> list[list[str]]:
        """Words of each call of enroot with that verb."""
        file = self.folder / verb
        if not file.exists():
            return []
        calls = file.read_bytes().decode().split("\0\0")[:-1]
        return [call.split("\0") for call in calls]

    def kept(self) -> list[str]:
        return sorted(each.name for each in (self.folder / "data").iterdir())


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path / "lab")


def wrapped(**fields: Any) -> ContainerLaunch:
    return Enroot().step(Container(**fields), gpus=True)


def script(made: ContainerLaunch, *command: str) -> str:
    step = shlex.join(["srun", *made.srun_options, "--", *made.prefix, *command])
    return "\n".join([*made.before, step, "ended=$?", *made.after, "exit $ended"])


GOLDEN: list[tuple[dict[str, Any], list[str], dict[str, str]]] = [
    # fields; words of `enroot start` between --conf and the name; its settings.
    # doc/cmd/start.md: --mount FSTAB (colon-separated); flags as pyxis's args.c adds them
    (
        {"mounts": ("/data", "./a:./mnt:ro+nosuid")},
        [
            "--mount=/data:/data:x-create=auto,rbind",
            "--mount=./a:./mnt:x-create=auto,rbind,ro,nosuid",
        ],
        {},
    ),
    (
        {"mounts": ("tmpfs:/scratch:size=1G", "umount:/sys")},
        ["--mount=tmpfs:/scratch:x-create=dir,size=1G", "--mount=umount:/sys:x-detach"],
        {},
    ),
    # doc/cmd/start.md: --env KEY[=VAL], as in its example --env EDITOR
    ({"environment": ("EDITOR", "LANG")}, ["--env=EDITOR", "--env=LANG"], {}),
    # doc/cmd/start.md, "Configuration": same as --root, same as --rw
    ({"remap_root": True, "writable": True}, [], {"REMAP_ROOT": "y", "ROOTFS_WRITABLE": "y"}),
    ({"remap_root": False, "writable": False}, [], {"REMAP_ROOT": "n", "ROOTFS_WRITABLE": "n"}),
    # doc/standard-hooks.md, 10-home.sh: ENROOT_MOUNT_HOME
    ({"mount_home": True}, [], {"MOUNT_HOME": "y"}),
    ({"mount_home": False}, [], {"MOUNT_HOME": "n"}),
]


@pytest.mark.parametrize(("fields", "options", "settings"), GOLDEN)
def test_every_option_of_start(
    fields: dict[str, Any], options: list[str], settings: dict[str, str], lab: Lab
) -> None:
    show = "import os, json; print({k: v for k, v in os.environ.items() if k[:7] == 'ENROOT_'})"
    made = wrapped(image="ubuntu:18.04", **fields)
    done = lab.run(script(made, "python3", "-c", show), EDITOR="vi")
    assert done.returncode == 0, done.stderr
    ((_, conf, file, *words),) = lab.told("start")
    assert conf == "--conf"
    assert not Path(file).exists()
    assert words[: len(options) + 1] == [*options, "slurmkit_7_0"]
    seen = eval(done.stdout)  # noqa: S307 - our own repr
    assert {k: v for k, v in seen.items() if k != "ENROOT_ROOTFS"} == {
        f"ENROOT_{name}": value for name, value in (settings | {"LOGIN_SHELL": "n"}).items()
    }


@pytest.mark.parametrize(
    ("image", "uri"),
    [
        # doc/cmd/import.md and create.md
        ("nvcr.io/nvidia/pytorch:25.06-py3", "docker://nvcr.io#nvidia/pytorch:25.06-py3"),
        ("ubuntu:18.04", "docker://ubuntu:18.04"),
        ("dockerd://mine:1", "dockerd://mine:1"),
    ],
)
def test_an_image_is_imported_created_started_and_removed(image: str, uri: str, lab: Lab) -> None:
    made = wrapped(image=image)
    assert made.srun_options == ()
    done = lab.run(script(made, "printf", "%s.", "a b", "", "$X"))
    assert (done.returncode, done.stdout) == (0, b"a b..$X.")
    ((_, output, file, told),) = lab.told("import")
    assert (output, told) == ("--output", uri)
    assert lab.told("create") == [["create", "--name", "slurmkit_7_0", file]]
    assert lab.told("remove") == [["remove", "--force", "slurmkit_7_0"]]
    assert (lab.folder / "srun").read_text().splitlines() == [PREPARE, "", PREPARE]
    assert not lab.kept()
    assert not list((lab.folder / "tmp").iterdir())


def test_a_file_is_not_imported_and_a_kept_container_is_used_again(lab: Lab) -> None:
    file = lab.folder / "x.sqsh"
    file.write_text("image", "utf-8")
    text = script(wrapped(image=str(file), name="train"), "true")
    assert lab.run(text).returncode == 0
    assert lab.run(text).returncode == 0
    assert lab.told("create") == [["create", "--name", "train", str(file)]]
    assert not lab.told("import")
    assert lab.kept() == ["train"]
    assert lab.run(script(wrapped(name="train"), "true")).returncode == 0
    missing = lab.run(script(wrapped(name="other"), "true"))
    assert missing.returncode == 1
    assert b"enroot has no container other on" in missing.stderr


def test_two_nodes_with_one_home_create_a_kept_container_once(lab: Lab) -> None:
    _, made = wrapped(image="ubuntu", name="train").before
    text = f"start() {{ {made}; }}\nstart & one=$!; start & wait $one && wait $!"
    done = lab.run(text)
    assert done.returncode == 0, done.stderr
    assert len(lab.told("create")) == len(lab.told("import")) == 1
    assert lab.kept() == ["train"]


def test_an_import_that_fails_ends_the_job_and_leaves_nothing(lab: Lab) -> None:
    done = lab.run(script(wrapped(image="ubuntu"), "echo", "started"), FAILS="1")
    assert (done.returncode, done.stdout) == (1, b"")
    assert not lab.kept()
    assert not list((lab.folder / "tmp").iterdir())


def test_what_enroot_says_of_unpacking_is_shown_only_if_it_fails(lab: Lab) -> None:
    """unsquashfs filled the job's log, once for each node."""
    program = lab.folder / "bin" / "enroot"
    told = ENROOT.replace("create) ", "create) echo created 8 files; [ -z ${BAD-} ] || exit 4; ")
    program.write_text(told, "utf-8")
    made = script(wrapped(image="ubuntu:18.04"), "echo", "work")
    done = lab.run(made)
    assert (done.returncode, done.stdout) == (0, b"work\n")
    assert b"created" not in done.stderr
    done = lab.run(made, BAD="1")
    assert done.returncode == 1
    assert b"created 8 files" in done.stderr
    assert lab.kept() == []


def test_a_requeued_job_has_a_container_of_its_own(lab: Lab) -> None:
    assert lab.run(script(wrapped(image="ubuntu"), "true"), SLURM_RESTART_COUNT="2").returncode == 0
    assert lab.told("remove") == [["remove", "--force", "slurmkit_7_2"]]


def test_the_command_ends_with_its_own_code(lab: Lab) -> None:
    assert lab.run(script(wrapped(image="ubuntu"), "sh", "-c", "exit 42")).returncode == 42


def test_the_command_starts_in_its_folder(lab: Lab) -> None:
    folder = lab.folder / "a b'$(id)"
    folder.mkdir()
    done = lab.run(script(wrapped(image="ubuntu", workdir=str(folder)), "pwd"))
    assert done.stdout.decode() == f"{folder}\n"
    gone = lab.run(script(wrapped(image="ubuntu", workdir="/no/such"), "echo", "started"))
    assert gone.returncode != 0
    assert gone.stdout == b""


def test_a_job_may_have_its_login_shell(lab: Lab) -> None:
    """Unless the job asks for a login shell, the image's PATH is kept."""
    show = shlex.join(["sh", "-c", "echo $ENROOT_LOGIN_SHELL"])
    made = script(wrapped(image="ubuntu:18.04"), *shlex.split(show))
    assert lab.run(made).stdout == b"n\n"
    assert lab.run(made, ENROOT_LOGIN_SHELL="yes").stdout == b"yes\n"


def test_variables_of_the_job_go_in_where_the_image_has_none(lab: Lab) -> None:
    made = wrapped(image="ubuntu", name="train")
    etc = lab.folder / "data" / "train" / "etc"
    etc.mkdir(parents=True)
    (etc / "environment").write_text("CUDA_HOME=/image\n", "utf-8")
    job = {"CUDA_HOME": "/host", "SLURM_PROCID": "3", "Q": '"q" $X', "LINES": "a\nb", "LD_X": "1"}
    assert lab.run(script(made, "true"), **job).returncode == 0
    lines = (lab.folder / "environ").read_text().splitlines()
    assert 'SLURM_PROCID="3"' in lines
    assert 'Q=""q" $X"' in lines  # enroot takes the outer quotes off (common.sh, envfmt)
    names = {line.partition("=")[0] for line in lines}
    assert names.isdisjoint({"CUDA_HOME", "LINES", "LD_X", "PATH", "HOME", "PWD", "a", "b"})


@pytest.mark.parametrize(
    ("image", "job", "program", "seen"),
    [
        ("", {}, True, "all compute,utility"),
        ("PATH=/bin", {"NVIDIA_VISIBLE_DEVICES": "none"}, True, "none compute,utility"),
        ("NVIDIA_VISIBLE_DEVICES=all", {}, True, "- -"),
        ("", {}, False, "- -"),
    ],
)
def test_an_image_that_does_not_ask_for_gpus_gets_them(
    image: str, job: dict[str, str], program: bool, seen: str, lab: Lab
) -> None:
    """enroot mounts the driver only if NVIDIA_VISIBLE_DEVICES is set."""
    etc = lab.folder / "data" / "train" / "etc"
    etc.mkdir(parents=True)
    (etc / "environment").write_text(f"{image}\n", "utf-8")
    if program:
        (lab.folder / "bin" / "nvidia-container-cli").write_text("#!/bin/sh\n", "utf-8")
        (lab.folder / "bin" / "nvidia-container-cli").chmod(0o755)
    made = wrapped(image="ubuntu", name="train")
    assert lab.run(script(made, "true"), **job).returncode == 0
    lines = (lab.folder / "environ").read_text("utf-8").splitlines()
    found = dict(line.split("=", 1) for line in lines if line.startswith("NVIDIA_"))
    names = ("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES")
    assert " ".join(found.get(name, '"-"').strip('"') for name in names) == seen


@pytest.mark.parametrize(
    ("entrypoint", "rc_local"), [(None, 'exec "$@"'), (False, 'exec "$@"'), (True, "")]
)
def test_the_entry_point(entrypoint: bool | None, rc_local: str | None, lab: Lab) -> None:
    """/etc/rc reads /etc/rc.local before it starts the entry point (enroot's src/docker.sh)."""
    made = wrapped(image="ubuntu", name="train", entrypoint=entrypoint)
    assert lab.run(script(made, "true")).returncode == 0
    file = lab.folder / "data" / "train" / "etc" / "rc.local"
    assert (file.read_text() if file.exists() else None) == rc_local


WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)


@given(st.lists(WORDS, max_size=3), st.lists(WORDS, max_size=2))
def test_quoting_survives(words: list[str], mounts: list[str]) -> None:
    try:
        made = wrapped(image="ubuntu", mounts=tuple(f"/m{mount}" for mount in mounts), name="x")
    except BadInput:
        return
    shown = r"""srun() { until [ "$1" = -- ]; do shift; done; shift; "$@"; }
enroot() { rm -- "$3"; shift 3; printf '%s\0' "$@"; }
exec() { "$@"; }
export -f enroot exec
"""
    step = shlex.join(["srun", "--", *made.prefix, "show", *words])
    done = subprocess.run(["bash", "-c", shown + step], capture_output=True, check=True)
    options = [f"--mount=/m{m}:/m{m}:x-create=auto,rbind" for m in mounts]
    assert done.stdout.decode().split("\0")[:-1] == [*options, "x", "show", *words]


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shell_texts_are_what_shellcheck_wants() -> None:
    texts = {
        "CREATE": enroot.CREATE,
        "START": enroot.START,
        "REMOVE": enroot.REMOVE,
        "CONFIG": enroot.CONFIG + str(enroot.ENTRYPOINTS[False]),
    }
    for name, text in texts.items():
        argv = ["shellcheck", "--shell=bash", "--severity=warning", "-"]
        done = subprocess.run(argv, input=text, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (name, done.stdout)


def test_what_it_lacks() -> None:
    container = Container(
        image="/x.sif", name="a:create", save="/y.sqsh", unshare=("net",), entrypoint_log=True
    )
    assert [f.message for f in Enroot().needs(container, cluster()) if f.severity == "error"] == [
        "enroot cannot run a SIF file (/x.sif); Apptainer can",
        "enroot has no entrypoint-log for a container; pyxis from 0.20 on has it",
        "enroot has no save for a container; pyxis has it",
        "enroot has no unshare for a container; pyxis from 0.24 on and Apptainer have it",
        "enroot has no modes for a container's name; pyxis from 0.14 on has them",
    ]
    (left,) = Enroot().needs(Container(image="ubuntu"), cluster())
    assert (left.severity, left.code) == ("note", "container-runtime")
    full = Container(
        image="ubuntu",
        mounts=("/a",),
        workdir="/w",
        mount_home=True,
        remap_root=True,
        writable=True,
        entrypoint=True,
        environment=("A",),
        name="a",
    )
    assert not list(Enroot().needs(full, cluster()))


def test_nodes_create_at_once_and_import_one_after_the_other(lab: Lab) -> None:
    """A node that creates does not hold the lock that another one's import waits for."""
    program = lab.folder / "bin" / "enroot"
    meet = 'if [ "$1" = create ]; then : >"$LAB/at.$N"; n=0\n'
    meet += 'until [ -e "$LAB/at.$((3 - N))" ]; do sleep 0.1; [ $((n += 1)) -lt 100 ]; done; fi\n'
    program.write_text(ENROOT.replace("verb=$1\n", f"verb=$1\n{meet}"), "utf-8")
    _, made = wrapped(image="ubuntu", name="train").before
    node = f"export N=$1 ENROOT_DATA_PATH=$LAB/data.$1; {made}"
    done = lab.run(f"node() {{ {node}; }}\n(node 1) & one=$!; (node 2) & wait $one && wait $!")
    assert done.returncode == 0, done.stderr
    assert len(lab.told("create")) == 2


def test_a_container_that_was_left_half_made_is_made_anew(lab: Lab) -> None:
    _, made = wrapped(image="ubuntu", name="train").before
    whole = (lab.folder / "bin" / "enroot").read_text("utf-8")
    killed = whole.replace("create) ", 'create) mkdir "$LAB/data/$3"; kill -9 $PPID; exit 1; ')
    (lab.folder / "bin" / "enroot").write_text(killed, "utf-8")
    assert lab.run(made).returncode != 0
    assert lab.kept() == ["train"]
    (lab.folder / "bin" / "enroot").write_text(whole, "utf-8")
    assert lab.run(made).returncode == 0
    assert lab.told("remove") == [["remove", "--force", "train"]]
    assert len(lab.told("create")) == 2
    assert lab.run(made).returncode == 0
    assert len(lab.told("create")) == 2
