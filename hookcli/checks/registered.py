"""HK030: parameters that the model computes with and no optimizer gets."""

from __future__ import annotations

from collections.abc import Iterator

from hookcli.checks.base import Check
from hookcli.checks.measurements import ReadsInventory
from hookcli.table import Finding


class Unregistered(Check):
    """The model computes with parameters that PyTorch does not know of: `model.parameters()` does not list them.

    They are in modules in a plain list or dict, in tensors that require grad but are no nn.Parameter, or in modules
    that forward creates anew in every call. Nothing fails, but no optimizer trains them, `state_dict()` does not save
    them, and `to()` and `eval()` do not reach them. Parameters that bypass nn.Module's registration on purpose (through
    `self.__dict__`, as for a teacher model) and frozen ones are not reported. The figure is the number of elements that
    require grad.
    """

    id = "HK030"
    name = "unregistered"
    means = "modules in a plain list, a tensor that is no nn.Parameter, or a layer created in forward"
    advice = "use nn.ModuleList or nn.Parameter; create layers in __init__"
    needs = ("inventory",)
    values = False

    def judge(self, measured: ReadsInventory) -> Iterator[Finding]:
        for row in measured.inventory.rows:
            if row["kind"] == "unregistered" and row["trainable"] and not row["deliberate"]:
                yield self.finding(row.fqn, row["said"], row["trainable"])
