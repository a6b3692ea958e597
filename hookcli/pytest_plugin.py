"""A pytest plugin: the fixture `hookcli` checks models, and fails a test with the table of what was found.

Loaded with every pytest run of an environment that has hookcli, so it imports nothing heavy before it is used.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from torch import nn

    from hookcli.diff.baseline import Baseline
    from hookcli.report import Report

_WIDTH = 110
_LONGEST = 100  # characters of a file's name, which may have 255 bytes
_UPDATE = "--hookcli-update"


class ModelChecks:
    """What the fixture gives."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._test = request.node
        self._update = bool(request.config.getoption(_UPDATE))
        self._names: Counter[str] = Counter()
        self._baselines: list[Baseline] = []

    def check(self, model: nn.Module, inputs: Any, **settings: Any) -> Report:
        """`hookcli.check`: a report whose `findings` tell what is wrong. It never fails the test."""
        from hookcli.engine.checking import check

        return check(model, inputs, **settings)

    def assert_healthy(self, model: nn.Module, inputs: Any, *, fail_on: str = "error", **settings: Any) -> Report:
        """Fail the test where something as bad as `fail_on` is found; `settings` are those of `hookcli.check`."""
        __tracebackhide__ = True
        from hookcli.checks.judgement import fails
        from hookcli.errors import UsageError, unknown
        from hookcli.report import SEVERITIES
        from hookcli.system.escaping import visible

        if fail_on not in SEVERITIES:
            raise UsageError(unknown("fail_on", fail_on, SEVERITIES))
        report = self.check(model, inputs, **settings)
        if fails([report], fail_on):
            pytest.fail(f"{visible(report.model)} is not healthy\n{_table(report)}")
        return report

    def assert_unchanged(
        self, model: nn.Module, inputs: Any, *, rtol: float | None = None, atol: float | None = None, **settings: Any
    ) -> Report:
        """Fail the test where the model is not as its baseline has it: shapes, parameters, MACs, statistics, gradients.

        The baseline is a file beside the test's, `hookcli_baselines/FILE/TEST.json`, which `pytest --hookcli-update`
        writes; it is meant to be committed. It has one of each call in the test, in their order where they bear one
        name. Weights and inputs must be the same each time: seed them. `settings` are those of `hookcli.check`:
        `backward`, `loss`, `name`.
        """
        __tracebackhide__ = True
        import torch

        name = settings.pop("name", None) or type(model).__name__
        self._names[name] += 1
        name += f" #{self._names[name]}" if self._names[name] > 1 else ""
        file = self._file()
        with torch.random.fork_rng():
            torch.manual_seed(0)  # for what the model draws while it runs
            if self._update:
                return self._save(model, inputs, file, name, settings)
            if not file.exists():
                pytest.fail(f"there is no {file}: `pytest {_UPDATE}` writes it")
            report = self.check(
                model, inputs, select="HK027", against=str(file), rtol=rtol, atol=atol, name=name, **settings
            )
        if report.findings:
            pytest.fail(f"{name} is not as {file} has it ({_UPDATE} writes it anew)\n{_table(report)}")
        return report

    def _file(self) -> Path:
        """Of this test alone: with the classes around it and, where characters are left out, a digest of all."""
        test: Path = self._test.path
        whole = ".".join(self._test.nodeid.split("::")[1:])
        words = re.sub(r"[^\w.-]+", "-", whole).strip("-")
        if words != whole:
            words = f"{words[:_LONGEST]}-{hashlib.sha256(whole.encode()).hexdigest()[:8]}"
        return test.parent / "hookcli_baselines" / test.stem / f"{words}.json"

    def _save(self, model: nn.Module, inputs: Any, file: Path, name: str, settings: dict[str, Any]) -> Report:
        """Write the baseline of a model that runs to its end, with those of the test's calls before."""
        from hookcli.checks.plan import make_plan
        from hookcli.diff.baseline import Baseline, write_baselines
        from hookcli.engine.checking import examine
        from hookcli.engine.prepare import PreparedRun
        from hookcli.engine.step import Step

        run = PreparedRun.of(model, inputs, Step(loss=settings.pop("loss", None)), name)
        examination = examine(run, make_plan(select=["HK001"], keep=True, **settings))
        if examination.error:
            raise examination.error
        self._baselines.append(Baseline.of(*examination.kept))
        file.parent.mkdir(parents=True, exist_ok=True)
        write_baselines(str(file), self._baselines)
        return examination.report


def _table(report: Report) -> str:
    from hookcli.report.grouping import View
    from hookcli.reporters.table import TableReporter

    return TableReporter().render([report], View(width=_WIDTH))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what writes baselines."""
    parser.getgroup("hookcli").addoption(
        _UPDATE, action="store_true", help="write the baselines of hookcli.assert_unchanged"
    )


@pytest.fixture
def hookcli(request: pytest.FixtureRequest) -> ModelChecks:
    """Check a model: `hookcli.check(model, inputs).findings`, or `hookcli.assert_healthy(model, inputs)`."""
    return ModelChecks(request)
