"""`hookcli.report(model, inputs)`: one run of a model, with everything that a page shows."""

from __future__ import annotations

from typing import Any

from hookcli.engine.checking import examine, plan_of
from hookcli.engine.prepare import PreparedRun
from hookcli.engine.step import Step
from hookcli.reporters.report_page import ReportPage
from hookcli.sources.base import Loss


def report(
    model: Any,
    *inputs: Any,
    loss: str | Loss | None = None,
    name: str | None = None,
    **settings: Any,
) -> ReportPage:
    """Run the model once on `inputs`, in its present mode, and return everything that was measured, as a page.

    The arguments, and the promise that the model is afterwards as it was, are those of `hookcli.check`. A model that
    fails is a finding, and the page ends there.
    """
    plan, given = plan_of("report", model, inputs, settings)
    examination = examine(PreparedRun.of(model, given, Step(loss=loss), name), plan, in_full=True)
    return ReportPage(examination.shown, examination.error)
