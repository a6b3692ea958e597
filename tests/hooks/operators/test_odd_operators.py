"""Operators of odd tensors and functions: they run as without hookcli, and their rows are right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from hookcli import capture
from hookcli.hooks.operators.functions import ArgumentTensors, writes


class Calls(nn.Module):
    def __init__(self, function: Callable[[Tensor], Any], *parts: nn.Module) -> None:
        super().__init__()
        self.function = function
        self.parts = nn.Sequential(*parts)

    def forward(self, x: Tensor) -> Any:
        return self.function(self.parts(x))


def sources(net: nn.Module) -> dict[str, str]:
    found = capture(net, torch.ones(2, 4), "activations", ops="functions")[0].rows
    return {row.fqn: row["source"] for row in found if "source" in row.values}


def test_equal_functions_of_two_files_have_their_own_source_lines(tmp_path: Path) -> None:
    functions = []
    for name in ("a.py", "b.py"):
        exec(compile("def double(x):\n    return x * 2", str(tmp_path / name), "exec"), made := dict[str, Any]())
        functions.append(made["double"])
    found = sources(Calls(lambda x: functions[1](functions[0](x))))
    assert found[":mul_1"].endswith("a.py:2") and found[":mul_2"].endswith("b.py:2")


def test_the_source_line_of_an_aten_operator_is_the_programs_where_several_modes_see_it() -> None:
    net = Calls(lambda x: x, nn.Linear(4, 4)).to("meta")
    report = capture(net, torch.ones(2, 4, device="meta"), "shapes", ops="aten")[0]
    lines = [row["source"] for row in report.rows if row["type"] == "addmm"]
    assert lines and all("test_odd_operators.py" in line for line in lines)


class Seen(Tensor):
    functions: list[str] = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.functions.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


class Sees(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Seen.functions.append(func.__name__)
        return func(*args, **kwargs or {})


def test_the_programs_modes_and_subclasses_do_not_see_how_operators_are_told() -> None:
    x = torch.ones(2, 4).as_subclass(Seen)
    with Sees():
        Seen.functions.clear()
        given = ArgumentTensors([x])
        assert given.makes(x) is False and not Seen.functions
        x.add_(1)
        assert given.makes(x) is True and Seen.functions == ["add_", "add_"]


def test_a_lazy_layer_makes_its_parameters() -> None:
    net = Calls(torch.relu, nn.LazyLinear(3))
    assert ":relu_1" in sources(net)


def test_bytes_of_nested_tensors_with_symbols_for_sizes() -> None:
    parts = (torch.ones(3, 4), torch.ones(2, 4))
    net = Calls(lambda x: torch.nested.nested_tensor(list(parts), layout=torch.jagged) * 2)
    rows = capture(net, torch.ones(2, 4), "shapes", ops="functions")[0].rows
    (row,) = (row for row in rows if row["type"] == "mul")
    assert (row["read_bytes"], row["written_bytes"]) == (5 * 4 * 4, 5 * 4 * 4)


def test_names_of_functions_of_two_names_and_the_reason_inside_of_torch_func() -> None:
    net = Calls(lambda x: torch.mm(x, x.T) + torch.func.grad(lambda w: w.pow(2).sum())(x).sum())
    report = capture(net, torch.ones(2, 4), "activations", ops="functions")[0]
    assert ":mm_1" in [row.fqn for row in report.rows]
    reasons = {skipped.fqn: skipped.reason for skipped in report.skipped}
    assert reasons[":pow_1"] == "can't be reduced (float32, inside torch.func)"


def test_operators_that_write_into_an_argument_end_in_an_underscore_or_take_an_output() -> None:
    aten = torch.ops.aten
    assert writes(aten.add_.Tensor) and writes(aten.add.out)
    assert not writes(aten.add.Tensor) and not writes(torch.add)
