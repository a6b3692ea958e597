"""Attention that sees the tokens to be predicted, by each way to attend; beside gradients from each token."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from capabilities.learn.test_misused import all_faults
from support import swept
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hookcli.capabilities.learn.forwards.future import COPIED, SHIFTED, WORDS

WORDS_OF_TEXT, LENGTH, WIDTH = 20, 12, 16
TRIANGLE = torch.ones(LENGTH, LENGTH).tril().bool()
PREFIX = TRIANGLE.clone()
PREFIX[:4, :4] = True


def written(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    y[:, 1:] = x[:, :-1]
    return y


SHIFTS: dict[str, Callable[[Tensor], Tensor]] = {
    "shifts": lambda x: torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1),
    "pads": lambda x: F.pad(x, (0, 0, 1, -1)),
    "rolls": lambda x: x.roll(1, 1),
    "writes": written,
}


class Text(nn.Module):
    """A model of text: `how` it attends, and with which mask (True: seen; None: all)."""

    def __init__(self, how: str, mask: Tensor | None) -> None:
        super().__init__()
        self.how, self.mask = how, mask
        self.embed, self.head = nn.Embedding(WORDS_OF_TEXT, WIDTH), nn.Linear(WIDTH, WORDS_OF_TEXT)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False) if how == "encoder" else None

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.head(self.attend(SHIFTS.get(self.how, lambda x: x)(self.embed(tokens))))
        return scores

    def attend(self, x: Tensor) -> Tensor:
        if self.body is not None:
            attended: Tensor = self.body(x, None if self.mask is None else ~self.mask)
            return attended
        if self.how == "fused":
            is_causal = self.mask is TRIANGLE
            return x + F.scaled_dot_product_attention(x, x, x, is_causal=is_causal)
        if self.how == "fused, masked":
            return x + F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], self.mask)[:, 0]
        scores = x @ x.mT
        scores = scores if self.mask is None else scores.masked_fill(~self.mask, -torch.inf)
        return x + scores.softmax(-1) @ x


def trained(model: nn.Module, task: str = "next") -> nn.Module:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(5):
        rows = torch.randint(1, WORDS_OF_TEXT, (8, LENGTH + 1))
        x, y = rows[:, :-1], rows[:, 1:]
        if task == "masked":
            x, y = x * (torch.rand(x.shape) < 0.7), x
        elif task == "prefix":
            y = torch.cat([torch.full_like(y[:, :3], -100), y[:, 3:]], 1)
        elif task == "padded":  # all tokens but the first are the same
            x, y = rows[:, :1].expand(-1, LENGTH) * 0 + 1, torch.ones_like(y)
            x = torch.cat([rows[:, :1], x[:, 1:]], 1)
        scores = model(x)
        if task == "twice":  # the program shifts the labels, and so does the model
            scores, y = scores[:, :-1], y[:, 1:]
        if task == "twice, filled":
            y = torch.cat([y[:, 1:], torch.full_like(y[:, :1], -100)], 1)
        if task == "cut":  # as language models do that get their labels themselves
            scores, y = scores[:, :-1], x[:, 1:]
        if task == "ahead":
            scores, y = model(x[:, :-1]), y[:, 1:]
        if task == "copied":
            y = x
        optimizer.zero_grad()
        F.cross_entropy(scores.flatten(0, 1), y.flatten()).backward()
        optimizer.step()
    return model


def sees_next(model: Text) -> bool:
    """True if the scores of each place depend on the token at the next one."""
    x = model.embed(torch.arange(1, LENGTH + 1)[None]).detach().requires_grad_()
    outputs = model.head(model.attend(x))[0]
    grads = [
        torch.autograd.grad(outputs[n].square().sum(), x, retain_graph=True)[0][0, n + 1] for n in range(LENGTH - 1)
    ]
    return all(bool(grad.any()) for grad in grads)


@pytest.mark.parametrize(
    ("how", "mask", "task"),
    [
        ("encoder", None, "next"),
        ("encoder", TRIANGLE, "next"),
        ("fused", None, "cut"),
        swept("fused", TRIANGLE, "cut"),
        swept("fused, masked", ~torch.zeros(LENGTH, LENGTH).bool(), "next"),
        swept("fused, masked", TRIANGLE, "next"),
        swept("by hand", None, "next"),
        swept("by hand", None, "cut"),
        ("by hand", TRIANGLE, "next"),
        swept("by hand", PREFIX, "prefix"),
    ],
)
def test_a_language_model_without_a_causal_mask(how: str, mask: Tensor | None, task: str) -> None:
    expected = sees_next(Text(how, mask))
    assert expected is (mask is None or bool(mask.all()))
    assert (WORDS in all_faults(lambda: trained(Text(how, mask), task))) is expected


@pytest.mark.parametrize(
    ("how", "mask", "task", "expected"),
    [
        ("encoder", TRIANGLE, "copied", True),
        swept("fused", TRIANGLE, "copied", True),
        swept("by hand", TRIANGLE, "copied", True),
        ("encoder", None, "copied", False),  # an autoencoder may
        ("shifts", TRIANGLE, "copied", False),  # the model does it itself
        *(swept(how, TRIANGLE, "copied", False) for how in ("pads", "rolls", "writes")),
        ("encoder", TRIANGLE, "next", False),
        swept("fused", TRIANGLE, "cut", False),
        swept("encoder", None, "masked", False),
    ],
)
def test_labels_that_are_the_tokens_themselves(how: str, mask: Tensor | None, task: str, expected: bool) -> None:
    assert (COPIED in all_faults(lambda: trained(Text(how, mask), task))) is expected


class Recurrent(nn.Module):
    """A model of text by recurrent layers; an `autoencoder` reads the last state alone."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.embed, self.drop = nn.Embedding(WORDS_OF_TEXT, WIDTH), nn.Dropout(0.1)
        both = how == "both ways"
        layers = [nn.GRU(WIDTH, WIDTH, batch_first=True, bidirectional=both) for _ in range(1 + (how == "two"))]
        self.layers, self.head = nn.ModuleList(layers), nn.Linear(WIDTH * (1 + both), WORDS_OF_TEXT)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(self.embed(x))
        for layer in self.layers:
            x, last = layer(x)
        if self.how == "autoencoder":
            x = last[-1][:, None].expand(-1, LENGTH, -1)
        scores: Tensor = self.head(self.drop(x))
        return scores


