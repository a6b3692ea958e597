"""The line on why a training does not learn."""

from __future__ import annotations

from hookcli.capabilities.learn.checks import GradientsNotCleared, NoBetterThanGuessing
from hookcli.capabilities.learn.lines import Learning
from hookcli.checks.judgement import judge
from hookcli.record.file.reading import Record
from hookcli.record.file.views.whole_run import whole_run


def headline(record: Record) -> str:
    """Net: gradients are never cleared: the optimizer took those of all steps before as well, ... "" if all is well."""
    models = dict.fromkeys(line.model for line in record.of(Learning))
    courses = record.courses() if models else {}
    for model in models:
        judged = judge([GradientsNotCleared(), NoBetterThanGuessing()], whole_run(record, model, courses.get(model)))
        for finding in judged.findings:
            return f"{model}: {finding.message}"
    return ""
