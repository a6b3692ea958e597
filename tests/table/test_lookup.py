"""A report's rows, looked up by the names of their modules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from table.test_in_python import REPORT, ROWS

from hookcli.errors import UsageError
from hookcli.table import Row, Skipped


def test_a_layer_is_looked_up_by_its_name() -> None:
    assert REPORT["act"] is ROWS[2] and REPORT[""] is REPORT["(model)"] is REPORT.row("") is ROWS[0]
    assert "act" in REPORT and "shapes" not in REPORT
    (alone,) = REPORT
    assert alone is REPORT[0] is REPORT and not hasattr(REPORT, "__len__")


CALLED = replace(
    REPORT,
    rows=[
        *(Row({"fqn": "body.relu", "call": call, "path": "", "zeros": call}) for call in range(2)),
        *(Row({"fqn": "body.fc", "kind": kind}) for kind in ("output", "input")),
        *(Row({"fqn": "loop", "index": index}) for index in range(2)),
    ],
    skipped=[Skipped("body.idle", "never called")],
)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("body.rleu", {}, "no row of 'body.rleu'; did you mean 'body.relu' or 'body.fc'?"),
        ("relu", {}, "no row of 'relu'; did you mean 'body.relu'?"),
        ("body", {}, "no row of 'body'; did you mean 'body.relu' or 'body.fc'?"),
        ("zzzzzzzzzzz", {}, "no row of 'zzzzzzzzzzz'; there are body.relu, body.fc, loop"),
        ("body.idle", {}, "'body.idle' was not measured: never called"),
        (
            "body.relu",
            {},
            "2 rows of 'body.relu'; choose one, as in report.row('body.relu', call=0); there are call=0 | call=1",
        ),
        (
            "body.relu",
            {"call": 7},
            "no row of 'body.relu' with call=7; choose one, as in report.row('body.relu', call=0)",
        ),
        ("body.fc", {}, "2 rows of 'body.fc'; choose one, as in report.row('body.fc', kind='output')"),
        ("loop", {}, "2 rows of 'loop'; all of them: [row for row in report.rows if row.fqn == 'loop']"),
    ],
)
def test_a_wrong_name_says_what_to_write(name: str, values: dict[str, Any], message: str) -> None:
    for error in (UsageError, KeyError):
        with pytest.raises(error) as raised:
            CALLED.row(name, **values)
        assert str(raised.value).startswith(message)
    assert CALLED.row("body.relu", call=1)["zeros"] == 1
