"""Baselines in files: several models, other versions, damages."""

from __future__ import annotations

import copy
import errno
import json
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch
from diff.baselines import Net, changes, kept, run, through_a_file
from support import damaged, swept

from hookcli.diff.baseline import read_baselines, text_of, write_baselines
from hookcli.errors import UsageError


def test_another_version_is_a_note_and_another_run_an_error(tmp_path: Path) -> None:
    baseline = through_a_file(run(Net()), tmp_path)
    newer = run(Net(), torch="2.99")
    assert baseline.notes(newer, newer[0].meta) == [
        f"the baseline comes from another environment: torch {torch.__version__} → 2.99"
    ]
    assert changes(baseline, newer) == []
    for other in ({"seed": 1}, {"input": "1x3x8x8"}, {"mode": "eval"}, {"edits": ["a"]}):
        with pytest.raises(UsageError, match=f"the baseline of Net was made by a different run: {next(iter(other))} "):
            baseline.require_same_run(run(Net(), **other)[0].meta)
    baseline.require_same_run(newer[0].meta)


def test_probes_that_only_one_has_are_noted(tmp_path: Path) -> None:
    reports = run(Net())
    baseline = through_a_file(reports[1:3], tmp_path)
    assert baseline.notes(reports, reports[0].meta) == ["the baseline has no grads", "the baseline has no settings"]
    assert baseline.notes(reports[1:2], reports[0].meta) == ["activations of the baseline were not measured now"]
    assert changes(baseline, reports[1:2]) == changes(baseline, reports) == []


def test_several_models_share_a_file(tmp_path: Path) -> None:
    one, two = kept(run(Net())), replace(kept(run(copy.deepcopy(Net()))), model="Another")
    write_baselines(str(tmp_path / "b.json"), [one, two])
    found = read_baselines(str(tmp_path / "b.json"))
    assert list(found.models) == ["Another", "Net"] and found.of("Net").model == "Net"
    with pytest.raises(UsageError, match=r"b.json: no baseline of this model: unknown model 'Nets'; did you mean Net"):
        found.of("Nets")


WRONG = {
    '{"schema": 1, "kind": "baseline", "mod': "damaged, or not a baseline of hookcli: not JSON",
    '{"schema": 9, "kind": "baseline"}': "schema 9 is of a newer hookcli",
    '{"schema": 1, "reports": []}': "not a baseline of hookcli but a saved report",
    '{"schema": 1}': "not a baseline of hookcli but something else",
    '{"schema": 1, "kind": "baseline"}': "damaged: KeyError: 'models'",
    '{"schema": 1, "kind": "baseline", "models": {"a": {}}}': "damaged: KeyError: 'run'",
    '{"schema": 1, "kind": "baseline", "models": {"a": {"run": {}, "shapes": [3]}}}': "damaged: TypeError",
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong_with_a_file_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "b.json").write_text(text)
    with pytest.raises(UsageError) as info:
        read_baselines(str(tmp_path / "b.json"))
    assert WRONG[text] in str(info.value) and "\n" not in str(info.value)
    with pytest.raises(UsageError, match="can't be written"):
        write_baselines(str(tmp_path / "no" / "b.json"), [])


@pytest.mark.parametrize("every", [5, swept(1)])
def test_a_damaged_value_is_told_where_it_is_read(tmp_path: Path, every: int) -> None:
    """What could be read, can be compared."""
    reports, file, refused = run(Net()), tmp_path / "b.json", {}
    reports = [replace(report, rows=report.rows[:1]) for report in reports]
    for place, wrong, text in islice(damaged(json.loads(text_of([kept(reports)]))), 0, None, every):
        file.write_text(json.dumps(text))
        try:
            baseline = read_baselines(str(file)).of("Net")
        except UsageError as error:
            refused[place[-1]] = str(error)
            continue
        try:
            baseline.changes(reports)
            baseline.require_same_run(reports[0].meta)
            baseline.notes(reports, reports[0].meta)
        except UsageError:
            continue
        except Exception as error:
            raise AssertionError(f"{place}: {str(wrong)[:40]}: {error!r}") from error
    assert {"run", "shape", "numel", "l2", "params", "fqn", "dtype", "input_shape", "kind"} <= refused.keys()
    assert all(said.startswith(f"{file}: ") and "\n" not in said for said in refused.values())


def test_a_file_that_can_not_be_written_is_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    baseline, file = kept(run(Net())), tmp_path / "b.json"
    write_baselines(str(file), [baseline])
    before = file.read_bytes()

    def fails(path: Path, data: bytes) -> None:
        with path.open("wb") as half:
            half.write(data[:100])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fails)
    with pytest.raises(UsageError, match=r"b.json: can't be written \(No space left on device\)"):
        write_baselines(str(file), [baseline])
    assert file.read_bytes() == before and [path.name for path in tmp_path.iterdir()] == ["b.json"]
