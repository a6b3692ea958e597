"""Whatever code of the user's raises is one line, exit code 2, and costs nothing of what was measured until then."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import swept
from torch import nn

import hookcli
from hookcli.capabilities.trace.probe import TraceProbe
from hookcli.errors import ModelError, in_brief, message_of, shortened
from hookcli.hooks.full_backward import refuses_full_backward
from hookcli.probes.parameters import SettingsProbe

Cli = Callable[..., Any]

ODD = """
import asyncio
import torch
from torch import nn

class Own(BaseException): pass

class Mute(Exception):
    def __str__(self): raise Own("no message")
    __repr__ = __str__

class Anonymous(type):
    @property
    def __name__(cls): raise Own("no name")

class Unnamed(Exception, metaclass=Anonymous): pass

KINDS = {
    "cancelled": asyncio.CancelledError("late"), "generator": GeneratorExit(), "own": Own("mine"), "mute": Mute(),
    "unnamed": Unnamed("who"), "stop": StopIteration(), "exit": SystemExit(0),
    "group": BaseExceptionGroup("g", [Own()]),
    "lines": ValueError("\\n".join(f"line {i}" for i in range(1000))), "long": ValueError("y" * 100_000),
}

class Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, kind): ctx.kind = kind; return x.clone()
    @staticmethod
    def backward(ctx, grad): raise KINDS[ctx.kind]

class Net(nn.Module):
    def __init__(self, kind, where):
        super().__init__()
        self.first, self.second, self.kind, self.where = nn.Linear(2, 2), nn.Linear(2, 2), kind, where
        self.fails("building")

    def fails(self, where):
        if self.where == where:
            raise KINDS[self.kind]

    def forward(self, x):
        x = self.first(x)
        self.fails("forward")
        if not self.training:
            self.fails("eval")
        x = self.second(x)
        return Backward.apply(x, self.kind) if self.where == "backward" else x

    def train(self, mode=True):
        self.fails("preparing")
        return super().train(mode)
