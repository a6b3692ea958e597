"""The language of rules: `spike: grad_norm > 5 * median(50)`.

A rule compares figures of a step, by the names that `hookcli show --over-time` has, with numbers and with windows over
the steps before. None of it is run as Python: its syntax tree is read, which may have a few kinds of nodes.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from operator import add, eq, ge, gt, le, lt, mul, neg, sub, truediv
from statistics import fmean, median
from typing import Any, NamedTuple

from hookcli.errors import UsageError, shortened, unknown
from hookcli.table.columns import names
from hookcli.table.columns.recorded import MEASURED, OVER_TIME, RECORDED

GRAD_NORM = "grad_norm"
MEMORY = ("resident_bytes", "peak_bytes")
EVERY_STEP = ("step", "loss", GRAD_NORM, "lr", "seconds", *MEMORY)
"""Figures that every training step has, recorded or not; only recorded steps have the others."""
_OF_MODEL = tuple(dict.fromkeys((*EVERY_STEP, *names(OVER_TIME))))
_OF_MODULE = ("max_abs", *names(RECORDED))
_WINDOWS: dict[str, Callable[[Sequence[float]], float]] = {"mean": fmean}
_WINDOWS.update((of.__name__, of) for of in (median, max, min))
_LONGEST, _LETTERS, _LARGEST = 10_000, 200, 1e308
_EXAMPLE = "a rule compares figures, such as grad_norm > 5 * median(50)"
_SEE = f"figures: {', '.join(EVERY_STEP)}; of recorded steps: {', '.join(names(MEASURED[1:]))} ..."
_CALL = re.compile(r"\b([A-Za-z_]\w*)\(\s*([\w.-]+)\s*\)")
_SUMS: Any = {"Add": add, "Sub": sub, "Mult": mul, "Div": truediv, "USub": neg}
_ORDERS: Any = {"Gt": gt, "GtE": ge, "Lt": lt, "LtE": le, "Eq": eq}
"""The arithmetic and the comparisons that nodes of these names stand for."""


class Figure(NamedTuple):
    """A figure of a step: of a module or parameter, or of the model itself, whose fqn is ""."""

    name: str
    fqn: str = ""

    @property
    def waits(self) -> bool:
        """True if recorded steps alone have it."""
        return bool(self.fqn) or self.name not in EVERY_STEP


class Term(NamedTuple):
    """A figure, or a window over it: its median, for example, over this many `steps` before the present one."""

    label: str
    figure: Figure
    window: str = ""
    steps: int = 0

    def over(self, values: Sequence[float]) -> float | None:
        """The window's figure over the values of the steps before; None as long as there are too few of them."""
        return _WINDOWS[self.window](values[-self.steps :]) if len(values) >= self.steps else None


Leaf = Callable[[ast.expr, ast.Compare | None], float | None]  # the value of a node, given the comparison around it


@dataclass(frozen=True, eq=False)
class Rule:
    """A condition on the figures of a step. A comparison with a figure that is unknown, or NaN, does not hold."""

    name: str
    condition: ast.expr
    nodes: Mapping[ast.expr, Term]

    @property
    def waits(self) -> bool:
        """True if it asks for a figure that recorded steps alone have."""
        return any(term.figure.waits for term in self.nodes.values())

    def holds(self, values: Mapping[Term, float | None]) -> bool:
        return _holds(self.condition, lambda node, _: values[self.nodes[node]])


def parse_rules(texts: Sequence[str]) -> list[Rule]:
    """Parse `NAME: CONDITION`, or a condition alone. Raises UsageError, which says what would be right."""
    rules = {rule.name: rule for rule in map(_parsed, texts)}
    if len(rules) < len(texts):
        raise UsageError("--rule: two rules have one name; give each its own, as in 'spike: loss > 5'")
    return list(rules.values())


def _parsed(text: str) -> Rule:
    name, colon, condition = text.partition(":")
    condition = (condition if colon else name).strip()
    nodes: dict[ast.expr, Term] = {}
    try:
        if len(condition) > _LETTERS:
            raise UsageError(f"a condition has at most {_LETTERS} characters")
        text = _CALL.sub(_quoted, condition)
        # Python reads `5or` and `'\d'` with a warning, on the terminal of the user.
        if "\\" in text:
            raise UsageError(f"backslashes are not allowed; {_EXAMPLE}")
        for word in re.findall(r"(?<![\w.])\d[\w.]*", re.sub(r"'[^']*'", "", text)):
            if not re.fullmatch(r"[\d_]+\.?\d*(?:[eE]\d*)?|0[xXbBoO][\da-fA-F]+", word):
                raise UsageError(f"{word!r} is not a number; put a space between a number and a word")
        tree = ast.parse(text, mode="eval").body
        _holds(tree, lambda node, within: nodes.update({node: _term(node, within)}))
        if not nodes:
            raise UsageError(_EXAMPLE)
    except (UsageError, SyntaxError, ValueError, RecursionError) as error:
        why = str(error) if isinstance(error, UsageError) else f"{getattr(error, 'msg', error)}; {_EXAMPLE}"
        raise UsageError(f"--rule {shortened(text, 80)!r}: {why}") from None
    return Rule(name.strip() or condition, tree, nodes)


