"""Sphinx builds the site of `make docs` from the Markdown files as they are; see CONTRIBUTING.md.

The source folder is the repository, because pages link to README files beside docs/. So links that
work on a code host work in the site.
"""

from __future__ import annotations

import re
from pathlib import Path

from pygments.lexers.shell import BashLexer
from sphinx.application import Sphinx

import slurmkit

ROOT = Path(__file__).parents[1]
_SECTION = re.compile(r"^## (.+)\n((?:(?!## ).*\n)*)", re.MULTILINE)
_ENTRY = re.compile(r"^- \[[^\]]+\]\(([^)#]+)\.md\)", re.MULTILINE)

project = "slurmkit"
author = "The slurmkit developers"
project_copyright = "The slurmkit developers; MIT licence"
version = release = slurmkit.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = ["docs/*.md", "*.md", "*/README.md"]
exclude_patterns = ["build", "dist", ".*"]
# A console block may hold output that is no shell, a TOML block `…` for what is left out.
suppress_warnings = ["misc.highlighting_failure"]

myst_heading_anchors = 6
html_theme = "furo"
html_title = f"slurmkit {version}"
html_static_path = ["site"]
html_css_files = ["site.css"]
html_search_scorer = str(ROOT / "docs/site/scorer.js")
html_copy_source = False
html_show_sphinx = False

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
default_role = "code"  # docstrings write `name`
add_module_names = False
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True


def toctrees(index: str) -> str:
    """Return index.md with a hidden toctree after each section, made of the section's list.

    So the list that people read on a code host and the navigation of the site are one.
    """

    def with_toctree(found: re.Match[str]) -> str:
        pages = "\n".join(_ENTRY.findall(found[2]))
        tree = f"```{{toctree}}\n:hidden:\n:caption: {found[1]}\n\n{pages}\n```\n"
        return f"{found[0].rstrip()}\n\n{tree}\n" if pages else found[0]

    return _SECTION.sub(with_toctree, index)


def _read(_app: Sphinx, name: str, source: list[str]) -> None:
    if name == root_doc:
        source[0] = toctrees(source[0])


def _mark_examples(
    _app: Sphinx, _what: str, _name: str, _obj: object, _options: object, lines: list[str]
) -> None:
    """Put `::` before an example of a docstring, which is indented and nothing more."""
    for at in range(len(lines) - 1, 0, -1):
        before = lines[at - 2 : at]
        begins = lines[at].startswith("    ") and len(before) == 2 and not before[1]
        if begins and before[0] and not before[0].startswith(" ") and not before[0].endswith(":"):
            lines[at:at] = ["::", ""]


def _redirect(app: Sphinx, error: Exception | None) -> None:
    """Let the folder itself open the start page, which stands in docs/."""
    if error is None and app.builder.format == "html":
        page = '<!doctype html><meta charset="utf-8"><title>slurmkit</title>\n'
        page += '<meta http-equiv="refresh" content="0; url=docs/index.html">\n'
        page += '<a href="docs/index.html">slurmkit</a>\n'
        Path(app.outdir, "index.html").write_text(page, "utf-8")


def setup(app: Sphinx) -> None:
    """Register what the pages need: two names of code blocks, the toctrees, the start page."""
    for name in slurmkit.__all__:  # they are imported on first use, and autodoc looks into vars()
        getattr(slurmkit, name)
    for name in ("sbatch", "slurmkit"):
        app.add_lexer(name, BashLexer)
    app.connect("source-read", _read)
    app.connect("autodoc-process-docstring", _mark_examples, priority=400)  # before napoleon
    app.connect("build-finished", _redirect)
