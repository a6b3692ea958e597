"""Statistics on accelerators by Triton's kernels, which its interpreter runs on the CPU."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

import forks
import pytest
from support import assert_stats

from hookcli.report import TensorStats

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
HERE = Path(__file__).parent


def interpreted(how: str) -> tuple[dict[str, Any], list[str]]:
    """What interpreted.py found, and the notes that reports would have."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join([str(HERE.parent), *sys.path])}
    ran = forks.run(
        [sys.executable, str(HERE / "interpreted.py"), how],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    pairs, notes = json.loads(ran.stdout)
    return pairs, notes


@pytest.mark.parametrize("how", ["brief", pytest.param("sweep", marks=pytest.mark.sweep)])
def test_kernels_find_what_the_cpu_finds(how: str) -> None:
    """For tensors of every dtype and layout, at the ends of the ranges, without finite elements; and for any tensor."""
    pairs, notes = interpreted(how)
    assert len(pairs) > (60 if how == "sweep" else 25) and not notes
    for name, ((floats, hist), (expected, own)) in pairs.items():
        try:
            assert_stats(TensorStats.from_floats(floats), TensorStats.from_floats(expected))
        except AssertionError as error:
            raise AssertionError(name) from error
        assert hist == own or name == "float64 scale 1e-310", name  # whose subnormals count as normal
