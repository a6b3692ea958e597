"""What is read off torchvision's sources is what torchvision itself says, and the cache can't go stale."""

from __future__ import annotations

import shutil
import sys
import tomllib
from pathlib import Path

import forks
import pytest
import torchvision

from hookcli.errors import UsageError
from hookcli.sources import catalog
from hookcli.sources.catalog import entries
from hookcli.sources.catalog import timm as timm_catalog
from hookcli.sources.catalog import torchvision as torchvision_catalog
from hookcli.sources.catalog.base import ModelEntry

MINE = "@register_model(name='mine')\ndef build(*, weights=None): ...\n"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    catalog._entries.cache_clear()


def test_it_lists_what_torchvision_lists() -> None:
    assert list(entries()) == torchvision.models.list_models()
    assert catalog.installed_version() == torchvision.__version__


@pytest.mark.sweep
def test_parameters_and_sizes_are_those_of_a_published_weight() -> None:
    for name, entry in entries().items():
        weights = torchvision.models.get_model_weights(name)
        assert entry.params in {w.meta["num_params"] for w in weights}, name
        sides = {getattr(w.transforms, "keywords", {}).get("crop_size") for w in weights}
        if entry.kind in ("classification", "quantization"):
            assert entry.inputs == ((1, 3, min(sides), min(sides)),), name


@pytest.mark.sweep
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
    folder.mkdir()
    for name in ("resnet.py", "vgg.py"):
        shutil.copy(catalog.models_folder() / name, folder)
    monkeypatch.setattr(catalog, "models_folder", lambda _="": folder)
    first = entries()
    catalog._entries.cache_clear()
    monkeypatch.setattr(torchvision_catalog, "scan", lambda *_: pytest.fail("scanned although cached"))
    assert entries() == first
    monkeypatch.undo()
    monkeypatch.setattr(catalog, "models_folder", lambda _="": folder)
    (folder / "mine.py").write_text(MINE)
    catalog._entries.cache_clear()
    assert entries().keys() - first.keys() == {"mine"}


def test_a_cache_that_cannot_be_written_or_read_costs_nothing_but_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.setattr(catalog, "models_folder", lambda _="": tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")
    assert [*entries()] == ["mine"]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for told in ("{broken", "[1]", '[{"name": 3}]'):
        monkeypatch.setattr(catalog.Cache, "get", lambda *_, told=told: told)
        catalog._entries.cache_clear()
        assert [*entries()] == ["mine"]


@pytest.mark.sweep
@pytest.mark.parametrize("source", ["torchvision", "hf"])
def test_no_library_is_imported(source: str) -> None:
    code = f"import sys; from hookcli.cli import main; main(['models', '-f', 'csv', '--source', {source!r}]); "
    code += f"sys.exit('torch' in sys.modules or {catalog.LIBRARIES[source]!r} in sys.modules)"
    ran = forks.run([sys.executable, "-c", code], fresh=True, capture_output=True, text=True, check=False)
    assert ran.returncode == 0 and ran.stdout.count("\n") == len(entries(source)) + 1


@pytest.mark.xdist_group("timm and Transformers")
@pytest.mark.sweep
def test_types_and_classes_are_those_of_transformers() -> None:
    from transformers.models.auto import modeling_auto

    found = {name: entry.tasks or {} for name, entry in entries("hf").items()}
    known = {n: m for n, m in vars(modeling_auto).items() if n.endswith("MAPPING_NAMES") and n.startswith("MODEL_")}
    assert found.keys() == {kind for mapping in known.values() for kind in mapping}
    for task, name in (("base", "MODEL"), ("causal-lm", "MODEL_FOR_CAUSAL_LM"), ("ctc", "MODEL_FOR_CTC")):
        own = {kind: c[0] if isinstance(c, tuple) else c for kind, c in known[f"{name}_MAPPING_NAMES"].items()}
        assert own == {kind: tasks[task] for kind, tasks in found.items() if task in tasks}


_TIMM_FILE = """
def _cfg(url='', **kwargs):
    return {'url': url, 'input_size': (3, 224, 224), 'mean': MEAN, **kwargs}

def _small(url='', size=64, **kwargs):
    return dict(_cfg(url, input_size=(3, 32, 32)), **kwargs)

default_cfgs = generate_default_cfgs({
    'net.old': _cfg('x'), 'net.best*': _cfg(hf_hub_id='timm/', input_size=(1, 160, 160)), 'net.none': _cfg(),
    'small.tag': _small(hf_hub_id='timm/'), 'plain': _cfg(),
})

@register_model
def net(pretrained=False, **kwargs): ...

@register_model
def small(pretrained=False, **kwargs): ...

@register_model
def unknown(pretrained=False, **kwargs): ...
"""


def test_timms_configurations_are_evaluated(tmp_path: Path) -> None:
    (tmp_path / "family.py").write_text(_TIMM_FILE)
    (tmp_path / "_helpers.py").write_text("def other(): ...")
    net, small, unknown = timm_catalog.scan(tmp_path)
    assert net == ModelEntry("net", "family", None, ((1, 1, 160, 160),), ("best", "old"))
    assert small == ModelEntry("small", "family", None, ((1, 3, 32, 32),), ("tag",))
    assert unknown == ModelEntry("unknown", "family")


@pytest.mark.xdist_group("timm and Transformers")
@pytest.mark.sweep
def test_timms_models_are_those_of_timm() -> None:
    import timm

    found, unread = entries("timm"), 0
    assert found.keys() == set(timm.list_models())
    for name, entry in found.items():
        config = timm.get_pretrained_cfg(name)
        unread += not entry.inputs  # copied by a loop, or made by a comprehension
        assert entry.inputs in ((), ((1, *config.input_size),)), name
        if entry.inputs and config.has_weights and config.tag:
            assert entry.weights[0] == config.tag, name
    assert unread < len(found) / 50


def test_a_missing_library_is_named_with_an_extra_that_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "find_spec", lambda name: None)
    extras = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for source in ("timm", "hf"):
        with pytest.raises(UsageError, match=r"is not installed: pip install 'hookcli\[(\w+)\]'") as caught:
            catalog.known_entries(source)
        assert str(caught.value).split("[")[1].rstrip("]'") in extras
