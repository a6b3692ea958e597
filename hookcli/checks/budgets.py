"""What a model may cost."""

from __future__ import annotations

from collections.abc import Iterator

from hookcli.checks.base import ERROR, Check, Measurements, Threshold
from hookcli.report import Finding, formatting


class TooManyParameters(Check):
    """The model has more parameters than --max-params allows; each tensor counts once, frozen ones too."""

    id = "HK022"
    name = "max-params"
    severity = ERROR
    asked_by = "--max-params"
    means = "a layer that became wider, or one that is not shared any more"
    advice = "`hookcli shapes --sort -params` shows the largest"
    needs = ("inventory",)
    values = False
    threshold = Threshold("parameters", None, unit="count")

    def judge(self, measured: Measurements) -> Iterator[Finding]:
        assert measured.inventory is not None
        yield from _above(self, measured.inventory.totals["params"], "parameters")


class TooManyMacs(Check):
    """One forward pass takes more multiply-accumulates than --max-macs allows.

    They are counted as `hookcli shapes` counts them: in eval mode, for one item of the natural input, or for the input
    that was given.
    """

    id = "HK023"
    name = "max-macs"
    severity = ERROR
    asked_by = "--max-macs"
    means = "a larger resolution, or a stride or a group that was lost"
    advice = "`hookcli shapes --sort -macs` shows the largest"
    needs = ("shapes",)
    values = False
    threshold = Threshold("multiply-accumulates of one forward pass", None, unit="count")

    def judge(self, measured: Measurements) -> Iterator[Finding]:
        assert measured.shapes is not None
        yield from _above(self, measured.shapes.totals["macs"], "multiply-accumulates")


class TooMuchMemory(Check):
    """Autograd keeps more memory for backward than --max-activation-memory allows.

    Counted are the bytes of all storages that the forward pass saves for backward, each once, without parameters and
    buffers, as `hookcli trace --summary` has it in Kept. It grows with the batch: give the --batch-size that you mean.
    """

    id = "HK024"
    name = "max-activation-memory"
    severity = ERROR
    asked_by = "--max-activation-memory"
    means = "a larger batch or resolution, or an operation that is not in place any more"
    advice = "`hookcli trace --summary --sort -kept` shows who keeps it; torch.utils.checkpoint trades it for time"
    needs = ("grads", "inventory")
    values = False
    threshold = Threshold("bytes kept for backward", None, unit="bytes")

    def judge(self, measured: Measurements) -> Iterator[Finding]:
        assert measured.inventory is not None
        yield from _above(self, measured.inventory.totals["kept_bytes"], "kept for backward")


def _above(check: Check, value: int, what: str) -> Iterator[Finding]:
    if check.limit is not None and value > check.limit:
        unit = check.threshold.unit if check.threshold else ""
        shown = formatting.size if unit == "bytes" else formatting.quantity
        said = f"{shown(value)} {what}, {shown(round(check.limit))} are allowed"
        yield check.finding("", said, value)
