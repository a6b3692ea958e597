"""Taking shapes changes no bit of outputs, gradients, buffers and random state."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import forks
import pytest
import torch
from support import swept
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from hookcli.engine.capture import capture
from hookcli.hooks.torch_private import dynamo
from hookcli.record.watch import watch
from hookcli.tensors.tree import leaves

Function = Callable[[nn.Module, Tensor], Any]


class Around(nn.Module):
    """A function of a layer's output and of a weight."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function
        self.layer = nn.Linear(4, 4)
        self.w = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: Tensor) -> Any:
        return self.function(self, self.layer(x))


def nested(model: nn.Module, x: Tensor) -> Tensor:
    rows: Tensor = model.layer(torch.nested.as_nested_tensor([x, x[:3]], layout=torch.jagged)).values()
    return rows


FUNCTIONS: dict[str, Function] = {
    "prod": lambda m, x: x.prod(-1),
    "cumprod": lambda m, x: x.cumprod(0),
    "norm": lambda m, x: x.norm() + x.norm(1) + x.std(0).sum(),
    "matmul": lambda m, x: x[None].expand(3, -1, -1) @ m.w,
    "einsum": lambda m, x: torch.einsum("ij,jk,ik->i", x, m.w, x),
    "cdist": lambda m, x: torch.cdist(x, m.w),
    "svd": lambda m, x: torch.linalg.svd(x.t() @ x)[1],
    "inverse": lambda m, x: torch.inverse(x.t() @ x + torch.eye(4)),
    "multi_dot": lambda m, x: torch.linalg.multi_dot([x, m.w, m.w]),
    "attention": lambda m, x: functional.scaled_dot_product_attention(*(x[None, None],) * 3, dropout_p=0.1),
    "losses": lambda m, x: functional.kl_div(x.log_softmax(-1), x.softmax(-1)) + functional.mse_loss(x, x * 2),
    "gumbel": lambda m, x: functional.gumbel_softmax(x),
    "masked": lambda m, x: x.masked_fill(x > 0, 0.0) + x[x > 0].sum(),
    "index_add": lambda m, x: torch.zeros(8, 4).index_add(0, torch.arange(len(x)) % 8, x),
    "in place": lambda m, x: x.mul_(2).add_(1).relu_(),
    "in place in a view": lambda m, x: (x[:, :2].mul_(2), x)[1],
    "fft": lambda m, x: torch.fft.rfft(x).abs(),
    "checkpoint": lambda m, x: checkpoint(lambda t: functional.mish(t @ m.w), x, use_reentrant=False),
    "reentrant": lambda m, x: checkpoint(lambda t: functional.mish(t @ m.w), x, use_reentrant=True),
    "vmap": lambda m, x: torch.vmap(lambda t: functional.silu(t @ m.w))(x),
    "func.grad": lambda m, x: torch.func.grad(lambda t: functional.silu(t @ m.w).sum())(x),
    "penalty": lambda m, x: torch.autograd.grad(functional.silu(x @ m.w).sum(), x)[0] if x.requires_grad else x,
    "autocast": lambda m, x: torch.autocast("cpu", torch.bfloat16)(lambda: x @ m.w)(),
    "nested": nested,
    "sparse": lambda m, x: torch.sparse.mm(torch.eye(len(x)).to_sparse(), x),
}  # fmt: skip
ACTIVATIONS = (nn.SiLU, nn.Mish, nn.GELU, nn.Hardswish, nn.PReLU, nn.RReLU, nn.GLU, nn.Softplus, nn.ELU, nn.Dropout)


def models() -> dict[str, tuple[nn.Module, tuple[Tensor, ...]]]:
    rows, image, tokens = torch.randn(16, 4), torch.randn(2, 3, 12, 12), torch.randn(2, 5, 8)
    layers = [
        *(nn.Sequential(nn.Linear(4, 8), make()) for make in ACTIVATIONS),
        nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
        nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)),
        nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.RMSNorm(4)),
    ]
    convolutions = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(True), nn.MaxPool2d(2), nn.ConvTranspose2d(8, 3, 3)]
    encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return {
        **{f"{type(layer).__name__} {number}": (layer, (rows,)) for number, layer in enumerate(layers)},
        "convolutions": (nn.Sequential(*convolutions), (image,)),
        "upsample": (nn.Upsample(scale_factor=2, mode="bilinear"), (image,)),
        "lstm": (nn.LSTM(8, 5, 2, bidirectional=True, dropout=0.3), (tokens,)),
        "gru": (nn.GRU(8, 5), (tokens,)),
        "attention": (nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True), (tokens,) * 3),
        "encoder layer": (encoder, (tokens,)),
        "encoder": (nn.TransformerEncoder(encoder, 2), (tokens,)),
        "transformer": (nn.Transformer(8, 2, 1, 1, 16, batch_first=True), (tokens, tokens[:, :4])),
        "bilinear": (nn.Bilinear(4, 4, 7), (rows, rows)),
        **{name: (Around(function), (rows,)) for name, function in FUNCTIONS.items()},
    }


MODELS = models()
MODES = {
    "train": torch.enable_grad,
    "eval": torch.enable_grad,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
}

IMPOSSIBLE = {("func.grad", "inference"), ("nested", "inference")}  # in PyTorch itself
CASES = [(n, m) for n in MODELS for m in MODES if (n, m) not in IMPOSSIBLE]


