"""Operators in recorded steps: their rows, and a training that is what it is without them."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from inspect import getsourcelines
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

import hookcli
from hookcli import watch
from hookcli.errors import UsageError
from hookcli.hooks.operators import calls
from hookcli.hooks.torch_private import exchange
from hookcli.hooks.torch_private.dynamo import frames_compiled
from hookcli.probes.activations import ActivationsProbe
from hookcli.record.file.reading import Record, read_record
from hookcli.record.file.views.overview import overview
from hookcli.reporters.table import TableReporter
from hookcli.table import Row
from hookcli.table.grouping import View


class Block(nn.Module):
    """A layer and functions around it, one of them in place."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.layer(x), inplace=True) + x
        y += 1
        return torch.cat([y, x], 1)[:, 2:6] * 0.5


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.block, self.drop, self.last = Block(), nn.Dropout(0.3), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.drop(self.block(x) + x)).softmax(1)
        return y


STATE: list[Callable[[], Any]] = [
    torch._C._len_torch_function_stack,
    lambda: torch.overrides.has_torch_function,
    lambda: functional.has_torch_function,
]


def trained(model: nn.Module, steps: int = 4, **settings: Any) -> list[Tensor]:
    """Train the model, recorded with these settings if there are any; return all that it ends with."""
    before = [read() for read in STATE]
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    torch.manual_seed(1)
    kept = []

    def train() -> None:
        for _ in range(steps):
            output = model(torch.randn(8, 4))
            optimizer.zero_grad()
            (output[:, 0] ** 2).sum().backward()
            assert [read() for read in STATE] == before
            kept.extend(p.grad.clone() for p in model.parameters() if p.grad is not None)
            optimizer.step()

    if settings:
        with watch(model, **settings):
            train()
    else:
        train()
    assert [read() for read in STATE] == before and not exchange._exchanged
    return [*kept, *(p.detach() for p in model.parameters()), torch.get_rng_state()]


@pytest.fixture(autouse=True)
def nothing_compiled() -> None:
    """Once a program has compiled anything, the operators of its loss functions are not watched."""
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


def recorded(path: Path) -> Record:
    return read_record(str(path))


def rows_of(path: Path, step: int, probe: str = "activations") -> dict[str, Row]:
    entries = [entry for entry in recorded(path).entries if entry.step == step]
    (found,) = recorded(path).steps(entries)
    return {row.fqn: row for report in found.reports if report.probe == probe for row in report.rows}


