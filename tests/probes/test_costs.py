"""Multiply-accumulates against figures computed by hand, and what is named as uncounted."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from support import untouched
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_sequence

from hookcli.engine.capture import capture
from hookcli.probes.shared.zero_cost import multiplies_nothing
from hookcli.record.watch import watch
from hookcli.report import Report

ones = torch.ones


class Does(nn.Module):
    """A model of one function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> Any:
        return self.function(*args)


def counted(model: nn.Module | Callable[..., Any], *inputs: Any) -> tuple[int, list[str]]:
    """The model's multiply-accumulates, and what it does without a known cost."""
    model = model if isinstance(model, nn.Module) else Does(model)
    with untouched(model):
        report = capture(model, inputs, ["shapes"])[0]
    return report.totals["macs"], unknown(report)


def unknown(report: Report) -> list[str]:
    return [item.reason for item in report.skipped if "no known cost" in item.reason]


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


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_layers(name: str, device: str) -> None:
    make, macs = RECURRENT[name]
    for model in (make(device=device), make(device=device).eval()):
        report = capture(model, ones(SEQUENCES, device=device), ["shapes"])[0]
        assert (report.totals["macs"], unknown(report)) == (macs, [])


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
    x = ones(1, 4, 8)
    model = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    report = capture(model, (x, x, x), ["shapes", "activations"], fastpath=fused)[0]
    # projections of q, k, v and output: 4 x 4 x 8 x 8; scores and values: 2 x 4 x 4 x 8
    assert (report.totals["macs"], unknown(report)) == (4 * 4 * 64 + 2 * 4 * 4 * 8, [])
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    report = capture(layer, x, ["shapes"], select=lambda name, module: not name, fastpath=fused)[0]
    assert (report.totals["macs"], unknown(report)) == (4 * 4 * 64 + 2 * 4 * 4 * 8 + 2 * 4 * 8 * 16, [])


def test_torchscript_functions_are_counted() -> None:
    with warnings.catch_warnings(action="ignore"):
        function = torch.jit.script(_gram)
    assert counted(lambda x: function(x), ones(3, 4)) == (36, [])


def _gram(x: Tensor) -> Tensor:
    return torch.mm(x, x.t())


NO_FORMULA = [
    ("aten::_fft_r2c", torch.fft.rfft),
    ("aten::_linalg_svd", torch.linalg.svd),
    ("aten::_linalg_solve_ex", lambda x: torch.linalg.solve(x, x)),
    ("aten::linalg_cholesky_ex", torch.linalg.cholesky),
    ("aten::linalg_inv_ex", torch.inverse),
    ("aten::linalg_matrix_exp", torch.matrix_exp),
    ("cov", torch.cov),  # it asks for values before it multiplies, which the meta device has not
    ("derivatives", lambda x: torch.func.grad(lambda y: (y * y).sum())(x)),
    ("of two sparse tensors", lambda x: torch.sparse.mm(x.to_sparse(), x.to_sparse())),
]


@pytest.mark.parametrize(("name", "function"), NO_FORMULA, ids=[case[0] for case in NO_FORMULA])
def test_what_has_no_formula_is_named(name: str, function: Callable[[Tensor], Any]) -> None:
    macs, said = counted(function, torch.eye(4))
    assert macs == 0 and len(said) == 1 and name in said[0]


