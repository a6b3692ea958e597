"""Tables in pages of the documentation that come from elsewhere, each between two comments that name its source.

<!-- table: hookcli plugins --hooks -->               the kinds of hooks, from `hookcli.hooks.kinds`
<!-- table: hookcli check --list -->                  the checks, from their classes
<!-- table: performance.md: Start -->                 a table that `scripts/bench --markdown` has written
<!-- table: the cost beside other tools -->       a chart of figures in such tables, with their dates
<!-- table: scripts/mutate -->                        the shares of mutants killed that `scripts/mutate` has kept
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex

from _docs_blocks import ROOT

_TABLE = re.compile(r"^<!-- table: ([^\n]*) -->\n.*?^<!-- end -->$", re.MULTILINE | re.DOTALL)


def with_tables(page: str) -> str:
    """Return the page with the tables that its comments name."""
    return _TABLE.sub(lambda found: f"<!-- table: {found[1]} -->\n\n{_table(found[1])}\n<!-- end -->", page)


def _table(source: str) -> str:
    if source.startswith("performance.md: "):
        return _measured(source.removeprefix("performance.md: "))
    if source == "the cost beside other tools":
        return _chart()
    if source == "scripts/mutate":
        return _mutants()
    return _printed(shlex.split(source)[1:])


def _measured(title: str) -> str:
    return _found(title)[0]


def _found(title: str) -> re.Match[str]:
    """The table of this title in docs/performance.md."""
    performance = (ROOT / "docs" / "performance.md").read_text()
    found = re.search(rf"^\*\*{re.escape(title)}\*\* \(.*\)\n\n(?:\|.*\n)+", performance, re.MULTILINE)
    if not found:
        raise ValueError(f"performance.md has no table {title!r}")
    return found


_ACTIVATIONS, _LENS = (f"{what}, resnet50, batch 10, eval" for what in ("Activations", "TorchLens"))
_SHAPES = "Shapes of vit_h_14, as a process"
# The bars of the chart: a heading and the column measured, then names with the table and the row of each figure.
_CHART = {
    ("Statistics of every layer of ResNet-50: time relative to a plain forward", "Ratio"): {
        "plain forward": (_ACTIVATIONS, "plain forward"),
        "hookcli activations": (_ACTIVATIONS, "hookcli activations"),
        "naive hooks (.item())": (_ACTIVATIONS, "naive hooks, six .item() a tensor"),
        "TorchLens, with its table": (_LENS, "torchlens.trace and its stats_table"),
    },
    ("Shapes of ViT-H/14: seconds of a whole command", "Seconds"): {
        "hookcli shapes": (_SHAPES, "hookcli shapes"),
        "torchinfo, on the CPU": (_SHAPES, "torchinfo.summary on CPU"),
        "torchinfo, on meta": (_SHAPES, "torchinfo.summary on meta"),
    },
}
_LONGEST = 40  # characters of a bar
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def _chart() -> str:
    """Bars of measured figures, as text, and when they were measured."""
    lines, titles = ["```text"], {title: None for rows in _CHART.values() for title, _ in rows.values()}
    for (heading, column), rows in _CHART.items():
        measured = {name: _figure(title, row, column) for name, (title, row) in rows.items()}
        figures = {name: figure for name, figure in measured.items() if figure is not None}
        lines += [
            heading,
            *(f"  {n:26}{f:6.2f} {_bar(f / max(figures.values()))}".rstrip() for n, f in figures.items()),
        ]
    places = [found.string[: found.start()].rpartition("\nMeasured on ")[2] for found in map(_found, titles)]
    dates = sorted({place[:10] for place in places})
    loads = sorted({match[1] for place in places if (match := re.search(r"load ([\d.]+)", place))})
    load = " to ".join(dict.fromkeys((loads[0], loads[-1])))
    when = f"Measured by `scripts/bench` on {' and '.join(dates)}, on 2 CPUs under a load of {load}."
    return "\n".join([*lines, "```", "", when, ""])


def _figure(title: str, row: str, column: str) -> float | None:
    """A figure of a table: the first column of this heading, in the row of this name; None before it was measured."""
    heads, _, *cells = ([cell.strip() for cell in line.split("|")[1:-1]] for line in _measured(title).splitlines()[2:])
    return next((float(line[heads.index(column)]) for line in cells if line[0] == row), None)


def _bar(share: float) -> str:
    whole, eighths = divmod(round(share * _LONGEST * 8), 8)
    return "█" * whole + _EIGHTHS[eighths].strip()


def _mutants() -> str:
    shares = json.loads((ROOT / "scripts" / "mutants.json").read_text())
    heading = "| Date | Seed | Mutants | Equivalent | Killed | Share | Most survive in |"
    lines = [heading, "| :--- | ---: | ---: | ---: | ---: | ---: | :--- |"]
    for one in shares:
        killed, judged = (sum(count[at] for count in one["folders"].values()) for at in (0, 1))
        folder, (least, of) = max(one["folders"].items(), key=lambda item: item[1][1] - item[1][0])
        numbers = (one["date"], one["seed"], judged + one["equivalent"], one["equivalent"], killed)
        lines.append(f"| {' | '.join(map(str, numbers))} | {killed / judged:.0%} | `{folder}`: {of - least} of {of} |")
    return "".join(f"{line}\n" for line in lines)


def _printed(arguments: list[str]) -> str:
    from hookcli.cli import main

    with contextlib.redirect_stdout(io.StringIO()) as printed:
        main([*arguments, "--format", "markdown", "--quiet"])
    return "".join(line for line in printed.getvalue().splitlines(keepends=True) if line.startswith("|"))
