"""Hooks change no bit of a step under DistributedDataParallel and fully_shard, and leave nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine.ranks.support import MODELS, torchrun
from support import swept


@pytest.mark.parametrize("name", [*map(swept, ("Net", "mobilenet"))])
def test_a_step_with_hooks_is_bit_identical_to_one_without(tmp_path, name) -> None:
    (tmp_path / "models.py").write_text(MODELS)
    ran = torchrun(2, str(Path(__file__).with_name("observer_job.py")), str(tmp_path), name, folder=tmp_path)
    assert ran.returncode == 0, ran.stderr[:3000]
    assert ran.stdout == "same\nsame\n"
