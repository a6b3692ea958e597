"""The one guard around pieces of other distributions: what it holds back, what passes, and what it notes."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from torch import nn

from hookcli import registry
from hookcli.engine.spared import spare, why_left_out
from hookcli.errors import PluginError, RefusedError, UsageError
from hookcli.hooks.session import HookSession
from hookcli.probes.base import Probe
from hookcli.registry.pieces import Guard, failures
from hookcli.table import Row, columns_named


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    failures.clear()
    yield
    failures.clear()


@pytest.mark.parametrize("error", [KeyError("lost"), SystemExit(3), MemoryError("too much"), UsageError("wrong")])
def test_an_error_costs_the_piece_alone_and_is_noted_with_its_traceback(error: BaseException) -> None:
    with Guard("check ODD1 (from odd 1)") as guard:
        raise error
    assert guard.why == f"{type(error).__name__}: {error}"
    ((line, trace),) = registry.remarks().items()
    assert line == f"check ODD1 (from odd 1) is left out: {guard.why}"
    assert trace.startswith("Traceback") and "raise error" in trace
    assert registry.remarks() == {}


def test_an_error_that_names_the_plugin_is_told_in_its_words() -> None:
    with Guard("probe 'odd'") as guard:
        raise PluginError("plugin 'odd' (probes, from odd 1) does not load: SystemExit: 3")
    assert guard.why == "plugin 'odd' (probes, from odd 1) does not load: SystemExit: 3"


def test_the_first_failure_of_a_piece_is_noted_until_it_is_said() -> None:
    for step in range(3):
        with Guard("check ODD1 (from odd 1)"):
            raise ValueError(step)
    assert list(registry.remarks()) == ["check ODD1 (from odd 1) is left out: ValueError: 0"]


def test_errors_that_are_not_the_piece_s_pass() -> None:
    with pytest.raises(KeyboardInterrupt), Guard("odd"):
        raise KeyboardInterrupt
    with pytest.raises(ZeroDivisionError), Guard("ours", own=True):
        raise ZeroDivisionError
    with pytest.raises(RefusedError), Guard("odd", passing=(RefusedError,)):
        raise RefusedError("no hooks there")
    assert not failures


def test_an_error_of_a_signal_handler_passes() -> None:
    def late(*about: object) -> None:
        raise TimeoutError("of the program")

    before = signal.signal(signal.SIGALRM, late)
    try:
        with pytest.raises(TimeoutError), Guard("odd"):
            signal.raise_signal(signal.SIGALRM)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not failures


class Refused(Probe):
    name = "refused"
    columns = columns_named("fqn")

    def attach(self, session: HookSession) -> None:
        raise RefusedError("PyTorch accepts no hooks there")

    def rows(self) -> list[Row]:
        return []


class Adapting(Refused):
    def instead(self, error: Exception) -> Probe | None:
        return Refused()


def test_refused_hooks_pass_if_the_probe_offers_another() -> None:
    alone, adapting = Refused(), Adapting()
    spare(alone, "probe 'refused' (from odd 1)")
    spare(adapting, "probe 'adapting' (from odd 1)")
    with HookSession(nn.ReLU()) as session:
        alone.attach(session)
        with pytest.raises(RefusedError):
            adapting.attach(session)
    assert why_left_out(alone) == "the probe failed: RefusedError: PyTorch accepts no hooks there"
    assert not why_left_out(adapting)
