"""Tables of the memory of modules: which columns a narrow one keeps, and blocks that are one row."""

from __future__ import annotations

import math

import pytest
from table.test_folding import Halved, require_true_multipliers

from hookcli.capabilities.memory.layout import MEMORY
from hookcli.capabilities.memory.plan import MemoryPlan
from hookcli.capabilities.memory.reports import modules_report
from hookcli.capabilities.memory.simulate import simulate
from hookcli.engine.setting import Setting
from hookcli.reporters.table import TableReporter
from hookcli.sources.base import Recipe
from hookcli.sources.inputs import InputSpec
from hookcli.table import Report, Row
from hookcli.table.grouping import View


def test_a_narrow_table_keeps_the_largest_parts_of_memory_and_no_tiny_one() -> None:
    held = {
        "optimizer_bytes": 4e8,
        "temporary_bytes": 3e8,
        "activation_bytes": 2e8,
        "param_bytes": 1e8,
        "input_bytes": 9,
    }
    rows = [Row({"fqn": f"model.part{n}", "type": "T", "bytes": 10**9, **held}) for n in range(3)]
    some = Report("memory", "net", MEMORY, rows, grouping="disjoint")
    told = {"Optimizer", "Temporaries", "Activations", "Parameters", "Inputs"}
    for width, kept in ((120, told), (72, told - {"Inputs"}), (60, told - {"Inputs", "Parameters"})):
        text = TableReporter().render([some], View(width=width))
        assert {word for word in text.split() if word in told} == kept, text


@pytest.mark.parametrize("depth", [1, 2, 3, math.inf])
def test_a_multiplier_is_the_number_of_modules_of_that_name(depth: float) -> None:
    recipe = Recipe("net", Halved, (InputSpec((2, 4)),))
    require_true_multipliers(modules_report(simulate(recipe, Setting(train=True), MemoryPlan())), depth)
