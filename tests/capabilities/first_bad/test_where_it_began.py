"""The first non-finite value of a model that computes between its modules, or its own loss."""

from __future__ import annotations

import re
from inspect import getsourcelines
from pathlib import Path

import pytest
import torch
from observing import observed
from record.observe.figures import net
from support import swept
from torch import Tensor, nn

from hookcli.record.file.views.run_lines import non_finite_line


class Logs(nn.Module):
    """Takes logarithms between its modules; `where`: of what it was given, or for its own loss."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where, self.first, self.rest = where, nn.Linear(4, 4), nn.Sequential(nn.Identity(), nn.Linear(4, 1))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = self.first(x)
        y = self.rest((x - x).log() if self.where == "between" else x)
        return {"y": y, "loss": (y - y).log().sum() if self.where == "loss" else y.sum()}


def test_a_value_computed_between_modules_is_said_to_be_so() -> None:
    """It is the input of the outermost module that received it, and of no module's making."""
    (bad,) = observed(lambda: Logs("between")(torch.ones(2, 4)), first_bad="report").non_finites
    assert (bad.fqn, bad.what, bad.nan, bad.inf) == ("rest", "input", 0, 8)
    assert bad.cause == "computed between modules, in Logs.forward"


def test_a_loss_of_the_models_own_has_its_key_and_one_of_the_programs_its_output() -> None:
    (bad,) = observed(lambda: Logs("loss")(torch.ones(2, 4)), first_bad="report").non_finites
    assert '1 Inf in the model\'s output["loss"] (Logs, step 0)' in non_finite_line(bad)
    (bad,) = observed(
        lambda: (net()(torch.ones(2, 4)).sum() * torch.tensor(-1.0).log()).backward(), first_bad="report"
    ).non_finites
    assert bad.what == "loss" and re.fullmatch(
        r"the model's output was finite, up to [\d.]+: it begins in the loss function", bad.cause
    )


class Repeated(nn.Module):
    """Calls one layer twice, with a function between the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(4, 4)
        with torch.no_grad():
            self.cell.weight[0, 0] = torch.nan

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.cell(self.cell(x).tanh())
        return y


def test_a_layers_own_value_that_comes_back_to_it_is_no_input() -> None:
    (bad,) = observed(lambda: Repeated()(torch.ones(2, 4)), first_bad="report").non_finites
    assert (bad.fqn, bad.what, bad.cause) == ("cell", "output", "its weight is not finite")


class Masked(nn.Module):
    """Attention layers with a mask of -inf, made anew in each call by `made_by` the model or a module of its own."""

    def __init__(self, made_by: str = "model", bias: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True)
        self.enc, self.ahead = nn.TransformerEncoder(layer, 2), Ahead()
        self.made_by, self.bias = made_by, bias

    def forward(self, x: Tensor) -> Tensor:
        if self.made_by == "module":
            mask = self.ahead(x)
        else:
            mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1]) + self.bias
        y: Tensor = self.enc(x, mask=mask)
        return y


class Ahead(nn.Module):
    """Makes a causal mask."""

    def forward(self, x: Tensor) -> Tensor:
        size = x.shape[1]
        return torch.zeros(size, size).masked_fill(torch.ones(size, size).triu(1).bool(), float("-inf"))


def training(model: nn.Module, broken_at: int | None, lr: float = 0.1) -> nn.Module:
    """Two steps; before one of them a weight of the second layer's attention becomes NaN."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for step in range(2):
        if step == broken_at:
            with torch.no_grad():
                model.get_parameter("enc.layers.1.self_attn.out_proj.weight")[0, 0] = torch.nan
        optimizer.zero_grad()
        model(torch.randn(3, 5, 8)).pow(2).mean().backward()
        optimizer.step()
    return model


@pytest.mark.parametrize(
    ("made_by", "bias", "broken_at", "ops"),
    [
        ("model", 0.0, 0, None),
        swept("model", 0.0, 1, "functions"),
        swept("model", 0.5, 0, None),
        ("model", 0.5, None, None),
        swept("module", 0.0, 0, "functions"),
        ("module", 0.0, None, None),
    ],
)
def test_a_mask_is_no_origin(made_by: str, bias: float, broken_at: int | None, ops: str | None) -> None:
    """Neither in the first step nor later; with a `bias` it is no longer one of zeros and -inf alone."""
    lr = 0.1 if broken_at is not None else 1e30
    (bad,) = observed(lambda: training(Masked(made_by, bias), broken_at, lr), first_bad="report", ops=ops).non_finites
    layer = "enc.layers.0.self_attn" if broken_at is None else "enc.layers.1.self_attn"
    assert bad.fqn.partition(":")[0] == layer and bad.what.startswith("output"), non_finite_line(bad)
    assert bad.step == (broken_at if broken_at is not None else 1)
    cause = "its out_proj.weight is not finite" if broken_at is not None else "learning rate 1e+30"
    assert bad.cause.endswith(cause)


