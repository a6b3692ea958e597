"""Gradients of operators' outputs, and operators that are not a single function of PyTorch's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

from hookcli import capture
from hookcli.errors import ModelError, UsageError
from hookcli.probes.grads import GradsProbe


class Cubed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x * x * grads[0]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.kept: dict[str, Tensor] = {}

    def keep(self, name: str, x: Tensor) -> Tensor:
        self.kept[name] = x
        if x.requires_grad:
            x.retain_grad()
        return x

    def forward(self, x: Tensor) -> Tensor:
        x = self.keep(":relu_1", F.relu(self.fc(x)))
        x = self.keep(":Cubed_1", Cubed.apply(x))
        y = self.keep(":mul_1", x * 2)
        first, _ = (self.keep(f":chunk_1[{n}]", part) for n, part in enumerate(y.chunk(2, dim=-1)))
        x = self.keep(":cat_1", torch.cat([first, first], -1))
        x[..., 0] = 0.0
        x = self.keep(":setitem_1", x)
        return self.keep(":add_1", self.attention(x, x, x, need_weights=False)[0] + y)


@pytest.mark.parametrize("of", ["parameters", "outputs", "inputs"])
def test_gradients_of_operators_outputs_are_those_that_pytorch_retains(of: Any) -> None:
    net, x = Net(), torch.randn(2, 3, 4)
    report = capture(net, x, GradsProbe(of), ops="functions", loss="mean")[0]
    found = {row.fqn + row["path"]: row for row in report.rows if "source" in row.values}
    net(x).mean().backward()
    for name in (":relu_1", ":Cubed_1", ":mul_1", ":chunk_1[0]", ":setitem_1", ":add_1"):
        grad = net.kept[name].grad
        assert grad is not None and found[name]["kind"] == "output" and found[name]["shape"] == list(grad.shape)
        assert found[name].stats.mean == pytest.approx(grad.double().mean().item(), rel=1e-5), name
        assert found[name].stats.l2 == pytest.approx(grad.double().norm().item(), rel=1e-5), name
    assert {"attention:linear_1", "attention:scaled_dot_product_attention_1"} <= {row.fqn for row in found.values()}
    assert not any(name.startswith(":mul_2") for name in found)  # the parts of Cubed
    assert (":chunk_1", "[1]") in {(s.fqn, s.path) for s in report.skipped}


def test_outputs_gradients_and_random_state_are_bit_identical_with_operators_watched() -> None:
    net, x = Net(), torch.randn(2, 3, 4)
    plain = net(x)
    plain.sum().backward()
    grads = [p.grad.clone() for p in net.parameters() if p.grad is not None]
    before, apply = torch.get_rng_state(), Cubed.apply
    seen: list[Tensor] = []
    net.register_forward_hook(lambda module, args, output: seen.append(output.detach().clone()))
    capture(net, x, [GradsProbe("outputs"), "activations"], ops="functions")
    capture(net, x, "activations", ops="aten")
    assert all(torch.equal(y, plain) for y in seen) and len(seen) == 2
    assert torch.equal(before, torch.get_rng_state())
    assert Cubed.apply == apply and Cubed.apply.__self__ is Cubed and "apply" not in vars(Cubed)
    assert all(torch.equal(a, p.grad) for a, p in zip(grads, net.parameters(), strict=False) if p.grad is not None)


def test_recomputation_by_checkpointing_has_no_rows_of_its_own() -> None:
    class Checkpointed(Net):
        def forward(self, x: Tensor) -> Tensor:
            y = checkpoint(super().forward, x, use_reentrant=self.reentrant)
            return checkpoint(torch.tanh, y, use_reentrant=self.reentrant)  # the model's own, called by PyTorch's code

    net = Checkpointed()
    names = []
    for net.reentrant in (False, True):
        x = torch.randn(2, 3, 4, requires_grad=True)
        report = capture(net, x, ["activations", GradsProbe()], ops="functions")[0]
        names.append([(row.fqn, row["path"]) for row in report.rows])
    assert names[0] == names[1] and len(names[0]) == len(set(names[0]))
    assert (":tanh_1", "") in names[1] and not any("Checkpoint" in name for name, _ in names[1])


def test_a_crash_in_an_operator_names_it_and_its_line() -> None:
    with pytest.raises(ModelError, match=r"^:add_1 \(.*test_operator_gradients\.py:\d+\) failed on input 2x3x4, 2x3x5"):
        capture(Wrong(), torch.randn(2, 3, 4), "activations", ops="functions")


class Wrong(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + F.pad(x, (0, 1))


def test_aten_has_no_gradients_and_an_unknown_kind_of_operators_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--ops aten: .*no gradients"):
        capture(Net(), torch.randn(2, 3, 4), "grads", ops="aten")
    with pytest.raises(UsageError, match=r"unknown ops 'atn'; did you mean aten\?"):
        capture(Net(), torch.randn(2, 3, 4), ops="atn")
