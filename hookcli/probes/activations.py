"""Statistics of the tensors that each module, or operator, returns, and of those that each module receives."""

from __future__ import annotations

from collections.abc import Mapping

from hookcli.hooks.events import HookEvent
from hookcli.hooks.kinds import HookKind
from hookcli.hooks.session import HookSession
from hookcli.probes.base import StatsProbe
from hookcli.probes.shared.masked_scores import MaskedScores, Place, with_remarks
from hookcli.table import Row
from hookcli.tensors.containers import kind_of


class _CallStatsProbe(StatsProbe):
    """A StatsProbe whose rows are in the order in which modules were entered, containers before their parts."""

    def rows(self) -> list[Row]:
        """Return a row per tensor of a call."""
        return sorted(super().rows(), key=lambda row: row["index"])


class ActivationsProbe(_CallStatsProbe):
    """A row per tensor that a module or operator returned, per call."""

    name = "activations"
    tensors = "output"
    operators = True
    inside_compiled = True
    _scores: MaskedScores | None = None  # also of a model whose forward no hook sees

    def attach(self, session: HookSession) -> None:
        self.session = session
        self._scores = MaskedScores(ops=bool(session.ops))
        session.forward(self._see)

    def rows(self) -> list[Row]:
        """Return a row per tensor of a call, with remarks on infinities that are meant."""
        return with_remarks(super().rows(), self.remarks())

    def _latest(self) -> list[Row]:
        """The rows of the latest batch; of several, a place is remarked on where that holds in each."""
        rows = super()._latest()
        if self._scores:
            self._scores.judge(rows)
        return rows

    def remarks(self) -> Mapping[Place, str]:
        """MASK for each place whose infinities are meant, and what is known of a softmax's."""
        return self._scores.remarks() if self._scores else {}

    def has_computed(self, row: Row) -> bool:
        return self._scores is not None and self._scores.has_computed(row)

    def modules_that_computed(self) -> set[str]:
        """The modules that made infinities themselves, as far as autograd's nodes tell."""
        return {fqn for fqn, *_ in self._scores.computed} if self._scores else set()

    def watch_operators(self) -> None:
        """Let operators tell which infinities are meant, without a row for each of them."""
        if self._scores:
            self.session.on_operators(HookKind.FORWARD, self._scores.see)

    def batch_ended(self) -> None:
        super().batch_ended()
        if self._scores:
            self._scores.batch_ended()

    def _see(self, event: HookEvent) -> None:
        if self._scores and self.session.ops:
            self._scores.see(event)
        nothing = f"returned no tensor that can be seen ({kind_of(event.output)})"
        self.take_all(event, self.unseen.leaves(event.fqn, event.output), nothing)
        if self._scores and not self.session.ops:
            self._scores.see_module(event, self.latest_is_finite)


class InputsProbe(_CallStatsProbe):
    """A row per tensor that a module received, per call, taken before the module runs (it may overwrite its input)."""

    name = "inputs"
    tensors = "input"
    inside_compiled = True

    def attach(self, session: HookSession) -> None:
        self.session = session
        session.forward_pre(self._see)

    def _see(self, event: HookEvent) -> None:
        received = self.unseen.arguments(event.fqn, event.args, event.kwargs)
        self.take_all(event, received, "received no tensor that can be seen")
