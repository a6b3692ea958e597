"""One side of a comparison, and the alignment of both sides' modules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from hookcli.diff.align import Alignment, NamedPart, align
from hookcli.engine import failure
from hookcli.engine.lockstep.process_state import SourceTree
from hookcli.engine.run_info import RunInfo, describe_run
from hookcli.errors import HookcliError, ModelError
from hookcli.hooks.edits.base import Edit

BatchOfBoth = tuple[Any, Any, Any]
"""The input of each of two sides, and the target of both."""


@dataclass
class Side:
    """One of two models to compare, and how to run it; `inputs` and `edits` are those of `capture`.

    `compile` is a glob: the outermost modules that match are compiled, each by itself, with `backend`. `tree` has the
    modules imported from the side's own folder. `info` describes the run if `describe_run` does not suffice.
    """

    model: nn.Module
    inputs: Any
    name: str = ""
    fastpath: bool = True
    edits: Sequence[str | Edit] = ()
    compile: str | None = None
    backend: str = "inductor"
    tree: SourceTree | None = None
    info: RunInfo | None = None

    @property
    def described(self) -> RunInfo:
        """The description of its run."""
        return self.info or describe_run(self.model, self.inputs)


def alignment_of(a: nn.Module, b: nn.Module, operators: Sequence[Sequence[NamedPart]] = ((), ())) -> Alignment:
    """The alignment of the two models' modules, and of the operators of each."""
    parts = [[NamedPart(n, type(m).__name__) for n, m in model.named_modules()] for model in (a, b)]
    return align(*([*modules, *own] for modules, own in zip(parts, operators, strict=True)))


def meta_of(side: Side, info: RunInfo) -> dict[str, Any]:
    """The description of its run."""
    return info.to_meta() | ({"compile": side.compile, "backend": side.backend} if side.compile else {})


def share_parts(a: nn.Module, b: nn.Module) -> bool:
    """True if the models share a module or parameter, so that hooks could not tell their runs apart."""
    ours = {id(part) for part in (*a.modules(), *a.parameters())}
    return any(id(part) in ours for part in (*b.modules(), *b.parameters()))


def error_to_raise(errors: Sequence[BaseException | None], sides: Sequence[Side]) -> BaseException | None:
    """The error to raise: that of a side, with the side's letter, else an interrupt; None if both sides succeeded."""
    for number, error in enumerate(errors):
        if error is None or isinstance(error, KeyboardInterrupt):
            continue
        label = "AB"[number]
        ours = isinstance(error, HookcliError)
        said = str(error if ours else failure.explain(error, sides[number].model))
        labelled = (type(error) if ours else ModelError)(f"{label}: {said}")
        labelled.__cause__ = error
        return labelled
    return next((error for error in errors if error is not None), None)
