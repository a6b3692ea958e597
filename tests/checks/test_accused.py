"""Programs that work, and were accused: each beside one that differs in the fault alone."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state
from torch.utils.checkpoint import checkpoint

from hookcli import check


class Labels(nn.Module):
    """A classifier with several labels, which is sure of each, or the same values as gates."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.layer, self.sigmoid, self.how = nn.Linear(8, 6), nn.Sigmoid(), how
        nn.init.constant_(self.layer.bias, -9.0)

    def forward(self, x: Tensor) -> Any:
        y = self.layer(x)
        values = self.sigmoid(y)
        if self.how == "gates":
            return values * y
        return {"labels": values[:, :4], "rest": values[:, 4:]} if self.how == "views" else values


@pytest.mark.parametrize("how", ["labels", "views", "gates"])
@pytest.mark.parametrize("items", [2, 16])
def test_a_sure_answer_is_no_saturated_unit(how: str, items: int) -> None:
    report = check(Labels(how), torch.randn(items, 8), select="HK011")
    assert [one.check for one in report.findings] == ["HK011"] * (how == "gates" and items == 16)
    assert ("too few values" in str(report.skipped)) == (how == "gates" and items == 2)


@pytest.mark.parametrize(("size", "judged"), [(4, False), (6, True)])
def test_two_tiny_inputs_are_too_few_for_gates(size: int, judged: bool) -> None:
    class Gate(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.sigmoid = nn.Conv2d(3, 4, 1), nn.Sigmoid()
            nn.init.constant_(self.conv.bias, -9.0)

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x)
            gated: Tensor = y * self.sigmoid(y)
            return gated

    report = check(Gate(), torch.randn(2, 3, size, size), select="HK011")  # 32 and 72 values of a channel
    assert bool(report.findings) == judged and ("from 2 inputs" in str(report.skipped)) != judged


class Ensemble(nn.Module):
    """Stacked models, run by a stateless one of them, which has values or only a shape."""

    def __init__(self, device: str) -> None:
        super().__init__()
        models = [nn.Linear(8, 4) for _ in range(3)]
        self.stacked = nn.ParameterDict({k: nn.Parameter(v.detach()) for k, v in stack_module_state(models)[0].items()})
        self.skeleton = [copy.deepcopy(models[0]).to(device)]

    def forward(self, x: Tensor) -> Tensor:
        def one(state: dict[str, Tensor]) -> Any:
            return functional_call(self.skeleton[0], state, (x,))

        mean: Tensor = torch.vmap(one)(dict(self.stacked)).mean(0)
        return mean


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_a_stateless_skeleton_is_unregistered_on_purpose(device: str) -> None:
    found = check(Ensemble(device), torch.randn(4, 8), select="HK030").findings
    assert len(found) == (device == "cpu")


class TwoWays(nn.Module):
    """Attention with a fused and a plain way, each a method."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.attn_drop, self.fused = nn.Linear(8, 24), nn.Dropout(0.1), True

    def with_dropout(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=0.1 if self.training else 0.0)

    def plain(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weighted: Tensor = self.attn_drop((q @ k.mT).softmax(-1)) @ v
        return weighted

    def forward(self, x: Tensor) -> Tensor:
        return (self.with_dropout if self.fused else self.plain)(*self.qkv(x).chunk(3, -1))


class Forgets(nn.Module):
    """Never uses its dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.attn_drop = nn.Linear(8, 24), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        weighted: Tensor = (q @ k.mT).softmax(-1) @ v
        return weighted


@pytest.mark.parametrize("kind", [TwoWays, Forgets])
def test_a_dropout_whose_work_the_fused_way_does(kind: type[nn.Module]) -> None:
    found = check(kind(), torch.randn(2, 4, 8), select="HK007").findings
    assert [one.fqn for one in found] == ["attn_drop"] * (kind is Forgets)


class Second(nn.Module):
    """Fails when it is called again, as checkpoints do in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(8, 8), 0

    def forward(self, x: Tensor) -> Any:
        self.calls += 1
        if self.calls > 1:
            raise ValueError("again")
        return self.layer(x)


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.first, self.part, self.reentrant = nn.Linear(8, 8), Second(), reentrant

    def forward(self, x: Tensor) -> Any:
        if self.reentrant is None:
            return self.part(self.part(x))
        return checkpoint(self.part, self.first(x), use_reentrant=self.reentrant)


@pytest.mark.parametrize("reentrant", [True, False, None])
def test_a_crash_in_recomputation_happens_in_backward(reentrant: bool | None) -> None:
    (one,) = check(Checkpointed(reentrant), torch.randn(4, 8)).findings
    assert one.check == "HK001" and one.fqn == "part" and "ValueError: again" in one.message
    assert ("in backward, where its activation checkpoint runs it again" in one.message) == (reentrant is not None)
