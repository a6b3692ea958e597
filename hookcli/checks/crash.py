"""A model that does not get through its run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hookcli.checks.base import ERROR, Check, Measurements
from hookcli.report import Finding


class Crash(Check):
    """The forward or backward pass raised an exception.

    The finding names the module that was running, its type and the shapes of its input, and the innermost lines of the
    model's own code. What the other checks find in what was measured before the crash is still told, except by those
    that would take what did not happen for a fault (a parameter without gradient, a module never called). Checks that
    found nothing are listed as not judged: nobody knows what the rest of the run would have shown. A crash is reported
    whatever is selected or ignored. Some checks run the model in eval mode, too: one that fails there alone is judged
    by its run, and this is told beside that. A crash makes the exit code 2, as a model that cannot run does in every
    command; further models are still checked.
    """

    id = "HK001"
    name = "crash"
    severity = ERROR
    means = "the model does not run on this input"
    advice = "look at the lines that are named here, and what shapes came there; --debug shows the traceback"
    needs = ()
    values = False

    def judge(self, measured: Measurements) -> Iterator[Finding]:
        if measured.crash:
            place, said = _place(measured.crash)
            yield self.finding(place, said)
        if measured.eval_crash:
            place, said = _place(measured.eval_crash)
            yield self.finding(place, f"in eval mode: {said}")


def _place(crash: str) -> tuple[str, str]:
    """The module's name, where the message begins with one (hookcli/hooks/failure.py), and the message on one line."""
    head, failed, _ = crash.partition(" failed")
    name = head.partition(" (")[0]
    known = failed and " (" in head and not name.startswith(("a backward hook", "the model"))
    return (name if known else ""), " ".join(line.strip() for line in crash.splitlines())


def with_crash(checks: Sequence[Check]) -> Sequence[Check]:
    """The checks, with this one whatever was selected: nothing else would tell why a run was not judged."""
    return checks if any(isinstance(check, Crash) for check in checks) else [Crash(), *checks]
