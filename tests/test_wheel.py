"""The wheel of a platform holds the library, for every Python, and all data; without a compiler it works, too."""

from __future__ import annotations

import importlib.util
import os
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
@pytest.mark.skipif(not importlib.util.find_spec("setuptools"), reason="needs setuptools")
@pytest.mark.parametrize("compiled", [True, False])
def test_a_wheel_runs_the_main_commands_with_and_without_a_compiler(tmp_path: Path, compiled: bool) -> None:
    if compiled and compiler() is None:
        pytest.skip("needs a compiler")
    source = tmp_path / "source"
    shutil.copytree(ROOT / "hookcli", source / "hookcli", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "wheel", "--verbose", "--no-deps", "--no-build-isolation"]
    environment = os.environ | ({} if compiled else {"CC": "false", "CXX": "false"})
    built = subprocess.run(
        [*pip, "--wheel-dir", tmp_path, source], check=True, capture_output=True, text=True, env=environment
    )
    assert "would be ignored" not in built.stdout + built.stderr  # setuptools on folders of data
    (wheel,) = tmp_path.glob("*.whl")
    assert "-py3-none-" in wheel.name and not wheel.name.endswith("-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(tmp_path / "installed")
    if compiled:
        library.Library(tmp_path / "installed/hookcli/tensors/_sums.so")
    assert [name for name in names if name.endswith(".so")] == ["hookcli/tensors/_sums.so"] * compiled
    data = [path for path in (source / "hookcli").rglob("*") if path.is_file() and path.suffix != ".so"]
    assert {path.relative_to(source).as_posix() for path in data} <= names
    smoke = [sys.executable, ROOT / ".ci" / "commands.py", *([] if compiled else ["--without-library"])]
    subprocess.run(smoke, check=True, cwd=tmp_path, env=environment | {"PYTHONPATH": str(tmp_path / "installed")})
