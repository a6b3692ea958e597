"""The documentation as a site: `pip install -e '.[docs]' && sphinx-build -W -n docs build/site`.

The pages are Markdown that GitHub shows, too. The reference, in docs/reference, is written anew by each build: a page
for each command from its options, the checks from their classes, and the Python API from its docstrings.
"""

from __future__ import annotations

import sys
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any, ClassVar

from pygments.lexer import RegexLexer, bygroups
from pygments.token import Generic

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS), str(DOCS.parent)]

project = "hookcli"
version = release = version_of("hookcli")
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_*"]
default_role = "code"
smartquotes = False

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"hookcli {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
templates_path = ["_templates"]
html_show_copyright = False

autodoc_typehints_format = "short"
python_maximum_signature_line_length = 100
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
nitpick_ignore_regex = [
    ("py:.*", r"(_pytest|types.Annotated|tuple\[~|torch|nn|Tensor|pathlib|collections|contextlib|typing).*"),
    ("py:.*", r"hookcli\..*"),
]


class Console(RegexLexer):
    """Commands after `$ `, and their output. Pygments' own lexer takes "(model)" for the prompt of an environment."""

    tokens: ClassVar = {
        "root": [(r"^(\$ )(.*\n)", bygroups(Generic.Prompt, Generic.Strong)), (r".*\n", Generic.Output)]
    }


def setup(app: Any) -> None:
    """Have the reference written before Sphinx looks for pages."""
    app.add_lexer("console", Console)
    app.connect("builder-inited", lambda _: _write_reference())
    app.connect("config-inited", _add_versions)


def _add_versions(app: Any, config: Any) -> None:
    """Link to all versions beside the pages, with `sphinx-build -t published`: the site is served beside theirs."""
    if app.tags.has("published"):
        parts = [f"sidebar/{part}.html" for part in ("scroll-start", "brand", "search", "navigation")]
        config.html_sidebars = {"**": [*parts, "versions.html", "sidebar/scroll-end.html"]}


def _write_reference() -> None:
    from _reference import write

    write(DOCS / "reference")
