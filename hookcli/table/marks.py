"""Marks: what is wrong with a row, or was done to it, in words; and the worst fault within a module. Free of torch."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import methodcaller

from hookcli.table import SEVERITIES, Reason, Report, Row
from hookcli.table.columns.recorded import RUNS_PROBE
from hookcli.table.names import in_words, is_operator
from hookcli.table.slope import EXPLODES, VANISHES, slope
from hookcli.table.tree import Node, Tree

_IN_GRADIENTS = {"grad_nan": "NaN", "grad_inf": "Inf"}
_JUDGED = ("activations", "grads", "step", "run")  # probes whose tensors should carry information
_FLOATS = ("float", "bfloat", "complex")
_RANDOM = ("Drop", "Stochastic")  # types of modules that may leave out a whole tensor by chance
_ACTIVATIONS = ("relu", "gelu", "silu", "sigmoid", "tanh", "mish", "hardswish", "softplus")  # types of operators
_MIDDLES = dict.fromkeys(("Sigmoid", "Hardsigmoid"), 0.5)  # of gates whose input is tiny, as of fresh models
MASK = "mask"
"""The remark, under `scores`, on infinities that are meant, since a softmax takes them up."""
WRITTEN = "-inf written"
"""The remark on infinities that the program wrote there: they are meant if they do no harm."""
UNKNOWN = "-inf"
"""The remark on -inf of which no node and no operator tells whether it is meant."""
MEANT = (MASK, WRITTEN)
"""The remarks on infinities that are meant."""
SIGN = "▲"  # of a fault
_ENOUGH = 8  # elements that are not equal by chance; see HK010
_SLOPES = {"vanishes": (VANISHES, "HK012"), "explodes": (EXPLODES, "HK013")}
"""Limits, and the checks, which divide by the norms of the weights, of what a slope of gradients does."""


def mark(row: Row) -> str:
    """The mark of a row with a fault, in words, so that it can be read without colour."""
    words = [f"edited: {row.get('edited')}"] if row.get("edited") else []
    words += [str(row[key]) for key in ("change", "reset") if row.get(key)]
    words += [f"against A: {row['unlike']}"] if row.get("unlike") else []
    if row.get("beyond"):  # differences without a figure are named
        words.append("beyond" if row.get("times") not in (None, math.inf) else str(row.get("differs")))
    note = str(row.get("note") or "")
    words += [note.removeprefix("beyond ") if row.get("beyond") else note] if note else []
    states = (row.get("scores"), _not_finite(row), _all_zero(row), *map(row.get, _SLOPES))
    words += [text for text in states if text and text not in note]
    words += ["empty"] if row.stats and not row.stats.numel else []
    return ", ".join(words)


def has_cause(row: Row) -> bool:
    """True if the remark on a row's infinities says where they come from."""
    return row.get("scores") not in (None, UNKNOWN, *MEANT)


def is_lost(row: Row) -> bool:
    """True if values of a row with statistics are NaN, or infinite without being meant."""
    return bool(row.stats and (row.stats.nan or (row.stats.inf and row.get("scores") not in MEANT)))


def is_unexplained(row: Row) -> bool:
    """True if values of a row are infinite, none is NaN, and nothing says why."""
    return bool(row.stats and not row.stats.nan and is_lost(row)) and not has_cause(row)


def of_unknown_origin(rows: Sequence[Row], computed: Container[str]) -> list[Row]:
    """The rows, with this remark on infinities that nothing explains, and that their module has not `computed`."""
    unknown = {number for number, row in enumerate(rows) if is_unexplained(row) and row.fqn not in computed}
    remarked = (row.having({"scores": UNKNOWN}) for row in rows)
    return [new if number in unknown else old for number, (old, new) in enumerate(zip(rows, remarked, strict=True))]


def remark_of(rows: Sequence[Row]) -> str | None:
    """The remark on the infinities of several rows together; None if one row's are not meant."""
    held = [row.get("scores") for row in rows if row.stats and (row.stats.inf or row.stats.nan)]
    causes = [remark for remark in held if remark not in (None, UNKNOWN, *MEANT)]
    if causes or None in held:
        return causes[0] if causes else None
    return UNKNOWN if UNKNOWN in held else next(iter(held), None)


