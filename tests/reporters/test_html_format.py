"""Values of the HTML page read as those of the terminal's tables. Node runs the page's own formatting."""

from __future__ import annotations

import json
import math
import random
import shutil
import struct
import subprocess
from importlib.util import find_spec
from typing import Any

import pytest

from hookcli.reporters.html.scripts import ASSETS
from hookcli.reporters.html.shown_rows import shown_rows
from hookcli.table import Report, Row, TensorStats, formatting, strict
from hookcli.table.columns import declared
from hookcli.table.marks import faults, mark


def node() -> str | None:
    """The path of Node: the machine's own, or the one that Playwright brings along."""
    playwright = find_spec("playwright")
    folders = (playwright.submodule_search_locations if playwright else None) or ()
    return shutil.which("node") or next((shutil.which("node", path=f"{folder}/driver") for folder in folders), None)


pytestmark = pytest.mark.skipif(not node(), reason="needs Node or Playwright, to run the page's JavaScript")
PROGRAM = """
import * as format from "ASSETS/format.js";
const cases = JSON.parse(process.argv[1]);
const call = (name, args) => format[name](...args.map((x) => (typeof x === "string" ? format.num(x) ?? x : x)));
console.log(JSON.stringify(cases.map(([name, ...args]) => call(name, args))));
"""
random.seed(7)
TIES = [0.5, 1.5, 2.5, 0.125, 0.375, 1234.5, 1235.5, 12.125, 100.25, 123450, 123550, 4.35, 1.005, 0.00048828125, 999.95]
EDGES = [0.0, 1.0, 0.99999, 9.9995, 0.001, 0.00099996, 99999.5, 1e5, 1e22, 5e-324, 1.7976931348623157e308, 1023, 1024]
ODD = [math.nan, math.inf, -math.inf, None]
NUMBERS = [*TIES, *EDGES, *(struct.unpack("d", random.randbytes(8))[0] for _ in range(300))]
NUMBERS += [random.uniform(0, 10 ** random.randint(-4, 12)) for _ in range(300)]
COUNTS = [
    0,
    1,
    999,
    1000,
    1001,
    999_950,
    10**6,
    25_557_032,
    4_089_184_256,
    2**53,
    1023,
    1024,
    1025,
    999_999_999,
    5 * 10**15,
]


def run_node(program: str, argument: Any) -> Any:
    text = json.dumps(strict(argument), allow_nan=False)
    command = [str(node()), "--input-type=module", "--eval", program.replace("ASSETS", str(ASSETS)), "--", text]
    return json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


@pytest.mark.sweep
def test_numbers_read_as_in_the_terminal() -> None:
    signed = [sign * x for x in NUMBERS if not math.isnan(x) for sign in (1, -1)]
    sized = [x for x in NUMBERS if 0 <= x < 1e15]
    cases: list[list[Any]] = [["number", x] for x in (*signed, *ODD)]
    cases += [["percent", x] for x in sized if x < 1e6]
    for name in ("quantity", "size"):
        cases += [[name, x] for x in (*COUNTS, None)]
    cases += [[name, x] for name in ("microseconds", "duration") for x in (*COUNTS, *sized)]
    cases += [["setting", x] for x in (0.001, 1e-5, 0.9, [0.9, 0.999], 5e-324, 123456789.0, None)]
    expected = [getattr(formatting, name)(value) for name, value in cases]
    in_scripts = {"size": "bytes", "duration": "seconds"}
    found: list[str] = run_node(PROGRAM, [[in_scripts.get(name, name), value] for name, value in cases])
    wrong = [(case, text, said) for case, text, said in zip(cases, expected, found, strict=True) if text != said]
    assert not wrong, wrong[:5]


def rows() -> list[Row]:
    stats = TensorStats(numel=8, mean=0.12345, std=math.nan, min=-math.inf, max=3e9, l2=2.0, zeros=1, nan=2, inf=1)
    values = {"fqn": "a", "input_shape": [[2, 3], [4]], "output_shape": [], "macs": 4_089_184_256, "kept": 1536}
    odd = {"input_names": ["", "mask"], "shape": [-1, 3], "params": 1_234_567, "us": 1668.5, "lr": 1e-4, "edited": "x"}
    many = {"fqn": "", "input_shape": None, "input_shapes": [[1], [2], [3], [4]], "output_shapes": [[1], [2]]}
    empty = TensorStats.of_zeros(5)
    return [Row({**values, **odd}, stats), Row({**many, "file": "a.py", "line": 3, "fqns": ["a", "b", "c"]}, empty)]


READ = """
import * as data from "ASSETS/data.js";
import * as format from "ASSETS/format.js";
const [report, shown, columns] = JSON.parse(process.argv[1]);
data.showRows(report, shown);
const texts = report.rows.map((row) => [row[data.SHOWN].mark, ...columns.map((column) => format.cell(row, column))]);
console.log(JSON.stringify(texts));
"""


def test_cells_and_marks_are_those_of_the_terminal() -> None:
    columns = [declared(name) for name in (*dict.fromkeys(name for row in rows() for name in row.flat()), "missing")]
    report = Report("shapes", "net", columns, rows())
    looks = [{"name": column.name, **column.looks()} for column in columns]
    found = run_node(READ, [strict(report.to_dict()), shown_rows(report, faults(report)), looks])
    expected = [[mark(row), *(formatting.cell(row, column) for column in columns)] for row in rows()]
    assert found == expected
