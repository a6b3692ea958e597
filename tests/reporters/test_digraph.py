"""Text in DOT: whatever names and labels hold, Graphviz reads them as they are."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from reporters.graph_reports import plain

from hookcli.errors import UsageError
from hookcli.reporters.digraph import Digraph, quoted

ODD = [
    "",
    "a b",
    'quo"te',
    "back\\",
    'both\\"',
    "\\\\",
    "<b>x</b>",
    "a:b:c",
    "node",
    "1.5",
    "{x|y}",
    "äß→",
    "a;b # c // d",
]
graphviz_only = pytest.mark.skipif(shutil.which("dot") is None, reason="needs Graphviz")


def drawing(names: list[str]) -> Digraph:
    graph = Digraph("of names", {"label": "all"})
    with graph.frame("one", label="one"):
        for name in names[:3]:
            graph.node(name, f"{name}\n2")
    for name in names[3:]:
        graph.node(name, f"{name}\n2")
    for name in names[1:]:
        graph.edge(names[0], name, label=name)
    return graph


def test_the_text() -> None:
    assert quoted('a"b\\') == r'"a\"b\\"'
    graph = drawing(["a", "b"])
    assert graph.source.splitlines() == [
        'digraph "of names" {',
        '\tgraph [label="all"]',
        'subgraph "cluster_one" {',
        '\tgraph [label="one"]',
        '\t"a" [label="a',
        '2"]',
        '\t"b" [label="b',
        '2"]',
        "}",
        '\t"a" -> "b" [label="b"]',
        "}",
    ]


@graphviz_only
def test_graphviz_reads_names_and_labels_as_they_are() -> None:
    labels, edges = plain(drawing(ODD).source)
    kept = [name.replace("\\", "\\\\") for name in ODD]  # as Graphviz keeps a backslash, and writes it in labels
    assert labels == {name: f"{name}\n2" for name in kept}
    assert edges == {(kept[0], name) for name in kept[1:]}


@graphviz_only
def test_the_image_shows_labels_as_they_are() -> None:
    text = drawing(['back\\n "x" <b>']).drawn("svg").decode()
    assert "back\\n &quot;x&quot; &lt;b&gt;</text>" in text


def test_what_dot_says_is_handed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dot").write_text("#!/bin/sh\ncat >/dev/null\necho no room >&2\nexit 3\n")
    (tmp_path / "dot").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(UsageError, match="--format svg: Graphviz's `dot` failed: no room"):
        drawing(["a"]).drawn("svg")
