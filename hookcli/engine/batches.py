"""Real input, batch by batch: each becomes a model's arguments and, where it has one, a target."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch import nn

from hookcli.engine import failure
from hookcli.engine.inputs import Forward, cast_to, part_of
from hookcli.engine.run_info import model_dtype
from hookcli.engine.setting import Setting
from hookcli.errors import ModelError, UsageError, UserCode, class_name
from hookcli.sources.base import Arguments, Recipe
from hookcli.sources.data.base import AllInput
from hookcli.table.meta import Meta
from hookcli.tensors import tree
from hookcli.tensors.containers import holds_tensors
from hookcli.tensors.random_state import RandomStates, random_states, set_random_states


@dataclass(frozen=True, slots=True)
class Batch:
    """A model's arguments, and a target for its loss; `described` has the arguments' shapes in words."""

    inputs: Arguments
    target: object = None
    described: str = ""


class DataBatches:
    """Data as batches of a model's arguments. Raises ModelError in the user's code, UsageError for unfit batches."""

    def __init__(
        self,
        recipe: Recipe,
        model: nn.Module,
        setting: Setting,
        dtype: torch.dtype | None = None,
        first: Batch | None = None,
    ) -> None:
        assert setting.data is not None
        self._data = setting.data
        self.typed = setting.data.typed
        self._recipe, self._model, self._setting = recipe, model, setting
        self._dtype = dtype or setting.dtype
        self._forward = Forward.of(model)
        self.several = self._data.batches != 1
        self._begun = first is not None  # `each` then opens the data
        self._available: int | None = None
        self.how: Meta = {}
        self._rest: Iterator[Batch] = iter(())
        self._drawn_from: RandomStates | None = None
        if first is None:
            self._drawn_from = random_states(())
            self._rest, self.how = self._opened()
        if (first := first or next(self._rest, None)) is None:
            raise UsageError(f"{self.typed}: has no batch")
        self.first = first

    def each(self) -> Iterator[Batch]:
        """The first batch, then the others; again from the start where they were begun before, in the same order."""
        if self._begun:
            now = random_states(())
            set_random_states((), self._drawn_from or now)  # a loader that shuffles draws its order as it begins
            self._rest, _ = self._opened()
            next(self._rest, None)
            set_random_states((), now)
        self._begun = True
        yield self.first
        yield from self._rest

    def cast(self, device: torch.device, dtype: torch.dtype | None) -> DataBatches:
        """The same batches for a device, cast to `dtype` if it is given; `each` opens the data anew."""
        inputs, target = (cast_to(x, device, dtype) for x in (self.first.inputs, (self.first.target,)))
        first = replace(self.first, inputs=inputs, target=target[0])
        return DataBatches(self._recipe, self._model, replace(self._setting, device=device), dtype, first)

    @property
    def total(self) -> int | None:
        """The number of batches to run, as far as it is known: fewer may come."""
        return min((n for n in (self._data.batches, self._available) if n is not None), default=None)

    def remark_if_short(self, run: int, remark: Callable[[str], object]) -> None:
        """Remark on data that ended before the number of batches that was asked for, or has more than one batch."""
        asked = self._data.batches
        if asked is not None and run < asked:
            remark(f"{self.typed} ended after {run} of {asked} batches")
        elif not self.several and (self._available or 1) > 1:
            remark(f"{self.typed}: only the first of {self._available} batches was run; --batches all runs all of them")

    def _opened(self) -> tuple[Iterator[Batch], Meta]:
        opened = self._data.open(self._recipe, self._setting.batch)
        self._available = opened.total
        return islice(self._made(opened.each), self._data.batches), opened.how

    def _made(self, each: Any) -> Iterator[Batch]:
        number = 0
        with self._user_code("making batch 1 failed"):
            iterator = iter(each)
        while True:
            number += 1
            with self._user_code(f"making batch {number} failed"):
                try:
                    item = next(iterator)
                except StopIteration:
                    return
            try:
                with self._user_code(f"batch {number} can't be given to the model"):
                    batch = self._batch(item)
            except UsageError as error:
                place = f"batch {number}: " if self.several else ""
                raise UsageError(f"{self._data.typed}: {place}{error}", option=error.option) from error
            yield batch

    def _user_code(self, what: str) -> UserCode:
        return UserCode(lambda error: ModelError(f"{self._data.typed}: {what}: {failure.describe(error)}"))

    def _batch(self, item: object) -> Batch:
        inputs, target = self._forward.split(item)
        setting = self._setting
        dtype = self._dtype or model_dtype(self._model)
        inputs = tree.replace(_tensors(inputs, dtype), tree.once(lambda path, x: x.detach()))
        if not any(tree.leaves(inputs)) and not holds_tensors(inputs):
            held = "" if isinstance(item, AllInput) else f", but {class_name(item)}"
            raise UsageError(f"has no tensor for the model{held}")
        inputs = cast_to(part_of(inputs, setting), setting.device, self._dtype)
        (target,) = cast_to(part_of((_tensors(target, dtype),), setting), setting.device, self._dtype)
        shapes = [tree.shape_text(x) for _, x in tree.leaves(inputs)]
        classes = map(class_name, inputs if isinstance(inputs, tuple) else inputs.values())
        return Batch(inputs, target, ", ".join(shapes or classes))


def _tensors(value: object, dtype: torch.dtype | None) -> object:
    """The value with NumPy's arrays as tensors, in their memory if PyTorch can use that. Raises UsageError.

    float64, which NumPy makes by default, is cast to `dtype`.
    """
    if isinstance(value, (tuple, list)) and type(value) in (tuple, list):
        return type(value)(_tensors(item, dtype) for item in value)
    if isinstance(value, dict):
        return {key: _tensors(item, dtype) for key, item in value.items()}
    if type(value).__module__ == "numpy" and hasattr(value, "__array__"):
        import numpy as np

        array = np.asarray(value)
        if not (array.flags.writeable and array.dtype.isnative and all(stride >= 0 for stride in array.strides)):
            array = np.array(
                array, array.dtype.newbyteorder("="), order="C"
            )  # PyTorch can't use, or change, that memory
        try:
            tensor = torch.as_tensor(array)
        except TypeError as error:
            raise UsageError(f"has an array of {array.dtype}, for which PyTorch has no dtype") from error
        return tensor.to(dtype) if tensor.dtype is torch.float64 and dtype else tensor
    return value
