"""Files in packages: one that imports relatively is loaded as the module of its package."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hookcli.errors import UsageError
from hookcli.system.importing import load_object, name_in_package


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of two folders, whose names no other test uses."""
    inner = tmp_path / "nets_of_here" / "inner"
    inner.mkdir(parents=True)
    (inner.parent / "__init__.py").write_text("from .inner.net import Net\n")
    (inner / "__init__.py").write_text("")
    (inner.parent / "layers.py").write_text("class Block: pass\n")
    (inner / "net.py").write_text("from ..layers import Block\nclass Net: block = Block\n")
    (inner / "plain.py").write_text("try:\n    from . import net\nexcept ImportError:\n    import net\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield inner
    for name in [name for name in sys.modules if name.startswith("nets_of_here")]:
        del sys.modules[name]


def test_a_file_with_relative_imports_is_the_module_of_its_package(package: Path) -> None:
    net = load_object("nets_of_here/inner/net.py:Net")
    assert (net.__module__, net.block.__module__) == ("nets_of_here.inner.net", "nets_of_here.layers")
    assert load_object("nets_of_here/__init__.py:Net") is net
    assert load_object("nets_of_here.inner.net:Net") is net  # the other spelling is the same class


def test_other_files_are_loaded_as_before(package: Path) -> None:
    assert name_in_package(package / "plain.py") == ""  # it has another way, which needs no package
    assert name_in_package(package.parent / "layers.py") == ""
    assert name_in_package(package / "absent.py") == ""


def test_a_folder_without_init_is_a_package_as_far_as_the_imports_reach(package: Path) -> None:
    (package / "__init__.py").unlink()
    (package.parent / "__init__.py").unlink()
    assert name_in_package(package / "net.py") == "nets_of_here.inner.net"
    assert load_object("nets_of_here/inner/net.py:Net").block.__name__ == "Block"
    (package.parent.parent / "a-b").mkdir()
    (package.parent.parent / "a-b" / "net.py").write_text("from .x import y\n")
    assert name_in_package(package.parent.parent / "a-b" / "net.py") == ""  # which no import statement can name


def test_a_package_of_the_same_name_elsewhere_is_said(package: Path) -> None:
    load_object("nets_of_here/inner/net.py:Net")
    shutil.copytree(package.parent, package.parents[1] / "other" / "nets_of_here")
    with pytest.raises(UsageError, match=r"other/.*net\.py imports relatively, as nets_of_here\.inner\.net, but that"):
        load_object("other/nets_of_here/inner/net.py:Net")
