"""Statistics on accelerators by Triton's kernels, which its interpreter runs on the CPU."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import forks
import pytest
from support import assert_stats

from hookcli.table import TensorStats

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
HERE = Path(__file__).parent


SIZES = pytest.mark.parametrize("how", ["brief", pytest.param("sweep", marks=pytest.mark.sweep)])


def told(program: str, how: str, **variables: str) -> Any:
    """What a program beside this file prints."""
    paths = os.pathsep.join([str(HERE.parent), *sys.path])
    ran = forks.run(
        [sys.executable, str(HERE / program), how],
        env=os.environ | variables | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return json.loads(ran.stdout)


@SIZES
def test_kernels_find_what_the_cpu_finds(how: str) -> None:
    """For tensors of every dtype and layout, at the ends of the ranges, without finite elements; and for any tensor."""
    pairs, distances, notes = told("interpreted.py", how, TRITON_INTERPRET="1")
    if any("only 0-dimensional arrays" in note for note in notes):
        pytest.skip("the interpreter of this Triton fails with this numpy (Triton 3.6, numpy 2.4)")
    assert len(pairs) > (60 if how == "sweep" else 20) and not notes
    for name, ((floats, hist), (expected, own)) in pairs.items():
        try:
            assert_stats(TensorStats.from_floats(floats), TensorStats.from_floats(expected))
        except AssertionError as error:
            raise AssertionError(name) from error
        assert hist == own or name == "float64 scale 1e-310", name  # whose subnormals count as normal
    assert len(distances) > (60 if how == "sweep" else 4)
    for name, (found, wanted) in distances.items():
        scale = 1e-7 * max(x for x in wanted if math.isfinite(x))
        assert found == pytest.approx(wanted, rel=1e-5, abs=scale, nan_ok=True), name


@pytest.mark.sweep
@pytest.mark.parametrize("how", ["brief", "sweep"])
def test_kernels_compile_for_gpus_that_are_not_there(how: str, tmp_path: Path) -> None:
    """To one load for several elements where a pointer is aligned, and without registers that spill into memory."""
    kernels = told("compiled.py", how, TRITON_CACHE_DIR=str(tmp_path))
    assert kernels
    for name, found in kernels.items():
        assert {"cubin", "hsaco"} & set(found["made"])
        assert found.get("STACK", 0) <= 16, (name, found)
        if ("bf16" in name or "fp32" in name) and "fp64" not in name:
            assert found.get("vectors", 1) and found.get("REG", 0) <= 160, (name, found)