class Softmax(nn.Module):
    """Masks scores with -inf for a module; `value` is added to one of them from the second call on."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.score, self.softmax, self.value, self.calls = nn.Linear(4, 4), nn.Softmax(-1), value, 0

    def forward(self, x: Tensor) -> Tensor:
        scores = self.score(x).masked_fill(torch.eye(4).bool()[: len(x)], float("-inf"))
        more = torch.zeros_like(scores)
        more[2, 1] = self.value if self.calls else 0.0
        self.calls += 1
        y: Tensor = self.softmax(scores + more)
        return y


@pytest.mark.parametrize(("value", "nan", "inf"), [(torch.inf, 0, 4), (torch.nan, 1, 3)])
def test_other_values_than_the_usual_ones_are_the_origin(value: float, nan: int, inf: int) -> None:
    def program() -> None:
        model = Softmax(value)
        with torch.no_grad():
            for _ in range(2):
                model(torch.ones(3, 4))

    (bad,) = observed(program, first_bad="report").non_finites
    assert (bad.fqn, bad.what, bad.nan, bad.inf, bad.step) == ("softmax", "input", nan, inf, 1)
    assert bad.cause == "computed between modules, in Softmax.forward"


def test_a_mask_that_hides_all_of_a_row_is_the_origin() -> None:
    """As where a sample consists of padding alone."""
    padding = torch.zeros(3, 5).bool()
    padding[1] = True
    attention = nn.MultiheadAttention(8, 2, batch_first=True)

    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = attention

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.attention(x, x, x, torch.zeros(3, 5).masked_fill(padding, float("-inf")))[1]
            return y

    (bad,) = observed(lambda: Padded()(torch.ones(3, 5, 8)), first_bad="report").non_finites
    assert (bad.fqn, bad.what, bad.inf) == ("attention", "input", 5)
    made = "computed between modules, in Padded.forward"
    assert bad.cause == f"{made}; a row of a mask is -inf only, which softmax turns into NaN"


@pytest.mark.parametrize("where", ["input", "output", "gradient"])
def test_the_sample_that_is_bad_is_named(where: str) -> None:
    def program() -> nn.Module:
        model = nn.Sequential(nn.Linear(2, 2), nn.Flatten() if where == "input" else Root())
        x = torch.ones(6, 2)
        x[4] = {"input": torch.nan, "output": -1.0, "gradient": 0.0}[where]
        with torch.no_grad():
            model[0].weight.copy_(torch.eye(2))
            model[0].bias.zero_()
        model(x).sum().backward()
        return model

    (bad,) = observed(program, first_bad="report").non_finites
    assert (bad.fqn, bad.what) == {"input": ("", "input"), "output": ("1", "output"), "gradient": ("0", "gradient")}[
        where
    ]
    before = "the gradient before it, of 1, was finite; " if where == "gradient" else ""
    assert bad.cause == f"{before}only in row 4 of 6 (first dimension, counted from 0)"


class Root(nn.Module):
    """The square root, whose derivative at 0 is infinite."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sqrt()


class Distances(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = self.layer(x)
        d = (z[:, None] - z).square().sum(-1)
        return torch.sqrt(d)  # its derivative at 0 is infinite, and 0 times that is NaN


def test_a_gradient_names_the_operator_that_backward_came_from() -> None:
    def program() -> nn.Module:
        model = Distances()
        model(torch.randn(4, 3)).square().sum().backward()
        return model

    lines, first = getsourcelines(Distances.forward)
    line = first + next(number for number, text in enumerate(lines) if "sqrt" in text)
    (bad,) = observed(program, first_bad="report", ops="functions").non_finites
    said = rf"the backward of sqrt \(\S*{Path(__file__).name}:{line}\) turned a finite gradient into "
    assert bad.fqn == ":sqrt_1" and re.search(said, non_finite_line(bad)), bad
