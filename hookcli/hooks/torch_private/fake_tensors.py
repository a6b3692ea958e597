"""Fake tensors: meta tensors that say they are on the CPU, so that autocast casts them as it does there.

They are many times slower than meta tensors, which autocast leaves alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from hookcli.tensors.torch_private import private

_MODULE = "torch._subclasses.fake_tensor"
_LOST = "mixed precision is not simulated"


def has_values(x: Tensor) -> bool:
    """True unless the tensor is on the meta device, or fake."""
    fake = getattr(sys.modules.get(_MODULE), "FakeTensor", ())  # not imported: that takes long
    return not x.is_meta and not isinstance(x, fake)


class FakeCpu:
    """A mode in which operators take and make such tensors. `available`: this PyTorch has them."""

    def __init__(self) -> None:
        make = private(_MODULE, "FakeTensorMode", None, _LOST)
        self._tensor: Callable[..., Tensor] | None = private(_MODULE, "FakeTensor", None, _LOST)
        self.available = make is not None and self._tensor is not None
        self.mode: AbstractContextManager[object] = (
            make(allow_non_fake_inputs=True) if self.available else nullcontext()
        )
        """To be entered once."""

    def tensor(self, meta: Tensor) -> Tensor:
        """A fake tensor in the place of a meta tensor; others stay as they are."""
        if not meta.is_meta or self._tensor is None:
            return meta
        return self._tensor(self.mode, meta.detach(), torch.device("cpu"))