def _not_meant(row: Row) -> str:
    """NaN and infinities that are a fault, unlike masked scores; of a softmax, with its cause."""
    remark = row.get("scores")
    if row.stats and row.stats.inf and not is_lost(row):
        return ""
    words = _not_finite(row)
    return f"{words}: {remark}" if words and has_cause(row) else words


def _not_finite(row: Row) -> str:
    counts = [(row.stats.nan, "NaN"), (row.stats.inf, "Inf")] if row.stats else []
    words = [f"{count:,} {what}" for count, what in counts if count]
    words += [f"{row[name]:,} {what} in gradients" for name, what in _IN_GRADIENTS.items() if row.get(name)]
    return ", ".join(words)


def _all_zero(row: Row) -> str:
    return "all zero" if row.stats and row.stats.zeros == row.stats.numel > 0 else ""


def _constant(row: Row) -> str:
    stats = row.stats
    same = stats and stats.finite == stats.numel and stats.min == stats.max not in (0, _MIDDLES.get(row.get("type")))
    return f"all {stats.min:.4g}" if stats and same and "kind" not in row.values else ""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule for one row: the words for its fault, "" or None if it has none. `carries`: only for values that should
    vary. `checks`: those that explain the fault, by the probe of its report.
    """

    severity: str
    words: Callable[[Row], str | None]
    checks: Mapping[str, str]
    carries: bool = False


_ERROR, _WARNING = SEVERITIES
RULES = (
    Rule(_ERROR, _not_meant, {"activations": "HK003", "inputs": "HK003", "grads": "HK004"}),
    Rule(_WARNING, _all_zero, {"activations": "HK010", "grads": "HK009"}, carries=True),
    Rule(_WARNING, _constant, {}, carries=True),
    *(Rule(_WARNING, methodcaller("get", word), {"grads": check}) for word, (_, check) in _SLOPES.items()),
)
"""The rules that need no second run, the worst first."""


@dataclass(frozen=True, slots=True)
class Fault:
    """The worst fault of a row: its place in the model, its severity and words, and the check that explains it."""

    fqn: str
    severity: str
    words: str
    check: str = ""


def fault(row: Row, probe: str) -> Fault | None:
    """The worst fault of a row of this probe's report; the infinities of a mask are none, nor is what --edit made."""
    if row.get("edited") or (row.stats and row.stats.masks):
        return None
    varies = _should_vary(row, probe)
    for rule in RULES:
        if (varies or not rule.carries) and (words := rule.words(row)):
            words = f"gradient {words}" if probe == "grads" else words
            return Fault(row.fqn, rule.severity, words, rule.checks.get(probe, ""))
    return None


def _should_vary(row: Row, probe: str) -> bool:
    """False for a few elements, for integers, and for a module that drops tensors by chance."""
    if probe not in _JUDGED or not row.stats or row.stats.numel < _ENOUGH:
        return False
    if is_operator(row.fqn) and not any(name in str(row.get("type")) for name in _ACTIVATIONS):
        return False  # masks, and what is counted or compared, may well be zeros
    dropped = any(word in str(row.get("type")) for word in _RANDOM)
    return not dropped and str(row.get("dtype", _FLOATS[0])).startswith(_FLOATS)


def faults(report: Report) -> list[Fault | None]:
    """The fault of each row, or None."""
    return [fault(row, report.probe) for row in report.rows]


def worst(faults: Sequence[Fault], tree: Tree) -> tuple[Fault, int]:
    """The worst of one or more faults in a tree, where they begin: inside the modules that hand them on, in the order
    of the run; and the number of other places with faults as bad.
    """
    severity = min((one.severity for one in faults), key=SEVERITIES.index)
    alike = [one for one in faults if one.severity == severity]
    outer = {place.fqn for one in alike for place in tree[one.fqn].around()}
    inner = [one for one in alike if one.fqn not in outer]
    return inner[0], len({one.fqn for one in inner}) - 1


