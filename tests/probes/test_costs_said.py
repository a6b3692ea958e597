"""What has no formula is named, and what multiplies nothing is not."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from probes.costs import counted, ones, unknown
from torch import Tensor, nn
from torch.nn import functional

from hookcli.probes.shared.formulas import multiplies_nothing
from hookcli.record.watch import watch


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
