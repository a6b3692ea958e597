"""A pytest plugin: the fixture `hookcli` checks models, and fails a test with a table of the findings.

pytest loads it wherever hookcli is installed, so heavy imports wait until the fixture is used.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from torch import nn

    from hookcli.diff.baseline import Baseline
    from hookcli.table import Report

_WIDTH = 110
_LONGEST = 100  # characters of a file name, which may have 255 bytes
_UPDATE = "--hookcli-update"


class ModelChecks:
    """The object that the fixture `hookcli` provides to a test."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._test = request.node
        self._update = bool(request.config.getoption(_UPDATE))
        self._names: Counter[str] = Counter()
        self._baselines: list[Baseline] = []

    def check(self, model: nn.Module, *inputs: object, **settings: Any) -> Report:
        """Check a model as `hookcli.check` does and return the report with its `findings`. Never fails the test."""
        from hookcli.engine.checking import check

        return check(model, *inputs, **settings)

    def assert_healthy(self, model: nn.Module, *inputs: object, fail_on: str = "error", **settings: object) -> Report:
        """Fail the test for findings at least as severe as `fail_on`; `settings` as in `hookcli.check`."""
        __tracebackhide__ = True
        from hookcli.checks.judgement import fails
        from hookcli.errors import UsageError, unknown
        from hookcli.system.escaping import visible
        from hookcli.table import SEVERITIES

        if fail_on not in SEVERITIES:
            raise UsageError(unknown("fail_on", fail_on, SEVERITIES))
        report = self.check(model, *inputs, **settings)
        if fails([report], fail_on):
            pytest.fail(f"{visible(report.model)} is not healthy\n{_table(report)}")
        return report

    def assert_unchanged(
        self, model: nn.Module, *inputs: object, rtol: float | None = None, atol: float | None = None, **settings: Any
    ) -> Report:
        """Fail the test if the model differs from its baseline in shapes, parameters, MACs, statistics or gradients.

        The baseline is a file next to the test's, `hookcli_baselines/FILE/TEST.json`; `pytest --hookcli-update` writes
        it. Commit it. It holds a baseline for each call in the test; calls of one name are numbered in order. Weights
        and inputs must be the same each time: seed them. `settings` are `backward`, `loss` and `name` of
        `hookcli.check`.
        """
        __tracebackhide__ = True
        import torch

        name = settings.pop("name", None) or type(model).__name__
        self._names[name] += 1
        name += f" #{self._names[name]}" if self._names[name] > 1 else ""
        file = self._file()
        with torch.random.fork_rng():
            torch.manual_seed(0)  # for random numbers that the model draws while it runs
            if self._update:
                return self._save(model, inputs, file, name, settings)
            if not file.exists():
                pytest.fail(f"no baseline {file}: `pytest {_UPDATE}` writes it")
            settings |= {"rtol": rtol, "atol": atol, "name": name}
            report = self.check(model, *inputs, select="HK027", against=str(file), **settings)
        if report.findings:
            pytest.fail(f"{name} differs from its baseline {file} ({_UPDATE} rewrites it)\n{_table(report)}")
        return report

    def _file(self) -> Path:
        """Return this test's file, named after the test and its classes; a digest stands for replaced characters."""
        test: Path = self._test.path
        whole = ".".join(self._test.nodeid.split("::")[1:])
        words = re.sub(r"[^\w.-]+", "-", whole).strip("-")
        if words != whole:
            words = f"{words[:_LONGEST]}-{hashlib.sha256(whole.encode()).hexdigest()[:8]}"
        return test.parent / "hookcli_baselines" / test.stem / f"{words}.json"

    def _save(
        self, model: nn.Module, inputs: Sequence[object], file: Path, name: str, settings: dict[str, Any]
    ) -> Report:
        """Write the model's baseline, and the baselines of the test's earlier calls. Raises if the model crashes."""
        from hookcli.diff.baseline import Baseline, write_baselines
        from hookcli.engine.checking import examine, plan_of
        from hookcli.engine.prepare import PreparedRun
        from hookcli.engine.step import Step

        loss = settings.pop("loss", None)
        plan, call = plan_of("assert_unchanged", model, inputs, {"select": "HK001", **settings}, keep=True)
        examination = examine(PreparedRun.of(model, call, Step(loss=loss), name), plan)
        if examination.error:
            raise examination.error
        self._baselines.append(Baseline.of(*examination.kept))
        file.parent.mkdir(parents=True, exist_ok=True)
        write_baselines(str(file), self._baselines)
        return examination.report


def _table(report: Report) -> str:
    from hookcli.reporters.table import TableReporter
    from hookcli.table.grouping import View

    return TableReporter().render([report], View(width=_WIDTH))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that writes baselines."""
    parser.getgroup("hookcli").addoption(
        _UPDATE, action="store_true", help="write the baselines of hookcli.assert_unchanged"
    )


@pytest.fixture
def hookcli(request: pytest.FixtureRequest) -> ModelChecks:
    """Check a model: `hookcli.check(model, inputs).findings`, or `hookcli.assert_healthy(model, inputs)`."""
    return ModelChecks(request)
