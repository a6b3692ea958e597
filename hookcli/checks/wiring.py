"""HK030, HK034 to HK037: computations that undo or repeat others, inputs that change, weights unknown to PyTorch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Protocol

from hookcli.checks.base import Check
from hookcli.checks.measurements import ReadsActivations, ReadsInventory, ReadsWeightsAndGrads
from hookcli.diff.tolerance import eps
from hookcli.table import INFO, Finding, Row
from hookcli.table.formatting import listed


class DoubleSoftmax(Check):
    """A loss that expects logits got probabilities: the output of a softmax goes into cross_entropy, which applies
    log_softmax itself, or the output of a sigmoid into binary_cross_entropy_with_logits. Or nll_loss, which expects
    log-probabilities, got the output of a softmax.

    Nothing fails, but the second softmax sees values between 0 and 1 only, so that among 10 classes even a perfect
    prediction keeps a probability of 0.23 and a loss of 1.46, and gradients are small. Read from the autograd graph of
    the loss that was differentiated: the model's own, or --loss. Only operations that arrange values (a view, a
    slice, a cast) may lie between. A log_softmax before nll_loss or kl_div, a softmax in attention and a softmax of the
    target are as they should be; a log_softmax before cross_entropy changes nothing.
    """

    id = "HK034"
    name = "softmax-twice"
    means = "a model that ends in a softmax or sigmoid, trained with a loss that has one in it"
    advice = "return logits, and apply softmax only to predict"
    needs = ("inventory", "grads")
    values = False

    def judge(self, measured: ReadsWeightsAndGrads) -> Iterator[Finding]:
        for row in measured.inventory.rows:
            if row["kind"] == "doubled":
                yield self.finding(row.fqn, f"its {row['type']} goes into {row['loss']}")


class _ReadsLayers(ReadsWeightsAndGrads, ReadsActivations, Protocol): ...


class BiasWithoutEffect(Check):
    """The bias of a layer goes straight into a normalization that subtracts each channel's mean, and the bias with it.

    For information only; it never makes the check fail. The bias has no effect on the output in training mode, its
    gradient is zero but for rounding, and in eval mode it cancels against the running mean. It costs memory and time of
    the optimizer, and weight decay or noise move it. The check judges BatchNorm and InstanceNorm where they use the
    statistics of their input, and GroupNorm with a group per channel. The gradient confirms that the bias is lost: in a
    layer whose input is near 1, it must be smaller than the weight's by half of the dtype's digits. LayerNorm and
    GroupNorm with larger groups mix channels, and keep what is different between their biases. The figure is the number
    of such parameters.
    """

    id = "HK035"
    name = "bias-without-effect"
    severity = INFO
    means = "a convolution or Linear with its default bias=True before a BatchNorm"
    advice = "create it with bias=False: the normalization has its own bias"
    needs = ("inventory", "grads", "activations")

    def judge(self, measured: _ReadsLayers) -> Iterator[Finding]:
        rows = measured.inventory.rows
        types = {row.fqn: row["type"] for row in rows if row["kind"] == "called"}
        weights = {row.fqn: row for row in rows if row["kind"] == "parameter"}
        grads = {row.fqn: row for row in measured.grads.rows}
        outputs = {row.fqn: row for row in reversed(measured.activations.rows)}
        lost = [r for r in rows if r["kind"] == "normalized" and _is_lost(r.fqn, weights, grads, outputs)]
        if lost:
            first, by = lost[0], lost[0]["by"]
            more = f", as are {len(lost) - 1} more" if lost[1:] else ""
            message = f"the bias of this {types[first.fqn]} is removed by {by} ({types[by]}){more}"
            elements = sum(math.prod(grads[f"{row.fqn}.bias".lstrip(".")]["shape"]) for row in lost)
            yield self.finding(first.fqn, message, elements)


_Rows = Mapping[str, Row]


def _is_lost(fqn: str, weights: _Rows, grads: _Rows, outputs: _Rows) -> bool:
    """True if the gradient of a layer's bias is nothing next to its weight's gradient.

    The one is a sum of what flows back, the other a sum of its products with the layer's input, whose size follows from
    the sizes of the output and the weight.
    """
    of_bias, of_weight = f"{fqn}.bias".lstrip("."), f"{fqn}.weight".lstrip(".")
    rows = grads.get(of_bias), grads.get(of_weight), weights.get(of_weight), outputs.get(fqn)
    bias, weight, value, output = (row.stats if row else None for row in rows)
    if not (bias and weight and value and output and value.rms and weight.rms):
        return False
    size = output.rms / (value.rms * math.sqrt(value.numel / bias.numel))
    return bias.rms * size <= math.sqrt(eps(grads[of_bias]["dtype"])) * weight.rms


class InputChanged(Check):
    """The model writes into a tensor that it received, so the caller's tensor is a different one afterwards.

    A data set in memory is then changed a little more in every epoch, a second model gets other inputs than the first,
    and autograd refuses an input that requires grad. The finding names the module (with --ops, the operation) that
    first writes; a write past PyTorch's count of changes, through `.data` or numpy, is found by the bits and has no
    place. A ReLU in place on a tensor that the model made itself is not a fault. A state or cache that the model is
    given in order to update it is none either: ignore the check for such a model.
    """

    id = "HK036"
    name = "input-changed"
    means = "an operation in place (x += 1, x[...] = 0, ReLU(inplace=True)) on the model's input or on a view of it"
    advice = "work on a new tensor (x = x + 1), or clone the input first"
    needs = ("inventory",)
    values = False

    def judge(self, measured: ReadsInventory) -> Iterator[Finding]:
        places: dict[str, list[str]] = {}
        for row in measured.inventory.rows:
            if row["kind"] == "changed":
                places.setdefault(row.fqn, []).append(row["name"])
        for fqn, names in places.items():
            named = listed(list(filter(None, names)), 3)
            yield self.finding(fqn, f"changes the model's input{' ' * bool(named)}{named} in place", len(names))


class PlainWeight(Check):
    """The model computes with a tensor as with a weight, but the tensor is a plain attribute of its module.

    No optimizer trains it, `state_dict()` does not save it, and `to()` and `half()` do not reach it: on another device
    the model fails. Counted as weights are tensors of floating point with several elements that the model multiplies
    with other values (matmul, convolution, `*`), or gives to a normalization or embedding, and leaves as they are. Not
    reported: whole numbers that are not all alike (masks, positions, kernels of filters), tensors that the code moves
    itself (`.to(x.device)`), that it replaces or changes while it runs (caches, state), and sums, since tables of
    positions and masks are added. Tensors that require grad are found by HK030. The figure is the number of elements.
    """

    id = "HK037"
    name = "plain-weight"
    means = "self.weight = torch.randn(...) without nn.Parameter, or a constant that is not registered as a buffer"
    advice = "make it an nn.Parameter; use register_buffer for a constant"
    needs = ("inventory",)

    def judge(self, measured: ReadsInventory) -> Iterator[Finding]:
        for row in measured.inventory.rows:
            if row["kind"] == "plain_weight":
                shape = "x".join(map(str, row["shape"]))
                message = f"computes with {row['name']}, a plain tensor ({shape}): not trained, saved or moved by to()"
                yield self.finding(row.fqn, message, row["params"])


class Unregistered(Check):
    """The model computes with parameters that PyTorch does not know of: `model.parameters()` does not list them.

    They are in modules in a plain list or dict, in tensors that require grad but are not an nn.Parameter, or in modules
    that forward creates anew in every call. Nothing fails, but no optimizer trains them, `state_dict()` does not save
    them, and `to()` and `eval()` do not reach them. Parameters that bypass nn.Module's registration on purpose (through
    `self.__dict__`, as for a teacher model), those that the program gives to an optimizer by itself, and frozen ones
    are not reported. The figure is the number of elements that require grad.
    """

    id = "HK030"
    name = "unregistered"
    means = "modules in a plain list, a tensor that is not an nn.Parameter, or a layer created in forward"
    advice = "use nn.ModuleList or nn.Parameter; create layers in __init__"
    needs = ("inventory",)
    values = False

    def judge(self, measured: ReadsInventory) -> Iterator[Finding]:
        for row in measured.inventory.rows:
            if row["kind"] == "unregistered" and row["trainable"] and not row["deliberate"]:
                yield self.finding(row.fqn, row["said"], row["trainable"])
