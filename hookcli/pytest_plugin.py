"""A pytest plugin: the fixture `hookcli` checks models, and fails a test with the table of what was found.

Loaded with every pytest run of an environment that has hookcli, so it imports nothing heavy before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from torch import nn

    from hookcli.report import Report

_WIDTH = 110


class ModelChecks:
    """What the fixture gives."""

    def check(self, model: nn.Module, inputs: Any, **settings: Any) -> Report:
        """`hookcli.check`: a report whose `findings` tell what is wrong. It never fails the test."""
        from hookcli.checking import check

        return check(model, inputs, **settings)

    def assert_healthy(self, model: nn.Module, inputs: Any, *, fail_on: str = "error", **settings: Any) -> Report:
        """Fail the test where something as bad as `fail_on` is found; `settings` are those of `hookcli.check`."""
        __tracebackhide__ = True
        from hookcli.checks.base import SEVERITIES
        from hookcli.checks.verdict import fails
        from hookcli.errors import UsageError, unknown

        if fail_on not in SEVERITIES:
            raise UsageError(unknown("fail_on", fail_on, SEVERITIES))
        report = self.check(model, inputs, **settings)
        if fails([report], fail_on):
            pytest.fail(f"{report.model} is not healthy\n{_table(report)}")
        return report


def _table(report: Report) -> str:
    from hookcli.fold import View
    from hookcli.reporters.table import TableReporter

    return TableReporter().render([report], View(width=_WIDTH))


@pytest.fixture
def hookcli() -> ModelChecks:
    """Check a model: `hookcli.check(model, inputs).findings`, or `hookcli.assert_healthy(model, inputs)`."""
    return ModelChecks()
