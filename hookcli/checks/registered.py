"""Parameters that the model computes with and no optimizer gets."""

from __future__ import annotations

from collections.abc import Iterator

from hookcli.checks.base import Check, Measurements
from hookcli.report import Finding


class Unregistered(Check):
    """The model computes with parameters that PyTorch does not know: `model.parameters()` does not give them.

    They are in modules in a plain list or dict, tensors that require grad and are no nn.Parameter, or modules that are
    made in forward, anew in each call. Nothing fails, but no optimizer trains them, `state_dict()` does not save them,
    and `to()` and `eval()` do not reach them. What was put past nn.Module's own registration (by `self.__dict__`), or
    is frozen, is not meant: some hide a teacher so. The figure is the number of elements that require grad.
    """

    id = "HK030"
    name = "unregistered"
    means = "modules in a plain list, a tensor that is no nn.Parameter, or a layer made in forward"
    advice = "use nn.ModuleList, nn.ModuleDict or nn.Parameter, and make layers in __init__"
    needs = ("inventory",)
    values = False

    def judge(self, measured: Measurements) -> Iterator[Finding]:
        assert measured.inventory is not None
        for row in measured.inventory.rows:
            if row["kind"] == "unregistered" and row["trainable"] and not row["deliberate"]:
                yield self.finding(row.fqn, row["said"], row["trainable"])
