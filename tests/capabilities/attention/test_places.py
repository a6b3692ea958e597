"""Keys that all queries see, offsets, padding, and numbers of heads that modules don't say."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from capabilities.attention.nets import figures
from capabilities.attention.test_checks import Given, X, at_offset, some
from capabilities.attention.test_probe import Masked, measured, require_same
from support import swept
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import hookcli
from hookcli.capabilities.attention.heads import verdict
from hookcli.capabilities.attention.probe import AttentionProbe
from hookcli.cli import main
from hookcli.hooks.session import HookSession
from hookcli.record.file.reading import read_record
from hookcli.table import Row


def to_key(place: int, share: float) -> Tensor:
    """Logits that give one of 16 keys this share."""
    return torch.zeros(16, 16).index_fill(1, torch.tensor([place]), math.log(15 * share / (1 - share)))


def test_a_sink_on_another_token_than_the_first_shows() -> None:
    report = measured(Given(some(0), to_key(5, 0.95), to_key(0, 0.95)), X)
    assert [row["top_key"] for row in report.rows][1:] == [5, 0]
    assert [row["top_key_share"] for row in report.rows][1:] == pytest.approx([0.95, 0.95])
    assert "1 of 3 heads rests on the first token (over 90% of the weight): (model) head 2" in report.totals["verdict"]
    elsewhere = "1 of 3 heads rests on one token that is not the first (over 90% of the weight): (model) head 1 (key 5)"
    assert elsewhere in report.totals["verdict"]


def test_a_head_of_one_offset_is_told_from_one_that_collapsed() -> None:
    """Each of the 15 queries from the second on looks at the token before; the first sees one key, or itself."""
    before, two_after = at_offset(-1, causal=True), at_offset(2)
    collapsed = to_key(7, 1 - 1e-6)
    rows = measured(Given(before, before.roll(0)), X).rows
    assert (rows[0]["offset"], rows[0]["offset_share"], rows[0]["queries"]) == (-1, 1, 15)
    rows = measured(Given(two_after, collapsed, some(1)), X).rows
    assert (rows[0]["offset"], rows[0]["offset_share"]) == (2, 14 / 16)
    assert rows[1]["offset"] is None and rows[2]["offset"] is None  # fewer than half of the queries have one
    assert ["collapsed" in str(row.get("note")) for row in rows] == [False, True, False]
    said = "1 of 3 heads is collapsed (one key has all weight): (model) head 1 (key 7)"
    assert said in verdict(rows)


def test_a_row_of_one_head_has_no_sentence_on_rows_of_several_and_padding_stays_on_a_narrow_screen(
    cli: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    report = measured(nn.Sequential(Given(some(0), some(3))), X)
    padded = replace(report, rows=[row.having({"padding": 6}) for row in report.rows])
    saved = {"schema": 1, "reports": [padded.to_dict()]}
    (tmp_path / "r.json").write_text(json.dumps(saved))
    whole, each = (
        cli("show", str(tmp_path / "r.json"), *more, "-q").out for more in (("--depth", "1"), ("--depth", "all"))
    )
    assert "each row shows the maximum over its heads" in whole and "each row shows" not in each
    assert "Padding" in whole and "Padding" in each


def test_an_offset_before_the_token_is_read_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = Given(at_offset(-1), some(1))
    with hookcli.watch(model, every=1, output=tmp_path / "r.jsonl", probes=["attention"]):
        model(X).sum().backward()
    record = read_record(tmp_path / "r.jsonl")
    [step] = record.steps(record.entries)
    assert [row["offset"] for row in step.reports[0].rows] == [-1, None]
    saved = tmp_path / "saved.json"
    saved.write_text(json.dumps({"schema": 1, "reports": [measured(model, X).to_dict()]}))
    assert main(["show", str(saved), "--depth", "all", "--columns", "head,offset,offset_share,top_key"]) == 0
    assert "-1" in capsys.readouterr().out


def test_few_queries_have_no_such_words() -> None:
    few = Given(to_key(3, 0.99)[:4, :4], torch.eye(4))
    verdict = measured(few, X[:, :4, :4]).totals["verdict"]
    assert "rest" not in verdict and "like another" not in verdict and "too few" in verdict


@pytest.mark.xdist_group("timm and Transformers")
@pytest.mark.parametrize(
    ("kind", "kernel", "left"),
    [
        ("llama", "sdpa", True),
        ("bert", "sdpa", False),
        swept("llama", "eager", True),
        swept("llama", "sdpa", False),
        swept("llama", "eager", False),
        swept("bert", "eager", False),
        swept("gpt_oss", "eager", False),
    ],
)
def test_a_padded_batch_has_the_figures_of_its_sequences_alone(kind: str, kernel: str, left: bool) -> None:
    """Rotary positions are relative, so padding on the left moves nothing; Bert's are absolute."""
    from transformers import BertConfig, BertModel, GptOssConfig, GptOssModel, LlamaConfig, LlamaModel

    sizes: dict[str, Any] = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 8, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "initializer_range": 0.4, "attn_implementation": kernel}
    torch.manual_seed(0)
    if kind == "gpt_oss":  # whose last key is a learned sink
        sizes |= {"head_dim": 8, "num_key_value_heads": 2, "num_local_experts": 2, "num_experts_per_tok": 1}
    kinds = {
        "llama": (LlamaModel, LlamaConfig),
        "bert": (BertModel, BertConfig),
        "gpt_oss": (GptOssModel, GptOssConfig),
    }
    model: nn.Module = kinds[kind][0](kinds[kind][1](**sizes)).eval()
    model = model.double() if kernel == "sdpa" else model  # with eager, Transformers makes NaN of padding in float64
    tokens = torch.arange(2 * 20).view(2, 20) * 7 % 49 + 1
    real = torch.arange(20) < torch.tensor([[20], [13]])
    real = real.flip(1) if left else real
    report = measured(model, input_ids=tokens * real, attention_mask=real.long())
    probe = AttentionProbe()
    with torch.no_grad(), HookSession(model, fastpath=False) as session:
        probe.attach(session)
        for number in range(2):
            session.begin_batch(number, 2)
            model(input_ids=tokens[number][real[number]][None])
    alone = probe.rows()
    assert len(report.rows) == len(alone) == 8
    for row, expected in zip(report.rows, alone, strict=True):
        values = {k: v for k, v in expected.values.items() if type(v) in (int, float) and k not in ("padding", "index")}
        assert {k: row[k] for k in values} == pytest.approx(values, rel=2e-4, abs=1e-5)
        assert (row["padding"], expected["padding"]) == (7, 0)
    assert "7 of 40 queries are padding, left out of all figures" in report.meta["notes"]


