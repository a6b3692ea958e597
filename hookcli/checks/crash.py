"""HK001: the model fails during its run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hookcli.checks.base import ERROR, Check
from hookcli.checks.measurements import Measurements
from hookcli.table import Finding


class Crash(Check):
    """The forward or backward pass raised an exception.

    The finding names the module that was running, its type, the shapes of its inputs and the innermost lines of the
    model's own code. Other checks still report what they find in the part of the run before the crash, except checks
    that would mistake an unfinished run for a fault (a parameter without a gradient, a module that was never called).
    Checks that found nothing are listed as not judged, because the rest of the run is unknown. A crash is always
    reported, whatever is selected or ignored. Some checks also run the model in eval mode, or compiled (--compile); if
    only such a run fails, the training run is judged as usual and the failure is reported as well. A crash makes the
    exit code 2, as in every command; further models are still checked.
    """

    id = "HK001"
    name = "crash"
    severity = ERROR
    means = "the model does not run on this input"
    advice = "look at the lines named here; --debug shows the whole traceback"
    needs = ()
    values = False

    def judge(self, measured: Measurements) -> Iterator[Finding]:
        crashes = ((measured.crash, ""), (measured.eval_crash, "in eval mode: "), (measured.compile_crash, ""))
        for crash, where in crashes:
            if crash:
                text = " ".join(line.strip() for line in str(crash).splitlines())
                if crash.source:  # it stands beside the operator's name
                    text = text.replace(f"{crash.fqn} ({crash.source}) ", "", 1)
                yield self.finding(crash.fqn, where + text)


def with_crash(checks: Sequence[Check]) -> Sequence[Check]:
    """The checks, always with this one: nothing else would say why a run was not judged."""
    return checks if any(isinstance(check, Crash) for check in checks) else [Crash(), *checks]