@pytest.mark.parametrize(
    ("how", "task", "expected"),
    [
        ("one", "copied", True),
        swept("two", "copied", True),
        ("one", "next", False),
        swept("one", "masked", False),
        swept("both ways", "copied", False),
        ("autoencoder", "copied", False),
    ],
)
def test_a_recurrent_model_of_labels_that_are_the_tokens_themselves(how: str, task: str, expected: bool) -> None:
    assert (COPIED in all_faults(lambda: trained(Recurrent(how), task))) is expected


def test_hidden_words_may_be_predicted_from_all_others() -> None:
    assert WORDS not in all_faults(lambda: trained(Text("encoder", None), "masked"))


@pytest.mark.parametrize(
    ("task", "is_frozen", "expected"),
    [
        ("twice", False, True),
        swept("twice, filled", False, True),
        swept("twice", True, False),  # a new head on a frozen model may look ahead on purpose
        ("cut", False, False),
        ("ahead", False, False),  # a forecast of two steps
        swept("next", False, False),
        ("padded", False, False),
        swept("masked", False, False),
    ],
)
def test_labels_that_are_shifted_twice(task: str, is_frozen: bool, expected: bool) -> None:
    def program() -> nn.Module:
        model = Text("fused", TRIANGLE)
        model.embed.requires_grad_(not is_frozen)
        return trained(model, task)

    assert (SHIFTED in all_faults(program)) is expected


class Answers(nn.Module):
    """A recurrent decoder, which attends to a question of as many words, all of which attention sees."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.write = Text("by hand", None), nn.GRU(WIDTH, WIDTH, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        question = self.read.embed(tokens.flip(0))
        states, _ = self.write(self.read.embed(tokens))
        words = question + self.read.attend(question)
        scores: Tensor = self.read.head((states @ words.mT).softmax(-1) @ words + states)
        return scores


def test_attention_may_see_all_words_of_another_text() -> None:
    assert WORDS not in all_faults(lambda: trained(Answers()))