@pytest.mark.sweep
def test_a_training_is_bit_identical_and_its_recorded_steps_have_operators(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    plain = trained(Net())
    seen = trained(Net(), every=2, ops="functions", output=file)
    assert len(plain) == len(seen) and all(torch.equal(a, b) for a, b in zip(plain, seen, strict=True))
    assert {entry.step for entry in recorded(file).entries} == {0, 2}
    rows = rows_of(file, 0)
    inner = [f"block:{name}_1" for name in ("relu", "add", "add_", "cat", "getitem", "mul")]
    of_loss = [f"(loss):{name}_1" for name in ("getitem", "pow", "sum")]
    assert list(rows) == ["", "block", "block.layer", *inner, ":add_1", "drop", "last", ":softmax_1", *of_loss]
    model = Net().double()
    torch.manual_seed(1)
    x = torch.randn(8, 4).double()
    with torch.no_grad():
        made = functional.relu(model.block.layer(x))
    stats = rows["block:relu_1"].stats
    assert stats is not None and stats.mean == pytest.approx(made.mean().item(), rel=1e-5)
    assert stats.zeros == (made == 0).sum().item()
    line = f"test_operators.py:{getsourcelines(Block.forward)[1] + 3}"
    assert rows["block:cat_1"]["source"].endswith(line) and rows["block:cat_1"]["type"] == "cat"
    (step, *_) = recorded(file).steps(recorded(file).entries[:1])
    joined = overview(step)
    assert [column.name for column in joined.columns][:3] == ["fqn", "type", "source"]
    shown = TableReporter().render([joined], View(width=200, height=60)).splitlines()
    assert any(":cat_1" in text and line in text for text in shown)


@pytest.mark.sweep
def test_a_pattern_selects_operators_and_one_that_nothing_matches_is_noted(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    trained(Net(), 1, every=1, ops="functions", match="*:add*", output=file, probes="activations")
    assert list(rows_of(file, 0)) == ["block:add_1", "block:add__1", ":add_1"]
    other = tmp_path / "other.jsonl"
    trained(Net(), 2, every=1, ops="functions", match="*:sub_*", output=other, probes="activations")
    (model,) = recorded(other).end.models  # type: ignore[union-attr]
    assert [note for note in model["notes"] if "sub_" in note] == [
        "--match: no module, parameter or operator matches '*:sub_*'"
    ]


def test_the_first_bad_value_is_that_of_an_operator_with_its_line(tmp_path: Path) -> None:
    class Broken(Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(torch.log(x.abs() * 0) + x)

    file = tmp_path / "run.jsonl"
    trained(Broken(), 1, every=1, ops="functions", first_bad="report", output=file, keep_bad=tmp_path / "kept")
    (found,) = recorded(file).non_finite
    assert found.fqn == ":log_1" and found.inf == 32 and "test_operators.py:" in found.cause
    (script,) = (tmp_path / "kept").glob("*.py")
    assert found.kept.startswith(f"`python {script}` reproduces it")  # by the model's own forward, which called log
    kept = load_file(script.with_suffix(".safetensors"))
    assert kept["input.0"].isfinite().all() and kept["output"].shape == (8, 2) and not kept["output"].isfinite().all()
    assert "source" in [column.name for report in found.reports for column in report.columns]

    checked = tmp_path / "checked.jsonl"
    trained(Broken(), 1, every=1, ops="functions", check=True, output=checked)
    assert rows_of(checked, 0, "check")[":log_1"]["check"] == "HK003"


@pytest.mark.parametrize(("most", "first"), [(0.0, None), (math.inf, ":full_1")])
def test_infinities_of_a_mask_count_only_where_they_reach_a_module(
    tmp_path: Path, most: float, first: str | None
) -> None:
    class Masked(Net):
        def forward(self, x: Tensor) -> Tensor:
            mask = torch.full_like(x, -math.inf) if first is None else torch.full((1,), most)
            return super().forward(x + mask.clamp(min=most))

    file = tmp_path / "run.jsonl"
    trained(Masked(), 1, every=1, ops="functions", first_bad="report", output=file)
    assert [found.fqn for found in recorded(file).non_finite] == ([first] if first else [])


class Named(TorchFunctionMode):
    """A mode of the program's own."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_forward_that_fails_leaves_the_modes_of_the_program(tmp_path: Path, error: type[BaseException]) -> None:
    class Failing(Net):
        fails = True

        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            if self.fails:
                raise error
            return y

    model = Failing()
    with watch(model, every=1, ops="functions", output=tmp_path / "run.jsonl"):
        with pytest.raises(error):
            model(torch.ones(1, 4))
        if error is ValueError:
            assert torch._C._len_torch_function_stack() == 0
        model.fails = False
        with Named() as mode:
            model(torch.ones(1, 4))
            assert torch._C._get_function_stack_at(torch._C._len_torch_function_stack() - 1) is mode
    assert torch._C._len_torch_function_stack() == 0


@pytest.mark.sweep
def test_compiled_parts_are_not_compiled_again_for_operators(tmp_path: Path) -> None:
    """A part by `torch.compile`, one in place, and the whole model."""
    wrapped, in_place, whole = Net(), Net(), Net()
    wrapped.block = torch.compile(wrapped.block, backend="eager")  # type: ignore[assignment]
    in_place.block.compile(backend="eager")
    models: dict[str, Any] = {"wrapped": wrapped, "in_place": in_place}
    models["whole"] = torch.compile(whole, backend="eager")
    for name, model in models.items():
        trained(model, 1, every=1, output=tmp_path / "without.jsonl")
        compiled = frames_compiled()
        trained(model, 2, every=1, ops="functions", output=tmp_path / f"{name}.jsonl")
        assert frames_compiled() == compiled, name
        names = [*rows_of(tmp_path / f"{name}.jsonl", 0)]
        assert (":add_1" in names) is (name != "whole") and not any(fqn.startswith("block:") for fqn in names)


def test_only_functions_are_recorded() -> None:
    with pytest.raises(UsageError, match="ops 'aten': a program that runs is recorded with 'functions'"):
        watch(Net(), every=1, ops="aten")


def test_a_probe_that_fails_leaves_no_mode_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: ActivationsProbe, *given: Any) -> None:
        raise ValueError("not mine")

    monkeypatch.setattr(ActivationsProbe, "take", fail)
    plain = trained(Net(), 2)
    assert all(map(torch.equal, plain, trained(Net(), 2, every=1, ops="functions", output=tmp_path / "run.jsonl")))


def test_what_fsdp_computes_in_its_hooks_is_no_operator_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hook whose code lies where FSDP's does stands for its own, which needs several processes."""
    monkeypatch.setitem(sys.modules, "torch.distributed.fsdp", ModuleType("fsdp"))
    names: dict[str, Any] = {}
    exec(compile("def hook(module, args):\n    return args[0] * 2", f"{calls._FSDP}hook.py", "exec"), names)
    model = Net().eval()
    model.block.register_forward_pre_hook(names["hook"])
    [report] = hookcli.capture(model, torch.ones(2, 4), ["activations"], ops="functions")
    muls = [row.fqn for row in report.rows if row["type"] == "mul"]
    assert muls == ["block:mul_1"] and report.rows[-1].fqn == ":softmax_1"
