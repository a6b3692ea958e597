"""The cost of operators and functions: formulas where PyTorch's flop counter has none, and names that count 0."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import shape_wrapper

from hookcli.hooks.torch_private.meta_operators import fused_attention
from hookcli.hooks.torch_private.overrides import OpOverloadPacket

aten = torch.ops.aten
Size = Sequence[int]
_NO_PRODUCT = (0.0, 1.0, float("inf"))  # norms whose distances multiply nothing


def _mm(a: Size, b: Size, *_: object, **__: object) -> int:
    return 2 * prod(a) * b[-1]


def _trilinear(
    a: Size, weight: Size, b: Size, e1: Size, e2: Size, e3: Size, sumdim: Size, *_: object, **__: object
) -> int:
    """x A y for each output: x A, then its product with y. Sizes are those after the `expand` dimensions are put in."""
    whole = [list(shape) for shape in (a, weight, b)]
    for shape, put in zip(whole, (e1, e2, e3), strict=True):
        for dimension in sorted(put):
            shape.insert(dimension, 1)
    sizes = [max(triple) for triple in zip(*whole, strict=True)]
    summed_first = [i for i in sumdim if whole[2][i] == 1]
    first: int = prod(sizes)
    second: int = first // prod(sizes[i] for i in summed_first)
    return 2 * (first + second)


def _cdist(a: Size, b: Size, p: float = 2.0, *_: object, **__: object) -> int:
    """A square or power for each coordinate of each pair; no product where p is 0, 1 or infinite."""
    if p in _NO_PRODUCT:
        return 0
    batch = prod(int(size) for size in torch.broadcast_shapes(a[:-2], b[:-2]))
    return 2 * batch * a[-2] * b[-2] * a[-1]


def _conv_of(x: Size, weight: Size, *_: object, out_shape: Size, **__: object) -> int:
    return 2 * prod(out_shape) * prod(weight[1:])


_BY_SHAPES: dict[str, Callable[..., int]] = {
    "mv": lambda matrix, vector, **_: 2 * prod(matrix),
    "addmv": lambda added, matrix, vector, **_: 2 * prod(matrix),
    "dot": lambda a, b, **_: 2 * prod(a),
    "vdot": lambda a, b, **_: 2 * prod(a),
    "addr": lambda added, a, b, **_: 2 * prod(a) * prod(b),
    "addbmm": lambda added, a, b, **_: 2 * prod(a) * b[-1],
    "_addmm_activation": lambda added, a, b, **_: _mm(a, b),
    "_sparse_addmm": lambda added, a, b, **_: _mm(a, b),
    "_int_mm": _mm,
    "_weight_int8pack_mm": lambda a, transposed, *_, **__: 2 * prod(a) * transposed[0],
    "_trilinear": _trilinear,
    "_cdist_forward": _cdist,
    "_euclidean_dist": lambda a, b, **_: _cdist(a, b),
    "_pdist_forward": lambda a, p=2.0, **_: 0 if p in _NO_PRODUCT else a[0] * (a[0] - 1) * a[1],
    "conv_tbc": lambda x, weight, *_, out_shape, **__: 2 * prod(out_shape) * weight[0] * weight[1],
    "_conv_depthwise2d": _conv_of,
    "conv_depthwise3d": _conv_of,
    "slow_conv3d_forward": _conv_of,
    "slow_conv_dilated2d": _conv_of,
    "slow_conv_dilated3d": _conv_of,
}
FORMULAS = {getattr(aten, name): shape_wrapper(formula) for name, formula in _BY_SHAPES.items() if hasattr(aten, name)}
"""Two FLOPs for a multiply-accumulate, by operator, in the form of `torch.utils.flop_counter.flop_registry`."""
if fused_attention is not None:  # PyTorch 2.11 has formulas for the other kernels alone
    # Scores of each query with each key, and their product with the values: `flop_counter.sdpa_flop`.
    FORMULAS[fused_attention] = shape_wrapper(lambda q, k, v, *_, **__: 2 * prod(q[:-1]) * k[-2] * (q[-1] + v[-1]))

CONVOLUTION = shape_wrapper(_conv_of)
"""The formula of an operator whose second argument is a convolution's weight."""


def _recurrent(tokens: Tensor, *rest: Any, **_: object) -> int:
    """Each weight matrix is multiplied with each item of the sequences once, whatever kernel does it."""
    weights: Sequence[Tensor] = [value for value in rest[:3] if isinstance(value, (list, tuple))][-1]
    items = tokens.numel() // tokens.shape[-1] if tokens.numel() else 0
    return items * sum(weight.numel() for weight in weights if weight.dim() == 2)


def _attention(q: Tensor, k: Tensor, width: int) -> int:
    """Projections of q, k, v and of the result, scores, and their product."""
    batch, length, other = q.shape[0], q.shape[1], k.shape[1]
    return 2 * batch * (length + other) * width * width + 2 * batch * length * other * width


FUNCTION_MACS: dict[str, Callable[..., int]] = {
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), _recurrent),
    "_native_multi_head_attention": lambda q, k, v, width, *_, **__: _attention(q, k, width),
    # Attention, and two linear layers; `rest[13]` is the weight of the first.
    "_transformer_encoder_layer_fwd": lambda x, width, *rest, **_: (
        _attention(x, x, width) + 2 * (x.numel() // width) * rest[13].numel()
    ),
}
"""Multiply-accumulates of calls that have many kernels, by the name of the function."""

PRODUCTS = frozenset({"einsum", "kron", "outer", "ger", "linalg_vecdot", "vecdot", "tensordot"})
"""Functions that multiply every element of one tensor with some of another: their products count, summed or not."""

