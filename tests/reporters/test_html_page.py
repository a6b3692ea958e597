"""The HTML page as a file: its scripts, its policy, its data and the text for browsers without scripts."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import paged
import pytest

from hookcli.reporters.html import HtmlReporter, scripts
from hookcli.reporters.html.page import page
from hookcli.reporters.html.scripts import ASSETS, VIEWS, asset, imports, programs, reached
from hookcli.reporters.json import JsonReporter
from hookcli.table import Column, Finding, Report, Row, Skipped, TensorStats, columns_named, document
from hookcli.table.grouping import View

COLUMNS = (*columns_named("fqn", "type", "call"), Column("params", "Params", "parameters"), Column("l2", "L2"))
HOSTILE = [
    "</script><script>alert(1)</script>",
    "</title><img src=x onerror=alert(1)>",
    "]]>--><b>",
    "javascript:alert(1)",
]
REPORT = Report(
    "shapes",
    "Net",
    COLUMNS,
    [Row({"fqn": fqn, "type": "Linear", "call": 0, "params": 2**60 + n}) for n, fqn in enumerate(["", "a", *HOSTILE])],
    meta={"device": "cpu", "notes": HOSTILE[:2], "seconds": float("nan")},
    totals={"params": 20},
    skipped=[Skipped(HOSTILE[0], HOSTILE[1])],
    findings=[Finding("HK010", "warning", HOSTILE[0], HOSTILE[1], float("inf"), remedy=HOSTILE[2])],
)
PARTS = [view.rpartition(":")[0] for view in VIEWS]
SCRIPTS = sorted(
    f"{package}:{item.name}".lstrip(":")
    for package, folder in {"": ASSETS, **{name: files(name) for name in PARTS}}.items()
    for item in folder.iterdir()
    if item.name.endswith(".js")
)
DECLARED = re.compile(
    r"^(?:export )?(?:async )?(?:function\*?|const|let|class) (\{[^}]*\}|\[[^\]]*\]|\w+)", re.MULTILINE
)
FORBIDDEN = (
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|javascript:"
    r"|setAttribute\(\s*[\"'](?:on|style)|createContextualFragment|DOMParser|\bimport\("
)


class Parsed(HTMLParser):
    """The tags and the attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.attributes += attrs


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_module_imports_what_is_there_and_calls_nothing_that_makes_markup(name: str) -> None:
    source = asset(name)
    for file, names in imports(source):
        file = next(one for one in (f"{name.rpartition(':')[0]}:{file}", file) if one in SCRIPTS)
        exported = {*re.findall(r"^export (?:async )?(?:function\*?|const|let|class) (\w+)", asset(file), re.MULTILINE)}
        assert set(names) <= exported, f"{name} imports {names} from {file}"
        for imported in names:
            assert len(re.findall(rf"\b{imported}\b", source)) > 1, f"{name} does not use {imported}"
    assert source.count("\nimport ") + source.startswith("import ") == len(imports(source)), (
        "an import on several lines"
    )
    assert not re.search(FORBIDDEN, source), re.search(FORBIDDEN, source)
    assert len(source.splitlines()) <= 250


def test_the_joined_script_has_each_name_once_and_neither_import_nor_export() -> None:
    order = reached(*VIEWS, "main.js")
    assert order[-1] == "main.js" and set(order) == set(SCRIPTS), "a script that nothing imports"
    files_only = [name.rpartition(":")[2] for name in order]
    assert all(files_only.index(file) < order.index(name) for name in order for file, _ in imports(asset(name)))
    names = Counter(name for script in order for name in DECLARED.findall(asset(script)))
    assert [name for name, times in names.items() if times > 1] == []
    constants = re.compile(
        r"(?<![.\w'\"`\\])[A-Z][A-Z_]{2,}\b(?!:)"
    )  # in one script those of all modules would be found
    for script in order:
        source = re.sub(
            r"/\*\*.*?\*/", "", re.sub(r"(^|\s)//.*$", "", asset(script), flags=re.MULTILINE), flags=re.DOTALL
        )
        known = {*DECLARED.findall(source), *(name for _, taken in imports(source) for name in taken)}
        assert ({*constants.findall(source)} & {*names}) <= known, script
    assert not re.search(r"^(import|export)\b", "\n".join(programs()), re.MULTILINE)