def _quoted(call: re.Match[str]) -> str:
    """A call with the name of a module in quotes, without which `std(layers.3)` is not Python."""
    function, argument = call[1], call[2]
    counts, known = function in _WINDOWS and argument.isdecimal(), argument in _OF_MODEL
    if function in _WINDOWS and (known or not (counts or function in _OF_MODULE)):
        raise UsageError(f"{call[0]}: over how many steps? Write {function}({argument if known else 'loss'}, 50)")
    plain = counts or function == "finite"
    return call[0] if plain else f"{function}({argument!r})"


def _holds(node: ast.expr, leaf: Leaf) -> bool:
    match node:
        case ast.BoolOp(op=op, values=parts):
            truths = [_holds(part, leaf) for part in parts]
            return all(truths) if isinstance(op, ast.And) else any(truths)
        case ast.UnaryOp(op=ast.Not(), operand=ast.Call(func=ast.Name(id="finite"), args=[of], keywords=[])):
            return not math.isfinite(leaf(of, None) or 0.0)
        case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op).__name__ in _ORDERS for op in ops):
            numbers = [_number(side, node, leaf) for side in (left, *others)]
            pairs = zip(ops, pairwise(numbers), strict=True)
            return all(None not in pair and _ORDERS[type(op).__name__](*pair) for op, pair in pairs)
    raise UsageError(f"{_EXAMPLE}, joined by and, or; or is: not finite(loss)")


def _number(node: ast.expr, within: ast.Compare, leaf: Leaf) -> float | None:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return math.inf if value > _LARGEST else float(value)
        case ast.UnaryOp(op=op) | ast.BinOp(op=op) if type(op).__name__ in _SUMS:
            sides = [node.operand] if isinstance(node, ast.UnaryOp) else [node.left, node.right]
            numbers = [_number(side, within, leaf) for side in sides]
            with suppress(ArithmeticError):  # a division by zero
                return None if None in numbers else float(_SUMS[type(op).__name__](*numbers))
            return None
    return leaf(node, within)


def _term(node: ast.expr, within: ast.Compare | None) -> Term:
    """The figure or window that a node names. Raises UsageError for anything else."""
    label, windows = ast.unparse(node).replace("'", ""), _WINDOWS if within else ()
    match node:
        case ast.Call(func=ast.Name(id=name), args=[*own, ast.Constant(value=int() as steps)]) if name in windows:
            if not 0 < steps <= _LONGEST:
                raise UsageError(f"{label}: give a number of steps from 1 to {_LONGEST:,}")
            figures = [*map(_figure, own)] or [*dict.fromkeys(_subjects(within or node))]
            if len(figures) != 1:
                raise UsageError(f"{label}: of which figure? Write {name}(loss, {steps})")
            return Term(label, figures[0], name, steps)
    return Term(label, _figure(node))


def _figure(node: ast.expr) -> Figure:
    match node:
        case ast.Name(id=name):
            if name not in _OF_MODEL:
                raise UsageError(unknown("figure", name, _OF_MODEL, see=_SEE))
            return Figure(name)
        case ast.Call(func=ast.Name(id=name), args=[ast.Constant(value=str() as fqn)], keywords=[]):
            if name not in _OF_MODULE:
                raise UsageError(unknown("figure of a module", name, [*_OF_MODULE, *_WINDOWS]))
            return Figure(name, "" if fqn == "." else fqn)
    raise UsageError(f"{ast.unparse(node)!r} is not a figure of a step; {_EXAMPLE}")


def _subjects(node: ast.AST) -> Iterator[Figure]:
    """The figures that a comparison names outside of windows."""
    match node:
        case ast.Name() | ast.Call(args=[ast.Constant(value=str())]):
            yield _figure(node)
        case ast.Compare() | ast.UnaryOp() | ast.BinOp():
            for part in ast.iter_child_nodes(node):
                yield from _subjects(part)


def check_rules(texts: Sequence[str], plan: object) -> None:
    """Raises UsageError for a rule that can't be read."""
    parse_rules(texts)
