"""Copies of models."""

from __future__ import annotations

import copy

import torch
from torch import nn


def twin(model: nn.Module) -> nn.Module:
    """A deep copy. Parameters of TorchScript would else come as parts of a graph."""
    with torch.no_grad():
        copied_model = copy.deepcopy(model)
    for parameter, own in zip(copied_model.parameters(), model.parameters(), strict=True):
        if parameter.requires_grad != own.requires_grad:
            parameter.requires_grad_(own.requires_grad)
    return copied_model
