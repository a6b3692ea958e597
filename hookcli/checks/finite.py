"""NaN and infinities: in what goes in, what comes out, what flows back, and what the model holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from hookcli.checks.base import ERROR, Check, Measurements
from hookcli.report import Finding, Row
from hookcli.report.names import is_within


class _NotFinite(Check):
    """Shared by the four: one finding per place, with the number of values that are not finite.

    With `others` only the first is named, and the others of that word are counted.
    """

    severity = ERROR

    def found(self, rows: Iterable[Row], what: str, others: str = "") -> Iterator[Finding]:
        bad = [row for row in rows if row.stats and (row.stats.nan or row.stats.inf)]
        rest = len({row.fqn for row in bad[1:]}) if others else 0
        for row in bad[:1] if others else bad:
            assert row.stats is not None
            number = row.stats.nan + row.stats.inf
            kinds = " and ".join(k for k, n in (("NaN", row.stats.nan), ("infinite", row.stats.inf)) if n)
            after = f", and in {rest} {others}{'s' * (rest > 1)} after it" if rest else ""
            yield self.finding(row.fqn, f"{number:,} of {row.stats.numel:,} {what} are {kinds}{after}", number)


class InputNotFinite(_NotFinite):
    """The model was given NaN or infinite values, so that nothing after it means anything.

    With hookcli's own input (`--fill`) this can't happen; it is for the example input of a model of your own, and for
    `hookcli.check(model, inputs)` on a real batch.
    """

    id = "HK002"
    name = "input-not-finite"
    means = "the data has missing values, or a division by zero in the preprocessing"
    advice = "look at the loader: torch.isfinite(batch).all()"
    needs = ("inventory",)

    def judge(self, measured: Measurements) -> Iterator[Finding]:
        assert measured.inventory is not None
        yield from self.found((row for row in measured.inventory.rows if row["kind"] == "input"), "input values")


class ActivationNotFinite(_NotFinite):
    """A module returned NaN or infinite values.

    Only the first module is named, with the number of those after it: what is not finite spreads to everything
    downstream, but begins in one place. Where that module was given such values already, they begin in the code that
    calls it: the module that this code belongs to is named, and between which of its parts it does so.
    """

    id = "HK003"
    name = "activation-not-finite"
    means = "an overflow, a division by zero, or the logarithm or root of a negative number begins in this module"
    advice = "run it in float32 or --dtype float64, and clamp or add an epsilon there"
    needs = ("activations", "inventory")
    follows = ("HK002", "HK005")

    def judge(self, measured: Measurements) -> Iterator[Finding]:
        assert measured.activations is not None and measured.inventory is not None
        received = {(r.fqn, r["call"]): r for r in measured.inventory.rows if r["kind"] == "received"}
        bad = _innermost(measured.activations.rows)
        for finding in self.found(bad, "values of its output", "module"):
            place = received.get((finding.fqn, bad[0]["call"]))
            yield _blaming_the_code(finding, place, received) if place else finding


def _blaming_the_code(finding: Finding, place: Row, received: Mapping[tuple[str, int], Row]) -> Finding:
    """The finding at the module whose own code made the values that the module of the finding only received."""
    while around := received.get((place["caller"], place.get("caller_call", 0))):  # which had them from outside, too
        place = around
    if place["caller"] is None:
        return replace(finding, message=f"{finding.message}; the model's input has such values already")
    between = f"between {place['after']} and {place.fqn}" if place["after"] else f"before {place.fqn}"
    told = finding.message.replace("its output", f"the output of {finding.fqn}")
    return replace(finding, fqn=place["caller"], message=f"begins {between}, which received it: {told}")


def _innermost(rows: Sequence[Row]) -> list[Row]:
    """The rows that are not finite, without containers that hand on what a part of theirs made."""
    bad = [row for row in rows if row.stats and (row.stats.nan or row.stats.inf)]
    names = {row.fqn for row in bad}
    return [r for r in bad if not any(is_within(n, r.fqn) for n in names)]


class GradientNotFinite(_NotFinite):
    """The gradient of a parameter has NaN or infinite values: the next optimizer step would spoil the model.

    The parameter that autograd reached first is named, with the number of those after it: the fault lies near it, or
    between it and the loss. A finite forward with such a gradient comes from a function whose derivative is not finite
    where its value is: `sqrt` and `norm` at 0, `where` over a branch that is NaN.
    """

    id = "HK004"
    name = "gradient-not-finite"
    means = "a derivative that is not finite (sqrt or norm at 0, torch.where over a NaN branch), or an overflow"
    advice = "`hookcli grads --of outputs` shows where it begins; add an epsilon under the root"
    needs = ("grads",)
    follows = ("HK003", "HK005")

    def judge(self, measured: Measurements) -> Iterator[Finding]:
        assert measured.grads is not None
        yield from self.found(measured.grads.rows, "values of its gradient", "parameter")


class ParameterNotFinite(_NotFinite):
    """A parameter or buffer holds NaN or infinite values, before any training step.

    Running statistics of a normalization count too. Masks that hold -inf on purpose (attention) do not: a buffer of
    nothing but zeros and -inf is left out. The first one is named, with the number of those after it: a
    checkpoint of a run that diverged has it in all. Parameters come before buffers.
    """

    id = "HK005"
    name = "parameter-not-finite"
    means = "a checkpoint of a run that diverged, an initialisation that divides by zero, or torch.empty never filled"
    advice = "look at the checkpoint, and at what the constructor does with this tensor"
    needs = ("inventory",)

    def judge(self, measured: Measurements) -> Iterator[Finding]:
        assert measured.inventory is not None
        rows = [row for row in measured.inventory.rows if row["kind"] in ("parameter", "buffer") and not _is_mask(row)]
        yield from self.found(rows, "values", "tensor")


def _is_mask(row: Row) -> bool:
    """Zeros and infinities alone: what is added to attention scores."""
    stats = row.stats
    return bool(stats and row["kind"] == "buffer" and not stats.nan and stats.inf and stats.zeros == stats.finite)
