"""The multiplications of a graph, compared with those that PyTorch's FlopCounterMode counts as they run."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support import Hides
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.flop_counter import FlopCounterMode

from hookcli.hooks.node_hooks import walk
from hookcli.hooks.torch_private.graph_work import work_of


class Attention(nn.Module):
    def __init__(self, *, fused: bool) -> None:
        super().__init__()
        self.fused, self.mix, self.out = fused, nn.Linear(8, 24), nn.Linear(8, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (one.unflatten(-1, (2, 4)).transpose(1, 2) for one in self.mix(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v) if self.fused else (q @ k.mT / 2).softmax(-1) @ v
        mixed: Tensor = self.out(y.transpose(1, 2).flatten(2))
        return mixed


def frozen(model: nn.Module, *names: str) -> nn.Module:
    for name in names:
        model.get_parameter(name).requires_grad_(False)
    return model


def conv(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), *layers)


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3, bias=False)), (5, 6)),
    "of sequences": (lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), (5, 4, 6)),
    "a frozen layer between": (
        lambda: frozen(nn.Sequential(*(nn.Linear(6, 6) for _ in range(3))), "1.weight", "1.bias"),
        (5, 6),
    ),
    "convolutions": (lambda: conv(nn.Conv2d(4, 8, 3, stride=2), nn.Conv2d(8, 2, 1)), (2, 3, 8, 8)),
    "transposed": (lambda: conv(nn.ConvTranspose2d(4, 6, 2, stride=2)), (2, 3, 8, 8)),
    "a frozen convolution": (lambda: frozen(conv(nn.Conv2d(4, 8, 3)), "2.weight"), (2, 3, 8, 8)),
    "attention by hand": (lambda: Attention(fused=False), (2, 5, 8)),
}


@pytest.mark.parametrize("name", MODELS)
def test_it_is_as_many_as_are_counted_while_it_runs(name: str) -> None:
    make, shape = MODELS[name]
    model, x = make(), torch.randn(shape)
    with FlopCounterMode(display=False) as counter:
        y = model(x)
    forward = counter.get_total_flops() // 2
    assert y.grad_fn is not None
    work = work_of(walk([y.grad_fn]))
    with FlopCounterMode(display=False) as counter:
        y.sum().backward()
    assert sum(work.forward.values()) == forward and not work.hidden
    assert sum(work.backward.values()) == counter.get_total_flops() // 2


def test_attention_that_is_fused_counts_as_by_hand() -> None:
    fused, plain = (work_of(walk([Attention(fused=one)(torch.ones(2, 5, 8)).grad_fn])) for one in (True, False))  # type: ignore[list-item]
    assert (fused.forward, fused.backward) == (plain.forward, plain.backward)


def test_dtypes_are_told_apart() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        y = nn.Linear(6, 8)(torch.ones(5, 6))
    assert y.grad_fn is not None and work_of(walk([y.grad_fn])).forward == {torch.bfloat16: 240}


def test_groups_multiply_less() -> None:
    y = nn.Conv2d(4, 8, 3, groups=2)(torch.ones(2, 4, 8, 8))
    assert y.grad_fn is not None and sum(work_of(walk([y.grad_fn])).forward.values()) == y.numel() * 2 * 9


def test_what_a_node_hides_is_said() -> None:
    for name, hides in (("CheckpointFunction", True), ("FlashAttnFunc", True), ("Scaling", False)):
        y = type(name, (Hides,), {}).apply(torch.ones(3, requires_grad=True))  # type: ignore[attr-defined]
        assert bool(work_of(walk([y.grad_fn])).hidden) is hides