COUNTED = frozenset(name.strip("_") for name in (*FUNCTION_MACS, *_BY_SHAPES))
"""The names of all of them, without underscores around."""


_NAMES = re.compile(
    r"""
    # activations, norms, pooling, losses, dropout
    \w*soft(max|min)\w* | logcumsumexp | gumbel_softmax | glu\w* | prelu\w* | rrelu\w* | threshold | log_?sigmoid\w*
    | \w*(re|se|ce)lu6? | hardswish
    | \w*(batch|layer|group|instance|rms|native|weight|local_response)_norm\w* | (re|linalg_|linalg_vector_)?norm
    | normalize | frobenius_norm | norm_except_dim
    | \w*(pool|unpool)\d?d?(_with_indices)? | (ps_|q)?roi_align | q?nms
    | \w*(loss|entropy|kl_div)\w* | poisson_nll\w* | cosine_similarity | pairwise_distance | dist
    | \w*dropout\w*
    # reductions and orders
    | (nan)?(median|quantile|mean|sum)\w* | (arg)?(max|min)\w* | aminmax | var\w* | std\w* | prod | all\w* | any | trace
    | count_nonzero | mode | cum\w+ | diff | gradient | trapz | trapezoid | isin | equal | isclose
    | (arg|m)?sort | topk | kthvalue | unique\w* | searchsorted | bucketize | hist\w* | bincount
    # other elementwise ones, which PyTorch does not tag
    | (linalg_)?cross | complex | polar | frexp | floor_divide | foreach_(?!mm)\w+
    # what is made and what is drawn
    | (new|empty|zeros|ones|full|rand|randn|randint|from|tri[lu])(_\w+)? | (scalar_|as_)?tensor | a?range | linspace
    | logspace | eye | fft_r?fftfreq | \w+_window | vander | meshgrid | cartesian_prod | combinations
    | random | randperm | bernoulli | binomial | cauchy | exponential | geometric | log_normal | multinomial | normal\w*
    | poisson | uniform | \w*dirichlet\w* | standard_gamma\w* | philox\w* | sobol\w*
    # what is taken, put and moved
    | (unsafe_)?(index|gather|scatter|put|take|select|masked|where|nonzero|argwhere|segment_reduce)\w* | embedding\w*
    | one_hot | unravel_index | (\w+_)?(cat|concat|concatenate|stack|chunk|split|copy|clone|contiguous)(_\w+)?
    | [hvd]stack | (row|column)_stack | broadcast\w* | atleast_\w+ | resize\w* | roll | rot90 | flip([lu][rd])? | tile
    | repeat\w* | \w*pad([123]d)? | pad_\w+ | pack_padded\w* | constant_pad_nd | pixel_\w+ | \w*channel_shuffle
    | im2col | col2im | (un)?fold | (block_)?diag\w* | fill\w* | zero | lift\w* | (unsafe_)?view\w* | reshape\w*
    | align_\w+ | as_strided\w* | set | lu_unpack | refine_names | rename\w* | wait_tensor
    | \w*interpolate | upsample\w* | \w*grid_sample\w* | \w*affine_grid_generator
    # dtypes, devices, layouts
    | to | to_copy | to_cpu | type\w* | cast_\w+ | cpu | cuda | c?half | c?float | c?double | bfloat16 | int | long
    | short | bool | byte | char | \w*quantize\w* | q_\w+ | qscheme | int_repr | \w*qparams\w* | fused_moving_avg\w*
    | to_(sparse|dense|mkldnn|padded)\w* | sparse_((coo|csr|csc|bsr|bsc|compressed)_tensor|dim|mask|sum|resize)\w* | nnz
    | dense_dim | coalesced? | (ccol_|col_|crow_|row_)?(indices|values) | csr_(sum|prod) | spdiags
    | (as_)?nested_(from|tensor|get|size|to|view|compute)\w* | (padded_dense_to_jagged|jagged_to_padded)\w*
    # the part of a cell of an LSTM or GRU that follows its products
    | thnn_fused_(lstm|gru)_cell
    # what is asked and said
    | (functional_)?assert\w* | linalg_check_errors | (is|has|can|get|set|result|promote|sym|make|local_scalar)_\w+
    | functional_sym\w+ | item | tolist | numpy | print | size | stride | numel | nelement | n?dim(ension)? | dim[IV]
    | element_size | \w*storage\w* | data_ptr | shape_as_tensor | requires_grad | retain_grad | register_\w+
    | share_memory | pin_memory | record_stream | unpack_dual | enter_dual_level | map | apply
    """,
    re.VERBOSE,
)


@cache
def multiplies_nothing(name: str) -> bool:
    """True for the name of an operator or function that counts 0: `relu_`, `__mul__`, `softmax`, `max_pool2d`."""
    if name.startswith("__") and name.endswith("__"):
        return "matmul" not in name
    plain = name.strip("_").removesuffix("_out")
    plain = re.sub(r"_backward\w*$", "", plain) or plain
    if plain in COUNTED:
        return False
    if _NAMES.fullmatch(plain):
        return True
    for spelled in (plain, f"special_{plain}"):  # what PyTorch calls elementwise, a reduction or a view
        packet: object = getattr(torch.ops.aten, spelled, None)
        overloads = packet.overloads() if isinstance(packet, OpOverloadPacket) else ()
        if any(has_free_tag(getattr(packet, overload)) for overload in overloads):
            return True
    return False


def has_free_tag(operator: Any) -> bool:
    """True for an operator that PyTorch calls elementwise, a reduction or a view."""
    free = {torch.Tag.pointwise, torch.Tag.reduction, torch.Tag.view_copy} & set(operator.tags)
    return bool(free) or operator.is_view
