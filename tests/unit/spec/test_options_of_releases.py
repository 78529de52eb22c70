"""Every option of sbatch, of the releases recorded: known here, and in the table of the docs.

The names are those of src/common/slurm_opt.c and of sbatch(1), of 22.05.11, 24.11.6 and 26.05.3.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slurmkit.cli.job_options import OPTION_HELP
from slurmkit.errors import BadInput
from slurmkit.spec.option_values import SBATCH_OPTIONS
from slurmkit.spec.sbatch_options import is_flag, needs_value, parse_options, short_options

_ROOT = Path(__file__).parents[3]
_ROW = re.compile(r"\| (?:`-(\w)`, )?`--([a-z-]+)` \| ([a-z, ]+) \|.*\|")
# Values of options whose form is checked.
_SAMPLES = {
    "array": "0-3", "begin": "now", "chdir": "/", "deadline": "now", "dependency": "singleton",
    "core-spec": "1", "distribution": "block", "export": "NONE", "extra-node-info": "2:4",
    "gpu-bind": "none", "gres": "nvme:1", "gres-flags": "disable-binding", "hint": "nomultithread",
    "kill-on-invalid-dep": "yes", "mail-type": "END", "mem-bind": "local", "mem-update": "20@10",
    "open-mode": "append", "signal": "USR1@60", "switches": "1", "thread-spec": "1",
    "time": "10",
}  # fmt: skip
_WITH = {"gpu-bind": [("gpus", "1")], "gpus-per-socket": [("sockets-per-node", "2")]}


def recorded_options() -> set[str]:
    files = sorted((_ROOT / "tests" / "recorded").glob("*/sbatch-options.txt"))
    assert len(files) == 3
    return {name for file in files for name in file.read_text("utf-8").split()}


def _rows() -> dict[str, tuple[str, str]]:
    """Return the option's letter and what slurmkit does with it, by the option's name."""
    text = (_ROOT / "docs" / "from-sbatch.md").read_text("utf-8")
    lines = text.partition("## Every option of sbatch")[2].split("\n")
    found = [match for line in lines if (match := _ROW.fullmatch(line))]
    assert len(found) == len({match[2] for match in found})
    return {match[2]: (match[1] or "", match[3]) for match in found}


def test_every_option_of_each_release_is_known() -> None:
    assert recorded_options() == SBATCH_OPTIONS


def test_the_docs_have_each_option_with_its_letter() -> None:
    rows, letters = _rows(), short_options()
    assert rows.keys() == SBATCH_OPTIONS
    assert {name: letter for name, (letter, _) in rows.items() if letter} == letters


@pytest.mark.parametrize("name", sorted(SBATCH_OPTIONS))
def test_the_docs_say_what_is_done_with_an_option(name: str) -> None:
    value = "" if is_flag(name) else _SAMPLES.get(name, "2")
    pairs = [*_WITH.get(name, []), (name, value)]
    says = _rows()[name][1]
    if says in ("refused", "otherwise"):
        with pytest.raises(BadInput):
            parse_options(pairs)
        return
    passed = parse_options(pairs).get("options", {})
    is_ours = name in OPTION_HELP or name in ("exclusive", "ntasks-per-tres", "tasks-per-node")
    assert (is_ours, name in passed) == {
        "the same": (True, False),
        "passes, checked": (True, True),
        "passes": (False, True),
    }[says]


def test_a_flag_needs_no_value() -> None:
    assert not [name for name in SBATCH_OPTIONS if is_flag(name) and needs_value(name)]
