"""Last states of recurrent layers that padding has made, and readings of rows with padding that are right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from commands.test_run_nan import run
from observing import observed
from support import swept
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hookcli.capabilities.learn.lines import Learning

ROWS, LENGTH, WIDTH = 16, 9, 4
Reads = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""Given the recurrent layer, the vectors of the tokens (batch first) and their numbers, returns what the head reads."""


class Sentences(nn.Module):
    def __init__(self, body: nn.Module, reads: Reads, index: int | None = 0) -> None:
        super().__init__()
        self.embed, self.body, self.reads = nn.Embedding(20, WIDTH, padding_idx=index), body, reads
        self.drop, self.head = nn.Dropout(0.1), nn.LazyLinear(3)

    def forward(self, tokens: Tensor) -> Tensor:
        read = self.reads(self.body, self.embed(tokens), (tokens > 0).sum(1).clamp(min=1))
        scores: Tensor = self.head(self.drop(read))
        return scores


def words(
    body: Callable[[], nn.Module],
    reads: Reads,
    padded: int,
    *,
    first: bool = False,
    index: int | None = 0,
    number: int = LENGTH - 5,
) -> set[str]:
    """The words on rows of which so many end, or begin, with so many of padding, whose `index` the embedding knows."""

    def program() -> nn.Module:
        model = Sentences(body(), reads, index)
        tokens = torch.randint(1, 20, (ROWS, LENGTH))
        tokens[:padded, LENGTH - number :] = 0
        tokens = tokens.flip(1) if first else tokens
        model(tokens)
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(tokens), torch.randint(3, (ROWS,))).backward()
            optimizer.step()
        return model

    return {line.padded for line in observed(program).of_parts if isinstance(line, Learning)}


def gru(**options: Any) -> Callable[[], nn.Module]:
    return lambda: nn.GRU(WIDTH, WIDTH, batch_first=True, **options)


def lstm(**options: Any) -> Callable[[], nn.Module]:
    return lambda: nn.LSTM(WIDTH, WIDTH, **options)


def last(body: nn.Module, x: Tensor, numbers: Tensor) -> Tensor:
    outputs: Tensor = body(x)[0][:, -1]
    return outputs


def packed(body: nn.Module, x: Tensor, numbers: Tensor) -> Tensor:
    states: Tensor = body(nn.utils.rnn.pack_padded_sequence(x, numbers, batch_first=True, enforce_sorted=False))[1][-1]
    return states


def at_the_last_token(body: nn.Module, x: Tensor, numbers: Tensor) -> Tensor:
    outputs: Tensor = body(x)[0]
    return outputs[torch.arange(ROWS), numbers - 1]


@pytest.mark.parametrize(
    ("body", "reads"),
    [
        (gru(), last),
        (lstm(), lambda body, x, numbers: body(x.transpose(0, 1).contiguous())[1][0][-1]),
        swept(gru(), lambda body, x, numbers: body(x)[0][:, LENGTH - 1, :]),
        swept(gru(bidirectional=True), last),
        swept(lstm(batch_first=True, num_layers=2), lambda body, x, numbers: body(x)[1][0][-1]),
    ],
)
def test_last_states_that_padding_has_made(body: Callable[[], nn.Module], reads: Reads) -> None:
    said = "head reads the last state of body, which has read padding to the end in 75% of the rows"
    assert words(body, reads, 12) == {said}


@pytest.mark.parametrize(
    ("body", "reads", "padded", "first"),
    [
        (gru(), packed, 12, False),
        (gru(), at_the_last_token, 12, False),
        (gru(), last, 12, True),  # the padding comes first
        (gru(), last, 8, False),  # of half of the rows
        swept(gru(), lambda body, x, numbers: body(x)[0].mean(1), 12, False),
        swept(gru(), lambda body, x, numbers: body(x)[0][:, 0], 12, False),
        swept(gru(bidirectional=True), lambda body, x, numbers: torch.cat([*body(x)[1]], 1), 12, False),
    ],
)
def test_other_readings(body: Callable[[], nn.Module], reads: Reads, padded: int, first: bool) -> None:
    assert words(body, reads, padded, first=first) == {""}


@pytest.mark.parametrize(
    ("padded", "number", "share"), [(12, 4, "75%"), (ROWS, 2, "100%"), (ROWS, 1, ""), (6, 4, ""), (0, 4, "")]
)
def test_padding_that_the_embedding_does_not_know_of(padded: int, number: int, share: str) -> None:
    """It is the token that most rows end with, again and again; but not one that ends each sentence."""
    said = f"head reads the last state of body, which has read padding to the end in {share} of the rows"
    assert words(gru(), last, padded, index=None, number=number) == {said if share else ""}


READS = """
import sys, torch
from torch import nn

torch.manual_seed(0)
embed, body, head = nn.Embedding(20, 16, padding_idx=0), nn.GRU(16, 16, batch_first=True), nn.Linear(16, 2)
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.body, self.head = embed, body, head

    def forward(self, tokens):
        return self.head(self.body(self.embed(tokens))[0][:, -1])

model = Model()
optimizer = torch.optim.Adam(model.parameters(), 0.02)
noise = sys.argv[1] == "noise"
for step in range(120):
    tokens = torch.randint(1, 20, (64, 12))
    labels = torch.where(torch.rand(64) < 0.47 * noise, torch.randint(2, (64,)), (tokens[:, 0] > 10).long())
    tokens[:, 4:] = 0
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(tokens), labels).backward()
    optimizer.step()
"""


@pytest.mark.parametrize("noise", [True, False])
def test_it_is_a_remark_where_the_loss_has_fallen_little(noise: bool, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(READS)
    ran = run(tmp_path, "run", "--check", "-o", "x.run.jsonl", "train.py", "noise" if noise else "none")
    said = [line for line in ran.stderr.splitlines() if "has read padding to the end in 100% of the rows" in line]
    assert [line.startswith("Model: head reads the last state of body") for line in said] == [True] * noise
    assert not noise or "pack the rows by their lengths (pack_padded_sequence)" in said[0]
