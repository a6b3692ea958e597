"""Its check."""

from hookcli.checks.base import Check


class OneSided(Check):
    """A layer returned no positive value."""

    id = "SIGNS"
    name = "one-sided"
    means = "a bias that was set wrongly"
    advice = "look at the bias"
    needs = ("signs",)
    asked_by = "--signs"

    def judge(self, measured):
        for row in measured.probes["signs"].rows:
            if not row["positive"]:
                yield self.finding(row.fqn, "no value is positive", 0)
