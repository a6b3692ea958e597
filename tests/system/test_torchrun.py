"""What torchrun leaves in an environment, and what else may be there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from records import RUN, save

from hookcli.system.torchrun import World, leftover, world

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
JUNK = [
    (),
    ("0",),
    ("0", "2"),
    ("abc", "2", "0", "2"),
    ("-1", "2", "0", "2"),
    ("2", "2", "0", "2"),
    ("0", "0", "0", "0"),
    ("0", "-2", "0", "2"),
    ("0", "2", "2", "2"),
    ("0", "2", "0", "4"),
    ("0.5", "2", "0", "2"),
    ("", "", "", ""),
    ("٣", "8", "0", "2"),
    ("9" * 5000, "9" * 5001, "0", "1"),
]


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def use(*values: str) -> None:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
        for name in NAMES:
            monkeypatch.delenv(name, raising=False)
        for name, value in zip(NAMES, values, strict=False):
            monkeypatch.setenv(name, value)

    return use


def test_torchruns_own(environment: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    environment("5", "8", "1", "4")
    assert world() == World(5, 8, 1, 4) and not world().writes and leftover() is None
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")
    assert world() == World() and leftover() is None  # a job scheduler's, for another program


@pytest.mark.parametrize("values", JUNK, ids=lambda values: " ".join(values)[:20] or "none")
def test_what_is_left_over_means_alone(environment: Callable[..., None], values: tuple[str, ...]) -> None:
    environment(*values)
    assert world() == World()
    said = leftover()
    assert said is not None and len(said) < 300


@pytest.mark.sweep
@pytest.mark.parametrize("values", [JUNK[0], JUNK[3], JUNK[-1]], ids=["none", "no number", "long"])
def test_what_is_left_over_is_told(
    environment: Callable[..., None], cli: Callable[..., Any], net: Path, values: tuple[str, ...]
) -> None:
    environment(*values)
    said = leftover()
    ran = cli("show", str(save(net / "a.jsonl", RUN)))
    assert ran.code == 0 and "head" in ran.out
    ran = cli("activations", "net.py:Net", "-i", "1x3x4x4")
    assert ran.code == 0 and "conv" in ran.out and ran.err == f"hookcli: {said}\n"
    assert cli("activations", "net.py:Net", "-i", "1x3x4x4", "-q").err == ""
    (net / "script.py").write_text("print('ran')\n")
    ran = cli("run", "script.py")
    assert (ran.code, ran.out) == (0, "ran\n") and f"hookcli: {said}\n" in ran.err
