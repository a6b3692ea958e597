"""States that are lost between time steps, and masks that hide the tokens; each beside a correct sibling."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from capabilities.learn.test_misused import all_faults
from observing import observed
from support import swept
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hookcli.capabilities.learn.judging.causes import cause_of
from hookcli.capabilities.learn.lines import Learning

TIMES, WIDTH = 6, 8
NextState = Callable[[Any], Any]


class Reader(nn.Module):
    """Reads a sequence step by step; `hand_on` makes the next state of the last one."""

    def __init__(self, cell: nn.Module, hand_on: NextState) -> None:
        super().__init__()
        self.cell, self.head, self.hand_on = cell, nn.Linear(WIDTH, 4), hand_on

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for number in range(TIMES):
            if isinstance(self.cell, nn.RNNCellBase):
                state = returned = self.cell(x[:, number], state)
            else:
                _, state = self.cell(x[:, number : number + 1], state)
                returned = state
            state = self.hand_on(state)
        last = returned[0] if isinstance(returned, tuple) else returned
        scores: Tensor = self.head(last.reshape(-1, WIDTH))
        return scores


def read(cell: Callable[[], nn.Module], hand_on: NextState) -> set[str]:
    """What is said of the states, in three steps."""

    def program() -> nn.Module:
        model = Reader(cell(), hand_on)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            x = torch.randn(16, TIMES, 5)
            optimizer.zero_grad()
            F.cross_entropy(model(x), x[:, 0, :4].argmax(1)).backward()
            optimizer.step()
        return model

    return {line.states for line in observed(program).of_parts if isinstance(line, Learning)}


def gru() -> nn.Module:
    return nn.GRUCell(5, WIDTH)


def lstm() -> nn.Module:
    return nn.LSTMCell(5, WIDTH)


def layer() -> nn.Module:
    return nn.LSTM(5, WIDTH, batch_first=True)


def each(of_state: Callable[[Tensor], Tensor]) -> NextState:
    return lambda state: tuple(map(of_state, state)) if isinstance(state, tuple) else of_state(state)


DETACHED = "the state of cell is detached between its 6 calls in a forward: no gradient goes back in time"
FORGETS = "cell begins with a state of zeros in each of its 6 calls in a forward: it forgets each time step"


@pytest.mark.parametrize(
    ("cell", "hand_on", "said"),
    [
        (gru, lambda state: state, ""),
        (gru, each(Tensor.detach), DETACHED),
        swept(gru, lambda state: None, FORGETS),
        (gru, each(torch.zeros_like), FORGETS),
        swept(gru, each(lambda x: 0.5 * x), ""),
        swept(gru, each(lambda x: torch.ones_like(x)), ""),
        swept(lstm, lambda state: state, ""),
        (lstm, each(Tensor.detach), DETACHED),
        swept(layer, lambda state: state, ""),
        (layer, each(Tensor.detach), DETACHED),
        (layer, lambda state: None, FORGETS),
    ],
)
def test_states_between_time_steps(cell: Callable[[], nn.Module], hand_on: NextState, said: str) -> None:
    assert read(cell, hand_on) == {said}


def test_a_state_that_is_detached_now_and_then_is_meant() -> None:
    """Truncated backpropagation: every third time step."""
    count = SimpleNamespace(steps=0)

    def every_third(state: Tensor) -> Tensor:
        count.steps += 1
        return state if count.steps % 3 else state.detach()

    assert read(gru, every_third) == {""}


def test_it_is_the_cause_where_nothing_is_learned() -> None:
    lines = [Learning("Net", step, states=FORGETS) for step in range(3)]
    assert cause_of({Learning.kind: lines, "untrained": []}, 60, 1.0)[0] == FORGETS
    lines[1] = Learning("Net", 1)
    assert FORGETS not in cause_of({Learning.kind: lines, "untrained": []}, 60, 1.0)[0]


class Attention(nn.Module):
    """`mask`: what attention gets for the places of the padding."""

    def __init__(self, mask: Callable[[Tensor], Tensor], padding: int | None = 0) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, WIDTH, padding_idx=padding)
        self.body = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True), 1, enable_nested_tensor=False
        )
        self.head, self.mask = nn.Linear(WIDTH, 4), mask

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.body(self.embed(tokens), src_key_padding_mask=self.mask(tokens == 0))
        scores: Tensor = self.head(hidden[:, 0])
        return scores


class AsInTransformers(Attention):
    """Gets its mask with 1 for what it attends to."""

    def forward(self, tokens: Tensor, attention_mask: Tensor) -> Tensor:  # type: ignore[override]
        scores: Tensor = self.head((self.embed(tokens) * attention_mask[..., None]).mean(1))
        return scores


def attend(model: nn.Module, pads: int, **given: Callable[[Tensor], Tensor]) -> nn.Module:
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(6):
        tokens = torch.randint(1, 12, (16, 8))
        tokens[:, 8 - pads :] = 0
        tokens[0] = tokens[0, 0]
        optimizer.zero_grad()
        F.cross_entropy(model(tokens, **{name: of(tokens) for name, of in given.items()}), tokens[:, 0] % 4).backward()
        optimizer.step()
    return model


INVERTED = "the src_key_padding_mask of body is inverted: it hides all tokens, and shows the padding"


@pytest.mark.parametrize(
    ("model", "pads", "inverted"),
    [
        (lambda: Attention(lambda pads: ~pads), 3, True),
        swept(lambda: Attention(lambda pads: torch.zeros(pads.shape).masked_fill(~pads, -torch.inf)), 3, True),
        (lambda: Attention(lambda pads: pads), 3, False),
        swept(lambda: Attention(lambda pads: torch.zeros(pads.shape).masked_fill(pads, -torch.inf)), 3, False),
        swept(lambda: Attention(lambda pads: pads), 0, False),  # nothing is hidden
        swept(lambda: Attention(lambda pads: ~pads, None), 3, True),  # the embedding has no padding_idx
        swept(lambda: Attention(lambda pads: torch.rand(pads.shape) < 0.1), 3, False),
    ],
)
def test_masks_that_hide_the_tokens(model: Callable[[], nn.Module], pads: int, inverted: bool) -> None:
    assert any(INVERTED in text for text in all_faults(lambda: attend(model(), pads))) == inverted


@pytest.mark.parametrize(
    ("mask", "inverted"),
    [
        (lambda tokens: (tokens == 0).long(), True),
        (lambda tokens: (tokens != 0).long(), False),
        (lambda tokens: tokens == 0, False),  # True for what is hidden, as PyTorch has it
    ],
)
def test_masks_as_transformers_has_them(mask: Callable[[Tensor], Tensor], inverted: bool) -> None:
    said = all_faults(lambda: attend(AsInTransformers(lambda pads: pads), 3, attention_mask=mask))
    assert any(text.startswith("the attention_mask of the model is inverted") for text in said) == inverted
