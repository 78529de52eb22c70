"""Every relative link of the documentation leads to a file, and every #anchor to a heading."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[3]
_FENCED = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(`+).+?\1", re.DOTALL)
_INLINE = re.compile(r"\]\(\s*<?([^()\s<>]+(?:\([^()\s]*\))?)>?(?:\s+\"[^\"]*\")?\s*\)")
_NAMED = re.compile(r"^ {0,3}\[[^\]^]+\]:\s+<?(\S+?)>?(?:\s+\".*\")?$", re.MULTILINE)
_HTML = re.compile(r"<(?:a|img|source)\b[^>]*?\b(?:href|src|srcset)=\"([^\"\s]+)\"", re.IGNORECASE)
_HEADING = re.compile(r"^ {0,3}(#{1,6})\s+(.+?)\s*#*$", re.MULTILINE)
_ANCHOR = re.compile(r"<a\s+(?:id|name)=\"([^\"]+)\"", re.IGNORECASE)
_ELSEWHERE = re.compile(r"[a-z][a-z0-9+.\-]*:|//", re.IGNORECASE)


def pages() -> list[Path]:
    """List the tracked and new pages, without what git ignores."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return [ROOT / name for name in sorted(done.stdout.splitlines()) if (ROOT / name).exists()]


def links(text: str) -> Iterator[str]:
    """Find the relative links of a page, outside of code."""
    words = _CODE.sub("``", _FENCED.sub("", text))
    for pattern in (_INLINE, _NAMED, _HTML):
        yield from (link for link in pattern.findall(words) if not _ELSEWHERE.match(link))


def anchors(text: str) -> set[str]:
    """Return the anchors of a page, as GitHub makes them of its headings."""
    found: set[str] = set()
    for _, heading in _HEADING.findall(_FENCED.sub("", text)):
        words = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        base = re.sub(r"[^\w\- ]", "", words.replace("`", "")).replace(" ", "-")
        name, count = base, 0
        while name in found:
            count += 1
            name = f"{base}-{count}"
        found.add(name)
    return found | set(_ANCHOR.findall(text))


def broken(page: Path) -> Iterator[str]:
    text = page.read_text("utf-8")
    for link in links(text):
        path, _, anchor = link.partition("#")
        target = (page.parent / unquote(path)).resolve() if path else page
        if not target.exists():
            yield f"{link}: there is no {path}"
        elif not target.is_relative_to(ROOT):
            yield f"{link}: leads out of the project"
        elif target.suffix == ".md" and anchor and not _has_anchor(target, unquote(anchor)):
            yield f"{link}: {target.name} has no heading #{anchor}"


def _has_anchor(page: Path, anchor: str) -> bool:
    return anchor in anchors(page.read_text("utf-8"))


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    assert list(broken(page)) == []


def test_every_page_is_in_the_index() -> None:
    """The navigation of the site is made of the lists in docs/index.md."""
    index = (ROOT / "docs" / "index.md").read_text("utf-8")
    listed = re.findall(r"^- \[[^\]]+\]\(([^)#]+)\): ", index, re.MULTILINE)
    assert len(listed) == len(set(listed))
    pages_of_docs = {path.name for path in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert pages_of_docs == {name for name in listed if not name.startswith("../")}


def test_links_and_anchors_are_found() -> None:
    text = (
        "# One `two`: three\n\n[a](b.md#c) ![d](e.svg)\n```\n[no](n.md)\n```\n`[no](n.md)`\n"
        '[f](https://g) <img src="h.png">\n\n[i]: j.md\n\n## One two three\n### Plan & why\n'
    )
    assert list(links(text)) == ["b.md#c", "e.svg", "j.md", "h.png"]
    assert anchors(text) == {"one-two-three", "one-two-three-1", "plan--why"}
