"""Costs of layers against formulas by hand."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from probes.costs import counted, ones, unknown
from support import each_once
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_sequence

from hookcli.engine.capture import capture

SEQUENCES = (3, 6, 4)


PACKED = pack_sequence([ones(3, 4), ones(2, 4)])


# Each of the 18 (packed: 5) items is multiplied with each weight matrix once: of 4 inputs, of 5 states, for each gate.
RECURRENT = {
    "lstm": (partial(nn.LSTM, 4, 5), 18 * (20 * 4 + 20 * 5)),
    "batch_first": (partial(nn.LSTM, 4, 5, batch_first=True), 3240),
    "gru": (partial(nn.GRU, 4, 5), 18 * (15 * 4 + 15 * 5)),
    "rnn": (partial(nn.RNN, 4, 5), 18 * (5 * 4 + 5 * 5)),
    "both": (
        partial(nn.LSTM, 4, 5, num_layers=2, bidirectional=True, dropout=0.5),
        18 * (2 * (20 * 4 + 20 * 5) + 2 * (20 * 10 + 20 * 5)),
    ),
    "projected": (partial(nn.LSTM, 4, 5, proj_size=3), 18 * (20 * 4 + 20 * 3 + 3 * 5)),
    "no bias": (partial(nn.GRU, 4, 5, bias=False), 18 * (15 * 4 + 15 * 5)),
}


@pytest.mark.parametrize(("device", "name"), each_once(["cpu", "meta"], RECURRENT))
def test_recurrent_layers(name: str, device: str) -> None:
    make, macs = RECURRENT[name]
    for model in (make(device=device), make(device=device).eval()):
        report = capture(model, ones(SEQUENCES, device=device), ["shapes"])[0]
        assert (report.totals["macs"], unknown(report)) == (macs, [])


@pytest.mark.sweep
def test_packed_and_unbatched_sequences_and_cells() -> None:
    assert counted(nn.LSTM(4, 5), PACKED) == (5 * 180, [])
    assert counted(nn.GRU(4, 5), PACKED) == (5 * 135, [])
    assert counted(nn.LSTM(4, 5), ones(6, 4)) == (6 * 180, [])
    assert counted(nn.LSTMCell(4, 5), ones(3, 4)) == (3 * 180, [])
    assert counted(nn.GRUCell(4, 5), ones(3, 4)) == (3 * 135, [])


PRODUCTS = [
    ("x @ vector", lambda: ones(3, 4) @ ones(4), 12),
    ("vector @ x", lambda: ones(3) @ ones(3, 4), 12),
    ("addmv", lambda: torch.addmv(ones(3), ones(3, 4), ones(4)), 12),
    ("dot", lambda: torch.dot(ones(4), ones(4)), 4),
    ("vdot", lambda: torch.vdot(ones(4), ones(4)), 4),
    ("inner", lambda: torch.inner(ones(3, 4), ones(5, 4)), 60),
    ("vecdot", lambda: torch.linalg.vecdot(ones(3, 4), ones(3, 4)), 12),
    ("addbmm", lambda: torch.addbmm(ones(3, 5), ones(2, 3, 4), ones(2, 4, 5)), 2 * 60),
    ("baddbmm", lambda: torch.baddbmm(ones(2, 3, 5), ones(2, 3, 4), ones(2, 4, 5)), 2 * 60),
    ("addr", lambda: torch.addr(ones(3, 4), ones(3), ones(4)), 12),
    ("outer", lambda: torch.outer(ones(3), ones(4)), 12),
    ("kron", lambda: torch.kron(ones(2, 3), ones(4, 5)), 120),
    ("einsum of vectors", lambda: torch.einsum("i,j->ij", ones(3), ones(4)), 12),
    ("einsum of matrices", lambda: torch.einsum("ij,jk->ik", ones(3, 4), ones(4, 5)), 60),
    ("einsum of elements", lambda: torch.einsum("ij,ij->i", ones(3, 4), ones(3, 4)), 12),
    ("tensordot", lambda: torch.tensordot(ones(3, 4), ones(4, 5), dims=1), 60),
    ("multi_dot", lambda: torch.linalg.multi_dot([ones(1, 4), ones(4, 16), ones(16)]), 4 * 16 + 4),
    ("multi_dot of matrices", lambda: torch.linalg.multi_dot([ones(3, 4), ones(4, 5), ones(5, 6)]), 60 + 90),
    ("matrix_power", lambda: torch.linalg.matrix_power(ones(4, 4), 3), 2 * 64),
    ("cdist", lambda: torch.cdist(ones(3, 4), ones(5, 4)), 60),
    ("cdist of many", lambda: torch.cdist(ones(30, 4), ones(50, 4)), 6000),
    ("cdist of absolute values", lambda: torch.cdist(ones(3, 4), ones(5, 4), p=1.0), 0),
    ("pdist", lambda: torch.pdist(ones(5, 4)), 10 * 4),
    ("pdist of absolute values", lambda: torch.pdist(ones(5, 4), p=1.0), 0),
    ("bilinear", lambda: functional.bilinear(ones(2, 3), ones(2, 4), ones(7, 3, 4)), 2 * 7 * 3 * 4 + 2 * 7 * 4),
    ("sparse by matrix", lambda: torch.sparse.mm(torch.eye(3).to_sparse(), ones(3, 5)), 3 * 5),
    ("csr by matrix", lambda: torch.eye(3).to_sparse_csr() @ ones(3, 5), 3 * 5),
    ("sparse by vector", lambda: torch.eye(3).to_sparse() @ ones(3), 3),
    ("mapped", lambda: torch.vmap(lambda x: x @ x.t())(ones(2, 3, 4)), 2 * 36),
    ("mapped over one operand", lambda: torch.vmap(lambda x: x @ ones(4, 5))(ones(2, 3, 4)), 2 * 60),
    ("transposed convolution", lambda: functional.conv_transpose1d(ones(1, 4, 6), ones(4, 2, 3)), 6 * 4 * 2 * 3),
    ("attention", lambda: functional.scaled_dot_product_attention(*(ones(1, 1, 5, 8),) * 3), 2 * 5 * 5 * 8),
]


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize(("function", "macs"), [case[1:] for case in PRODUCTS], ids=[case[0] for case in PRODUCTS])
def test_products(function: Callable[[], Tensor], macs: int) -> None:
    assert counted(lambda x: function(), ones(1)) == (macs, [])


@pytest.mark.parametrize("fused", [True, False])
def test_attention_costs_the_same_on_each_path(fused: bool) -> None:
    x = ones(3, 4, 8)
    model = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    report = capture(model, (x, x, x), ["shapes", "activations"], fastpath=fused)[0]
    # projections of q, k, v and output: 4 x 4 x 8 x 8; scores and values: 2 x 4 x 4 x 8
    assert (report.totals["macs"], unknown(report)) == (3 * (4 * 4 * 64 + 2 * 4 * 4 * 8), [])
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    report = capture(layer, x, ["shapes"], select=lambda name, module: not name, fastpath=fused)[0]
    assert (report.totals["macs"], unknown(report)) == (3 * (4 * 4 * 64 + 2 * 4 * 4 * 8 + 2 * 4 * 8 * 16), [])
