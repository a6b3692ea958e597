"""What is read off torchvision's sources is what torchvision itself says, and the cache can't go stale."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import forks
import pytest
import torchvision

from hookcli.sources import catalog
from hookcli.sources.catalog import ModelEntry, entries


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    catalog._entries.cache_clear()


def test_it_lists_what_torchvision_lists() -> None:
    assert list(entries()) == torchvision.models.list_models()
    assert catalog.installed_version() == torchvision.__version__


def test_parameters_and_sizes_are_those_of_a_published_weight() -> None:
    for name, entry in entries().items():
        weights = torchvision.models.get_model_weights(name)
        assert entry.params in {w.meta["num_params"] for w in weights}, name
        sides = {getattr(w.transforms, "keywords", {}).get("crop_size") for w in weights}
        if entry.kind in ("classification", "quantization"):
            assert entry.inputs == ((1, 3, min(sides), min(sides)),), name


def test_natural_inputs() -> None:
    known = entries()
    assert known["inception_v3"].inputs == ((1, 3, 299, 299),)
    assert known["raft_large"].inputs == ((1, 3, 128, 128), (1, 3, 128, 128))
    assert known["r3d_18"].inputs == ((1, 3, 16, 112, 112),)
    assert known["s3d"].inputs == ((1, 3, 16, 224, 224),)
    assert known["ssd300_vgg16"].inputs == ((3, 300, 300),)
    assert known["vit_h_14"].inputs == ((1, 3, 224, 224),)
    assert known["fcn_resnet50"] == ModelEntry("fcn_resnet50", "segmentation", 35322218, ((1, 3, 520, 520),))


def test_the_cache_is_used_and_follows_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "models"
    shutil.copytree(catalog.models_folder(), folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(catalog, "models_folder", lambda: folder)
    first = entries()
    catalog._entries.cache_clear()
    monkeypatch.setattr(catalog, "_scan", lambda *_: pytest.fail("scanned although cached"))
    assert entries() == first
    monkeypatch.undo()
    monkeypatch.setattr(catalog, "models_folder", lambda: folder)
    (folder / "mine.py").write_text("@register_model(name='mine')\ndef build(*, weights=None): ...\n")
    catalog._entries.cache_clear()
    assert entries().keys() - first.keys() == {"mine"}


def test_a_cache_that_cannot_be_written_or_read_costs_nothing_but_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")
    assert len(entries()) > 100
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for told in ("{broken", "[1]", '[{"name": 3}]'):
        monkeypatch.setattr(catalog.Cache, "get", lambda *_, told=told: told)
        catalog._entries.cache_clear()
        assert len(entries()) > 100


def test_no_torch_is_imported() -> None:
    code = "import sys; from hookcli.cli import main; main(['models', '-f', 'csv']); sys.exit('torch' in sys.modules)"
    ran = forks.run([sys.executable, "-c", code], fresh=True, capture_output=True, text=True, check=False)
    assert ran.returncode == 0 and ran.stdout.count("\n") == len(torchvision.models.list_models()) + 1
