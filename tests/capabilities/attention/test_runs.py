"""Attention over batches, in long sequences and in training runs; what can't be seen is said, and nothing changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from capabilities.attention.nets import GPT, HEADS, TOKENS, plant
from capabilities.attention.test_probe import Masked, measured
from support import equal
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import hookcli
from hookcli.capabilities.attention import head_sums
from hookcli.capabilities.attention.probe import AttentionProbe
from hookcli.cli import main
from hookcli.hooks.session import HookSession
from hookcli.record.file.reading import read_record
from hookcli.table import Row


def seen(model: nn.Module, *batches: Tensor) -> list[Row]:
    probe = AttentionProbe()
    with torch.no_grad(), HookSession(model.eval()) as session:
        probe.attach(session)
        for number, batch in enumerate(batches):
            session.begin_batch(number, len(batches))
            model(batch)
            probe.batch_ended()
    return probe.rows()


@pytest.mark.parametrize("kernel", ["fused", "hand"])
def test_batches_of_any_length_merge_as_if_they_were_one(kernel: str) -> None:
    model = GPT(kernel)
    plant(model)
    both = seen(model, TOKENS[:1], TOKENS[1:])
    for row, other in zip(both, seen(model, TOKENS), strict=True):
        assert {k: v for k, v in row.values.items() if type(v) is not float} == {
            k: v for k, v in other.values.items() if type(v) is not float
        }
        assert {k: v for k, v in row.values.items() if type(v) is float} == pytest.approx(
            {k: v for k, v in other.values.items() if type(v) is float}, rel=1e-5, abs=2e-6
        )
    [first, *_] = seen(model, TOKENS[:, :9], TOKENS)
    assert first["queries"] == 2 * (8 + 39) and first["call"] == 0


class LargestTensor(TorchDispatchMode):
    """The most elements of a tensor that an operator made."""

    most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, Tensor):
            self.most = max(self.most, made.untyped_storage().nbytes() // 4)
        return made


@pytest.mark.sweep
def test_memory_does_not_grow_with_the_square_of_the_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_sums, "_CPU_BLOCK", most := 1 << 16)

    def largest(length: int) -> int:
        q = torch.randn(1, 2, length, 4)
        with LargestTensor() as mode:
            measured(Masked(is_causal=True), q, q, q)
        return mode.most

    assert largest(512) <= most and largest(2048) <= most  # a whole matrix of weights has 2^23


class Trained(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gpt, self.layer = GPT("hand"), nn.TransformerEncoderLayer(50, 5, 8, batch_first=True)
        self.head = nn.Linear(32, 50)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.layer(self.head(self.gpt(tokens)))


def test_a_training_run_is_bit_identical() -> None:
    def train(observed: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model = Trained()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(2):
            probe = AttentionProbe()
            with hookcli.watch(model, [probe]) if observed else torch.enable_grad():
                with torch.autocast("cpu", torch.bfloat16):
                    loss = model(TOKENS).square().mean()
                loss.backward()
            optimizer.step()
            assert len(probe.rows()) == observed * (2 * HEADS + 5)
        return [*model.parameters(), *(p.grad for p in model.parameters() if p.grad is not None), torch.rand(3)]

    assert all(map(equal, train(False), train(True)))


def test_recorded_steps_have_it(tmp_path: Path) -> None:
    model = GPT()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with hookcli.watch(model, every=1, output=tmp_path / "r.jsonl", probes=["attention"]):
        for _ in range(2):
            for part in TOKENS[:1], TOKENS[1:]:
                model(part).square().mean().backward()
            optimizer.step()
    record = read_record(tmp_path / "r.jsonl")
    steps = [*record.steps(record.entries)]
    assert [step.step for step in steps] == [0, 1]
    [report] = steps[1].reports
    assert [(row.fqn, row["head"]) for row in report.rows] == [(f"blocks.{b}", h) for b in (0, 1) for h in range(4)]
    assert all(row["entropy"] > 0 and row["calls"] == 2 for row in report.rows)


def test_other_softmaxes_are_no_attention_and_unseen_attention_is_said() -> None:
    class LinearAttention(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            k, q = x.softmax(-2), x.softmax(-1)
            return q @ (k.transpose(-2, -1) @ x)

    class Gate(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.einsum("bne,bned->bnd", x.softmax(-1), x[..., None] * x[..., None, :])

    class Router(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            weights, chosen = x.softmax(-1).topk(2)
            return x * weights.sum(-1, keepdim=True) + chosen.sum()

    report = measured(nn.Sequential(Router(), LinearAttention(), nn.Softmax(-1), Gate()), torch.rand(2, 6, 8))
    assert not report.rows and report.totals["nothing"].startswith("no attention was seen")
    assert [skipped.fqn for skipped in report.skipped] == ["1"] and "flash_attn" in report.skipped[0].reason


@pytest.mark.parametrize("dim", [0, -2])
def test_a_softmax_over_another_dimension_than_the_keys_is_named(dim: int) -> None:
    class SelfAttention(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x @ x.transpose(-2, -1)).softmax(dim) @ x

    report = measured(nn.Sequential(SelfAttention()), torch.rand(2, 6, 8))
    said = f"layer 0 has a softmax over dimension {dim} of 2x6x6: attention's is over the last one, the keys"
    assert str(report.totals["nothing"]).endswith(f"; {said}")


def test_attention_that_has_nothing_to_choose_or_is_not_finite_is_no_row() -> None:
    q = torch.randn(1, 2, 1, 4)
    report = measured(Masked(), q, q, q)
    assert not report.rows and "two keys" in report.skipped[0].reason
    q = torch.randn(1, 2, 5, 4)
    q[0, 1, 2] = float("nan")
    report = measured(Masked(), q, q, q)
    assert report.totals["verdict"].startswith("1 of 2 heads is not finite (NaN or Inf): (model) head 1")
    assert [row["head"] for row in report.rows] == [
        0
    ] and "head 1: its logits or output are not finite" in report.skipped[0].reason


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "net.py").write_text(
        "from capabilities.attention.nets import GPT, plant\n\n\n"
        "def net():\n    model = GPT()\n    plant(model)\n    return model\n"
    )
    given = [str(tmp_path / "net.py:net"), "--input", "2x40:int64"]
    assert main(["attention", *given, "--depth", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("1 of 8 heads is dead (no output): blocks.1 head 3") and max(map(len, lines)) <= 80
    [worst] = [line for line in lines if line.startswith("blocks.1 ")]
    assert worst.split()[1] == "4" and "0.0%" in worst
    assert main(["attention", *given, "-f", "csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + 8


def test_a_program_may_ask_for_reports_more_than_once() -> None:
    with hookcli.watch(model := GPT(), ["attention", "spectrum"]) as watched:
        for calls in (1, 2):
            model(TOKENS)
            attention, spectrum = watched.reports()
            assert {row["call"] for row in attention.rows} == {*range(calls)}
            assert {row["calls"] for row in spectrum.rows if row["kind"] == "output"} == {calls}
