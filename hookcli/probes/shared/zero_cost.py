"""Names of operators and functions that count 0: they are elementwise, or reduce, normalize, pool, draw or move."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import torch

from hookcli.hooks.torch_private.overrides import OpOverloadPacket
from hookcli.probes.shared.formulas import COUNTED

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
    return bool(_NAMES.fullmatch(plain)) or _tagged(plain)


def _tagged(name: str) -> bool:
    """True if PyTorch calls the operator elementwise, a reduction or a view."""
    for spelled in (name, f"special_{name}"):
        packet: object = getattr(torch.ops.aten, spelled, None)
        overloads = packet.overloads() if isinstance(packet, OpOverloadPacket) else ()
        if any(has_free_tag(getattr(packet, overload)) for overload in overloads):
            return True
    return False


def has_free_tag(operator: Any) -> bool:
    """True for an operator that PyTorch calls elementwise, a reduction or a view."""
    free = {torch.Tag.pointwise, torch.Tag.reduction, torch.Tag.view_copy} & set(operator.tags)
    return bool(free) or operator.is_view