@pytest.mark.sweep
def test_padding_under_flex_attention_is_left_out() -> None:
    from torch.nn.attention.flex_attention import create_block_mask

    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 2, 140, 8) for _ in range(3))
    lengths = torch.tensor([140, 90])
    mask = create_block_mask(lambda b, h, i, j: (i >= j) & (j < lengths[b]), 2, None, 140, 140, device="cpu")
    report = measured(Masked(flex=True, block_mask=mask), q, k, v)
    real = torch.arange(140) < lengths[:, None]
    sees = torch.ones(140, 140, dtype=torch.bool).tril() & real[:, None, None] & real[:, None, :, None]
    oracle = figures(q.double() @ k.double().mT / math.sqrt(8), sees, v)
    require_same(report, "", oracle, ("output_rms", "output_share"))
    assert {row["padding"] for row in report.rows} == {50}


class Joined(nn.Module):
    """Attention over one dimension that holds batch and heads, whose number has an unusual name."""

    def __init__(self, fused: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.parts, self.fused, self.qkv, self.out = 4, fused, nn.Linear(12, 36), nn.Linear(12, 12)

    def split(self, x: Tensor) -> list[Tensor]:
        return [t.unflatten(-1, (4, 3)).transpose(1, 2).flatten(0, 1) for t in self.qkv(x).chunk(3, -1)]

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        y = F.scaled_dot_product_attention(q, k, v) if self.fused else (q @ k.mT / math.sqrt(3)).softmax(-1) @ v
        return self.out(y.unflatten(0, (-1, 4)).transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


def rows_with(heads: int, model: nn.Module, x: Tensor) -> tuple[list[Row], list[str], list[str]]:
    report = hookcli.capture(model.eval(), x, probes=AttentionProbe(heads))[0]
    return list(report.rows), list(report.meta.get("notes", [])), [item.reason for item in report.skipped]


@pytest.mark.parametrize("fused", [False, True])
def test_a_number_of_heads_that_no_module_says_can_be_given(fused: bool) -> None:
    model, x = Joined(fused), torch.randn(2, 16, 12)
    rows, notes, _ = rows_with(0, model, x)
    assert len(rows) == 1 and rows[0]["queries"] == 2 * 4 * 16
    assert "number of heads not found in (model): taken for one head; --heads N tells them apart" in notes
    rows, notes, _ = rows_with(4, model, x)
    q, k, v = (t.unflatten(0, (2, 4)).double() for t in model.split(x))
    oracle = figures(q @ k.mT / math.sqrt(3), torch.ones(16, 16, dtype=torch.bool), v)
    for row, expected in zip(rows, oracle, strict=True):
        assert {name: row[name] for name in expected} == pytest.approx(expected, rel=2e-4, abs=2e-6)
    assert not any("--heads" in note for note in notes)
    rows, _, reasons = rows_with(3, model, x)
    assert not rows and "8 matrices of weights are not a multiple of 3 heads" in reasons[0]


def test_a_number_that_is_not_needed_says_so() -> None:
    model = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
    rows, notes, _ = rows_with(4, model, torch.randn(2, 9, 8))
    assert len(rows) == 2 and "--heads 4 changed nothing: the heads were found without it" in notes


class Inner(nn.Module):
    """The formula alone, in a module without a number of heads."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT).softmax(-1) @ v


@pytest.mark.parametrize("hold", [lambda m: setattr(m, "n_heads", 4), lambda m: setattr(m, "config", Inner.config)])
def test_a_module_around_says_the_number(hold: Callable[[nn.Module], None]) -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x, x, x)  # type: ignore[no-any-return]

    Inner.config = type("Config", (), {"num_attention_heads": 4})()  # type: ignore[attr-defined]
    model = Outer()
    hold(model)
    rows, notes, _ = rows_with(0, model, torch.randn(8, 9, 3))
    assert [row["head"] for row in rows] == [0, 1, 2, 3] and not any("--heads" in note for note in notes)
