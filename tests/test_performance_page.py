"""docs/performance.md holds what `scripts/bench --markdown` wrote: all of its tables, and no others."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BENCH = runpy.run_path(str(ROOT / "scripts" / "_bench_table.py"))


def tables(page: str) -> dict[str, list[str]]:
    """The names of rows by the title of their table."""
    found: dict[str, list[str]] = {}
    for line in page.splitlines():
        if title := re.fullmatch(r"\*\*(.+)\*\* \(\d+ rounds\)", line):
            rows = found.setdefault(title[1], [])
        elif (row := re.match(r"\| ([^|]+?) \|", line)) and row[1].strip(" :-"):
            rows.append(row[1])
    return found


def test_the_page_has_the_tables_that_the_bench_writes() -> None:
    page = (ROOT / "docs" / "performance.md").read_text()
    written = page.partition(BENCH["BEGIN"])[2].partition(BENCH["END"])[0]
    assert re.search(
        r"^Measured on 20\d\d-\d\d-\d\d at commit [0-9a-f]{10}: \d+ CPUs .*torch 2\.", written, re.MULTILINE
    )
    there = tables(written)
    may_lack = {title: {*BENCH["UNMEASURED"]} - {*rows} for title, rows in there.items()}
    assert there == {
        title: [row for row in rows if row not in may_lack[title]] for title, rows in BENCH["TABLES"].items()
    }
    assert not re.search(r"^\|", page.replace(written, ""), re.MULTILINE), "a table that nobody measured"


def test_a_figure_without_a_name_is_refused(tmp_path: Path) -> None:
    from rich.console import Console

    noted = BENCH["Tables"](Console(quiet=True), tmp_path / "noted")
    with pytest.raises(RuntimeError, match="does not name"):
        noted.show("Start", 1, ["Ratio"], [("hookcli --help", "1.2"), ("hookcli anything", "1.0")])


def test_the_number_of_models_tested_is_the_sum_of_those_named() -> None:
    pages = {name: (ROOT / "docs" / name).read_text() for name in ("accuracy.md", "hooks.md")}
    claims = [int(number) for page in pages.values() for number in re.findall(r"every model tested \((\d+)\)", page)]
    named = re.search(
        r"all (\d+) torchvision models, on (\d+) model families\s+of\s+timm and on (\d+) types", pages["accuracy.md"]
    )
    assert named and set(claims) == {sum(map(int, named.groups()))} and len(claims) == len(pages)
