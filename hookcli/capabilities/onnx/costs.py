"""Multiply-accumulates of ONNX's operators, by PyTorch's convention: those that multiply no matrices count 0."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

Shape = tuple[int, ...]
_FILTERS = {"Conv": 1, "FusedConv": 1, "ConvInteger": 1, "DeformConv": 1, "QLinearConv": 3, "ConvTranspose": 1}
_PRODUCTS = {"MatMul", "MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "FusedMatMul", "MatMulNBits"}
_PRODUCTS |= {"QLinearMatMul", "Gemm", "FusedGemm", "QGemm"}
_RECURRENT = {"LSTM", "GRU", "RNN"}
_UNKNOWN = {"If", "Loop", "Scan", "SequenceMap", "Attention", "MultiHeadAttention", "GroupQueryAttention", "QAttention"}
_UNKNOWN |= {"PackedAttention", "SparseAttention", "LinearAttention", "MoE", "QMoE", "DFT", "TreeEnsemble"}
_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")


def multiplies(node: Any) -> bool:
    """True for an operator that has much to compute: it may count more than 0."""
    return node.op_type in {*_FILTERS, *_PRODUCTS, *_RECURRENT, *_UNKNOWN, "Einsum"}


def macs(node: Any, inputs: Sequence[Shape | None], output: Shape) -> int | None:
    """The multiply-accumulates of a node, given the shapes of its inputs and of its first output; None if unknown.

    Formulas of the operators' definitions (https://onnx.ai/onnx/operators); a bias counts 0, as in PyTorch.
    """
    kind = node.op_type
    if kind in _UNKNOWN or node.domain not in _DOMAINS:
        return None
    sizes = [shape or (0, 0) for shape in inputs]
    if kind in _FILTERS:
        # Each element of the output (of the input, where a convolution is transposed) meets one filter.
        return math.prod(sizes[0] if kind == "ConvTranspose" else output) * math.prod(sizes[_FILTERS[kind]][1:])
    if kind in _PRODUCTS:
        transposed = any(one.name == "transA" and one.i for one in node.attribute)
        return math.prod(output) * sizes[0][-2 if transposed else -1]
    if kind in _RECURRENT:
        return math.prod(sizes[0][:2]) * (math.prod(sizes[1]) + math.prod(sizes[2]))  # each step of each sequence
    return einsum_macs(node, inputs) if kind == "Einsum" else 0


def einsum_macs(node: Any, inputs: Sequence[Shape | None]) -> int | None:
    """The product of all sizes that an equation of two factors names; None for more factors, and for an ellipsis."""
    equation = next((one.s.decode() for one in node.attribute if one.name == "equation"), "").replace(" ", "")
    terms = equation.partition("->")[0].split(",")
    if len(terms) == 1:
        return 0
    if len(terms) > 2 or "." in equation:
        return None
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, inputs, strict=False):
        sizes |= dict(zip(term, shape or (), strict=False))
    return math.prod(sizes.values())
