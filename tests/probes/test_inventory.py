"""What the health probe measures, against PyTorch itself."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from support import Shared, assert_stats, equal, float64_stats, untouched
from torch import Tensor, nn

from hookcli import capture
from hookcli.hooks.torch_private.modules import module_tables, tensor_tables
from hookcli.probes import inventory
from hookcli.probes.inventory import InventoryProbe
from hookcli.table import Report
from hookcli.tensors.checksum import checksum


def health(model: nn.Module, inputs: object, **settings: bool) -> Report:
    with untouched(model):
        return capture(model, inputs, [InventoryProbe(backward=True, **settings)])[0]


def rows(report: Report, kind: str) -> list[dict[str, object]]:
    return [row.flat() for row in report.rows if row["kind"] == kind]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.act = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU()
        self.never = nn.Linear(2, 2)

    def forward(self, x: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
        y = self.act(self.norm(self.conv(x)) * scale)
        return {"out": y, "mean": y.mean((2, 3))}


def test_values_inputs_outputs_and_what_never_ran() -> None:
    torch.manual_seed(0)
    model, x = Net(), torch.randn(4, 3, 8, 8)
    report = health(model, x)
    held = {row.fqn: row for row in report.rows if row["kind"] in ("parameter", "buffer")}
    assert held.keys() == {*dict(model.named_parameters()), *dict(model.named_buffers())}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        assert_stats(held[name].stats, float64_stats(tensor))
    [given] = [row for row in report.rows if row["kind"] == "input"]
    assert_stats(given.stats, float64_stats(x))
    assert [(r["path"], r["shape"], r["dtype"]) for r in rows(report, "output")] == [
        ('["out"]', [4, 6, 6, 6], "float32"), ('["mean"]', [4, 6], "float32"),
    ]  # fmt: skip
    assert [(r["fqn"], r["params"], r["builtin"]) for r in rows(report, "never_called")] == [("never", 6, True)]
    assert report.totals == {"params": 186, "trainable": 186, "modules": 5}


@pytest.mark.parametrize("channels_last", [False, True])
def test_dead_and_saturated_channels(channels_last: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 1), nn.Hardtanh(-2, 2), nn.Conv2d(4, 2, 1))
    with torch.no_grad():
        model[0].bias.copy_(torch.tensor([0.0, -9, -9, 9, 0, 0]))
        model[2].bias.copy_(torch.tensor([50.0, -50, 0, 0]))
    x = torch.randn(2, 3, 8, 8)
    x = x.to(memory_format=torch.channels_last) if channels_last else x
    found = rows(health(model, x), "units")
    with torch.no_grad():
        first = model[:2](x)
        second = model[:4](x)
    dead = int((first == 0).all(0).flatten(1).all(1).sum())
    ends = int((second.abs() == 2).all(0).flatten(1).all(1).sum())
    assert (dead, ends) == (2, 2)
    assert [(r["fqn"], r["channels"], r["positions"], r["dead"], r["saturated"]) for r in found] == [
        ("1", 6, 72, dead, None), ("3", 4, 72, 0, ends),
    ]  # fmt: skip


def test_a_checksum_changes_with_any_bit() -> None:
    torch.manual_seed(0)
    model, ids = Shared(), torch.randint(0, 7, (2, 3))
    first = rows(health(model, ids, bits=True), "bits")
    assert rows(health(model, ids, bits=True), "bits") == first
    assert {row["of"] for row in first} == {"output", "gradient"}
    assert [row["fqn"] for row in first if row["of"] == "gradient"].count("embed.weight") == 1
    with torch.no_grad():
        weight = model.mix.weight.view(-1)
        weight[3] = torch.nextafter(weight[3], torch.tensor(9.0))
    second = rows(health(model, ids, bits=True), "bits")
    changed = [a["fqn"] for a, b in zip(first, second, strict=True) if a["sum"] != b["sum"]]
    assert changed[0] == "mix" and "embed" not in changed[:1]


class Views(nn.Module):
    """What autograd may hand on: the elements in another order in every second run, and lazily conjugated ones."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.runs = nn.Linear(4, 4), 0

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = self.layer(x)
        self.runs += 1
        conjugate = torch.view_as_complex(y.reshape(-1, 2)).conj()
        return (y.flip(0) if self.runs % 2 else y), conjugate, conjugate.imag


def test_a_checksum_changes_with_the_order() -> None:
    torch.manual_seed(0)
    model, x = Views(), torch.randn(3, 4)
    first, second, third = (rows(health(model, x, bits=True), "bits") for _ in range(3))
    assert first == third
    outputs = {
        row["path"]: (row["sum"], other["sum"]) for row, other in zip(first, second, strict=True) if not row["fqn"]
    }
    assert [a == b for a, b in outputs.values()] == [False, True, True]


def test_a_checksum_of_integers_that_change_places() -> None:
    """No two of the orders of a few small numbers, and none across the blocks that are summed, have one checksum."""
    orders = [torch.tensor(p) for p in set(permutations((1, 1, 2, 2, 3)))]
    long = torch.zeros(3 << 18, dtype=torch.uint8)
    orders += [long.index_fill(0, torch.tensor(place), 1) for place in range(0, long.numel(), 1 << 17)]
    assert len({int(checksum(x)) for x in orders}) == len(orders)


def test_memory_is_what_the_saved_tensors_take() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)), torch.randn(4, 5)
    kept: dict[int, int] = {}
    held = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in held:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        output = model(x)
    assert health(model, x, memory=True).totals["kept_bytes"] == sum(kept.values()) == 4 * (4 * 5 + 4 * 7)
    del output


def test_nothing_that_it_watches_changes() -> None:
    torch.manual_seed(0)
    model, x = Net().train(), torch.randn(4, 3, 8, 8)
    plain = model(x)
    torch.manual_seed(0)
    other = Net().train()
    outputs: list[object] = []
    other.register_forward_hook(lambda module, args, output: outputs.append(output))
    capture(other, x, [InventoryProbe(backward=True, memory=True, bits=True)])
    assert equal(outputs[0], plain)


def test_every_kind_of_hook_that_a_model_can_carry_fires_in_a_run_or_with_a_state_dict() -> None:
    linear = nn.Linear(2, 2)
    kinds = {kind for tables in (module_tables(linear), tensor_tables(linear.weight)) for kind, *_ in tables}
    kinds |= {"backward"}  # the deprecated registration of full_backward's table
    assert set(inventory._FIRING) == {kind for kind in kinds if "state_dict" not in kind}


def test_a_hook_is_named_with_its_line_if_it_is_known() -> None:
    def hook(module: nn.Module, args: object, output: object) -> None: ...

    model = nn.Linear(2, 2)
    model.register_forward_hook(hook)
    model.register_forward_hook(print)
    [report] = capture(model, torch.ones(1, 2), probes=[InventoryProbe(backward=False)])
    known, unknown = (row["name"] for row in report.rows if row["kind"] == "hook")
    assert known.endswith(f"test_inventory.py:{hook.__code__.co_firstlineno})")
    assert "print" in unknown and ":" not in unknown
