"""Models of several outputs, in each kind of container: every one counts, and the one that changes is named."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from capabilities.sweep.swept import relative, rows_of, swept
from torch import Tensor, nn

Pair = namedtuple("Pair", "box cls")


@dataclass
class Made:
    box: Tensor
    cls: Tensor


KINDS: dict[str, tuple[Callable[[Tensor, Tensor], Any], str, str]] = {
    "tuple": (lambda box, cls: (box, cls), "[0]", "[1]"),
    "list": (lambda box, cls: [box, cls], "[0]", "[1]"),
    "dict": (lambda box, cls: {"box": box, "cls": cls}, "box", "cls"),
    "named tuple": (Pair, "box", "cls"),
    "dataclass": (Made, "box", "cls"),
    "nested": (lambda box, cls: {"all": [{"box": box}, (None, cls)]}, "all[0].box", "all[1][1]"),
}


class Two(nn.Module):
    def __init__(self, make: Callable[..., Any]) -> None:
        super().__init__()
        self.trunk, self.box, self.cls, self.make = nn.Linear(4, 8), nn.Linear(8, 4), nn.Linear(8, 2), make

    def forward(self, x: Tensor) -> Any:
        h = self.trunk(x).relu()
        return self.make(self.box(h), self.cls(h).softmax(-1))


@pytest.mark.parametrize("kind", KINDS)
def test_every_output_counts(kind: str) -> None:
    make, box, cls = KINDS[kind]
    torch.manual_seed(0)
    model, x = Two(make).double(), torch.randn(3, 4).double()
    report = swept(model, x)
    rows = rows_of(report)
    assert {fqn: row["outputs"] for fqn, row in rows.items()} == {"box": [box], "cls": [cls], "trunk": [box, cls]}
    assert all(row["bottleneck"] for row in rows.values())  # no output has another way
    h = model.trunk(x).relu()
    even = relative(model.cls(h).softmax(-1).detach(), torch.full((3, 2), 0.5).double())
    assert rows["box"]["output_change"] == 1 and rows["cls"]["output_change"] == pytest.approx(even, rel=1e-9)
    assert report.totals["verdict"].startswith(f"box changes output {box} most: relative l2 1.000 when zeroed (next: ")
    assert "the output that changes most (2 are compared)" in str(report.meta["notes"])


class Cached(nn.Module):
    """Returns, beside its logits, the loss and values of inside, as models of Transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.value = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> dict[str, Any]:
        key, value = self.key(x), self.value(x)
        logits = value + 0.2 * key
        inside = {"past_key_values": ((key, value),), "decoder_hidden_states": (x, key)}
        return {"loss": logits.mean(), "logits": logits, **inside}


def test_caches_and_losses_are_no_results() -> None:
    torch.manual_seed(0)
    report = swept(Cached().eval(), torch.randn(2, 3))
    rows = rows_of(report)
    assert rows["key"]["output_change"] < 1 and "outputs" not in rows["key"].values
    assert "Output change: relative l2 distance of output logits" in report.meta["notes"]  # type: ignore[operator]
    assert "not compared: loss, past_key_values, decoder_hidden_states in the output" in str(report.meta["notes"])
    assert swept(nn.Sequential(nn.Linear(2, 2)), torch.ones(1, 2)).rows[0]["output_change"] == 1


class Heads(nn.Module):
    """A trunk that everything passes through, and a side branch without an effect, or with little."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.trunk, self.side, self.share = nn.Linear(4, 4), nn.Linear(4, 4), share

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.trunk(x)
        h = h + self.share * self.side(h)
        return h, h.exp()


def test_bottlenecks_count_where_nothing_else_does() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4)
    only = swept(Heads(0.0), x).totals["verdict"]
    assert only.startswith("trunk (bottleneck) changes output [0] most: relative l2 1.000 when zeroed")
    little = swept(Heads(1e-3), x).totals["verdict"]
    assert little.startswith("No module changes the output much, except 1 bottleneck: relative l2 ")
    assert little.endswith(" at most when zeroed (side)")
    logit = swept(Heads(1e-3), x, logit="[1][0,2]").totals["verdict"]
    assert logit.startswith("No module changes [1][0,2] much, except 1 bottleneck: ") and " → " in logit


class Pooled(nn.Module):
    """Blocks with shortcuts, and a pooler beside, as BERT has."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.block, self.pooler = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = self.embed(x)
        h = h + self.block(h)
        return {"last": h, "pooled": self.pooler(h[:1]).tanh()}


def test_the_last_layer_of_an_output_is_its_bottleneck() -> None:
    torch.manual_seed(0)
    report = swept(Pooled(), torch.randn(3, 4))
    assert {row.fqn for row in report.rows if row["bottleneck"]} == {"embed", "pooler"}
    assert report.totals["verdict"].startswith("block changes output ")


def test_an_output_that_is_no_number_is_said_in_words() -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = self.lin(x)
            return x / x.norm(dim=1, keepdim=True)

    verdict = swept(Normed(), torch.randn(3, 4)).totals["verdict"]
    assert verdict == "lin changes the output most: NaN or Inf comes out when zeroed"


def test_one_output_with_nan_is_named() -> None:
    class Broken(Two):
        def forward(self, x: Tensor) -> Any:
            box, cls = super().forward(x)
            return box, cls.log() * torch.nan

    verdict = swept(Broken(lambda *both: both), torch.randn(3, 4)).totals["verdict"]
    assert verdict.startswith("The ranking is meaningless: output [1] is not finite even in the unchanged model")


def test_a_logit_is_of_one_output_whose_bottlenecks_count() -> None:
    """All ways to the boxes pass `box`; none of the other output's does."""
    rows = rows_of(swept(Two(KINDS["dict"][0]), torch.randn(3, 4), logit="box[0,1]"))
    assert {fqn for fqn, row in rows.items() if row["bottleneck"]} == {"trunk", "box"}
    assert rows["cls"]["logit_change"] == 0 and not rows["cls"]["bottleneck"]
