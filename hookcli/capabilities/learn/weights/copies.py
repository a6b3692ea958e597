"""Copies of trained models that have the weights, but not the statistics of their normalizations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from hookcli.capabilities.learn.lines import UNCOPIED, Untrained
from hookcli.capabilities.learn.weights.still import first_values
from hookcli.capabilities.learn.weights.wiring import is_untouched
from hookcli.hooks.torch_private.modules import BatchNorm
from hookcli.record.file.record_lines import RecordedStep
from hookcli.record.observe.parts import BegunStep, StepPart

_LIKE = 0.5  # the cosine of the angle between the weights of a copy, or an average, and those of its model


class StepOfCopy(StepPart):
    """A step without gradients of a model that may be a copy of one of the `trained` ones, such as their average."""

    def __init__(self, begun: BegunStep, trained: Iterable[nn.Module]) -> None:
        norms = [*in_eval_mode(begun.module)]
        self._places: Sequence[str] = ()
        self._detail = ""
        if norms and any(is_copy_of(model, norms) and is_near(begun.module, model) for model in trained):
            self._places = [begun.name(fqn) for fqn, _ in norms]
            self._detail = type(norms[0][1]).__name__

    def lines(self, step: RecordedStep, *, scaled: bool) -> Sequence[Untrained]:
        if not self._places:
            return ()
        return [Untrained(step.model, step.step, UNCOPIED, self._places[:1], len(self._places), self._detail)]


def in_eval_mode(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The batch normalizations of a model, by name, if all are in eval mode."""
    norms = [(fqn, module) for fqn, module in model.named_modules() if isinstance(module, BatchNorm)]
    return iter(() if any(norm.training for _, norm in norms) else norms)


def is_copy_of(model: nn.Module, norms: Sequence[tuple[str, nn.Module]]) -> bool:
    """True if these normalizations have trained weights and untouched statistics, and those of the model gathered some.

    A bias begins as one number, so that one with several was copied: a model that nothing has trained is evaluated on
    purpose. May wait for an accelerator.
    """
    gathered = [module for module in model.modules() if isinstance(module, BatchNorm)]
    return (
        len(gathered) == len(norms)
        and all(is_untouched(norm) and has_bias(norm) for _, norm in norms)
        and all(one.weight.shape == norm.weight.shape for one, (_, norm) in zip(gathered, norms, strict=True))
        and not any(map(is_untouched, gathered))
    )


def has_bias(norm: Any) -> bool:
    """True if a normalization has a bias of several numbers. Waits for an accelerator."""
    return norm.bias is not None and bool((norm.bias != norm.bias[0]).any())


def is_near(model: nn.Module, trained: nn.Module) -> bool:
    """True if the matrices of a model are like those of the trained one. May wait for an accelerator."""
    mine, its = ([first_values(p) for p in one.parameters() if p.dim() > 1] for one in (model, trained))
    pairs = [(a.float(), b.float()) for a, b in zip(mine, its, strict=False) if a.shape == b.shape]
    if not pairs:
        return False
    ours, theirs = map(torch.cat, zip(*pairs, strict=True))
    return float(torch.cosine_similarity(ours, theirs, dim=0)) > _LIKE