"""
KINDS = ("own", "mute", "unnamed", "stop", "exit", "lines", *map(swept, ("cancelled", "generator", "group", "long")))
NET = ("odd.py:Net", "--input", "4x2")


@pytest.fixture
def odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "odd.py").write_text(ODD)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def one_error(ran: Any) -> None:
    """One line that says what failed, and at most one more that says where."""
    lines = ran.err.splitlines()
    assert ran.code == 2 and lines[0].startswith("hookcli: error: "), ran.err
    assert len(lines) <= 2 and "Traceback" not in ran.err and all(len(line) < 600 for line in lines)


@pytest.mark.parametrize("kind", KINDS)
def test_in_forward_the_table_up_to_there_is_shown(cli: Cli, odd: Path, kind: str) -> None:
    for command in ("activations", "shapes", "trace"):
        ran = cli(command, *NET, "--arg", f"kind={kind}", "--arg", "where=forward")
        one_error(ran)
        assert "the model (Net) failed on input 4x2: " in ran.err and "at odd.py:" in ran.err
        assert "first" in ran.out and "incomplete: the run failed" in ran.out
    ran = cli("check", *NET, "--arg", f"kind={kind}", "--arg", "where=forward")
    one_error(ran)
    assert "HK001" in ran.out


@pytest.mark.parametrize("kind", KINDS)
def test_anywhere_else(cli: Cli, odd: Path, kind: str) -> None:
    for command, where in (
        (("grads",), "backward"),
        (("diff", "odd.py:Net"), "forward"),
        (("activations",), "building"),
        (("activations",), "preparing"),
        (("check",), "eval"),
    ):
        one_error(cli(*command, *NET, "--arg", f"kind={kind}", "--arg", f"where={where}"))


@pytest.mark.parametrize("kind", KINDS)
def test_in_files_that_are_imported_and_functions_from_them(cli: Cli, odd: Path, kind: str) -> None:
    (odd / "raises.py").write_text(f"from odd import KINDS\nraise KINDS[{kind!r}]\n")
    (odd / "lazily.py").write_text(f"from odd import KINDS\ndef __getattr__(name): raise KINDS[{kind!r}]\n")
    (odd / "function.py").write_text(f"from odd import KINDS\ndef f(x): raise KINDS[{kind!r}]\n")
    (odd / "net.py").write_text("from torch import nn\ndef mk(): return nn.Linear(2, 2)\n")
    net = ("net.py:mk", "--input", "4x2")
    for argv in (
        ("shapes", "raises.py:mk"),
        ("shapes", "raises:mk"),
        ("shapes", "lazily.py:mk"),
        ("grads", *net, "--loss", "function.py:f"),
        ("check", *net, "--loss", "function.py:f"),
        ("activations", *net, "--edit", "*:output=function.py:f"),
    ):
        one_error(cli(*argv))


def test_of_an_async_function_one_line_says_that_nobody_awaits_it(cli: Cli, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("waits.py").write_text(
        "from torch import nn\n"
        "async def mk(): return nn.Linear(2, 2)\n"
        "async def loss(y): return y.sum()\n"
        "async def edit(x): return x\n"
        "class Net(nn.Linear):\n"
        "    def __init__(self): super().__init__(2, 2)\n"
        "    async def forward(self, x): return x\n"
    )
    linear = ("torch.nn:Linear", "--arg", "in_features=2", "--arg", "out_features=2", "--input", "4x2")
    for argv in (
        ("shapes", "waits.py:mk", "--input", "4x2"),
        *((command, "waits.py:Net", "--input", "4x2") for command in ("shapes", "activations", "grads", "check")),
        ("grads", *linear, "--loss", "waits.py:loss"),
        ("activations", *linear, "--edit", "*:output=waits.py:edit"),
    ):
        ran = cli(*argv)
        one_error(ran)
        assert "is async: calling it gives a coroutine" in ran.err and "RuntimeWarning" not in ran.err


def test_an_interrupt_stays_one_and_has_what_was_seen() -> None:
    class Stops(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            super().forward(x)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        hookcli.capture(Stops(nn.Linear(2, 2)), torch.ones(1, 2), ["activations"])
    assert [row.fqn for row in caught.value.reports[0].rows] == ["0"]  # type: ignore[attr-defined]


def test_a_command_in_the_handler_of_a_programs_own_interrupt_is_not_interrupted(cli: Cli) -> None:
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        ran = cli("explain", "HK012")
    assert ran.code == 0 and not ran.err and "HK012" in ran.out


def test_an_error_that_was_never_raised_is_no_refusal_of_a_hook() -> None:
    assert not refuses_full_backward(RuntimeError("made, and handed on by a future"))


def test_in_a_program_it_is_a_model_error_too() -> None:
    class Leaves(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            super().forward(x)
            raise GeneratorExit

    with pytest.raises(ModelError, match="failed on input 1x2: GeneratorExit") as caught:
        hookcli.capture(Leaves(nn.Linear(2, 2)), torch.ones(1, 2), ["activations"])
    assert [row.fqn for row in caught.value.reports[0].rows] == ["0"]


@pytest.mark.parametrize("name", ["state_dict", "extra_repr"])
def test_methods_that_a_run_can_do_without(name: str) -> None:
    class Own(BaseException):
        pass

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise Own

    model = type("Odd", (nn.Linear,), {name: fail})(2, 2)
    trace, settings = hookcli.capture(
        model, torch.ones(1, 2), [TraceProbe(), SettingsProbe()], step=hookcli.Step(state_dict=True)
    )
    assert trace.rows and settings.rows
    said = any("a round trip of the state dict failed: Own" in item.reason for item in trace.skipped)
    assert said == (name == "state_dict")


def test_a_message_is_one_short_line() -> None:
    assert in_brief(KeyError("lost")) == "KeyError: 'lost'"
    assert in_brief(ValueError("\n\n  first\n second")) == "ValueError: first"
    assert in_brief(ValueError("Error(s) in X:\n  size mismatch")) == "ValueError: Error(s) in X: size mismatch"
    assert in_brief(ValueError("a\x1b[31m red\x07 one\tb")) == "ValueError: a red? one b"
    assert in_brief(ValueError()) == "ValueError: (no message)"
    assert shortened("x" * 1000, 10) == "x" * 10 + "… (1,000 characters)" and shortened("abc") == "abc"

    class LateError(Exception):
        def __str__(self) -> str:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        message_of(LateError())
