"""Heads of attention that only its functions tell: the same that `hookcli attention` finds, each against a formula."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from capabilities.sweep.swept import gpt2, relative, swept
from support import hooks_on, untouched
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import hookcli
from hookcli.errors import UsageError

Cli = Callable[..., Any]
WIDTH, HEADS = 12, 3
FLEX = "flex"


class Attention(nn.Module):
    """Attention without a number of heads; `zero`: the head that the formula leaves out."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.qkv, self.mix = kind, nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.zero: int | None = None

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        if self.kind == "fused":
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        elif self.kind == FLEX:
            from torch.nn.attention.flex_attention import flex_attention

            y = flex_attention(q, k, v)
        elif self.kind == "joined":
            q, k, v = (t.flatten(0, 1) for t in (q, k, v))
            y = torch.bmm((q @ k.mT).softmax(-1), v).unflatten(0, (-1, HEADS))
        else:
            y = torch.einsum("bhqk,bhkd->bqhd", (q @ k.mT).softmax(-1), v).transpose(1, 2)
        if self.zero is not None:
            y = y.clone()
            y[:, self.zero] = 0
        return self.mix(y.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


def net(kind: str) -> tuple[nn.Sequential, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Attention(kind), nn.Tanh(), Attention(kind))
    return model.double().eval(), torch.randn(2, 5, WIDTH, dtype=torch.float64)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["fused", "einsum", "joined", pytest.param(FLEX, marks=pytest.mark.sweep)])
def test_a_head_that_functions_return_is_zeroed(kind: str) -> None:
    model, x = net(kind)
    with untouched(model):
        report = swept(model, x, of="heads", count=HEADS)
    base = model(x).detach()
    assert sorted((row.fqn, row["head"]) for row in report.rows) == [(n, h) for n in "13" for h in range(HEADS)]
    for row in report.rows:
        twin = copy.deepcopy(model)
        twin.get_submodule(row.fqn).zero = row["head"]
        assert row["output_change"] == pytest.approx(relative(base, twin(x)), rel=1e-9) != 0
    assert not sum(hooks_on(model).values())


@torch.no_grad()
def test_a_model_that_is_attention_itself() -> None:
    torch.manual_seed(0)
    model, x = Attention("joined").double().eval(), torch.randn(2, 5, WIDTH, dtype=torch.float64)
    base = model(x)
    rows = swept(model, x, of="heads", count=HEADS).rows
    assert sorted((row.fqn, row["head"]) for row in rows) == [("", h) for h in range(HEADS)]
    for row in rows:
        model.zero = row["head"]
        assert row["output_change"] == pytest.approx(relative(base, model(x)), rel=1e-9) != 0


