"""Units that are dead, of modules and of functions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from checks.broken import Fn
from support import swept, untouched
from torch import Tensor, nn

from hookcli import check
from hookcli.reporters.footer import totals_line
from hookcli.table.formatting import number


class Functional(nn.Module):
    """A ReLU between two layers that is not a module, and what may follow it."""

    def __init__(self, dead: int, relu: Callable[[Tensor], Tensor], then: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 8, 3, padding=1), nn.LazyLinear(2)
        self.relu, self.then = relu, then
        with torch.no_grad():
            self.conv.bias[:dead] = -100

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.then(self.relu(self.conv(x))))


RELUS: dict[str, Callable[[Tensor], Tensor]] = {
    "F.relu": nn.functional.relu,
    "in place": nn.functional.relu_,
    "torch": torch.relu,
    "method": Tensor.relu,
    "relu6": nn.functional.relu6,
}


THEN: dict[str, Callable[[Tensor], Tensor]] = {
    "at once": lambda y: y,
    "flat": lambda y: y.flatten(1),
    "pooled": lambda y: nn.functional.max_pool2d(y, 2).flatten(1),
    "averaged": lambda y: y.mean((2, 3)),
}


def partly(*dead: int) -> nn.Sequential:
    """Layers of 20 channels, of which so many are dead, and the others never are."""
    model = nn.Sequential(*(part for _ in dead for part in (nn.Linear(20, 20), nn.ReLU())), nn.Linear(20, 2))
    with torch.no_grad():
        for count, layer in zip(dead, [*model][::2], strict=False):
            layer.weight.mul_(1e-3)
            layer.bias.fill_(1.0)
            layer.bias[:count] = -1.0
    return model


def test_layers_of_which_a_part_is_dead_are_counted_where_the_checks_pass() -> None:
    report = check(partly(4, 6, 0, 5), torch.randn(16, 20), select="HK010")
    line, note = totals_line(report), report.meta["notes"][0]
    assert line == "1 check passed, though 3 modules have dead channels, 3 the most (10 modules)"
    worst = "3: 6 of 20 channels zero for every input, and in 2 more modules, down to 4 of 20"
    assert note == f"{worst}; use `--threshold HK010=0.2` to report all 3"
    shown = check(partly(4, 6, 0, 5), torch.randn(16, 20), select="HK010", thresholds={"HK010": 0.2})
    assert [finding.fqn for finding in shown.findings] == ["1", "3", "7"]
    one = check(partly(0, 6), torch.randn(16, 20), select="HK010")
    assert totals_line(one) == "1 check passed, though 3 has dead channels (6 modules)"
    assert one.meta["notes"] == [
        "3: 6 of 20 channels zero for every input; use `--threshold HK010=0.3` to report these"
    ]


def test_a_few_dead_units_are_a_remark_alone() -> None:
    report = check(partly(0, 4), torch.randn(16, 20), select="HK010")
    assert totals_line(report) == "1 check passed (6 modules)"
    assert report.meta["notes"] == [
        "3: 4 of 20 channels zero for every input; use `--threshold HK010=0.2` to report these"
    ]


@pytest.mark.parametrize("dead", [(0, 0), (1, 0)])  # fewer than a tenth
def test_nothing_is_said_of_layers_that_live(dead: tuple[int, ...]) -> None:
    report = check(partly(*dead), torch.randn(16, 20), select="HK010")
    assert "though" not in totals_line(report) and not report.meta.get("notes")


# Of the others autograd keeps the input and not the result.
WAYS = [(relu, "at once") for relu in RELUS] + [("F.relu", then) for then in THEN] + [("torch", "pooled")]


@pytest.mark.parametrize("then", ["flat", swept("averaged"), swept("at once")])
def test_dead_units_of_a_relu_that_is_a_module_are_found_once(then: str) -> None:
    model, x = Functional(8, nn.ReLU(), THEN[then]), torch.randn(2, 3, 8, 8)
    model(x)  # makes the lazy layer
    with untouched(model):
        report = check(model, x, select=["HK009", "HK010"])
    (dead,) = (f for f in report.findings if f.check == "HK010")
    (zero,) = (f for f in report.findings if f.check == "HK009")
    assert (dead.fqn, zero.fqn, zero.cause) == ("relu", "fc", "HK010 relu")


@pytest.mark.parametrize(("relu", "then"), WAYS)
def test_dead_units_of_a_relu_that_is_a_function(relu: str, then: str) -> None:
    x = torch.randn(2, 3, 8, 8)
    for dead in (7, 5):
        model = Functional(dead, RELUS[relu], THEN[then])
        model(x)  # makes the lazy layer
        with untouched(model):
            report = check(model, x, select=["HK009", "HK010"])
        found = [f for f in report.findings if f.check == "HK010"]
        if dead == 5:
            assert found == []
        else:
            [finding] = found
            assert (finding.fqn, finding.value) == ("fc", 7 / 8)
            assert finding.message == "7 of 8 channels of the ReLU before it are zero for every input"


def test_a_dead_relu_that_two_layers_share_is_one_finding() -> None:
    class Heads(Functional):
        def forward(self, x: Tensor) -> Tensor:
            y = self.relu(self.conv(x))
            return self.fc(y) + self.fc(y.clone())

    model = Heads(7, torch.relu, lambda y: y)
    x = torch.randn(2, 3, 8, 8)
    model(x)
    assert [f.check for f in check(model, x, select=["HK004", "HK010"]).findings] == ["HK010"]


def test_zeros_that_no_relu_made_are_no_dead_units() -> None:
    """A state that begins at zero, a mask: what a module receives may be zero on purpose."""
    model = Fn(before=lambda x: x * torch.tensor([1.0, 0.0, 0.0, 0.0]))
    assert check(model, torch.randn(16, 4), select=["HK004", "HK010"]).findings == []


def test_the_layer_whose_output_is_never_positive_is_named() -> None:
    """Only where that alone explains it: what a function between the two adds is not known."""
    x = torch.randn(16, 4)
    fc, act = nn.Linear(4, 8), nn.ReLU(inplace=True)
    for bias, shift in ((-50.0, 0.0), (0.0, -50.0)):
        nn.init.constant_(fc.bias, bias)
        model = Fn(before=lambda x, shift=shift: act(fc(x) + shift)[:, :4])
        model.fc, model.act = fc, act
        [found] = check(model, x, select=["HK003", "HK010"]).findings
        why = "" if shift else f"; its input, from fc, is at most {number(fc(x).max().item())}"
        assert (found.fqn, found.message) == ("act", f"8 of 8 channels zero for every input{why}")


def test_a_layer_that_only_ran_before_is_not_named() -> None:
    """The ReLU receives something else, which leaves some of its channels alive."""
    fc, act = nn.Linear(4, 4), nn.ReLU()
    nn.init.constant_(fc.bias, -50.0)
    model = Fn(before=lambda x: fc(x) + act(x - torch.tensor([9.0, 9.0, 9.0, -9.0])))
    model.fc, model.act = fc, act
    [found] = check(model, torch.randn(16, 4), select=["HK003", "HK010"]).findings
    assert (found.fqn, found.message) == ("act", "3 of 4 channels zero for every input")


class Spiking(nn.Module):
    """A layer and its activation in three turns of a loop, as of neurons that fire late; or two layers, one turn."""

    def __init__(self, thresholds: tuple[float, ...], layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 8) for _ in range(layers))
        self.act, self.out, self.thresholds = nn.ReLU(), nn.Linear(8, 2), thresholds

    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros(len(x), 8)
        for turn, threshold in enumerate(self.thresholds):
            total = total + self.act(self.layers[turn % len(self.layers)](x) - threshold)
        return self.out(total)


@pytest.mark.parametrize(
    ("thresholds", "layers", "dead"),
    [
        ((100.0, 100.0, 0.0), 1, []),  # in the last turn they are alive
        ((100.0, 100.0, 100.0), 1, ["act: 8 of 8 channels zero for every input"]),
        ((0.0, 100.0), 2, ["act: 8 of 8 channels zero for every input (call 1)"]),  # another place, not another turn
    ],
)
def test_an_activation_in_a_loop_is_dead_if_it_is_in_every_turn(
    thresholds: tuple[float, ...], layers: int, dead: list[str]
) -> None:
    torch.manual_seed(0)
    model, x = Spiking(thresholds, layers), torch.randn(16, 4)
    with untouched(model):
        found = check(model, x, select=["HK010"]).findings
    assert [f"{one.fqn}: {one.message.partition(';')[0]}" for one in found] == dead