def innocent(x: Tensor) -> Any:
    """Operators of many kinds, none of which is counted."""
    image = x[None, None]
    return (
        x.sort()[0].cumsum(0).to_sparse().coalesce().to_dense().nonzero(),
        x[x > 0].unique(),
        functional.interpolate(image, scale_factor=2, mode="bilinear"),
        functional.grid_sample(image, ones(1, 2, 2, 2), align_corners=False),
        functional.ctc_loss(ones(5, 1, 3).log_softmax(2), torch.tensor([[1, 2]]), torch.tensor([5]), torch.tensor([2])),
        torch.multinomial(x.abs(), 2),
        torch.histc(x),
        functional.gumbel_softmax(x),
        functional.local_response_norm(image, 2),
        functional.normalize(x).tolist(),
        functional.pixel_shuffle(ones(1, 4, 2, 2), 2),
        x.masked_scatter(x > 0, x).quantile(0.3),
        functional.one_hot(ones(3).long()).numpy(),
        functional.embedding_bag(torch.tensor([[0, 1]]), x),
        functional.unfold(image, 2),
        torch.cross(x[:, :3], x[:, :3], dim=1),
        functional.max_unpool1d(*functional.max_pool1d(x[None], 2, return_indices=True), 2),
        functional.silu(functional.mish(x.clone())).mul_(2).norm(),
        torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize().std(),
        functional.cosine_similarity(x, x).sum().item(),
        functional.hardswish(x.clone(), inplace=True).std(),
    )


def test_what_multiplies_no_matrices_is_not_named() -> None:
    assert counted(innocent, torch.rand(3, 4)) == (0, [])


MULTIPLY = """
matmul __matmul__ __rmatmul__ mm bmm mv dot vdot addmm addmv addbmm addr baddbmm linear bilinear _trilinear
conv1d conv2d conv3d conv_tbc conv_transpose2d einsum tensordot kron outer ger inner chain_matmul
linalg_multi_dot cdist _cdist_forward _pdist_forward lstm gru rnn_tanh gru_cell multi_head_attention_forward
linalg_matrix_power scaled_dot_product_attention fft_fft stft linalg_svd linalg_inv matrix_exp cov corrcoef
"""


def test_no_name_that_multiplies_is_taken_for_one_that_does_not() -> None:
    assert not [name for name in MULTIPLY.split() if multiplies_nothing(name)]


def test_parameters_that_are_viewed_before_a_module_gets_them() -> None:
    class Queries(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.out = nn.Parameter(ones(1, 4)), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.out(self.q.expand(3, 4))
            return y

    assert counted(Queries(), ones(1)) == (3 * 4 * 2, [])


def test_a_force_field() -> None:
    class Energy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 3), nn.SiLU(), nn.Linear(3, 1))

        def forward(self, x: Tensor) -> Tensor:
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                return torch.autograd.grad(self.net(x).sum(), x, create_graph=True)[0]

    macs, said = counted(Energy(), ones(2, 4))
    assert macs == 2 * (4 * 3 + 3) and "derivatives" in said[0]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_nested_tensors(layout: torch.layout) -> None:
    x = torch.nested.nested_tensor([ones(3, 4), ones(2, 4)], layout=layout)
    assert counted(nn.Sequential(nn.Linear(4, 2), nn.ReLU()), x) == ((3 + 2) * 4 * 2, [])


def test_a_loss_after_the_model_is_no_part_of_its_cost() -> None:
    model, x = nn.Linear(4, 2), ones(3, 4)
    with watch(model, ["shapes"]) as session:
        y = model(x)
        torch.linalg.svd(y.t() @ y)[1].sum().backward()
    report = session.reports()[0]
    assert (report.totals["macs"], unknown(report)) == (24, [])


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_compiled_part_is_counted_where_it_runs_as_it_was_and_named_elsewhere() -> None:
    model = nn.Sequential(nn.Linear(4, 4), torch.compile(nn.Linear(4, 2), backend="eager", fullgraph=True))
    model(ones(3, 4))
    assert counted(model, ones(3, 4)) == (3 * 4 * 4 + 3 * 4 * 2, [])
    model(ones(3, 4))
    compilations = torch._dynamo.utils.counters["frames"]["ok"]
    with watch(model, ["shapes"]) as session:
        model(ones(3, 4))
    report = session.reports()[0]
    assert report.totals["macs"] == 3 * 4 * 4 and "compiled" in unknown(report)[0]
    assert torch._dynamo.utils.counters["frames"]["ok"] == compilations
