"""The wheel of a platform holds the library, for every Python."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from hookcli.hooks.native.build import compiler
from hookcli.tensors import library

ROOT = Path(__file__).parent.parent


@pytest.mark.sweep
@pytest.mark.skipif(compiler() is None or not importlib.util.find_spec("setuptools"), reason="needs a compiler")
def test_a_wheel_has_the_library_for_any_python(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(ROOT / "hookcli", source / "hookcli", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", tmp_path, source], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert "-py3-none-" in wheel.name and not wheel.name.endswith("-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        library.Library(Path(archive.extract("hookcli/tensors/_sums.so", tmp_path)))
        assert [name for name in archive.namelist() if name.endswith(".so")] == ["hookcli/tensors/_sums.so"]