def test_a_part_of_another_distribution_is_a_block_of_its_own_files_and_shares_those_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "foreign_part").mkdir()
    (tmp_path / "foreign_part" / "__init__.py").touch()
    texts = {
        "part.js": 'import { addPart } from "./parts.js";\nimport { start } from "./near.js";\naddPart(start());\n',
        "near.js": "export function start() {\n  return {};\n}\n",  # main.js has such a name, too
        "part.css": ".of-the-part { margin: 0 }",
    }
    for name, text in texts.items():
        (tmp_path / "foreign_part" / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(scripts, "foreign_views", lambda: ("foreign_part:part.js",))
    shared, part, main = scripts.programs.__wrapped__()
    block = "const { addPart } = hookcliPage;\n{\nfunction start() {\n  return {};\n}\naddPart(start());\n}\n"
    assert part.startswith(block) and part.count("\n") == block.count("\n")
    assert "function addPart(" in shared and re.search(
        r"hookcliPage = \{ addedParts, addPart, .*\bviewsOf \};\n", shared
    )
    assert shared.count('addPart({ id: "foreign_part:part.js", ') == 1
    assert main.startswith("const { ") and "async function start(" in main
    assert ".of-the-part" in scripts.styles.__wrapped__()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("import { h } from './dom.js';", "can't be joined; write import { h } from"),
        ('import { h as element } from "./dom.js";', "dom.js does not export 'h as element'"),
        ('import * as dom from "./dom.js";', "can't be joined; write"),
        ('import { html } from "./dom.js";', "dom.js does not export 'html'"),
        ("export default 3;", "can't be joined; write"),
        ('const tag = "</script>";', "it would end its element"),
    ],
)
def test_a_script_that_can_t_be_joined_is_refused(
    text: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lone_part").mkdir()
    (tmp_path / "lone_part" / "__init__.py").touch()
    (tmp_path / "lone_part" / "part.js").write_text(text + "\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "lone_part", raising=False)
    with pytest.raises(ValueError, match=re.escape(problem)):
        scripts.require_joinable("lone_part:part.js")


def test_only_the_scripts_and_the_style_of_the_page_are_allowed_to_run() -> None:
    text = HtmlReporter().render([REPORT], View())
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert rules["img-src"] == "data: blob:" and "connect-src" not in rules and "unsafe" not in policy
    for kind, inside in (
        ("script", r"<script(?: type=\"module\")?>(.*?)</script>"),
        ("style", r"<style>(.*?)</style>"),
    ):
        found = re.findall(inside, text, re.DOTALL)
        hashes = [f"'sha256-{base64.b64encode(hashlib.sha256(one.encode()).digest()).decode()}'" for one in found]
        assert found and rules[f"{kind}-src"].split() == hashes
    assert "connect-src 'self'" in page(payload([REPORT]) | {"live": {"path": "a", "seconds": 2}})


def payload(reports: list[Report]) -> dict[str, Any]:
    shown = document(reports)["reports"]
    return {"schema": 1, "kind": "model", "title": "Net", "reports": shown, "steps": None, "live": None}


@pytest.mark.sweep
def test_text_of_others_is_no_markup_and_nothing_is_loaded() -> None:
    for model in HOSTILE:
        parsed = Parsed(HtmlReporter().render([replace(REPORT, model=model)], View()))
        assert Counter(parsed.tags)["script"] == 3 and not {"img", "b", "link", "iframe"} & {*parsed.tags}
        for name, _ in parsed.attributes:
            assert name not in ("src", "href", "style") and not name.startswith("on")


def test_the_data_is_the_document_of_json_exactly() -> None:
    written, rest = paged.data(HtmlReporter().render([REPORT], View(sort="params", depth=2)))
    assert written == JsonReporter().render([REPORT], View())
    assert json.loads(written)["reports"][0]["rows"][0]["params"] == 2**60
    assert rest["view"] == {"columns": [], "sort": "params", "depth": 2, "all": False}
    assert rest["kind"] == "reports" and rest["lines"][0]["remarks"] == HOSTILE[:2]
    assert rest["explain"]["HK010"]["name"] == "dead-units" and "exactly zero" in rest["explain"]["HK010"]["text"]
    unknown = replace(REPORT, findings=[Finding("XX999", "error", "", "")])
    assert paged.data(HtmlReporter().render([unknown], View()))[1]["explain"] == {}


@pytest.mark.sweep
def test_a_page_has_the_libraries_that_it_needs() -> None:
    plain = replace(REPORT, columns=COLUMNS[:3])
    assert "uPlot=function" in page(payload([REPORT]))
    assert "uPlot=function" not in page(payload([plain]))
    hidden = replace(plain, rows=[Row({"fqn": "a", "type": "Linear", "call": 0}, TensorStats.of_zeros(3))])
    assert "uPlot=function" in page(payload([hidden]))
    assert "dagre=(" not in page(payload([plain])) and "dagre=(" in page(payload([replace(plain, probe="flow")]))
    assert "MIT License" in page(payload([REPORT])) and "sourceMappingURL" not in page(payload([REPORT]))


def test_vendored_files_are_the_pinned_ones() -> None:
    vendor = files("hookcli.reporters.html") / "assets" / "vendor"
    pins = json.loads((vendor / "pins.json").read_text())
    pinned = dict(pin for package in pins.values() for pin in package["files"].values())
    for name, expected in pinned.items():
        assert hashlib.sha256((vendor / name).read_bytes()).hexdigest() == expected, name
    assert {item.name for item in vendor.iterdir()} == {*pinned, "pins.json"}
    assert all(package["version"] in package["tarball"] for package in pins.values())


def test_without_scripts_there_is_a_table() -> None:
    text = HtmlReporter().render([REPORT], View())
    static = text[text.index("<noscript>") : text.index("</noscript>")]
    assert "Linear" in static and "&lt;/script&gt;" in static
    assert '<html lang="en">' in text and '<html lang="en" data-compact>' in page(payload([]), compact=True)
