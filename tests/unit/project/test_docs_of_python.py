"""The guides' Python: which interpreter runs it, and how slurmkit gets into one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import slurmkit
from slurmkit.errors import SlurmkitError

_ROOT = Path(__file__).parents[3]
_GUIDES = {
    path.relative_to(_ROOT).as_posix(): path.read_text("utf-8")
    for path in [_ROOT / "README.md", *sorted((_ROOT / "docs").glob("*.md"))]
}
_BEGINS = re.compile(r"^```python\n(?=(?:(?!^```).*\n)*?(?:from|import) slurmkit)", re.MULTILINE)
_ANSWER = "questions.md#using-slurmkit"
# Files of a package that is installed beside slurmkit: no command runs them.
_NO_PROGRAMS = {"docs/plugins.md"}
_USING = sorted(
    name for name, text in _GUIDES.items() if _BEGINS.search(text) and name not in _NO_PROGRAMS
)


@pytest.mark.parametrize("name", _USING)
def test_a_guide_says_which_python_has_slurmkit(name: str) -> None:
    """`python3` in the demo cluster had no module named slurmkit."""
    found = _BEGINS.search(_GUIDES[name])
    assert found
    before = _GUIDES[name][: found.start()]
    assert _ANSWER in before or "venv" in before


def test_the_answer_names_the_python_of_the_demo_cluster() -> None:
    section = _GUIDES["docs/questions.md"].partition("\n## Using slurmkit\n")[2]
    assert "which slurmkit" in section
    assert "/opt/slurmkit/venv/bin/python" in section
    assert len(_USING) >= 7


@pytest.mark.parametrize("name", [name for name, text in _GUIDES.items() if "pip install" in text])
def test_pip_install_can_be_pasted(name: str) -> None:
    """Zsh expands an unquoted `.[tui]`; Debian's pip refuses."""
    for line in _GUIDES[name].splitlines():
        assert not re.search(r"pip install [^'\"`]*\w*\.?\[", line), line
    if name == "README.md":
        code = _GUIDES[name]
        assert code.index("python3 -m venv .venv && . .venv/bin/activate") < code.index(
            "\n$ pip install"
        )


def test_every_public_name_is_in_the_reference() -> None:
    text = _GUIDES["docs/python.md"]
    shown = re.findall(r"^\.\. auto\w+:: slurmkit\.(\w+)$", text, re.MULTILINE)
    assert sorted(shown) == sorted(set(slurmkit.__all__) - {"__version__"})
    for name in shown:
        assert f"`{name}`" in text.partition("{eval-rst}")[0]


def _rows(kind: type[SlurmkitError], depth: int = 0) -> Iterator[str]:
    first = (kind.__doc__ or "").splitlines()[0].rstrip(".")
    yield f"| {'– ' * depth}`{kind.__name__}` | {kind.exit_code} | {first} |"
    for below in kind.__subclasses__():
        if below.__module__ == SlurmkitError.__module__:
            yield from _rows(below, depth + 1)


def test_every_exception_is_in_the_reference() -> None:
    table = _GUIDES["docs/errors.md"].partition("## Exceptions in Python\n")[2]
    assert [line for line in table.splitlines() if "`" in line][1:] == list(_rows(SlurmkitError))
