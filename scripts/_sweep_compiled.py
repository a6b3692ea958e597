"""Ten small models under torch.compile: what is seen inside of them beside the same models uncompiled.

    scripts/sweep compiled                                  ten models, two backends
    scripts/sweep compiled vit llama --backends aot_eager   these
    scripts/sweep compiled --markdown                       and write their rows into docs/accuracy.md

Each runs in evaluation (activations) and in training (activations, gradients of parameters and of modules' outputs), in
float32 and bfloat16. Rows must equal the written model's, and their statistics within `hookcli diff`'s tolerance
for the dtype; each session may compile the model's programs once more, and nothing else may change: no new graph break,
no hook that stays, no other bit when the model or a twin of it runs again, and under aot_eager none that looks move.
Exits 1 if anything differs.
"""

from __future__ import annotations

import argparse
import datetime as dt
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

from _sweep_fork import in_a_fork
from _sweep_models import COMPILED as MODELS
from _sweep_models import token_models

PAGE = Path(__file__).parents[1] / "docs" / "accuracy.md"
BEGIN, END = "<!-- scripts/sweep compiled --markdown -->\n", "<!-- end of compiled -->"
BY_LATER_USES = {
    ("", '["last_hidden_state"]'),
    *((f"encoder.block.0{part}", "[1]") for part in ("", ".layer.0", ".layer.0.SelfAttention")),
}
"""Rows of gradients that differ as documented: of tensors that are used before they are returned. The pooler of bert
uses what the model returns, and the first attention of t5 the position bias that it makes for all layers."""
BACKENDS = ("aot_eager", "inductor")
DTYPES, MODES = ("float32", "bfloat16"), ("eval", "train")
_COLUMNS = (
    "Faults",
    "Rows",
    "Graphs",
    "Breaks",
    *(f"{dtype}: {what}" for dtype in DTYPES for what in ("apart", "moved")),
)
HEAD = (f"| Model | Backend | {' | '.join(_COLUMNS)} | With |", f"| :--- | :--- |{' ---: |' * len(_COLUMNS)} :--- |")


def compared(name: str, backend: str) -> dict[str, Any]:
    """One model under one backend: its rows, what it took, how far apart its figures are, and all that is at fault."""
    found: dict[str, Any] = {"rows": 0, "graphs": [], "breaks": 0, "apart": {}, "moved": {}, "faults": []}
    for dtype, mode in product(DTYPES, MODES):
        one = _One(name, backend, dtype, mode == "train")
        found["faults"] += [f"{dtype} {mode}: {fault}" for fault in one.faults()]
        found["rows"] += one.rows
        found["graphs"] = sorted({*found["graphs"], one.graphs})
        found["breaks"] = max(found["breaks"], one.breaks)
        found["apart"][dtype] = max(found["apart"].get(dtype, 0.0), one.apart)
        found["moved"].setdefault(dtype, []).append(one.moved)
    return found


class _One:
    """A model compiled, beside itself as written, in one dtype and mode."""

    rows, breaks, apart, graphs, moved = 0, 0, 0.0, "", ""

    def __init__(self, name: str, backend: str, dtype: str, train: bool) -> None:
        import torch
        from torch._dynamo.testing import CompileCounterWithBackend
        from torch._dynamo.utils import counters

        torch._dynamo.reset()
        counters.clear()
        torch.manual_seed(0)
        self._breaks: dict[str, int] = counters["graph_break"]
        self.model, self.train = MODELS[name](name).to(getattr(torch, dtype)).train(train), train
        self.backend = backend
        images = torch.randn(2, 3, 32, 32, dtype=getattr(torch, dtype))
        self.x = torch.randint(0, 64, (2, 12)) if MODELS[name] is token_models else images
        self.counter = CompileCounterWithBackend(backend)
        self.twin = torch.compile(deepcopy(self.model), backend=self.counter)
        self.plain = deepcopy(self.model)
        self.compiled = torch.compile(self.model, backend=self.counter)

    def faults(self) -> Iterator[str]:
        """All that should be as with the model as written, or as before, and is not."""
        eager = self._reports(self.plain, self._loss)
        before = self._left(self.compiled), self._left(self.twin)
        frames, breaks = self.counter.frame_count, sum(self._breaks.values())
        seen = self._reports(self.compiled, self._loss_and_twin)
        self.graphs, self.breaks = f"{frames} + {self.counter.frame_count - frames}", breaks
        if self.counter.frame_count > 2 * frames:
            yield f"{self.graphs} graphs"
        if (again := sum(self._breaks.values())) > 2 * breaks:
            yield f"{breaks} graph breaks, and {again - breaks} with looks"
        frames = self.counter.frame_count
        after = self._left(self.compiled), self._left(self.twin)
        ran = zip(("model", "twin"), before, after, strict=True)
        yield from (f"the {who} runs otherwise" for who, then, now in ran if then != now)
        if self.counter.frame_count != frames:
            yield "the model was compiled again"
        if hooked := [one for one in (*self.model.modules(), *self.model.parameters()) if _hooks(one)]:
            yield f"{len(hooked)} modules and parameters keep hooks"
        self.moved = str(seen[0].meta["compiled"]).partition(": ")[2]
        if self.backend == "aot_eager" and "bit-identical" not in self.moved:  # it fuses nothing
            yield self.moved
        for a, b in zip(eager, seen, strict=True):
            yield from self._differences(a, b)

    def _differences(self, eager: Any, seen: Any) -> Iterator[str]:
        from hookcli.diff.rows import diff

        self.rows += len(seen.rows)
        later = BY_LATER_USES | {_at(row) for row in (*eager.rows, *seen.rows) if row.get("handed_on")}
        later = later if seen.probe == "grads" else set()  # a program tells the gradient by later uses alone
        ours, theirs = (Counter(_place(row) for row in one.rows if _at(row) not in later) for one in (seen, eager))
        if ours != theirs:
            missing, more = [*(theirs - ours).elements()], [*(ours - theirs).elements()]
            yield f"{seen.probe}: {len(missing)} rows are missing and {len(more)} more: {(missing + more)[:3]}"
        skipped = [{one for one in report.skipped if (one.fqn, one.path) not in later} for report in (seen, eager)]
        if skipped[0] != skipped[1]:
            yield f"{seen.probe}: skipped are {[*(skipped[0] ^ skipped[1])][:3]}"
        if seen.probe == "grads" and self.backend == "inductor":  # of zeros but for rounding it may make zeros
            eager, seen = _without_zeros(eager), _without_zeros(seen)
        for row in diff(eager, seen).rows:
            if _at(row) not in later:
                self.apart = max(self.apart, row.get("times") or 0.0)  # a row that is missing has none
                if row.get("differs"):
                    yield f"{seen.probe}: {row.fqn} {row.get('path') or ''}: {row['differs']}"

    def _reports(self, model: Any, loss: Callable[[Any], Any]) -> Any:
        import hookcli
        from hookcli.probes.grads import GradsProbe

        if not self.train:
            return hookcli.capture(model, self.x, probes=["activations"])
        probes = ["activations", GradsProbe("parameters"), GradsProbe("outputs")]
        return hookcli.capture(model, self.x, probes=probes, loss=loss)

    def _loss(self, output: Any) -> Any:
        from hookcli.tensors import tree

        # No sum of squares: behind a layer normalization its gradient is zero but for rounding.
        return sum(x.float().sin().mean() for _, x in tree.leaves(output) if x.requires_grad)

    def _loss_and_twin(self, output: Any) -> Any:
        """The loss, and a run of the twin while the session looks at the model."""
        self._left(self.twin)
        return self._loss(output)

    def _left(self, model: Any) -> list[bytes]:
        """The bits of the outputs and gradients of a plain call."""
        import torch

        from hookcli.tensors import tree

        with torch.set_grad_enabled(self.train):
            output = model(self.x)
            parameters = [*model.parameters()] if self.train else []
            grads = torch.autograd.grad(self._loss(output), parameters, allow_unused=True) if self.train else ()
        left = [*(x for _, x in tree.leaves(output)), *(x for x in grads if x is not None)]
        return [x.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes() for x in left]


