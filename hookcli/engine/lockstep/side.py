"""The sides of a comparison: their models, the alignment of their modules, and their weights made the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hookcli.diff.align import Alignment, NamedPart, align
from hookcli.engine import failure
from hookcli.engine.lockstep.lockstep import SourceTree
from hookcli.engine.run_info import describe_run
from hookcli.errors import HookcliError, ModelError
from hookcli.hooks.edits.base import Edit
from hookcli.table.meta import Meta

BatchOfBoth = tuple[object, object, object]
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
    info: Meta | None = None

    @property
    def described(self) -> Meta:
        return self.info or describe_run(self.model, self.inputs)


def alignment_of(a: nn.Module, b: nn.Module, operators: Sequence[Sequence[NamedPart]] = ((), ())) -> Alignment:
    """The alignment of the two models' modules, and of the operators of each."""
    parts = [[NamedPart(n, type(m).__name__) for n, m in model.named_modules()] for model in (a, b)]
    return align(*([*modules, *own] for modules, own in zip(parts, operators, strict=True)))


def error_to_raise(errors: Sequence[BaseException | None], sides: Sequence[Side]) -> BaseException | None:
    """The error to raise: that of a side, with the side's letter, else an interrupt; None if both sides succeeded."""
    for number, error in enumerate(errors):
        if error is None or isinstance(error, KeyboardInterrupt):
            continue
        ours = isinstance(error, HookcliError)
        message = str(error if ours else failure.explain(error, sides[number].model))
        labelled = (type(error) if ours else ModelError)(f"{'AB'[number]}: {message}")
        labelled.__cause__ = error
        return labelled
    return next((error for error in errors if error is not None), None)


def copy_weights(a: nn.Module, b: nn.Module, alignment: Alignment) -> str | None:
    """Copy A's parameters and buffers to their counterparts in B, cast and moved. Returns a remark on those left."""
    state = b.state_dict()
    ours = {alignment.counterpart(name): value for name, value in a.state_dict().items()}
    left = []
    with torch.no_grad():
        for name, value in state.items():
            own = ours.get(name)
            if isinstance(value, Tensor):  # extra state belongs to the module
                if isinstance(own, Tensor) and own.shape == value.shape:
                    value.copy_(own)
                else:
                    left.append(name)
    if not left:
        return None
    names = ", ".join(left[:3]) + (", ..." if left[3:] else "")
    return f"--same-weights: {len(left)} of {len(state)} tensors of B have no counterpart of their shape in A ({names})"
