"""What a job uses for its image: the catalogue, imported files, mirrors; `slurmkit image`."""

from __future__ import annotations

import json
import os
import platform
import pwd
import re
from pathlib import Path

import click
import msgspec
import pytest
from click.testing import CliRunner
from container_lab import cluster
from image_lab import ENROOT, MKSQUASHFS, stand_in
from recorded_lab import capabilities, standing
from slurmkit_containers.images import (
    canonical,
    find_imported,
    format_age,
    image_at_mirror,
    load_catalogue,
    own_cache,
    parse_size,
    settle,
)

from slurmkit.cli import submit
from slurmkit.cli.completion import ImageNames
from slurmkit.cli.main import cli, run_to_exit_code
from slurmkit.cluster.cluster import Cluster
from slurmkit.config.check import inspect_configuration
from slurmkit.errors import BadConfig, BadInput
from slurmkit.planning.containers import IMAGE_NOT_IMPORTED
from slurmkit.planning.planner import Plan, plan_offline
from slurmkit.planning.request import SiteState
from slurmkit.spec.containers import Container
from slurmkit.spec.images import Image
from slurmkit.spec.jobspec import JobSpec

GUIDE = (Path(__file__).parents[3] / "docs" / "containers.md").read_text("utf-8")


@pytest.fixture(autouse=True)
def programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Stand-ins for enroot and mksquashfs."""
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # so that no registry answers
    stand_in(monkeypatch, tmp_path / "bin", enroot=ENROOT, mksquashfs=MKSQUASHFS)
    monkeypatch.setenv("COUNT", str(tmp_path / "count"))


def configure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(text, "utf-8")
    monkeypatch.setenv("SLURMKIT_CONFIG", str(file))


def image(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> tuple[str, str]:
    assert run_to_exit_code(cli, ["image", *words]) == code
    done = capsys.readouterr()
    return done.out, done.err


def planned(
    name: str, nodes: int = 1, runtime: str | None = None, arms: tuple[str, ...] = ()
) -> Plan:
    """The plan of a job; `arms` are names of nodes whose machine is another."""
    known = capabilities()
    known = msgspec.structs.replace(
        known,
        container_options=cluster("0.24").container_options,
        nodes=tuple(
            msgspec.structs.replace(node, architecture="aarch64") if node.name in arms else node
            for node in known.nodes
        ),
    )
    spec = JobSpec(command=("x",), nodes=nodes, container=Container(image=name, runtime=runtime))
    return plan_offline(spec, SiteState(known, standing()))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("local/mine", "local#mine:latest"),
        ("local#lab/mine:2", "local#lab/mine:2"),
        ("docker.io/local/mine:2", "local#mine:2"),
        ("ubuntu", "docker.io#ubuntu:latest"),
        ("docker.io/library/ubuntu:24.04", "docker.io#ubuntu:24.04"),
        ("registry-1.docker.io#ubuntu", "docker.io#ubuntu:latest"),
        ("$oauthtoken@nvcr.io#nvidia/x:1", "nvcr.io#nvidia/x:1"),
        ("nvcr.io/library/x", "nvcr.io#library/x:latest"),
        (f"ubuntu:24.04@sha256:{'a' * 64}", f"docker.io#ubuntu@sha256:{'a' * 64}"),
        ("dockerd://x:1", "dockerd://x:1"),
    ],
)
def test_one_name_for_all_spellings(text: str, name: str) -> None:
    assert canonical(Image.parse(text)) == name


def test_a_job_uses_the_file_that_was_imported_and_says_which_and_how_old(
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = image(capsys, "import", "ubuntu:24.04")[0].strip()
    made = planned("docker.io/library/ubuntu:24.04", nodes=4)
    assert f" --container-image={path} " in made.submissions[0].script
    (note,) = (each.message for each in made.notes if each.code == "container-image")
    assert note == (
        f"image ubuntu:24.04 is {path}, imported less than a minute ago from ubuntu:24.04"
    )
    assert not made.warnings


SEVERAL = "nvcr.io#nvidia/x:1"


def test_a_job_on_several_nodes_is_told_how_to_import_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    configure(monkeypatch, tmp_path, "[containers]\nimport_first = false\n")
    made = planned(SEVERAL, nodes=2)
    assert f"--container-image={SEVERAL}'" in made.submissions[0].script
    (warning,) = made.warnings
    assert warning.message == (
        "each of 2 nodes would import image nvcr.io/nvidia/x:1 by itself; import it once before:"
        " slurmkit image import nvcr.io/nvidia/x:1"
    )
    assert not planned(SEVERAL).warnings
    (warning,) = planned(f"$oauthtoken@{SEVERAL}", nodes=2).warnings
    assert warning.message.endswith(f" slurmkit image import '$oauthtoken@{SEVERAL}'")


def test_an_image_for_several_nodes_is_imported_before_the_job_is_sent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(submit, "plan", lambda spec, _: planned(spec.container.image, spec.nodes))
    before = planned(SEVERAL, nodes=2)
    assert IMAGE_NOT_IMPORTED in [note.code for note in before.notes]
    assert not before.warnings
    after = submit._import_image(Cluster(), before, before.spec)
    path = own_cache().find(canonical(Image.parse(SEVERAL)))
    assert path
    assert f" --container-image={path.path} " in after.submissions[0].script
    assert "nvcr.io/nvidia/x:1: " in capsys.readouterr().err
    assert len((tmp_path / "count").read_text().splitlines()) == 1
    assert submit._import_image(Cluster(), after, after.spec) is after


def test_an_image_that_cannot_be_imported_is_left_to_the_nodes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    stand_in(monkeypatch, tmp_path / "bin", enroot="#!/bin/sh\necho no such image >&2\nexit 1\n")
    before = planned(SEVERAL, nodes=2)
    assert submit._import_image(Cluster(), before, before.spec) is before
    assert "; each node fetches the image" in capsys.readouterr().err


def test_only_runtimes_that_lose_nothing_have_it_imported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    configure(monkeypatch, tmp_path, '[containers]\nruntimes = ["apptainer"]\n')
    made = planned(SEVERAL, nodes=2, runtime="apptainer")
    assert IMAGE_NOT_IMPORTED not in [note.code for note in made.notes]


def test_an_image_is_for_the_machines_that_the_nodes_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    image(capsys, "import", "ubuntu:24.04")
    kernel = platform.machine()
    (warning,) = planned("ubuntu:24.04", arms=("c1",)).warnings
    assert warning.message.startswith(f"the image is for {kernel}, and nodes that the job may get")
    assert "aarch64, too" in warning.message
    every = tuple(node.name for node in capabilities().nodes)
    (error,) = planned("ubuntu:24.04", arms=every).errors
    assert (error.code, "are aarch64;" in error.message) == ("container-architecture", True)
    assert not planned("ubuntu:22.04", arms=every).errors


def test_a_changed_file_keeps_the_job_from_being_sent(capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(image(capsys, "import", "ubuntu:24.04")[0].strip())
    path.chmod(0o666)
    (error,) = planned("ubuntu:24.04").errors
    assert "can be written by others" in error.message


def test_a_name_of_the_catalogue_is_its_image_with_what_to_know() -> None:
    made = planned("pytorch")
    image_of_it = load_catalogue()["pytorch"].image.replace("/", "#", 1)
    assert f"--container-image={image_of_it}'" in made.submissions[0].script
    note, _ = (each.message for each in made.notes if each.code == "container-image")
    assert "it needs NVIDIA driver 525.60.13 or newer (not checked);" in note
    assert "--launch torchrun suits it" in note


def test_every_image_of_ours_is_pinned() -> None:
    for entry in load_catalogue().values():
        found = Image.parse(entry.image)
        assert found.tag not in (None, "latest")
        assert entry.launch in ("", "torchrun", "mpi", "srun")
        assert entry.about


def test_the_site_adds_to_the_catalogue_and_changes_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = '[containers.catalogue.ours]\nimage = "/images/ours.sqsh"\n'
    text += '[containers.catalogue.pytorch]\ndriver = "570"\n'
    text += '[containers.catalogue.cuda]\nimage = "r.site/cuda:1"\n'
    configure(monkeypatch, tmp_path, text)
    assert settle(Container(image="ours"), 4).container.image == "/images/ours.sqsh"
    assert load_catalogue()["pytorch"].driver == "570"
    assert load_catalogue()["pytorch"].image.startswith("nvcr.io/")
    assert load_catalogue()["cuda"].driver == ""  # ours was for another image


def test_a_catalogue_whose_image_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    configure(monkeypatch, tmp_path, '[containers.catalogue.x]\nimage = "A B"\n')
    with pytest.raises(BadConfig, match=r"\[containers\.catalogue\.x\] image: "):
        settle(Container(image="x"), 1)


@pytest.mark.parametrize(
    ("mirror", "given", "asked"),
    [
        ("r.site:5000", "ubuntu", "docker://r.site:5000#library/ubuntu"),
        ("r.site:5000/hub/", "nvidia/cuda:1", "docker://r.site:5000#hub/nvidia/cuda:1"),
    ],
)
def test_a_mirror_is_asked_where_nothing_is_imported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mirror: str, given: str, asked: str
) -> None:
    configure(monkeypatch, tmp_path, f'[containers.mirrors]\n"docker.io" = "{mirror}"\n')
    assert image_at_mirror(Image.parse(given)).enroot == asked
    assert image_at_mirror(Image.parse("nvcr.io/x")).enroot == "docker://nvcr.io#x"
    notes = settle(Container(image=f"docker.io/{given}"), 1).findings
    assert f"the nodes fetch it from {mirror.partition('/')[0]}" in notes[-1].message


def test_a_mirror_that_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    configure(monkeypatch, tmp_path, '[containers.mirrors]\n"docker.io" = "https://r.site"\n')
    with pytest.raises(BadConfig, match="is not a registry"):
        image_at_mirror(Image.parse("ubuntu"))


def test_a_container_without_an_image_and_a_path_stay() -> None:
    for container in (Container(name="x"), Container(image="/x.sqsh"), Container(image="./x.sif")):
        assert settle(container, 2).container == container
        assert settle(container, 2).findings == ()


@pytest.mark.skipif(os.getuid() != 0, reason="a shared folder is root's")
def test_a_shared_folder_is_used_as_far_as_its_owner_is_trusted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(monkeypatch, tmp_path, f'[containers]\ncache = "{tmp_path}/shared"\n')
    path = image(capsys, "import", "ubuntu:24.04")[0].strip()
    configure(monkeypatch, tmp_path, f'[containers]\nshared = ["{tmp_path}/shared", "/none"]\n')
    assert path in str(settle(Container(image="ubuntu:24.04"), 4).container.image)
    assert "ubuntu:24.04" in image(capsys, "list")[0]
    assert "is not imported in" in image(capsys, "prune", "ubuntu:24.04", code=1)[1]
    (tmp_path / "shared").chmod(0o777)
    assert find_imported("docker.io#ubuntu:24.04") is None
    warning, _ = settle(Container(image="ubuntu:24.04"), 1).findings
    assert warning.severity == "warning"
    assert "can be written by others" in warning.message
    assert "can be written by others" not in image(capsys, "list")[1]
    more = '[containers]\nshared = ["/x"]\nshared_owner = "no one"\n'
    configure(monkeypatch, tmp_path, more)
    with pytest.raises(BadConfig, match="there is no account 'no one' here"):
        find_imported("docker.io#ubuntu:24.04")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_what_somebody_else_put_into_a_shared_folder_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(monkeypatch, tmp_path, f'[containers]\ncache = "{tmp_path}/shared"\n')
    path = image(capsys, "import", "ubuntu:24.04")[0].strip()
    configure(monkeypatch, tmp_path, f'[containers]\nshared = ["{tmp_path}/shared"]\n')
    os.chown(path, 4711, 4711)
    (error,) = settle(Container(image="ubuntu:24.04"), 1).findings
    assert "belongs to user id 4711" in error.message


def test_the_folder_may_name_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("USER", "alice")
    configure(monkeypatch, tmp_path, '[containers]\ncache = "/scratch/$USER/images"\n')
    assert own_cache().folder == Path("/scratch/alice/images")
    monkeypatch.delenv("USER")
    with pytest.raises(BadConfig, match="is not set here"):
        own_cache()
    configure(monkeypatch, tmp_path, '[containers]\ncache = "scratch"\n')
    with pytest.raises(BadConfig, match="is not an absolute path"):
        own_cache()


def test_list_inspect_and_prune(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIGEST", f"sha256:{'b' * 64}")
    path = image(capsys, "import", "ubuntu:24.04")[0].strip()
    out, err = image(capsys, "list")
    assert out.splitlines()[0].split() == "IMAGE SIZE ARCH IMPORTED USED FROM".split()
    assert "ubuntu:24.04" in out.splitlines()[1]
    assert str(own_cache().folder) in err
    (entry,) = json.loads(image(capsys, "list", "--json")[0])["rows"]
    assert (entry["path"], entry["digest"]) == (path, f"sha256:{'b' * 64}")
    assert entry["images"] == ["ubuntu:24.04"]
    (one,) = json.loads(image(capsys, "inspect", "ubuntu", "--full", "--json")[0])["rows"]
    assert one["checked"] == "sha256"
    assert "owner, mode, size, times" in image(capsys, "inspect", "ubuntu")[0]
    assert "would remove ubuntu:24.04" in image(capsys, "prune", "--size", "0", "--dry-run")[1]
    assert Path(path).exists()
    assert "removed ubuntu:24.04" in image(capsys, "prune", "ubuntu:24.04")[1]
    assert not Path(path).exists()
    said = image(capsys, "inspect", "x:1", code=1)[1]
    assert "is not imported; import it: slurmkit image import x:1; see" in said


def test_prune_needs_to_know_what_may_stay(capsys: pytest.CaptureFixture[str]) -> None:
    assert "give --size 100G" in image(capsys, "prune", code=2)[1]
    assert "'lots' is not a size" in image(capsys, "prune", "--size", "lots", code=2)[1]


def test_an_import_keeps_to_the_size_that_is_configured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = image(capsys, "import", "ubuntu:24.04")[0].strip()
    configure(monkeypatch, tmp_path, '[containers]\ncache_size = "150"\n')
    said = image(capsys, "import", "debian:13")
    assert "removed ubuntu:24.04, longest unused" in said[1]
    assert Path(said[0].strip()).exists()
    assert not Path(first).exists()


def test_a_file_is_named_after_itself_or_as_one_likes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "Root").mkdir()
    (tmp_path / "Root" / "etc").mkdir()
    monkeypatch.chdir(tmp_path)
    assert image(capsys, "import", "./Root")[1].startswith("local/root:latest: ")
    assert "local/mine:2: " in image(capsys, "import", "./Root", "--as", "mine:2")[1]
    said = image(capsys, "import", "./Root", "--as", "Not A Name", code=2)[1]
    assert "choose another: --as mine:1" in said
    said = image(capsys, "import", "./Root", "--as", "pytorch", code=2)[1]
    assert "pytorch is a name of the catalogue" in said
    assert "does not exist" in image(capsys, "import", "none.tar", code=2)[1]
    (tmp_path / "x.sqsh").touch()
    assert "needs no import" in image(capsys, "import", "./x.sqsh", code=2)[1]


def test_search(capsys: pytest.CaptureFixture[str]) -> None:
    assert "pytorch" in image(capsys, "search", "TORCH")[0]
    assert {row["name"] for row in json.loads(image(capsys, "search", "--json")[0])["rows"]} == set(
        load_catalogue()
    )
    assert "no entry of the catalogue contains 'zzz'" in image(capsys, "search", "zzz")[1]


def test_tab_offers_what_is_imported_and_the_catalogue(capsys: pytest.CaptureFixture[str]) -> None:
    image(capsys, "import", "ubuntu:20.04")
    command, param = click.Command("x"), click.Argument(["x"])
    offered = ImageNames().shell_complete(click.Context(command), param, "ubuntu")
    assert [each.value for each in offered] == ["ubuntu:20.04", "ubuntu"]


def test_every_help_has_examples() -> None:
    for command in ("import", "list", "inspect", "prune", "search"):
        assert "Examples:" in CliRunner().invoke(cli, ["image", command, "--help"]).output


@pytest.mark.parametrize(
    "block", re.findall(r"^```toml\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)
)
def test_every_example_of_the_guide_is_right(
    block: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    configure(monkeypatch, tmp_path, block)
    assert inspect_configuration().problems == ()


def test_sizes_and_ages() -> None:
    assert parse_size("1.5G") == 1.5 * (1 << 30)
    with pytest.raises(BadInput, match="is not a size"):
        parse_size("x")
    assert [format_age(n) for n in (5, 60, 7200, 86400 * 3)] == [
        "less than a minute", "1 minute", "2 hours", "3 days",
    ]  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root file system."""
    (tmp_path / "root" / "etc").mkdir(parents=True)
    return tmp_path / "root"


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_name_given_here_never_reaches_a_registry(
    nodes: int, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(monkeypatch, root.parent, '[containers.mirrors]\n"docker.io" = "r.site:5000"\n')
    path = image(capsys, "import", str(root), "--as", "mine:2")[0].strip()
    for name in ("local/mine:2", "local#mine:2", "docker.io/local/mine:2"):
        assert settle(Container(image=name), nodes).container.image == path
    other = [each.message for each in settle(Container(image="mine:2"), 1).findings]
    assert other == [
        "image mine:2 is not imported: the nodes fetch it from r.site:5000",
        "image mine:2 is not the imported image local/mine:2; to use that one, write local/mine:2",
    ]
    assert "removed local/mine:2" in image(capsys, "prune", "local/mine:2")[1]
    (error,) = planned("local/mine:2", nodes).errors
    assert "no registry is asked for it" in error.message
    assert error.message.endswith("slurmkit image import PATH --as mine:2")
    said = image(capsys, "import", "local/mine:2", code=2)[1]
    assert "slurmkit image import PATH --as mine:2" in said
    said = image(capsys, "import", str(root), "--as", "nvcr.io/mine:2", code=2)[1]
    assert "cannot be an image's name" in said


def test_what_a_path_gave_is_told_with_it_and_not_removed_for_room(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(image(capsys, "import", str(root), "--as", "mine:2")[0].strip())
    configure(monkeypatch, tmp_path, '[containers]\ncache_size = "150"\n')
    fetched = Path(image(capsys, "import", "ubuntu:24.04")[0].strip())
    assert "removed ubuntu:24.04" in image(capsys, "import", "debian:13")[1]
    assert path.exists()
    assert not fetched.exists()
    path.write_bytes(path.read_bytes()[:-1])
    (error,) = planned("local/mine:2").errors
    assert error.message.endswith(f"slurmkit image import --again {root} --as mine:2")


def test_an_image_that_is_not_imported_is_always_told() -> None:
    notes = [each.message for each in planned("nvidia/x:1").notes]
    assert "image nvidia/x:1 is not imported: the nodes fetch it from Docker Hub" in notes


@pytest.mark.parametrize("runtime", ["pyxis", "enroot"])
def test_a_password_that_is_a_command_is_told_for_its_registry_alone(
    runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """enroot's manual has `$(aws ecr …)`, and it blocked all registries."""
    monkeypatch.setenv("ENROOT_CONFIG_PATH", str(tmp_path))
    file = tmp_path / ".credentials"
    file.write_text("machine r.io login AWS password $(aws ecr get-login-password)\n", "utf-8")
    said = f"the password is a command ({file}, line 1)"
    for image, told in (("ubuntu:24.04", False), ("nvcr.io/x:1", False), ("r.io:5000/x:1", True)):
        made = planned(image, runtime=runtime)
        assert not made.errors
        assert any(said in note.message for note in made.notes) is told
    file.chmod(0o664)
    made = planned("nvcr.io/nvidia/x:1", runtime=runtime)
    assert "line 1: enroot would run the password as shell code" in made.errors[0].message
    assert "chmod go-w" in made.errors[0].message
    assert not planned("/x.sqsh", runtime=runtime).errors


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give folders away")
def test_a_shared_folder_of_another_account_is_not_used_and_that_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(monkeypatch, tmp_path, f'[containers]\ncache = "{tmp_path}/shared"\n')
    path = image(capsys, "import", "ubuntu:24.04")[0].strip()
    for file in (tmp_path / "shared", *(tmp_path / "shared").iterdir()):
        os.chown(file, pwd.getpwnam("nobody").pw_uid, -1)
    configure(monkeypatch, tmp_path, f'[containers]\nshared = ["{tmp_path}/shared"]\n')
    settled = settle(Container(image="ubuntu:24.04"), 1)
    assert settled.container.image == "ubuntu:24.04"
    assert "belongs to user id" in settled.findings[0].message
    more = f'[containers]\nshared = ["{tmp_path}/shared"]\nshared_owner = "nobody"\n'
    configure(monkeypatch, tmp_path, more)
    assert settle(Container(image="ubuntu:24.04"), 1).container.image == path