def within(place: Node, inner: Sequence[Fault], tree: Tree) -> str:
    """The mark of a row that hides these faults of its parts: ▲ mlp.act all zero, and 2 more."""
    first, others = worst(inner, tree)
    return f"{SIGN} {in_words(first.fqn, place.fqn)} {first.words}{f', and {others} more' if others else ''}"


def signed(row: Row, text: str) -> str:
    """The mark of a row on a line of its own: a fault has a sign, other remarks have none."""
    faulty = row.get("beyond") or any(rule.words(row) for rule in RULES)
    return f"{SIGN} {text}" if faulty and not text.startswith(SIGN) else text


def is_fault(remark: str) -> bool:
    """True for a remark below a row, made by `signed`, that is on a fault."""
    return remark.lstrip().startswith(SIGN)


def alarm(report: Report) -> str:
    """The severity of a verdict on faults, of these rows or of some that they hide: "error", or "warning" if it is on
    warnings alone; "" if it is on no fault.
    """
    verdict = str(report.totals.get("verdict", ""))
    if report.probe == "diff" or not verdict:
        return ""
    if report.probe == RUNS_PROBE:
        return _ERROR if any(row.get("loss_fault") for row in report.rows) else ""
    if report.meta.get("complete") is False or without_gradient(report):
        return _ERROR
    notes = filter(is_fault, (str(row.get("note")) for row in report.rows))
    words = [*notes, *(one.words for one in faults(report) if one)]
    if not words:
        return ""
    warned = _WARNED.search(verdict) and not _LOST.search(" ".join([verdict, *words]))
    return _WARNING if warned else _ERROR


_LOST = re.compile(r"\b(NaN|Inf)\b")
_WARNED = re.compile(rf"\ball (zero|-?\d)|\b({'|'.join(_SLOPES)})\b")
"""The words of faults that are warnings. A record's verdict may be on something else."""


def with_verdict(report: Report) -> Report:
    """The report with its worst fault as its verdict, unless it has a verdict already.

    Parameters without a gradient come after errors and before warnings. A slope of gradients is noted in its row.
    """
    report = with_slope(report) if report.probe == "grads" else report
    if "verdict" in report.totals:
        return report
    of_rows = [one for one in faults(report) if one]
    verdict = without_gradient(report)
    if of_rows:
        first, others = worst(of_rows, report.tree)
        what = "parameter" if any(row.get("kind") == "parameter" for row in report.rows) else "module"
        more = f", and in {others:,} {what}{'s' * (others > 1)} after it" if others else ""
        text = f"{in_words(first.fqn)}: {first.words}{more}"
        verdict = "; ".join(filter(None, (text, verdict) if first.severity == _ERROR else (verdict, text)))
    return replace(report, totals={**report.totals, "verdict": verdict}) if verdict else report


def without_gradient(report: Report) -> str:
    """The parameters that backward did not reach, in words, as HK008 finds them; "" in a run that did not end."""
    lost = [item.fqn for item in report.skipped if item.kind is Reason.NO_GRADIENT]
    if not lost or not report.meta.get("complete", True):
        return ""
    every = len(lost) + len({row.fqn for row in report.rows if row.get("kind") == "parameter"})
    first = "first: " if lost[1:] else ""
    return f"{len(lost):,} of {every:,} parameters got no gradient ({first}{in_words(lost[0])})"


def with_slope(report: Report) -> Report:
    """Gradients of parameters, with a `slope` in words at the weight from which on they vanish or explode."""
    rows = [row for row in report.rows if row.get("kind") == "parameter" and len(row.get("shape") or ()) > 1]
    norms = {
        row.fqn: row.stats.l2 for row in rows if row.stats and row.stats.l2 > 0 and not row.stats.nan + row.stats.inf
    }
    if len(norms) < len({row.fqn for row in rows}):
        return report
    for word, (limit, _) in _SLOPES.items():
        if there := slope(norms, limit, above=limit > 1):
            slope_of = {word: f"{word} from here to {there.until} ({there.utmost:.2g} of that near the loss)"}
            rows = [row.having(slope_of) if row.fqn == there.begins else row for row in report.rows]
            return replace(report, rows=rows)
    return report
