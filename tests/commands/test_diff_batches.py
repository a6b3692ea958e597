"""Comparisons over several batches of real input."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from commands.data_nets import loader, net, written
from commands.value_commands import Cli, meta, rows
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


@pytest.fixture(autouse=True)
def batched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return written(tmp_path, monkeypatch)


def outputs_of(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> Tensor:
    """What `conv` returns for all batches."""
    seen: list[Tensor] = []
    model.get_submodule("conv").register_forward_hook(lambda m, i, y: seen.append(y.detach().double()))
    for x, _ in batches:
        model(x.clone())
    return torch.cat(seen)


def other_net() -> nn.Module:
    made = net()
    with torch.no_grad():
        made.get_parameter("conv.weight").mul_(1.01)
    return made


def test_a_comparison_is_of_all_batches(cli: Cli, batched: Path) -> None:
    torch.save(other_net().state_dict(), "other.pt")
    sides = ("diff", "batched.py:Net", "batched.py:Net --weights other.pt")
    ran = cli(*sides, "--data", "batched.py:loader", "--batches", "all", "-f", "json")
    found = {(row["fqn"], row["kind"]): row for row in rows(ran.out)}
    a, b = (outputs_of(model.eval(), loader()) for model in (net(), other_net()))
    row = found["conv", "output"]
    assert ran.code == 1 and meta(ran.out)["batches"] == 3 and row["shape"] == [11, 8, 4, 4]
    assert row["error_l2"] == pytest.approx((a - b).norm().item(), rel=1e-4)
    assert row["max_abs"] == pytest.approx((a - b).abs().max().item(), rel=1e-4) and row["numel"] == a.numel()
    assert row["a_l2"] == pytest.approx(a.norm().item()) and found["bn", "output"]["growth"] == pytest.approx(
        found["bn", "output"]["rel_l2"] / row["rel_l2"]
    )
    ran = cli("diff", "batched.py:Net", "batched.py:Net", "--data", "batched.py:loader", "--batches", "9")
    assert ran.code == 0 and "identical" in ran.out.lower() and "ended after 3 of 9 batches" in ran.err
    ran = cli(*sides, "--data", "batched.py:fails_late", "--batches", "9", "-f", "json")
    assert ran.code == 2 and "making batch 3 failed: OSError: disk gone" in ran.err and meta(ran.out)["batches"] == 2
    whole = {row["fqn"]: row["shape"] for row in rows(ran.out) if row["kind"] == "output"}
    assert whole["conv"] == [8, 8, 4, 4]


def test_a_comparison_of_gradients_is_of_all_batches(cli: Cli) -> None:
    torch.save(other_net().state_dict(), "other.pt")
    found: list[Tensor] = []
    for model in (net().train(), other_net().train()):
        parts = []
        for x, y in loader():
            model.zero_grad()
            cross_entropy(model(x.clone()), y).backward()
            parts.append(model.get_parameter("fc.weight").grad.clone().double())  # type: ignore[union-attr]
        found.append(torch.cat(parts))
    ran = cli(
        *("diff", "batched.py:Net", "batched.py:Net --weights other.pt", "--backward", "--loss", "cross-entropy"),
        *("--data", "batched.py:loader", "--batches", "all", "-f", "json"),
    )
    (row,) = [row for row in rows(ran.out) if (row["fqn"], row["kind"]) == ("fc.weight", "grad")]
    assert row["error_l2"] == pytest.approx((found[0] - found[1]).norm().item(), rel=1e-3)
    assert row["a_l2"] == pytest.approx(found[0].norm().item(), rel=1e-5) and row["shape"] == [10, 8]


def test_a_saved_report_of_batches_is_compared_with_the_same_batches(cli: Cli) -> None:
    given = ("--data", "batched.py:loader", "--batches", "all")
    assert cli("activations", "batched.py:Net", *given, "-o", "saved.json").code == 0
    ran = cli("diff", "saved.json", "batched.py:Net", *given)
    assert (ran.code, ran.err) == (0, "")
    assert cli("diff", "saved.json", "batched.py:Net", "--data", "batched.py:loader").code == 1
