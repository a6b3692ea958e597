"""Losses that a GradScaler has scaled: learn reads of their graphs what it reads without one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any
from weakref import ref

import pytest
import torch
from capabilities.learn.test_misused import Codes, all_faults, binary, likelihood, net
from observing import observed
from support import swept
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hookcli.capabilities.learn.lines import Learning

ROWS, STEPS, SCALE = 32, 4, 2.0**14  # a power of two changes no gradient once it is divided out
Loss = Callable[[Any, Tensor, Tensor], Tensor]


def train(model: nn.Module, loss_of: Loss, scale: float | None, **how: Any) -> nn.Module:
    """Train on labels that can be learned, with a GradScaler unless `scale` is None."""
    optimizer = torch.optim.SGD(model.parameters(), how.get("lr", 0.05))
    scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)
    for _ in range(how.get("steps", STEPS)):
        x = torch.randn(ROWS, *how.get("size", (6,)))
        optimizer.zero_grad()
        scaler.scale(loss_of(model(x), x, x.flatten(1)[:, :3].argmax(1))).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), how.get("most", 100.0))
        scaler.step(optimizer)
        scaler.update()
    return model


def squares(outputs: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(*torch.broadcast_tensors(outputs, y.float()))


def of_numbers(outputs: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(outputs, y)


CASES: dict[str, tuple[Callable[[], nn.Module], Loss, dict[str, Any]]] = {
    "classes": (net, of_numbers, {"classes": 3, "items": ROWS}),
    "a cast": (net, lambda o, x, y: F.cross_entropy(o, y).double(), {"classes": 3, "items": ROWS}),
    "labels": (net, of_numbers, {"labelled": 1}),
    "one label": (net, lambda o, x, y: F.cross_entropy(o, y * 0), {"one_label": 1}),
    "squares": (net, lambda o, x, y: squares(o[:, 0], y.sign()), {"spread": None}),
    "squares of all pairs": (net, lambda o, x, y: squares(o[:, :1], y), {"broadcast": "32x32"}),
    "ones": (net, lambda o, x, y: binary(o, y), {"targets": ROWS, "ones": None}),
    "a wrong sign": (net, lambda o, x, y: -F.cross_entropy(o, y), {"maximized": "cross_entropy"}),
    "no minus": (net, lambda o, x, y: likelihood(o, y), {"maximized": "cross_entropy"}),
    "over rows": (net, lambda o, x, y: F.nll_loss(o.log_softmax(0), y), {"misused": None}),
    "pairs": (net, lambda o, x, y: ((o[:, :1] - y.float()) ** 2).mean(), {"misused": None}),
    "doubled": (net, lambda o, x, y: F.cross_entropy(o.softmax(1), y), {"doubled": None}),
    "outweighed": (
        Codes,
        lambda o, x, y: F.mse_loss(o[0], x) + (o[1] ** 2).sum(),
        {"outweighed": None, "unexplained": None},
    ),
}
PLAIN = ("classes", "squares", "ones")
OTHERS = ("in_use", "scale")  # which are not read of a graph


def learned(case: str, scale: float | None) -> list[dict[str, Any]]:
    model, loss_of, _ = CASES[case]
    seen = observed(lambda: train(model(), loss_of, scale))
    losses = [{"loss": loss} for of in seen.every_loss.values() for loss in of.values()]
    lines = [asdict(line) for line in seen.of_parts if isinstance(line, Learning)]
    return losses + [{name: x for name, x in line.items() if name not in OTHERS} for line in lines]


@pytest.mark.sweep
@pytest.mark.parametrize("case", [*PLAIN, *(swept(case) for case in CASES if case not in PLAIN)])
def test_a_scaled_loss_is_read_as_the_loss_itself(case: str) -> None:
    plain, scaled = learned(case, None), learned(case, SCALE)
    assert len(plain) == 2 * STEPS and len(scaled) == len(plain)
    for one, other in zip(scaled, plain, strict=True):
        assert one == pytest.approx(other, rel=1e-5)
    for name, expected in CASES[case][2].items():
        value = scaled[STEPS][name]
        assert value == expected if expected is not None else value


@pytest.mark.sweep
def test_the_level_of_guessing_is_that_of_the_unscaled_loss() -> None:
    """With next to nothing left of gradients that are clipped after unscale_."""
    text, other = (
        all_faults(lambda scale=scale: train(net(), of_numbers, scale, steps=60, most=1e-6, lr=1e-3))
        for scale in (SCALE, None)
    )
    assert text == other and len(text) == 1
    assert text[0].startswith("the steps are too small (gradients are clipped from ")
    assert text[0].endswith("better than guessing among 3 classes (ln 3 = 1.099)")
    assert not all_faults(lambda: train(net(), of_numbers, SCALE, steps=60, lr=0.5))


@pytest.mark.sweep
@pytest.mark.parametrize("enabled", [True, False])
def test_a_loss_lives_no_longer_than_what_was_made_of_it(enabled: bool) -> None:
    losses: list[ref[Tensor]] = []

    def program() -> nn.Module:
        def noted(outputs: Tensor, x: Tensor, y: Tensor) -> Tensor:
            assert not [one for one in losses if one() is not None]
            loss = F.cross_entropy(outputs, y)
            losses.append(ref(loss))
            return loss

        return train(net(), noted, SCALE if enabled else None)

    observed(program)
    assert len(losses) == 2 * STEPS and not [one for one in losses if one() is not None]


def clipping(first: bool, scale: float | None, most: float = 1.0, grows: int = 2000) -> list[str]:
    """The texts on a training whose gradients are clipped first, or unscaled first."""

    def program() -> nn.Module:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, growth_interval=grows, enabled=scale is not None)
        for _ in range(6):
            x = torch.randn(ROWS, 6)
            optimizer.zero_grad()
            scaler.scale(F.cross_entropy(model(x), x[:, :3].argmax(1))).backward()
            if not first:
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), most)
            scaler.step(optimizer)
            scaler.update()
        return model

    return all_faults(program)


@pytest.mark.parametrize(
    ("first", "scale", "more", "norms"),
    [
        (True, SCALE, {}, ("1.000", "16,384", "6.104e-05")),
        swept(True, 2.0**16, {"most": 0.5}, ("0.5000", "65,536", "7.629e-06")),
        swept(True, SCALE, {"most": 0.737373, "grows": 2}, ("0.7374", "65,536", "1.125e-05")),  # by the changing scale
        (False, SCALE, {}, None),
        (False, SCALE, {"most": 6e-5}, None),  # on purpose
        swept(False, SCALE, {"most": 6e-5, "grows": 2}, None),
        swept(True, SCALE, {"most": 1e6}, None),  # never clipped
        (True, None, {"most": 1e-4}, None),
        swept(True, 1.0, {"most": 1e-4}, None),
    ],
)
def test_gradients_that_are_clipped_before_they_are_unscaled(
    first: bool, scale: float | None, more: dict[str, Any], norms: tuple[str, str, str] | None
) -> None:
    texts = clipping(first, scale, **more)
    if norms is None:
        assert not texts
    else:
        (text,) = texts
        to, of, left = norms
        expected = (
            f"before unscale_: to a norm of {to} with the GradScaler's scale of {of} in it, which leaves {left} of 0."
        )
        assert text.startswith(f"gradients are clipped {expected}")
