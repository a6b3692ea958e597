"""Two records of models that have little in common: what of their steps can be compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hookcli.diff.align import NamedPart, align
from hookcli.record.file.record_lines import RecordedStep
from hookcli.record.file.views.overview import overview
from hookcli.system.escaping import shell_path
from hookcli.table import Report, Row
from hookcli.table.columns.comparison import WHOLE_MODELS
from hookcli.table.columns.recorded import WHOLE_MODEL_DIFF
from hookcli.table.formatting import counted
from hookcli.table.meta import Meta

_ALIKE = 0.5  # share of the smaller model's modules
_SHOWN = 10  # steps
_SIDES = tuple((c.name, *c.name.split("_", 1)) for c in WHOLE_MODELS)
"""The columns of figures, each with its side and the name of the figure."""
Steps = tuple[RecordedStep, RecordedStep]


def are_different(a: RecordedStep, b: RecordedStep) -> bool:
    """True if fewer than half of the smaller model's modules have one of their kind in the other model.

    These have the same class, and the same name, last name or output shape.
    """
    shapes = [_modules(step) for step in (a, b)]
    fewest = min(map(len, shapes))
    alignment = align(*shapes)
    alike = 0
    for x, y in alignment.pairs:
        same_name = x.fqn.rpartition(".")[2] == y.fqn.rpartition(".")[2]
        alike += x.type == y.type and (same_name or shapes[0][x] == shapes[1][y])
    return fewest > 0 and alike < _ALIKE * fewest


def _modules(step: RecordedStep) -> dict[NamedPart, object]:
    """The modules within the model, in the order in which they ran, with the shapes of their outputs."""
    rows = [row for row in step.rows("activations") if row.fqn]
    parts = {NamedPart(row.fqn, str(row.get("type"))): row.get("shape") for row in rows}
    return {place: shape for place, shape in parts.items() if not place.is_operator}


def whole_models(steps: Sequence[Steps], meta: Meta, better: Mapping[str, str]) -> Report:
    """The figures of the whole models in some of their steps, evenly spread; `meta`: the comparison's, and
    `better` the totals on their losses, if they have any.
    """
    a, b = steps[0]
    every = max(-(-len(steps) // _SHOWN), 1)
    shown = [pair for place, pair in enumerate(steps) if place % every == 0 or pair is steps[-1]]
    sizes = (
        f"{label} has {step.model} with {counted(len(_modules(step)) + 1, 'module')}"
        for label, step in (("A", a), ("B", b))
    )
    paths = " --against ".join(shell_path(side["record"]) for side in (meta["a"], meta["b"]))
    different = f"these are different models, so modules are not compared: {' and '.join(sizes)}"
    totals = {
        "steps": len(steps),
        **({**better, "first": different} if better else {"verdict": different}),
        "grew": f"comparable are the figures of the whole models; charts of both: hookcli show {paths}",
    }
    rows = [_row(*pair) for pair in shown]
    name = f"{a.model} and {b.model}"
    return Report("diff", name, WHOLE_MODEL_DIFF, rows, {**meta, "different_models": True}, totals, grouping="list")


def _row(a: RecordedStep, b: RecordedStep) -> Row:
    totals = {
        side: {**overview(step).totals, "loss": step.loss, "seconds": step.plain_seconds or step.seconds}
        for side, step in (("a", a), ("b", b))
    }
    figures = {name: totals[side].get(figure) for name, side, figure in _SIDES}
    return Row({"step": a.step, "phase": a.phase.replace("_", " "), **figures})
