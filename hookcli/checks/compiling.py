"""HK039 to HK043: graph breaks, recompilations and functions that stay uncompiled under torch.compile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from hookcli.checks.base import ERROR, Check, Threshold
from hookcli.table import INFO, Finding, Skipped
from hookcli.table.compilation import Compilation, LeftEager, Recompiled
from hookcli.table.formatting import counted

_SIZES = "torch.compile(dynamic=True), or mark_dynamic on that dimension, compiles once for all sizes"


class _ReadsCompilation(Protocol):
    compilation: Compilation


class _OfCompiled(Check):
    """A check of a compiled run."""

    asked_by = "--compile"
    needs = ("compilation",)

    def at(self, place: str, message: str, value: float | None = None, advice: str = "") -> Finding:
        """A finding at a line of code, such as net.py:31."""
        file, _, line = place.rpartition(":")
        located = replace(self.finding("", message, value), remedy=advice or self.advice)
        here = not Path(file).is_absolute() and line.isdigit() and Path(file).is_file()
        return replace(located, file=file, line=int(line)) if here else located


def _named(one: Recompiled | LeftEager) -> str:
    return f"{one.function} ({one.place})" if one.place else one.function


class GraphBroken(_OfCompiled):
    """torch.compile could not trace a line, so it compiled what comes before and after it as separate graphs.

    The line itself runs in Python. Each break costs time at every call: kernels are not fused across it, values pass
    through Python, and on an accelerator the host may have to wait for the device. The finding names the innermost line
    of your own code, the reason, and the library's line that could not be traced, if it is one. PyTorch may meet a line
    twice, while it traces the caller and while it traces the function itself; it counts once. With
    `torch.compile(fullgraph=True)` a break is an exception. `hookcli check` looks for breaks with --compile.
    """

    id = "HK039"
    name = "graph-break"
    means = "a print, .item(), a branch on a tensor's value, or a call of a library that torch.compile can't trace"
    advice = "move it out of compiled code; TORCH_LOGS=graph_breaks shows more"

    def judge(self, measured: _ReadsCompilation) -> Iterator[Finding]:
        for one in measured.compilation.breaks:
            at = " at " if one.place else ": "
            yield self.at(one.place, f"graph break{at}{one}", advice=one.advice)


class CompiledAgain(_OfCompiled):
    """torch.compile compiled a function again, since a guard on its inputs or on the module's attributes failed.

    Compiled code holds only as long as its guards do: sizes, dtypes, and Python numbers and flags that were constants
    when it was compiled. `hookcli check --compile` runs the compiled model on its batch until nothing is compiled any
    more (10 times at most), then on a batch with one item more, and on one with two items more. One recompilation for
    another size is torch.compile's default: the second time it compiles for any size. That is a remark (severity info);
    `dynamic=True` or `mark_dynamic` saves it. Any other takes as long as the first compilation, whenever
    the guarded value changes.
    """

    id = "HK040"
    name = "recompiled"
    means = "an attribute or argument that changes from call to call (a counter, a length, a flag)"
    advice = "make it a tensor or a buffer, or keep it constant"

    def judge(self, measured: _ReadsCompilation) -> Iterator[Finding | Skipped]:
        for one in measured.compilation.recompiled:
            often = "once" if one.times == 1 else f"{one.times} times"
            message = f"{_named(one)} was recompiled {often}, guard that failed: {one.why}"
            if one.sizes and one.most == 1:
                message = f"{_named(one)} was compiled once more, for other sizes: {one.why}"
            finding = self.at(one.place, message, one.times, advice=_SIZES if one.sizes else "")
            yield replace(finding, severity=INFO) if one.sizes and one.most == 1 else finding
        if why := measured.compilation.untried:
            yield Skipped(f"{self.id} {self.name}", f"not judged on other batch sizes: {why}")


class RecompileLimit(_OfCompiled):
    """torch.compile compiled a function as often as its limit allows, and runs it uncompiled from then on.

    The limit is `recompile_limit` in its configuration (8 by default). Calls for which code was compiled keep using it;
    all others run as without torch.compile, after all the time that went into compiling. In training this is often a
    step counter, a learning rate as a Python number, or a length that differs from batch to batch.
    """

    id = "HK041"
    name = "recompile-limit"
    severity = ERROR
    means = "a Python number or size that is new in each call"
    advice = "make it a tensor, pad to few lengths, or compile with dynamic=True"

    def judge(self, measured: _ReadsCompilation) -> Iterator[Finding]:
        for one in measured.compilation.eager:
            if one.limit:
                yield self.at(one.place, f"{_named(one)} runs uncompiled: {one.reason}")


class LeftUncompiled(_OfCompiled):
    """torch.compile gave up a whole function, which runs as without torch.compile.

    It does so where it can't go on after a graph break: within a loop, a try block, or a context manager. What the
    function calls may still be compiled. The finding names the function, and the line that broke the graph. Where
    nothing was compiled at all, there is a finding, too.
    """

    id = "HK042"
    name = "left-eager"
    means = "a graph break within a loop, a try block or a context manager"
    advice = "move what breaks the graph, or the loop around it, elsewhere"

    def judge(self, measured: _ReadsCompilation) -> Iterator[Finding]:
        left = [one for one in measured.compilation.eager if not one.limit]
        for one in left:
            yield self.at(one.place, f"{_named(one)} runs uncompiled: {one.reason}")
        if not (measured.compilation.graphs or measured.compilation.eager):
            yield self.finding("", "torch.compile compiled nothing: no part of the model became a graph")


class TooManyBreaks(_OfCompiled):
    """There are more graph breaks than --max-graph-breaks allows; each line counts once.

    0 demands a model that compiles as one graph, as `torch.compile(fullgraph=True)` does.
    """

    id = "HK043"
    name = "max-graph-breaks"
    severity = ERROR
    asked_by = "--max-graph-breaks"
    means = "a new line that torch.compile can't trace"
    advice = "see the findings of HK039"
    threshold = Threshold("graph breaks of a compiled run", None, unit="count")

    def judge(self, measured: _ReadsCompilation) -> Iterator[Finding]:
        number = len(measured.compilation.breaks)
        if self.limit is not None and number > self.limit:
            yield self.finding("", f"{counted(number, 'graph break')}, allowed: {self.limit:g}", number)