def _at(row: Any) -> tuple[str, str]:
    return row.fqn, row.get("path") or ""


def _without_zeros(report: Any) -> Any:
    rows = [replace(row, stats=row.stats and replace(row.stats, zeros=0)) for row in report.rows]
    return replace(report, rows=rows)


def _place(row: Any) -> tuple[Any, ...]:
    names = ("fqn", "kind", "call", "path", "type", "dtype")
    return (*(str(row.get(name)) for name in names), tuple(row.get("shape") or ()))


def _hooks(one: Any) -> bool:
    named = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(one, name, None) for name in (*named, "_post_accumulate_grad_hooks"))


def _cells(one: dict[str, Any]) -> list[str]:
    if "error" in one:
        return [one["error"], *[""] * (len(_COLUMNS) - 1)]
    cells = [str(len(one["faults"])), f"{one['rows']:,}", ", ".join(one["graphs"]), str(one["breaks"])]
    for dtype in DTYPES:
        cells += [f"{one['apart'][dtype]:.2g}", _moved(one["moved"][dtype])]
    return cells


def _moved(said: Sequence[str]) -> str:
    figures = [float(figure) for line in said for figure in re.findall(r"\d\.\de[-+]\d+", line)]
    return f"{max(figures):.1e}" if figures else "no bit" if all("bit-identical" in line for line in said) else "?"


def write_page(rows: Sequence[str]) -> None:
    """Put these rows into the page's table, in place of the rows of the same model and backend."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    old, _, after = rest.partition(END)
    of = {tuple(row.split(" | ")[:2]): row for row in (*old.splitlines(), *rows)}
    order = [(f"| {name}", backend) for backend, name in product(BACKENDS, MODELS)]
    text = "\n".join([*HEAD, *(of[place] for place in order if place in of)])
    PAGE.write_text(f"{before}{BEGIN}\n{text}\n\n{END}{after}")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help=f"{', '.join(MODELS)} [all]")
    parser.add_argument("--backends", nargs="+", default=BACKENDS, help="of torch.compile [aot_eager inductor]")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for one model under one backend")
    parser.add_argument("--markdown", action="store_true", help="write the rows into docs/accuracy.md")
    options = parser.parse_args(arguments)
    for imported in ("torch._dynamo.testing", "timm", "transformers.models.llama", "hookcli.engine.capture"):
        import_module(imported)  # once, and not in each fork
    import_module("torch").set_num_threads(1)  # OpenMP's threads do not survive a fork
    torch, today, bad = version("torch"), dt.date.today().isoformat(), 0
    for backend, name in product(options.backends, options.models or MODELS):
        started = time.perf_counter()
        one = in_a_fork(partial(compared, name, backend), options.timeout)
        row = f"| {name} | {backend} | {' | '.join(_cells(one))} | torch {torch}, {today} |"
        bad += bool("error" in one or one["faults"])
        took = f"{time.perf_counter() - started:.0f} s"
        print(f"{row} {took}", *one.get("faults", ()), sep="\n  ", flush=True)
        if options.markdown:
            write_page([row])
    return int(bad > 0)
