"""A distribution of its own: a source, a probe, a check, an edit and a reporter for hookcli."""

import torch
from torch import nn

from hookcli.checks.base import Check, Threshold
from hookcli.errors import UsageError
from hookcli.probes.base import Probe, StatsProbe, describe
from hookcli.sources.base import InputSpec, Recipe
from hookcli.table import Bar, Column, Kind, Merge, Row, columns_named


class DemoSource:
    """`demo:WIDTH` is a small network of that width."""

    def recipe(self, request):
        if not request.spec.isdecimal():
            raise UsageError(f"demo:{request.spec}: give a width, as in demo:8")
        width = int(request.spec)
        return Recipe(
            name=f"demo of width {width}",
            build=lambda: nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 1)),
            inputs=(InputSpec((16, 4)),),
            meta={"weights": "random", "plugin": {"width": width, "layers": ["Linear", "ReLU"]}},
        )


class DeadProbe(Probe):
    """How many units of each ReLU are zero for every input."""

    name = "dead"
    columns = (Column("fqn", "Layer"), Column("units", "Units"), Column("dead", "Dead"))

    def attach(self, session):
        self.found = []
        session.forward(self.see)

    def see(self, event):
        if isinstance(event.module, nn.ReLU):
            units = event.output.flatten(1)
            self.found.append((event.fqn, units.shape[1], (units == 0).all(0).sum()))

    def rows(self):
        return [Row({"fqn": fqn, "units": units, "dead": int(dead)}) for fqn, units, dead in self.found]


class EnergyProbe(StatsProbe):
    """Half the sum of squares of what each module returns, with rules for merging, comparing and showing it."""

    name = "energy"
    energy = Column("energy", "Energy", "joule", Kind.FIGURE, merge=Merge.SUM, tolerance=0.1, bar=Bar.LOG)
    columns = (*columns_named("fqn", "type", "call"), energy)

    def attach(self, session):
        self.session = session
        session.forward(self.see)

    def see(self, event):
        self.take(describe(event, "") | {"energy": float(event.output.double().square().sum()) / 2}, event.output)


class SignsProbe(Probe):
    """How many values are positive in each half of the features that a layer returns, in recorded steps, too."""

    name = "signs"
    in_steps = True
    columns = (
        *columns_named("fqn", "path", "call"),
        Column("positive", "Positive", kind=Kind.COUNT, merge=Merge.SUM),
        Column("largest", "Largest value", kind=Kind.FIGURE, merge=Merge.MOST),
        Column("features", "Features", kind=Kind.COUNT, charted=False),
    )

    def attach(self, session):
        self.found = []
        session.forward(self.see)

    def see(self, event):
        if isinstance(event.module, nn.Linear):
            for path, half in zip(("low", "high"), event.output.detach().chunk(2, -1), strict=False):
                place = {"fqn": event.fqn, "path": path, "call": event.call, "features": half.shape[-1]}
                self.found.append((place, (half > 0).sum(), half.amax()))

    def rows(self):
        return [Row(place | {"positive": int(n), "largest": float(most)}) for place, n, most in self.found]


class OneSided(Check):
    """A half of the features of a layer has no positive value."""

    id = "SIGNS"
    name = "one-sided"
    means = "a bias that was set wrongly"
    advice = "look at the bias"
    needs = ("signs",)

    def judge(self, measured):
        for row in measured.probes["signs"].rows:
            if not row["positive"]:
                yield self.finding(row.fqn, f"no positive value in the {row['path']} half", 0)


class Narrow(Check):
    """A layer returns fewer features than one wants."""

    id = "DEMO1"
    name = "narrow-layer"
    means = "a width that was mistyped"
    advice = "make it wider"
    needs = ("activations",)
    threshold = Threshold("features", 4, 1)

    def judge(self, facts):
        for row in facts.activations.rows:
            if row["type"] == "Linear" and row["shape"][-1] < self.limit:
                yield self.finding(row.fqn, f"returns {row['shape'][-1]} features", row["shape"][-1])


def keep(x, units, *, value=0.0):
    """The first `units` of the last dimension stay; the others become `value`."""
    return torch.where(torch.arange(x.shape[-1]) < units, x, torch.full_like(x, value))


class LinesReporter:
    """A line per row, fields separated by a vertical bar."""

    suffixes = (".lines",)

    def render(self, reports, view):
        return "".join("|".join(str(row.get(c.name)) for c in r.columns) + "\n" for r in reports for row in r.rows)
