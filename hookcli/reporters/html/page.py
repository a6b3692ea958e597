"""The page: one HTML file with its styles, scripts and data inside, which loads nothing and runs nothing else."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from html import escape
from importlib.metadata import version
from typing import Any

from hookcli.registry.capability import capabilities
from hookcli.reporters import footer, table_columns
from hookcli.reporters.findings import rule
from hookcli.reporters.html.compared import Comparison
from hookcli.reporters.html.facts import heads
from hookcli.reporters.html.joined import beside
from hookcli.reporters.html.scripts import asset, programs, styles
from hookcli.reporters.html.static_table import STYLE, static_table
from hookcli.system.escaping import visible, visible_json, visible_lines
from hookcli.table import Kind, Report
from hookcli.table.columns import from_dict, looks
from hookcli.table.columns.recorded import CHARTED
from hookcli.table.grouping import View
from hookcli.table.marks import alarm, faults, with_verdict, worst
from hookcli.table.meta import with_notes
from hookcli.table.strict_json import document_text

_LONG = 2000  # rows of a report that takes long to group
_FEWEST = 20  # rows of a static table that is one of many
_STATIC_ROWS = 200  # of all static tables together; they are for browsers without scripts
_PAGE = """\
<!doctype html>
<html lang="en"{compact}>
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="hookcli {version}">
<meta name="dcterms.created" content="{created}">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<div id="app"></div>
<noscript>
{static}
</noscript>
<script id="data" type="application/gzip;base64">{data}</script>
{scripts}
</body>
</html>
"""


def page(payload: Mapping[str, Any], view: View | None = None, *, compact: bool = False) -> str:
    """Return the page that shows a payload: `kind`, `title`, `reports` as in a JSON document, and what the kinds of
    page add (`steps`, `live`). The explanations of checks, the lines around tables, and the declarations of columns are
    added here, unless the payload has these.

    `view` has the columns, the depth and the order that were asked for. `compact` is for a frame in a notebook.
    """
    view = view or View()
    reports = [Report.from_dict(item) for item in payload["reports"]]
    style = f"{styles()}\n{STYLE}" + (asset("vendor/uPlot.min.css") if _charts(payload) else "")
    probes = {report.probe for report in reports}
    needed = dict.fromkeys(one.library for one in capabilities() if one.library and one.name in probes)
    libraries = [_library("uPlot", "uPlot.iife.min.js")] * _charts(payload)
    libraries += [_library(name, f"{name}.min.js") for name in needed]
    scripts = [*map(_enclosable, libraries)]
    modules = [*map(_enclosable, programs())]
    # The Content-Security-Policy: these scripts and this style run, nothing is loaded, nothing is sent.
    allowed = " ".join(dict.fromkeys(_hash(script) for script in (*scripts, *modules)))
    connect = ["connect-src 'self'"] * bool(payload.get("live"))
    rules = ["default-src 'none'", f"script-src {allowed}", f"style-src {_hash(style)}", "img-src data: blob:"]
    static = replace(view, height=view.height or max(_STATIC_ROWS // max(len(reports), 1), _FEWEST))
    return _PAGE.format(
        compact=" data-compact" * compact,
        policy="; ".join([*rules, *connect, "base-uri 'none'", "form-action 'none'"]),
        version=escape(version("hookcli")),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        title=escape(visible(str(payload["title"]))),
        style=style,
        static="\n".join(
            [*faulty(payload), *(static_table(_begun(report), static, style=False) for report in reports)]
        ),
        data=_data(payload, reports, view),
        scripts="\n".join(
            [*(f"<script>{s}</script>" for s in scripts), *(f'<script type="module">{m}</script>' for m in modules)]
        ),
    )


def faulty(payload: Mapping[str, Any]) -> list[str]:
    """The lines on what is wrong with a run, for browsers without scripts."""
    lines = payload["steps"]["faults"] if payload.get("steps") else []
    return [f"<p><strong>{escape(visible(text))}</strong></p>" for text in lines]


def shown_columns(documents: Sequence[Mapping[str, Any]], names: Iterable[str] = ()) -> dict[str, dict[str, Any]]:
    """How the page shows each column of reports in JSON, each key of their rows, and columns of these names."""
    declared = [from_dict(column) for report in documents for column in report["columns"]]
    keys: set[str] = set().union(*(row for report in documents for row in report["rows"]))
    keys |= {"calls", *names, *(column.name for column in declared)}  # calls are counted by the page
    return looks(keys, declared)


def _explained(reports: Sequence[Report]) -> dict[str, dict[str, str]]:
    """Return the explanation of each check that found something, by its id: its name, text, cause and advice."""
    checks = {finding.check: rule(finding.check) for report in reports for finding in report.findings}
    return {
        name: {"name": check.name, "text": check.explanation(), "means": check.means, "advice": check.advice}
        for name, check in checks.items()
        if check
    }


def _library(name: str, file: str) -> str:
    """A library with its licence, without the line that names a source map."""
    code = asset(f"vendor/{file}").partition("\n//# sourceMappingURL")[0]
    return f"/* {asset(f'vendor/{name}.LICENSE.txt').strip()} */\n{code}"


def _charts(payload: Mapping[str, Any]) -> bool:
    """True if there is something to chart: statistics, differences, or steps."""
    reports = payload["reports"]
    columns = [from_dict(column) for report in reports for column in report["columns"]]
    measured = any(column.about == "output" or column.kind == Kind.LOSS for column in columns)
    held = ("l2" in row for report in reports for row in report["rows"])  # also where --columns leaves it out
    drawn = any(report["probe"] == "diff" or report.get("grouping") == "moments" for report in reports)
    return bool(payload.get("steps")) or drawn or measured or any(held)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _enclosable(script: str) -> str:
    """The script, which must not end its element: our own files and pinned ones never do."""
    lowered = script.lower()
    if "</script" in lowered or "<!--" in lowered or "\r" in script:
        raise ValueError("a script of the page would end its element")
    return script


def _data(payload: Mapping[str, Any], reports: Sequence[Report], view: View) -> str:
    """The document as --format json writes it, then what else the page shows, compressed, as text."""
    document = document_text({"schema": payload["schema"], "reports": payload["reports"]})
    rest = {key: value for key, value in payload.items() if key not in ("schema", "reports")}
    depth = view.depth if view.depth is not None and view.depth < float("inf") else None
    asked = {"columns": list(view.columns), "sort": view.sort, "depth": depth, "all": view.depth == float("inf")}
    lines = []
    for report in reports:  # around its table, as the terminal has them
        totals = [visible_lines(text) for text in footer.totals_below(report, python=True)]
        judged = with_verdict(report)
        row_faults = [*filter(None, faults(judged))]
        first = asdict(worst(row_faults, report.tree)[0]) if row_faults else {}
        notes = (*footer.remarks(report), *table_columns.notes(report, report.columns))
        lines.append(
            {
                "verdict": visible(str(judged.totals.get("verdict", ""))),
                "alarms": bool(alarm(judged)),
                "run": visible(footer.run_line(report)),
                "totals": [line for text in totals for line in text.split("\n")],
                "remarks": [visible(line) for line in notes],
                "next": visible(footer.next_line([report])),
                "worst": {name: visible(text) for name, text in first.items()} or None,
            }
        )
    rest |= {"hookcli": version("hookcli"), "explain": _explained(reports), "lines": lines, "view": asked}
    rest |= {"charted": CHARTED, "compared": Comparison(reports, payload["reports"]).payload()}
    rest.setdefault("columns", shown_columns(payload["reports"]))
    rest["heads"] = heads(reports, str(rest["kind"]))
    if "joined" not in rest:
        rest |= beside(reports, kind=str(rest["kind"]))
    text = f"{document}\0{visible_json(json.dumps(rest, allow_nan=False, ensure_ascii=False))}"
    packed = gzip.compress(text.encode("utf-8", "backslashreplace"), mtime=0)
    return base64.b64encode(packed).decode()


def _begun(report: Report) -> Report:
    """The report, or the first rows of a long one, which takes long to group."""
    if len(report.rows) <= _LONG:
        return report
    note = f"the first {_STATIC_ROWS} of {len(report.rows):,} rows; with scripts the page shows all"
    return replace(report, rows=report.rows[:_STATIC_ROWS], meta=with_notes(report.meta, note))
