"""Models that are linear in their input, as no activation function stands between their layers."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor
from torch.autograd.graph import Node

from hookcli.capabilities.learn.losses.loss_facts import leaves_of
from hookcli.hooks.node_hooks import walk
from hookcli.hooks.torch_private.losses import constant_factor
from hookcli.hooks.torch_private.nodes import operator, returned_shape
from hookcli.probes.shared.doubled import ARRANGES
from hookcli.tensors import tree

STEPS = 3  # the first recorded ones
_LAYERS = {"Addmm", "Mm", "Linear", "MkldnnLinear", "Convolution"}
_SUMS = {"Add", "Sub", "Cat", "Stack"}
_SCALES = {"Neg", "Mul", "Div", "Sum", "Mean", "NativeDropout", "NativeBatchNorm", "CudnnBatchNorm", "AccumulateGrad"}
_POOLS = {"AvgPool2D", "AvgPool3D", "AdaptiveAvgPool2D", "MkldnnAdaptiveAvgPool2D", "ConstantPadNd"}
_LINEAR = _LAYERS | _SUMS | _SCALES | _POOLS | ARRANGES
"""The operators that are linear where only one of their inputs is computed, but for a normalization over the batch."""


def may_bend(node: Node) -> bool:
    """True for a factor, or an addend, without gradients, that may be computed from the input, as a ReLU by hand is.

    Masks of dropout are none. May wait for an accelerator.
    """
    if operator(node) in ("Add", "Sub"):
        return node.name().endswith("Backward0") and any(before is None for before, _ in node.next_functions)
    factor = constant_factor(node)
    if factor is None or factor.numel() < 2:
        return False
    most = factor.max()
    return not tree.is_plain(factor) or not bool((most > 1) & ((factor == 0) | (factor == most)).all())


def linear_layers(outputs: Iterable[Tensor]) -> int:
    """The number of layers with weights on the way to these outputs, if all that happens there is linear; else 0."""
    layers = 0
    for node in walk(x.grad_fn for x in outputs if x.grad_fn is not None):
        name, leaves = operator(node), [*leaves_of(node)]
        computed = sum(before is not None for before, _ in node.next_functions) - len(leaves)
        if name not in _LINEAR or (computed > 1 and name not in _SUMS) or may_bend(node):
            return 0
        layers += name in _LAYERS and any(len(returned_shape(leaf)) > 1 for leaf in leaves)
    return layers
