"""Copies models."""

from __future__ import annotations

import copy

import torch
from torch import nn


def copy_model(model: nn.Module) -> nn.Module:
    """A deep copy, whose parameters are leaves with the model's `requires_grad` (TorchScript's would not be)."""
    with torch.no_grad():
        copied_model = copy.deepcopy(model)
    for parameter, own in zip(copied_model.parameters(), model.parameters(), strict=True):
        if parameter.requires_grad != own.requires_grad:
            parameter.requires_grad_(own.requires_grad)
    return copied_model