def ran(model: nn.Module, inputs: tuple[Tensor, ...], mode: str, probes: list[str]) -> list[Tensor]:
    """All that a step leaves: outputs, gradients, buffers, random state."""
    model = copy.deepcopy(model).train(mode == "train")
    torch.manual_seed(3)
    with MODES[mode](), watch(model, probes) if probes else nullcontext() as session:
        outputs = [y for _, y in leaves(model(*(x.clone() for x in inputs)))]
        if roots := [y.float().pow(2).sum() * 0.3 for y in outputs if y.requires_grad]:
            sum(roots, torch.zeros(())).backward()
    if session is not None:
        assert session.reports()[0].rows
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return [*(y.detach().clone() for y in outputs), *gradients, *model.buffers(), torch.get_rng_state()]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("name", "mode"), [one if number % 3 == 0 else swept(*one) for number, one in enumerate(CASES)]
)
def test_a_step_of_the_callers(name: str, mode: str) -> None:
    model, inputs = MODELS[name]
    plain, seen = ran(model, inputs, mode, []), ran(model, inputs, mode, ["shapes"])
    assert len(plain) == len(seen)
    assert all(torch.equal(a, b) for a, b in zip(plain, seen, strict=True))


@pytest.mark.parametrize("activation", [nn.SiLU, nn.Mish])
def test_gradients_beside_shapes_are_those_without(activation: type[nn.Module]) -> None:
    model, x = nn.Sequential(nn.Linear(32, 32), activation(), nn.Linear(32, 4)), torch.randn(64, 32)
    [alone] = capture(model, x, ["grads"])
    together = capture(model, x, ["shapes", "grads"])[1]
    assert [row.stats for row in alone.rows] == [row.stats for row in together.rows]


def test_values_beside_shapes_are_those_of_the_fused_path() -> None:
    model, x = nn.MultiheadAttention(8, 2, batch_first=True).eval(), torch.randn(2, 5, 8)
    [alone] = capture(model, (x, x, x), ["activations"])
    shapes, together = capture(model, (x, x, x), ["shapes", "activations"])
    assert [row.stats for row in alone.rows] == [row.stats for row in together.rows]
    assert shapes.meta["fastpath"] is alone.meta["fastpath"] is True


def test_nothing_stays_exchanged() -> None:
    def state() -> list[object]:
        return [torch.overrides.has_torch_function, torch.jit.ScriptFunction.__call__, torch._C.ScriptMethod.__call__]

    before = state()
    with pytest.raises(RuntimeError, match="broken"), watch(nn.Linear(2, 2), ["shapes"]):
        raise RuntimeError("broken")
    capture(nn.Linear(2, 2), torch.ones(1, 2), ["shapes"])
    assert state() == before and not torch._C._len_torch_function_stack()


@pytest.mark.sweep
def test_shapes_on_meta_and_torchvision_do_without_torch_compile_and_it_works_when_it_is_needed() -> None:
    code = """
import sys, torch
from importlib import import_module
from torch import nn
from hookcli.engine.capture import capture_recipe
from hookcli.hooks.torch_private import dynamo
from hookcli.sources.base import Recipe, InputSpec
from hookcli.engine.setting import Setting
from hookcli.sources.torchvision import import_models
finders = [*sys.meta_path]
operators = import_module(import_models().__name__.replace("models", "ops.roi_align"))
assert "torch._dynamo.utils" not in sys.modules and sys.meta_path == finders
def net():
    parts = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(4)
    return nn.Sequential(*parts, nn.Linear(4, 2), nn.Softmax(-1))
setting = Setting(inputs=[InputSpec(shape=(2, 3, 8, 8))])
report = capture_recipe(Recipe("net", net), ["shapes"], setting)[0]
assert report.meta["device"] == "meta" and report.rows[-1]["output_shape"] == [2, 2], report
assert "torch._dynamo" not in sys.modules
functions = dynamo._never_traced()
with dynamo.not_imported_by_libraries():
    from torch._dynamo.utils import is_compile_supported
    assert "torch._dynamo" not in sys.modules
assert len(functions) > 100 and not any(hasattr(f, "__dynamo_disable") for f in functions)
again = torch.compile(lambda x: torch.relu(x) + 1, backend="eager")(torch.ones(2))
assert again.tolist() == [2, 2]
real = sys.modules["torch._dynamo.utils"].is_compile_supported
for given in (is_compile_supported, operators.is_compile_supported):
    assert given is not real and vars(real).items() <= vars(given).items()  # a mark for torch.compile, where it has one
    assert [given(d) for d in ("cpu", "cuda", "mps")] == [real(d) for d in ("cpu", "cuda", "mps")]
"""
    ran = forks.run([sys.executable, "-c", code], capture_output=True, text=True, fresh=True)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    ("asked", "loads"),
    [
        ("from slow.utils import is_compile_supported", False),
        (
            "from importlib.metadata import entry_points; entry_points()\nfrom slow.utils import is_compile_supported",
            False,
        ),
        *(("from slow.utils import counters", True), ("import slow", True), ("from slow import other", True)),
    ],
)
def test_a_library_gets_what_it_asks_for_of_torch_compile(
    asked: str, loads: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "__init__.py").write_text("from . import utils\nother = utils.counters")
    (tmp_path / "slow" / "utils.py").write_text(
        "counters = {}\ndef is_compile_supported(device): return device, counters"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(dynamo, "_PACKAGE", "slow")
    monkeypatch.setattr(dynamo, "_UTILS", "slow.utils")
    finders, got = [*sys.meta_path], {}
    with dynamo.not_imported_by_libraries():
        exec(asked, got)
        assert ("slow" in sys.modules) == loads
    assert sys.meta_path == finders and ("slow.utils" in sys.modules) == loads
    if not loads:
        device, counters = got["is_compile_supported"]("cpu")
        assert device == "cpu" and counters is sys.modules["slow.utils"].counters
    assert sys.modules["slow"].utils is sys.modules["slow.utils"] and sys.modules["slow.utils"].__spec__.origin
