"""Matrices of zeros that are frozen beside others of their low rank, as adapters are that were frozen too early."""

from __future__ import annotations

from collections.abc import Mapping
from operator import ne

from torch import Tensor

from hookcli.capabilities.learn.weights.still import first_values
from hookcli.tensors import tree


def frozen_zeros(parameters: Mapping[str, Tensor]) -> list[str]:
    """The frozen matrices that are all zeros, beside others of their rank, as adapters have, of which none is trained.

    May wait for an accelerator.
    """
    thin = {fqn: p for fqn, p in parameters.items() if is_thin(p)}
    trained = [(last_names(fqn), p.shape) for fqn, p in thin.items() if p.requires_grad]
    frozen = {fqn: p for fqn, p in thin.items() if not p.requires_grad}
    alone = {fqn: p for fqn, p in frozen.items() if (last_names(fqn), p.shape) not in trained}
    zeros = [fqn for fqn, p in alone.items() if has_pair(fqn, frozen) and is_zero(p)]
    return zeros if any(p.requires_grad for p in parameters.values()) else []


def is_zero(matrix: Tensor) -> bool:
    """Waits for an accelerator."""
    return not (first_values(matrix).any() or matrix.detach().any())


def is_thin(matrix: Tensor) -> bool:
    """True for a matrix, or a kernel, in plain memory that has a low rank by its shape."""
    if matrix.dim() < 2 or not tree.is_plain(matrix):
        return False
    rank, size = sorted(matrix.shape[:2])
    return 1 < rank < size


def has_pair(fqn: str, matrices: Mapping[str, Tensor]) -> bool:
    """True if another one of these matrices, not of zeros, comes before it or after it: lora_A (r, N), lora_B (M, r).

    Its name differs in one part. May wait for an accelerator.
    """
    parts, (rows, columns) = fqn.split("."), matrices[fqn].shape[:2]
    fit = [(one, p) for one, p in matrices.items() if p.shape[int(rows < columns)] == min(rows, columns)]
    alike = ((one.split("."), p) for one, p in fit if min(p.shape[:2]) == min(rows, columns))
    pairs = (p for one, p in alike if len(one) == len(parts) and sum(map(ne, one, parts)) == 1)
    return any(bool(first_values(p).any()) for p in pairs)


def last_names(fqn: str) -> list[str]:
    """The name of a parameter; of a module's weight also the module's name."""
    parts = fqn.split(".")
    return parts[-2:] if parts[-1] == "weight" else parts[-1:]
