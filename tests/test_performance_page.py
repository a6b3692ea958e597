"""docs/performance.md holds what `scripts/bench --markdown` wrote: all of its tables, and no others."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
import torch.distributed as dist
from torch import nn

ROOT = Path(__file__).parents[1]
BENCH = runpy.run_path(str(ROOT / "scripts" / "_bench_table.py"))


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The measuring module of scripts/bench, whose neighbours can be imported, too."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return import_module("_bench_measure")


def tables(page: str) -> dict[str, list[str]]:
    """The names of rows by the title of their table."""
    found: dict[str, list[str]] = {}
    for line in page.splitlines():
        if title := re.fullmatch(r"\*\*(.+)\*\* \(\d+ rounds\)", line):
            rows = found.setdefault(title[1], [])
        elif (row := re.match(r"\| ([^|]+?) \|", line)) and row[1].strip(" :-"):
            rows.append(row[1])
    return found


def test_the_page_has_the_tables_that_the_bench_writes() -> None:
    page = (ROOT / "docs" / "performance.md").read_text()
    written = page.partition(BENCH["BEGIN"])[2].partition(BENCH["END"])[0]
    assert re.search(
        r"^Measured on 20\d\d-\d\d-\d\d at commit [0-9a-f]{10}: \d+ CPUs .*torch 2\.", written, re.MULTILINE
    )
    there = tables(written)
    may_lack = {*BENCH["UNMEASURED"]} - {*there}
    assert there == {title: [*rows] for title, rows in BENCH["TABLES"].items() if title not in may_lack}
    assert not re.search(r"^\|", page.replace(written, ""), re.MULTILINE), "a table that nobody measured"


def test_a_figure_without_a_name_is_refused_before_it_is_measured(bench: ModuleType) -> None:
    ran: list[str] = []
    with pytest.raises(RuntimeError, match=r"does not name hookcli anything of 'Start'"):
        bench.compare("Start", 1, {name: partial(ran.append, name) for name in ("hookcli --help", "hookcli anything")})
    assert not ran


@pytest.mark.sweep
def test_every_section_measures_the_tables_that_have_names(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sections run, on a model that is small and without processes or rounds: all tables, row by row."""
    import _bench_compiled
    import _bench_diff
    import _bench_gpu
    import _bench_run
    import _bench_sections
    import _bench_training
    import _bench_work

    found: dict[str, list[str]] = {}

    def compare(title: str, rounds: int, runs: dict[str, Any], *judged: Any, **how: Any) -> None:
        assert title not in found
        found[title] = [*runs]

    def build(name: str, train: bool = False, batch: int = 2, **where: Any) -> tuple[nn.Module, torch.Tensor]:
        return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 1000)), torch.randn(2, 3, 8, 8)

    @contextmanager
    def rank(store: str, number: int) -> Iterator[None]:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        yield
        dist.destroy_process_group()

    sections = _bench_sections, _bench_training, _bench_compiled, _bench_gpu
    for module in sections:
        monkeypatch.setattr(module, "compare", compare)
        monkeypatch.setattr(module, "apart", lambda action: action())
        monkeypatch.setattr(module, "installed", lambda name: True, raising=False)
    for module in (_bench_work, _bench_run, _bench_diff):
        monkeypatch.setattr(module, "build", build)
    monkeypatch.setattr(_bench_run, "rank", rank)
    monkeypatch.setattr(_bench_training, "_in_ranks", lambda section: section(0, "store"))
    monkeypatch.setattr(_bench_gpu, "_without_a_wait", lambda action: None)
    monkeypatch.setattr(_bench_run, "LoggedStep", MagicMock())
    monkeypatch.setattr(_bench_compiled, "Twins", MagicMock())
    monkeypatch.setitem(sys.modules, "torchlens", MagicMock())
    monkeypatch.setattr(_bench_work, "keep_freed_memory", lambda: None)
    unnamed = {"ranks", "page", "gpu"}
    for section in runpy.run_path(str(ROOT / "scripts" / "bench"))["SECTIONS"]:
        if section.__name__ not in unnamed:
            section(1)
    assert found == {title: [*rows] for title, rows in BENCH["TABLES"].items()}
    found.clear()
    for name, dtype in product(BENCH["GPU_MODELS"], BENCH["GPU_DTYPES"]):
        _bench_gpu._model(name, dtype, 1)
    assert found == {title: [*rows] for title, rows in BENCH["GPU"].items()}


def test_the_number_of_models_tested_is_the_sum_of_those_named() -> None:
    pages = {name: (ROOT / "docs" / name).read_text() for name in ("accuracy.md", "hooks.md")}
    claims = [int(number) for page in pages.values() for number in re.findall(r"every model tested \((\d+)\)", page)]
    named = re.search(
        r"all (\d+) torchvision models, on (\d+) model families\s+of\s+timm and on (\d+) types", pages["accuracy.md"]
    )
    assert named and set(claims) == {sum(map(int, named.groups()))} and len(claims) == len(pages)
