"""Reports read back from files, and what a file can be instead."""

from __future__ import annotations

import json
import math
from itertools import islice
from pathlib import Path

import pytest
from support import damaged, swept

from hookcli.diff.rows import diff
from hookcli.errors import UsageError
from hookcli.reporters.table import TableReporter
from hookcli.table import STATS_COLUMNS, Bar, Column, Kind, Merge, Report, Row, Skipped, TensorStats, document
from hookcli.table.files import looks_saved, read_reports
from hookcli.table.grouping import View

REPORT = Report("shapes", "net", (Column("fqn", "Layer"),), [Row({"fqn": "a", "params": 3})], {"torch": "2.15"})


def test_reports_come_back(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text(json.dumps(document([REPORT, REPORT])))
    found = read_reports(str(file))
    assert len(found) == 2 and found[0].to_dict() == REPORT.to_dict()


WRONG = {
    "": "is empty, not a saved report",
    '{"schema": 1, "repor': "damaged, or not a saved report: not JSON",
    "\x00": "not JSON",
    "[]": "it has no schema number",
    "{}": "it has no schema number",
    '{"schema": 2, "reports": []}': "schema 2 is of a newer hookcli; this one knows 1: upgrade it",
    '{"schema": 1}': "damaged, or not a report of hookcli (no 'reports')",
    '{"schema": 1, "reports": []}': "holds no report",
    '{"schema": 1, "reports": [{"probe": "shapes"}]}': "damaged, or not a report of hookcli (no 'model')",
    '{"schema": 1, "reports": [3]}': "damaged, or not a report of hookcli",
    '{"schema": 1, "reports": {"a": 3}}': "damaged, or not a report of hookcli",
    "[" * 100_000: "not JSON",
}


@pytest.mark.parametrize("text", WRONG, ids=lambda text: repr(text)[:40])
def test_what_is_wrong_with_a_file_is_told(tmp_path: Path, text: str) -> None:
    file = tmp_path / "a.json"
    file.write_text(text)
    with pytest.raises(UsageError) as info:
        read_reports(str(file))
    assert str(file) in str(info.value) and WRONG[text] in str(info.value) and "\n" not in str(info.value)


ENERGY = Column(
    *("energy", "Energy", "joule", Kind.FIGURE),
    merge=Merge.SUM,
    tolerance=0.1,
    drop=3,
    usual=1.5,
    bar=Bar.LOG,
    pair="e",
    aside=("steps",),
)
MEASURED = Report(
    "activations",
    "net",
    (Column("fqn", "Layer"), ENERGY, *STATS_COLUMNS),
    [
        Row({"fqn": "", "type": "Net", "call": 0, "shape": [2, 3], "dtype": "float32"}, TensorStats(6, 1, 1, 0, 2, 3)),
        Row(
            {
                "fqn": "a",
                "type": "ReLU",
                "call": 0,
                "path": "",
                "input_shape": [[2], [3]],
                "params": 3,
                "macs": None,
                "energy": 2.5,
            }
        ),
    ],
    {"dtype": "float32", "loss": "sum", "loss_value": 1.5, "seconds": 1.0},
    {"params": 3},
    [Skipped("b", "never called")],
)


@pytest.mark.parametrize("every", [5, swept(1)])
def test_a_damaged_value_is_told_where_it_is_read(tmp_path: Path, every: int) -> None:
    """What could be read, can be compared and shown."""
    file = tmp_path / "a.json"
    refused = {}
    for place, wrong, text in islice(damaged(document([MEASURED])), 0, None, every):
        file.write_text(json.dumps(text))
        try:
            [found] = read_reports(str(file))
        except UsageError as error:
            refused[place[-1]] = str(error)
            continue
        for pair in ((found, MEASURED), (MEASURED, found)):
            try:
                TableReporter().render([diff(*pair)], View())
            except UsageError:
                continue
            except Exception as error:
                raise AssertionError(f"{place}: {str(wrong)[:40]}: {error!r}") from error
    assert {"meta", "shape", "numel", "l2", "params", "fqn", "rows", "input_shape"} <= refused.keys()
    assert all(said.startswith(f"{file}: ") and "\n" not in said for said in refused.values())


def test_a_damaged_value_is_named(tmp_path: Path) -> None:
    text = json.dumps(document([MEASURED])).replace('"l2": 3', '"l2": []')
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(UsageError, match=r"a.json: damaged, or not a report of hookcli \(l2 can't be '\[\]'\)"):
        read_reports(str(tmp_path / "a.json"))


UNFIT: dict[str, dict[str, object]] = {
    "rows": {
        **dict.fromkeys(("bytes", "kept", "bytes_before", "bytes_after", "params"), -1),
        **{key: [2, 3] for key in ("shapes", "input_shapes", "output_shapes")},
        **{key: [0.1] for key in ("lr", "weight_decay", "momentum")},
        **dict.fromkeys(("betas", "sharded"), 3),
        **dict.fromkeys(("loss", "trainable"), 2**63),
        "mesh": [None],
    },
    "totals": {
        **dict.fromkeys(("macs", "bytes", "param_bytes", "grad_bytes", "optimizer_bytes"), None),
        **dict.fromkeys(("resident_bytes", "peak_bytes", "param_grad", "unclipped_grad", "ratio"), None),
    },
    "columns": {
        **dict.fromkeys(("left", "charted", "required"), 1),
        **dict.fromkeys(("tolerance", "drop", "usual"), math.inf),
        **dict.fromkeys(("kind", "merge", "shown", "bar", "full"), 7),
        "usual": [1],
        "aside": "net",
    },
}


@pytest.mark.parametrize(("part", "key"), [(part, key) for part, values in UNFIT.items() for key in values])
def test_no_value_of_another_type_or_sign_is_taken(tmp_path: Path, part: str, key: str) -> None:
    text = document([MEASURED])
    values = text["reports"][0][part]
    column = next(c for c in text["reports"][0]["columns"] if c["name"] == "energy")
    (values if part == "totals" else values[-1] if part == "rows" else column)[key] = UNFIT[part][key]
    (tmp_path / "a.json").write_text(json.dumps(text))
    with pytest.raises(UsageError, match="damaged, or not a report"):
        read_reports(str(tmp_path / "a.json"))


def test_a_file_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_reports(str(tmp_path / "no.json"))
    with pytest.raises(UsageError, match="a folder, not a file"):
        read_reports(str(tmp_path))
    (tmp_path / "b.json").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="not JSON"):
        read_reports(str(tmp_path / "b.json"))


def test_files_are_told_from_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run").write_text("")
    Path("net.py").write_text("")
    assert looks_saved("run") and looks_saved("gone.json")
    assert not looks_saved("net.py") and not looks_saved("resnet50") and not looks_saved("net.py:Net")