class AttentionNet(nn.Module):
    """Named after attention, with a number of heads, and a layer called `out` that is not a projection of theirs."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.num_heads, self.out = HEADS, nn.Linear(WIDTH, WIDTH)
        self.layers = nn.Sequential(*(Attention("fused") for _ in range(layers)))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layers(x).relu())  # type: ignore[no-any-return]


@torch.no_grad()
@pytest.mark.parametrize(("layers", "inside"), [(1, False), (2, False), (2, True)])
def test_a_module_around_attention_has_another_projection(layers: int, *, inside: bool) -> None:
    torch.manual_seed(0)
    model: nn.Module = AttentionNet(layers).double().eval()
    model = nn.Sequential(model) if inside else model
    x = torch.randn(2, 5, WIDTH, dtype=torch.float64)
    base = model(x)
    rows = swept(model, x, of="heads").rows
    assert len(rows) == layers * HEADS
    for row in rows:
        attention = model.get_submodule(row.fqn)
        assert isinstance(attention, Attention)
        attention.zero = row["head"]
        assert row["output_change"] == pytest.approx(relative(base, model(x)), rel=1e-9) != 0
        attention.zero = None


def test_without_a_number_joined_heads_are_one() -> None:
    model, x = net("joined")
    report = swept(model, x, of="heads")
    assert [row["head"] for row in report.rows] == [0, 0]
    note = "number of heads not found in layer 1, layer 3: taken for one head; --heads N tells them apart"
    assert note in str(report.meta)


def test_a_head_keeps_its_number_beside_a_layer_of_the_same() -> None:
    torch.manual_seed(0)
    report = swept(nn.Sequential(Attention("fused")), torch.randn(2, 5, WIDTH), of="heads")
    verdict = str(report.totals["verdict"])
    assert verdict.count("head ") == 2 and "of layer 0" in verdict


def test_a_number_that_was_not_needed_says_so() -> None:
    report = swept(*net("fused"), of="heads", count=5)
    assert "--heads 5 changed nothing: the heads were found without it" in str(report.meta)


def test_a_number_that_does_not_fit_names_the_model() -> None:
    with pytest.raises(UsageError, match=r"\(model\): its heads can't be followed: ValueError: 6 matrices of weights"):
        swept(Attention("joined"), torch.randn(2, 5, WIDTH), of="heads", count=4)


def test_a_head_set_to_its_mean_over_batch_and_positions() -> None:
    model, x = net("fused")
    report = swept(model, x, of="heads", operation="mean")
    seen: list[Tensor] = []
    last = model[3]
    assert isinstance(last, Attention)
    handle = last.mix.register_forward_pre_hook(lambda module, args: seen.append(args[0].detach()))
    base = model(x).detach()
    handle.remove()
    for row in report.rows:
        if row.fqn == "3":
            y = seen[0].clone()
            part = slice(4 * row["head"], 4 * row["head"] + 4)
            y[..., part] = y[..., part].mean((0, 1))
            assert row["output_change"] == pytest.approx(relative(base, last.mix(y)), rel=1e-9)


def test_a_dump_has_no_heads_that_only_functions_return(tmp_path: Path) -> None:
    model, x = net("fused")
    with pytest.raises(UsageError, match="no output projection with its heads is called, so no dump has them"):
        swept(model, x, of="heads", operation=f"from({tmp_path})")


class BySum(nn.Module):
    """Attention whose product adds its heads up."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("bhqk,bkd->bhd", (x @ x.mT).softmax(-1), x[:, 0])


def test_heads_that_can_not_be_followed_say_why() -> None:
    with pytest.raises(UsageError, match="its heads can't be followed: ValueError: einsum bhqk,bkd->bhd"):
        swept(nn.Sequential(BySum()), torch.randn(2, 3, 5, 4), of="heads")


def models() -> dict[str, tuple[nn.Module, Any]]:
    from transformers import BertConfig, BertModel

    sizes: dict[str, Any] = {"num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 8, "vocab_size": 9}
    return {
        "gpt2": gpt2(),
        "bert": (BertModel(BertConfig(num_attention_heads=4, **sizes)).double(), torch.tensor([[1, 2, 3]])),
        "layer": (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).double(), torch.rand(2, 3, 8).double()),
        "decoder": (Decoder().double(), torch.rand(2, 3, 8).double()),
        "fused": net("fused"),
        "einsum": net("einsum"),
    }


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(8, 2, 16, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x, x + 1)  # type: ignore[no-any-return]


@pytest.mark.xdist_group("timm and Transformers")
def test_the_heads_are_those_that_attention_finds() -> None:
    for name, (model, x) in models().items():
        with torch.no_grad():
            found = {(row.fqn, row["head"]) for row in hookcli.capture(model.eval(), x, probes="attention")[0].rows}
        rows = swept(model, x, of="heads").rows
        assert {(row.fqn, row["head"]) for row in rows} == found and len(rows) == len(found), name


def test_the_option_with_and_without_a_number(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text("from capabilities.sweep.test_seen_heads import net\n\nnet = net('joined')[0]\n")
    given = ("sweep", "net.py:net", "--input", "2x5x12", "--format", "json")
    for options, heads in ((["--heads"], 1), (["--heads", "3"], 3), (["--heads=2"], 2)):
        ran = cli(*given, *options, "--logit", "[0,0,1]")
        assert ran.code == 0, ran.err
        assert len(json.loads(ran.out)["reports"][0]["rows"]) == 2 * heads
    ran = cli("sweep", "--heads", "net.py:net", "--input", "2x5x12", "--experts")
    assert ran.code == 2 and "--heads and --experts" in ran.err
    assert cli("sweep", "net.py:net", "--heads", "-1").code == 2
