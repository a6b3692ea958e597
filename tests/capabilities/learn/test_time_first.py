"""Language models whose layers take rows of text for time, and scores that meet the labels of other places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from capabilities.learn.test_misused import all_faults
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

ROWS, LENGTH, WORDS, WIDTH = 16, 7, 20, 8
ACROSS = "takes dimension 0 of its input, the batch, for the sequence"
CROSSED = "before both are flattened"


def trained(build: Callable[[], nn.Module], loss_of: Callable[[nn.Module, Tensor], Tensor]) -> nn.Module:
    torch.manual_seed(0)
    model = build()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(6):
        text = torch.randint(1, WORDS, (ROWS, LENGTH + 1))
        optimizer.zero_grad()
        loss_of(model, text).backward()
        optimizer.step()
    return model


class Words(nn.Module):
    """The scores (B, T, C) of the next words; `transposed`: time comes first inside."""

    def __init__(self, body: nn.Module, *, transposed: bool = False) -> None:
        super().__init__()
        self.embed, self.body, self.head = nn.Embedding(WORDS, WIDTH), body, nn.Linear(WIDTH, WORDS)
        self.transposed = transposed

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        outputs = self.body(x.transpose(0, 1) if self.transposed else x)
        read = outputs[0] if isinstance(outputs, tuple) else outputs
        scores: Tensor = self.head(read.transpose(0, 1) if self.transposed else read)
        return scores


def next_words(model: nn.Module, text: Tensor) -> Tensor:
    return F.cross_entropy(model(text[:, :-1]).reshape(-1, WORDS), text[:, 1:].reshape(-1))


def next_words_time_first(model: nn.Module, text: Tensor) -> Tensor:
    text = text.t().contiguous()
    return F.cross_entropy(model(text[:-1]).reshape(-1, WORDS), text[1:].reshape(-1))


@pytest.mark.parametrize(
    ("options", "transposed", "loss_of", "named"),
    [
        ({}, False, next_words, True),
        ({"batch_first": True}, False, next_words, False),
        ({}, True, next_words, False),
        ({}, False, next_words_time_first, False),
    ],
)
def test_rows_of_text_that_a_layer_takes_for_time(
    options: dict[str, Any], transposed: bool, loss_of: Callable[[nn.Module, Tensor], Tensor], named: bool
) -> None:
    def model() -> nn.Module:
        return Words(nn.LSTM(WIDTH, WIDTH, **options), transposed=transposed)

    said = [line for line in all_faults(lambda: trained(model, loss_of)) if ACROSS in line]
    assert bool(said) is named
    assert not named or (said[0].startswith(f"body {ACROSS}") and said[0].endswith("give batch_first=True"))


class Decoder(nn.Module):
    """The scores (T, B, C) of the next words, one at a time; each third word is the model's own."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cell, self.head = nn.Embedding(WORDS, WIDTH), nn.GRUCell(WIDTH, WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, text: Tensor) -> Tensor:
        state, token, scores = torch.zeros(len(text), WIDTH), torch.zeros_like(text[:, 0]), []
        for place in range(LENGTH):
            state = self.cell(self.embed(token), state)
            scores.append(self.head(state))
            token = text[:, place] if place % 3 else scores[-1].argmax(1)
        return torch.stack(scores)


@pytest.mark.parametrize(
    ("arrange", "labels", "named"),
    [
        (lambda scores: scores.view(-1, WORDS), lambda text: text.reshape(-1), True),
        (lambda scores: scores.transpose(0, 1).reshape(-1, WORDS), lambda text: text.reshape(-1), False),
        (lambda scores: scores.view(-1, WORDS), lambda text: text.t().reshape(-1), False),
    ],
)
def test_scores_that_meet_the_labels_of_other_places(
    arrange: Callable[[Tensor], Tensor], labels: Callable[[Tensor], Tensor], named: bool
) -> None:
    def loss_of(model: nn.Module, text: Tensor) -> Tensor:
        text = text[:, 1:]
        return F.cross_entropy(arrange(model(text)), labels(text))

    said = [line for line in all_faults(lambda: trained(Decoder, loss_of)) if CROSSED in line]
    of = f"the scores of cross_entropy are {LENGTH}x{ROWS}x{WORDS}, and its labels {ROWS}x{LENGTH}"
    assert [line.startswith(of) for line in said] == [True] * named


@pytest.mark.parametrize(("blank", "padded", "named"), [(0, False, True), (5, False, False), (0, True, False)])
def test_targets_of_ctc_that_are_its_blank(blank: int, padded: bool, named: bool) -> None:
    def program() -> nn.Module:
        torch.manual_seed(0)
        model = nn.Linear(6, 6)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            scores, lengths = model(torch.randn(12, 4, 6)).log_softmax(-1), torch.full((4,), 12)
            targets = torch.arange(12).reshape(4, 3) % 5 + padded * (torch.arange(12).reshape(4, 3) % 5 == 0)
            if padded:
                targets[:, 2] = 0  # padding, which the lengths leave out
            optimizer.zero_grad()
            F.ctc_loss(scores, targets, lengths, torch.full((4,), 2 if padded else 3), blank=blank).backward()
            optimizer.step()
        return model

    said = [line for line in all_faults(program) if "blank" in line]
    assert bool(said) is named
    assert not named or "25.0% of the targets of ctc_loss are its blank (0), which stands for no label" in said[0]
