"""Distributions of others, as pip installs them, in a fraction of its time."""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from contextlib import chdir
from pathlib import Path

from hatchling.build import build_wheel

HERE = Path(__file__).parent


def installed(distribution: str, site: Path) -> Path:
    """The folder `site`, with the wheel of a distribution that stands in a folder beside this file."""
    with tempfile.TemporaryDirectory() as folder:
        source = shutil.copytree(HERE / distribution, Path(folder, "source"))
        with chdir(source):
            wheel = build_wheel(folder)
        with zipfile.ZipFile(Path(folder, wheel)) as archive:
            archive.extractall(site)
    return site
