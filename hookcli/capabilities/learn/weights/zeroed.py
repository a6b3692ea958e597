"""Parameters whose gradient is zero everywhere in every recorded step, as before a round() or a dead layer."""

from __future__ import annotations

from dataclasses import dataclass

from hookcli.checks.zero_gradients import is_zero
from hookcli.record.file.record_lines import RecordedStep

_STEPS, _SHARE = 3, 0.1  # recorded ones; of the elements of all gradients


@dataclass
class Zeroed:
    """The parameters whose gradient was zero in all recorded steps so far; None before the first."""

    names: set[str] | None = None
    steps: int = 0

    def words(self, step: RecordedStep) -> str:
        """Note a step's gradients. Returns words on those that have always been zero, if they are a good part of all
        and others are not; else "".
        """
        rows = step.parameter_grads()
        stats = {row.fqn: row.stats for row in rows if row.stats}
        zero = {row.fqn for row in rows if is_zero(row)}
        self.names = zero if self.names is None else self.names & zero
        self.steps += 1
        always = [fqn for fqn in stats if fqn in self.names]
        share = sum(stats[fqn].numel for fqn in always) / max(sum(one.numel for one in stats.values()), 1)
        if self.steps < _STEPS or not _SHARE <= share < 1:
            return ""
        more = f" and {len(always) - 1:,} more" if always[1:] else ""
        return f"the gradients of {always[0]}{more} ({share:.0%} of the weights) are zero in all recorded steps"
