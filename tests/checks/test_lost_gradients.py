"""HK008: an error where something cuts the gradient off, a warning where the loss does not use the part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import untouched
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hookcli import check


class Parts(nn.Module):
    """Three layers and a parameter of its own, which `function` uses."""

    def __init__(self, function: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(4, 4) for _ in range(3))
        self.token, self.function = nn.Parameter(torch.randn(4)), function

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def no_grad(m: Any, x: Tensor) -> Any:
    with torch.no_grad():
        h = m.b(m.a(x + m.token))
    return m.c(h)


def through_buffer(m: Any, x: Tensor) -> Any:
    h = m.a(x + m.token)
    written = torch.empty_like(h)
    written.data.copy_(m.b(h))
    return m.c(h + written)


def checkpointed(m: Any, x: Tensor) -> Any:
    return m.c(checkpoint(lambda y: m.b(m.a(y)), x, use_reentrant=True)) + m.token


def straight_through(m: Any, x: Tensor) -> Any:
    return m.c(m.a(x + m.token)) * m.b(x).argmax(-1)[:, None]


def branches(m: Any, x: Tensor) -> Any:
    h = m.a(x + m.token)
    return m.c(h if m.b(x).square().mean() < 2 else -h)


def written_down(m: Any, x: Tensor) -> Any:
    m.norm = m.b(x).norm().item()
    return m.c(m.a(x + m.token))


def one_counts(m: Any, x: Tensor) -> Any:
    m.norm = m.b(x).norm().item()
    return m.c(x + m.token) * m.a(x).sum().item()


def unseeded(m: Any, x: Tensor) -> Any:
    m.norm, m.calls = m.b(x).norm().item(), getattr(m, "calls", 0) + 1
    return m.c(m.a(x + m.token)) * m.calls


NUMBERS = "the loss is computed from it by way of Python or NumPy numbers, which carry no gradient"
UNUSED = "the loss does not use it"
CHECKPOINT = "it ran in a reentrant checkpoint whose inputs need no gradient"
CASES: dict[str, tuple[Callable[[Any, Tensor], Any], dict[str, tuple[str, str]]]] = {
    "a token that this input does not need": (lambda m, x: m.c(m.b(m.a(x))), {"": ("warning", UNUSED)}),
    "a branch that ends": (lambda m, x: (m.b(h := m.a(x + m.token)), m.c(h))[1], {"b": ("warning", UNUSED)}),
    "a head that the loss leaves out": (
        lambda m, x: {"loss": m.c(h := m.a(x + m.token)).sum(), "logits": m.b(h)},
        {"b": ("warning", UNUSED)},
    ),
    "a head whose only use is detached": (
        lambda m, x: m.c(m.a(x + m.token)) + m.b(x).detach(),
        {"b": ("error", "")},
    ),
    "the loss of a detached trunk": (
        lambda m, x: {"loss": m.c(m.b(m.a(x + m.token)).detach()).sum(), "logits": m.a(x)},
        {"": ("error", ""), "a": ("error", ""), "b": ("error", "")},
    ),
    ".data of a parameter": (lambda m, x: m.c(m.b(m.a(x))) + m.token.data, {"": ("error", "")}),
    "a copy into .data": (through_buffer, {"b": ("error", "")}),
    "an argmax": (straight_through, {"b": ("error", "")}),
    "numpy": (
        lambda m, x: m.c(torch.from_numpy(m.b(x).detach().numpy() * 2)) + m.a(x + m.token),
        {"b": ("error", NUMBERS)},
    ),
    "a list": (lambda m, x: m.c(torch.tensor(m.b(x).tolist())) + m.a(x + m.token), {"b": ("error", NUMBERS)}),
    "item()": (lambda m, x: m.c(m.b(m.a(x))) / m.token.sum().item(), {"": ("error", NUMBERS)}),
    "float()": (lambda m, x: m.c(m.a(x + m.token)) * float(m.b(x).sum()), {"b": ("error", NUMBERS)}),
    "a branch of Python": (branches, {"b": ("error", NUMBERS)}),
    "a number that is only written down": (written_down, {"b": ("warning", UNUSED)}),
    "one that counts and one that does not": (one_counts, {"a": ("error", NUMBERS), "b": ("warning", UNUSED)}),
    "numbers that nothing seeds": (unseeded, {"b": ("warning", UNUSED)}),
    "no_grad": (no_grad, {"": ("error", ""), "a": ("error", "gradients off"), "b": ("error", "gradients off")}),
    "a reentrant checkpoint": (checkpointed, {"a": ("error", CHECKPOINT), "b": ("error", CHECKPOINT)}),
    "all is used": (lambda m, x: m.c(m.b(m.a(x + m.token))), {}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore:None of the inputs")
def test_what_is_cut_off_is_an_error_and_what_is_unused_a_warning(case: str) -> None:
    function, expected = CASES[case]
    torch.manual_seed(0)  # so that a branch is taken the other way if its layer is another
    model, x = Parts(function), torch.randn(8, 4)
    with untouched(model):
        report = check(model, x, select="HK008")
    found = {one.fqn: (one.severity, one.message) for one in report.findings}
    assert {fqn: severity for fqn, (severity, _) in found.items()} == {fqn: s for fqn, (s, _) in expected.items()}
    for fqn, (_, cause) in expected.items():
        assert found[fqn][1].endswith(cause)
        assert (UNUSED in found[fqn][1]) == (cause == UNUSED)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("case", "severity"), [("a branch that ends", "warning"), ("a head whose only use is detached", "error")]
)
def test_a_compiled_model_is_judged_alike(case: str, severity: str) -> None:
    model = torch.compile(Parts(CASES[case][0]), backend="eager")
    (finding,) = check(model, torch.randn(8, 4), select="HK008").findings
    assert (finding.fqn, finding.severity, UNUSED in finding.message) == ("b", severity, severity == "warning")


@pytest.mark.parametrize("needs", [True, False])
@pytest.mark.filterwarnings("ignore:None of the inputs")
def test_reentrant_checkpoints_whose_inputs_need_gradients_pass(needs: bool) -> None:
    def forward(m: Any, x: Tensor) -> Any:
        h = x + m.token if needs else x
        return m.c(checkpoint(m.b, checkpoint(m.a, h, use_reentrant=True), use_reentrant=True))

    report = check(Parts(forward), torch.randn(8, 4), select="HK008")
    assert {one.fqn for one in report.findings} == (set() if needs else {"", "a", "b"})
