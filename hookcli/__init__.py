"""hookcli: see what happens inside a PyTorch model.

`capture` runs a model under probes and returns reports; `capture_recipe` builds the model first, as the commands do.
`watch` observes a model while your own code runs it, `check` judges a model, and `report` makes a page about it. A
`Step` says what a run does besides one forward. All are imported on first use, so that `import hookcli` costs nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as type checkers take it: importing `typing` takes a third of Python's own start
if TYPE_CHECKING:
    from hookcli.engine.capture import capture, capture_recipe
    from hookcli.engine.checking import check, report
    from hookcli.engine.step import Step
    from hookcli.record.watch import Watch, watch
    from hookcli.reporters.report_page import ReportPage

__all__ = ["ReportPage", "Step", "Watch", "capture", "capture_recipe", "check", "report", "watch"]

_HOMES = {
    "ReportPage": "reporters.report_page",
    "Step": "engine.step",
    "Watch": "record.watch",
    "capture": "engine.capture",
    "capture_recipe": "engine.capture",
    "check": "engine.checking",
    "report": "engine.checking",
    "watch": "record.watch",
}


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in _HOMES:
        return getattr(import_module(f"hookcli.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'hookcli' has no attribute {name!r}")
