"""A trace for Perfetto (ui.perfetto.dev) and chrome://tracing, in Chrome's trace event format.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from hookcli.reporters.base import Reporter, drawing
from hookcli.system.escaping import visible_json
from hookcli.table import Report, Row, strict
from hookcli.table.columns import names
from hookcli.table.columns.layouts import EVENT_DETAILS
from hookcli.table.grouping import View

# The kind that opens a span and the kind that closes it, each pair on a separate track; other kinds are instants.
_SPANS = {
    "forward_pre": "forward",
    "node_pre": "node",
    "optimizer_step_pre": "optimizer_step_post",
    "state_dict_pre": "state_dict_post",
    "load_state_dict_pre": "load_state_dict_post",
    "optimizer_state_dict_pre": "optimizer_state_dict_post",
    "optimizer_load_state_dict_pre": "optimizer_load_state_dict_post",
}
_ENDS = frozenset(_SPANS.values())
_TRACKS = ("modules", "autograd nodes", "other hooks")


class ChromeReporter(Reporter):
    """Modules and autograd nodes as spans, every other firing as an instant."""

    needs = ("us", "kind")
    commands = drawing("spans")
    then = "open it at https://ui.perfetto.dev"

    def render(self, reports: Sequence[Report], view: View) -> str:
        """Write one JSON document with a process per report."""
        events = []
        for process, report in enumerate(reports, 1):
            events.append(_name("process_name", process, 0, f"hookcli {report.probe} {report.model}"))
            events += [_name("thread_name", process, thread, track) for thread, track in enumerate(_TRACKS)]
            # Requested kinds that did not fire are in `skipped`.
            kinds = {row["kind"] for row in report.rows} | {item.path for item in report.skipped}
            open_spans: dict[int, list[str]] = {0: [], 1: []}
            for row in report.rows:
                title, kind = _title(row), row["kind"]
                thread = 1 if kind.startswith("node") else 0
                spans = open_spans[thread]
                if _SPANS.get(kind) in kinds:
                    spans.append(title)
                    events.append(_event(row, title, "B", process, thread))
                elif kind in _ENDS and title in spans:
                    while (last := spans.pop()) != title:  # what an exception left, and someone caught
                        events.append(_end(last, row["us"], process, thread))
                    events.append(_event(row, title, "E", process, thread))
                else:
                    events.append(_event(row, title, "i", process, 2) | {"s": "t"})
            for thread, spans in open_spans.items():  # the run failed in them
                events += [_end(title, report.rows[-1]["us"], process, thread) for title in reversed(spans)]
        document = {"traceEvents": events, "displayTimeUnit": "ms"}
        return visible_json(json.dumps(strict(document), ensure_ascii=False, allow_nan=False)) + "\n"


def _event(row: Row, title: str, phase: str, process: int, thread: int) -> dict[str, object]:
    where = {"pid": process, "tid": thread}
    details = {key: row.get(key) for key in (*names(EVENT_DETAILS), "edited") if row.get(key) not in (None, "", 0)}
    return {"name": title, "cat": row["kind"], "ph": phase, "ts": row["us"], **where, "args": details}


def _end(title: str, at: float, process: int, thread: int) -> dict[str, object]:
    return {"name": title, "ph": "E", "ts": at, "pid": process, "tid": thread, "args": {"failed": True}}


def _name(what: str, process: int, thread: int, name: str) -> dict[str, object]:
    return {"name": what, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def _title(row: Row) -> str:
    """Return an event's title, which includes the kind of an instant. Both ends of a span have the same title."""
    where = row.fqn or row["type"] or row["name"] or "(model)"
    if row["kind"].startswith("node") and row["kind"] != "node_creation":
        return f"{row['name']} {row.fqn}".rstrip()
    spans = row["kind"] in _SPANS or row["kind"] in _ENDS
    if row["kind"].startswith("forward"):
        return str(where)
    return f"{row['kind'].removesuffix('_pre').removesuffix('_post') if spans else row['kind']} {where}"
