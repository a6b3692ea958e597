"""Names and texts that are not meant well: for terminals, and for pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from hookcli.table import STATS_COLUMNS, Column, Finding, Report, Row, Skipped, TensorStats, columns_named

Cli = Callable[..., Any]

RUN = "window.ran=1"
"""The script that hostile names carry; a test asks whether it ran."""

MARKUP = (
    f"<script>{RUN}</script>",
    f"</script><script>{RUN}</script>",
    f"<!--<script>{RUN}//",
    f"-->{RUN}<!--",
    f"]]><script>{RUN}</script>",
    f'"><img src=x onerror={RUN}>',
    f"'><svg onload={RUN}>",
    f"javascript:{RUN}",
    f"</style><script>{RUN}</script>",
    f"</noscript><script>{RUN}</script>",
    f"</title><script>{RUN}</script>",
    f'" onmouseover="{RUN}" autofocus onfocus="{RUN}',
    f"${{{RUN}}}`;{RUN}//",
    f"';{RUN}//",
    f"\\u003cscript>{RUN}\\u003c/script>",
    "&lt;b&gt;&amp;&#x3c;",
    "line\u2028sep\u2029ara\x85tor",
    "\x00\x07\x1b[2J\x9b31m\x7f",
    "\u202egnp.eman\u2066\u200f",
    "\ud800lone",
    "x" * 10_000,
    "__proto__",
    "constructor",
    "toString",
    "hasOwnProperty",
    "__proto__.polluted",
    "url(https://example.invalid/x)",
    "https://example.invalid/",
    "//example.invalid/x",
    "={{constructor.constructor('window.ran=1')()}}",
)
"""Names that are markup, scripts, addresses or JavaScript's own, each for a module, type or message."""


_STATS = TensorStats(4, 1.0, 1.0, -1.0, 2.0, 3.0)


def hostile_reports() -> dict[str, list[Report]]:
    """Reports by the kind of page that shows them, with each of these names wherever a name or a text may be."""
    measured = [
        _of_modules("activations", "activations", STATS_COLUMNS, _STATS),
        _of_modules("shapes", "shapes", columns_named("input_shape", "output_shape", "params", "macs", "kept")),
        *(_of_modules("grads", kind, STATS_COLUMNS, _STATS, kind=kind) for kind in ("parameter", "output")),
    ]
    columns = [Column(name, name) for name in MARKUP]
    plugin = Report("plugin", MARKUP[0], columns, [Row(dict(zip(MARKUP, MARKUP, strict=True)))])
    sides = [replace(report, meta={**report.meta, "side": side}) for side in "ab" for report in measured]
    return {
        "reports": [*measured[:3], plugin],
        "model": [replace(report, model=MARKUP[0]) for report in (_findings(), *measured, _flow())],
        "diff": [_differences(), *sides],
    }


def _flow() -> Report:
    """A chain of calls."""
    calls = enumerate(("input", *MARKUP, "output"))
    rows = [
        Row(
            {
                "id": i,
                "kind": name if name in ("input", "output") else "module",
                "fqn": "" if name in ("input", "output") else name,
            }
            | {"type": name, "number": None, "call": 0, "inputs": [i - 1] if i else [], "dtype": name}
            | {"input_shapes": [[4]] if i else [], "output_shape": [4]}
        )
        for i, name in calls
    ]
    columns = columns_named(
        "id", "kind", "fqn", "type", "number", "call", "inputs", "input_shapes", "output_shape", "dtype"
    )
    return Report("flow", MARKUP[0], columns, rows, grouping="disjoint")


def _of_modules(
    probe: str, title: str, columns: Sequence[Column], stats: TensorStats | None = None, **more: Any
) -> Report:
    rows = [
        Row(
            {"fqn": name, "type": name, "path": name, "note": name, "dtype": name, "shape": [4], "input_names": [name]}
            | _SIZES
            | more,
            stats,
        )
        for name in ("", *MARKUP, *(f"parent.{name}" for name in MARKUP))
    ]
    meta = {
        "input": MARKUP[1],
        "device": MARKUP[5],
        "notes": list(MARKUP),
        "next": MARKUP[6],
        **dict.fromkeys(MARKUP, MARKUP[0]),
    }
    skipped = [Skipped(name, name, path=name) for name in MARKUP]
    known = columns_named("fqn", "type", "kind", "path", "note", "shape", "dtype")
    return Report(
        probe, f"{title} {MARKUP[1]}", (*known, *columns), rows, meta, dict.fromkeys(MARKUP, MARKUP[0]), skipped
    )


_SIZES = {
    "call": 0,
    "index": 0,
    "depth": 1,
    "input_shape": [2, 3],
    "output_shape": [4],
    "params": 7,
    "macs": 8,
    "kept": 9,
}


def _findings() -> Report:
    columns = columns_named("check", "severity", "fqn", "message", "hint")
    found = [
        Finding(name, "error", name, name, hint=name, remedy=name, cause=name, file=name, line=1) for name in MARKUP
    ]
    found.append(Finding("HK010", MARKUP[5], "__proto__", MARKUP[0], remedy=MARKUP[1]))
    rows = [
        Row({"check": f.check, "severity": f.severity, "fqn": f.fqn, "message": f.message, "hint": f.hint})
        for f in found
    ]
    totals = {"errors": len(found), "warnings": 0, "checks": 1, "modules": 1}
    return Report("check", MARKUP[1], columns, rows, {"checks": list(MARKUP), "error": MARKUP[0]}, totals, (), found)


def _differences() -> Report:
    values = {"kind": "output", "call": 0, "path": MARKUP[5], "shape": [4], "rel_l2": 1.0, "times": 3.0, "beyond": True}
    rows = [Row(values | {"fqn": name, "type": name, "differs": name, "change": name}) for name in MARKUP]
    totals = {
        "compared": len(rows),
        "beyond": len(rows),
        **dict.fromkeys(("verdict", "structure", "weights", "settings"), MARKUP[0]),
    }
    found = [Finding("diff", "error", MARKUP[0], MARKUP[0], 3.0, 1.0)]
    columns = columns_named("fqn", "type", "kind", "path", "shape", "rel_l2", "times")
    return Report(
        "diff", MARKUP[1], columns, rows, {"rtol": MARKUP[0], "a": {}, "b": {}, "next": MARKUP[0]}, totals, (), found
    )
