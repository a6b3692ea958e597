"""HK031 and HK032: parts that are in eval mode, or frozen, while the rest of the model is trained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hookcli.checks.base import Check, of_kind
from hookcli.checks.measurements import ReadsInventory, ReadsWeightsAndGrads
from hookcli.table import INFO, Finding, Row
from hookcli.table.names import around, is_within

_ADAPTED = 4  # frozen parameters per trained one; a model with adapters has ten or more


class EvalInTraining(Check):
    """A module that behaves differently in training mode ran in eval mode while the model was in training mode.

    A batch normalization then keeps normalizing with running statistics that are never updated, and a dropout drops
    nothing. The check judges normalizations with running statistics, dropout and stochastic depth, and attention and
    recurrent layers that have a dropout argument. A part that is frozen as a whole (no parameter in it requires grad)
    is not reported: to freeze a BatchNorm, put it into eval mode and freeze its weight and bias as well. Several
    modules of one type are one finding; if a whole container is in eval mode, the container is reported.
    """

    id = "HK031"
    name = "eval-in-training"
    means = "eval() without a train() after it, or a BatchNorm that is frozen while its weight is still trained"
    advice = "call model.train(); to freeze it on purpose, freeze its parameters"
    needs = ("inventory",)
    values = False

    def judge(self, measured: ReadsInventory) -> Iterator[Finding]:
        called = {row.fqn: row for row in of_kind(measured.inventory, "called")}
        parameters = {row.fqn: row["trainable"] for row in of_kind(measured.inventory, "parameter")}
        if "" not in called or not called[""]["training"]:
            return
        places: dict[str, list[Row]] = {}
        for row in called.values():
            if row["acts"] and not row["training"]:
                places.setdefault(_outermost(row.fqn, called), []).append(row)
        groups: dict[str, list[Row]] = {}
        for place, rows in places.items():
            if _is_trained(place, parameters):
                groups.setdefault(rows[0]["type"] if rows[0].fqn == place else place, []).extend(rows)
        for rows in groups.values():
            place, number = _outermost(rows[0].fqn, called), len(rows)
            if place == rows[0].fqn:
                more = f", as do {number - 1} more of its type" * (number > 1)
            else:
                more = f"; so do {number} in it ({', '.join(dict.fromkeys(row['type'] for row in rows))})"
            message = f"{called[place]['type']} stays in eval mode while the model trains{more}"
            yield self.finding(place, message, number)


def _outermost(fqn: str, called: dict[str, Row]) -> str:
    """The outermost module around this one such that it and everything in between are in eval mode."""
    outermost = fqn
    for owner in around(fqn):
        if owner in called and called[owner]["training"]:
            break
        outermost = owner if owner in called else outermost
    return outermost


def _is_trained(place: str, parameters: dict[str, bool]) -> bool:
    """True if a parameter in the module is trained or, if it has none, in the nearest module around it."""
    for owner in (place, *around(place)):
        if inside := [trained for name, trained in parameters.items() if is_within(name, owner)]:
            return any(inside)
    return False


def around_trained(layers: Iterable[Row]) -> set[str]:
    """The layers that have a trained parameter, and those around them."""
    trained = [row.fqn for row in layers if row["trainable"]]
    return {*trained, *(owner for fqn in trained for owner in around(fqn))}


class FrozenBetween(Check):
    """The parameters of a layer are frozen although layers before and after it are trained.

    For information only; it never makes the check fail, since such a layer may be frozen on purpose. A layer counts if
    none of its own parameters requires grad but its input does, and a layer called after it is trained. The check
    leaves out layers in eval mode. As with adapters, it also reports nothing if there are more frozen layers than
    trained ones, or if they have more than four times as many parameters. The figure is the number of such layers.
    """

    id = "HK032"
    name = "frozen-between"
    severity = INFO
    means = "requires_grad_(False) meant for other layers, or never undone"
    advice = "to train it, set requires_grad_(True) before creating the optimizer"
    needs = ("inventory", "grads")
    whole = True
    values = False

    def judge(self, measured: ReadsWeightsAndGrads) -> Iterator[Finding]:
        layers = [row for row in of_kind(measured.inventory, "called") if row["params"]]
        trained = [number for number, row in enumerate(layers) if row["trainable"]]
        before = layers[: trained[-1]] if trained else []
        learn = around_trained(layers)
        between = [row for row in before if row.fqn not in learn and row["receives_grad"] and row["training"]]
        most = _ADAPTED * sum(layers[number]["trainable"] for number in trained)
        if 0 < len(between) <= len(trained) and sum(row["params"] for row in between) <= most:
            first = between[0]
            more = f", as are {len(between) - 1} more" if between[1:] else ""
            message = f"{first['type']} is frozen (requires_grad=False) between trained layers{more}"
            yield self.finding(first.fqn, message, len(between))
