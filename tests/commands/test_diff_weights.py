"""`hookcli diff` of files of weights: what differs, what is renamed or missing, and changes of low rank."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from hookcli.table.files import read_reports

Cli = Callable[..., Any]
State = dict[str, Tensor]


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> State:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    state = {f"model.layers.{i}.{name}.weight": 0.02 * torch.randn(96, 80) for i in range(2) for name in "qv"}
    state["model.norm.weight"] = 1 + 0.01 * torch.randn(80)
    save_file(state, "base.safetensors")
    return state


def compared(cli: Cli, b: State, *words: str) -> tuple[int, dict[str, dict[str, Any]], dict[str, Any]]:
    """The exit code, the rows by name, and the report, of the base and another state."""
    save_file(b, "other.safetensors")
    ran = cli("diff", "base.safetensors", "other.safetensors", "-f", "json", "-q", *words)
    report = json.loads(ran.out)["reports"][0]
    return ran.code, {row["fqn"]: row for row in report["rows"]}, report


def test_equal_files(cli: Cli, base: State) -> None:
    torch.save({"state_dict": base}, "base.pt")
    ran = cli("diff", "base.safetensors", "base.pt")
    verdict = "5 tensors compared: identical, bit for bit"
    assert ran.code == 0 and ran.out.startswith(f"{verdict}\nbase.safetensors → base.pt")
    assert "base.pt: the state dict under 'state_dict'" in ran.out and "identical" not in ran.err
    assert verdict in cli("diff", "base.safetensors", "base.pt", "-f", "json").err


def test_changed_tensors(cli: Cli, base: State, monkeypatch: pytest.MonkeyPatch) -> None:
    name, near = "model.layers.1.q.weight", "model.norm.weight"
    changed = base | {name: base[name] + 0.01 * torch.randn(96, 80), near: base[near] * (1 + 1e-6)}
    code, rows, report = compared(cli, changed)
    error = (changed[name].double() - base[name].double()).norm() / base[name].double().norm()
    assert code == 1 and rows[name]["rel_l2"] == pytest.approx(error.item()) and rows[name]["beyond"]
    assert rows[name]["max_abs"] == pytest.approx((changed[name].double() - base[name].double()).abs().max().item())
    assert rows[name]["change_rank"] is None
    assert 0 < rows[near]["times"] < 1 and "beyond" not in rows[near]
    assert rows["model.layers.0.q.weight"]["aside"] and len(rows) == 5
    verdict = f"2 of 5 tensors differ, 1 beyond tolerance; furthest apart: {name}, relative error 0."
    assert report["totals"]["verdict"].startswith(verdict)
    assert (report["totals"]["compared"], report["totals"]["beyond"]) == (5, 1)
    assert compared(cli, changed, "--rtol", "1")[0] == 0
    assert compared(cli, changed, "--match", "norm")[2]["totals"]["compared"] == 1
    [finding] = report["findings"]
    assert (finding["fqn"], finding["threshold"]) == (name, 1) and finding["value"] == rows[name]["times"] > 1
    table = cli("diff", "base.safetensors", "other.safetensors").out
    assert "Excess: " in table and "times" not in table
    monkeypatch.setenv("COLUMNS", "45")
    narrow = cli("diff", "base.safetensors", "other.safetensors").out
    assert "Excess: " not in narrow and "times" in narrow
    assert "layers.0" not in table and table.count("  beyond\n") == 1


@pytest.mark.parametrize("dtypes", ["float32", "bfloat16", "float32 bfloat16"])
def test_lora(cli: Cli, base: State, dtypes: str) -> None:
    first, *_, last = [getattr(torch, name) for name in (*dtypes.split(), *dtypes.split())]
    torch.manual_seed(1)
    old = {name: x.to(first) for name, x in base.items()}
    save_file(old, "base.safetensors")
    merged = {name: x.to(last).float() for name, x in old.items()}
    for name in merged:
        if ".q." in name:
            merged[name] += 0.01 * torch.randn(96, 4) @ torch.randn(4, 80)
    _, rows, report = compared(cli, {name: x.to(last) for name, x in merged.items()})
    ranks = {name: row["change_rank"] for name, row in rows.items() if row.get("change_rank")}
    assert ranks == {f"model.layers.{i}.q.weight": 4 for i in range(2)}
    assert rows["model.layers.0.q.weight"]["rank_share"] > 0.999
    assert report["meta"]["notes"] == ["2 changes of low rank (4), as merged LoRA adapters make"]


def test_values_in_another_dtype(cli: Cli, base: State) -> None:
    save_file({name: x.bfloat16().float() for name, x in base.items()}, "base.safetensors")
    code, _, report = compared(cli, {name: x.bfloat16() for name, x in base.items()}, "--rtol", "0")
    assert code == 0 and report["totals"]["verdict"] == "5 tensors compared: equal in every value"


def test_a_note_on_a_side_or_on_both_stands_once(cli: Cli, base: State) -> None:
    torch.save({"model": base, "optimizer": {"step": torch.ones(1)}}, "a.pt")
    (found,) = json.loads(cli("diff", "a.pt", "base.safetensors", "-f", "json").out)["reports"]
    assert found["meta"]["notes"] == ["a.pt: the state dict under 'model'; 1 other tensor in the file"]
    ran = cli("diff", "a.pt", "a.pt")
    assert ran.code == 0 and ran.out.count("the state dict under 'model'") == 1


def test_rounding_is_no_change_of_low_rank(cli: Cli, base: State) -> None:
    code, rows, report = compared(cli, {name: x.bfloat16() for name, x in base.items()})
    assert code == 0 and "within tolerance" in report["totals"]["verdict"]
    assert {row["dtype"] for row in rows.values()} == {"float32 → bfloat16"}
    assert not any(row["change_rank"] for row in rows.values())


def test_names(cli: Cli, base: State) -> None:
    moved = dict(base)
    moved["embed.weight"] = moved.pop("model.layers.0.q.weight")
    del moved["model.norm.weight"]
    code, rows, report = compared(cli, moved | {"extra": torch.ones(3)})
    assert code == 1 and rows["model.layers.0.q.weight"]["change"] == "renamed: embed.weight"
    assert "beyond" not in rows["model.layers.0.q.weight"]
    assert cli("diff", "base.safetensors", "other.safetensors").out.count("renamed: embed.weight") == 1
    assert (rows["model.norm.weight"]["change"], rows["extra"]["change"]) == ("removed", "added")
    verdict = "4 tensors compared: identical, bit for bit; 1 tensor only in A, 1 tensor only in B"
    counts = {"compared": 4, "beyond": 2, "removed": 1, "added": 1, "renamed": 1}
    assert report["totals"] == {**counts, "verdict": verdict}
    assert compared(cli, moved, "--match", "embed.weight")[1].keys() == {"model.layers.0.q.weight"}  # B's name
    totals = compared(cli, moved | {"extra": torch.ones(3)}, "--match", "extra")[2]["totals"]
    assert totals | {"verdict": ""} == {"compared": 0, "beyond": 1, "added": 1, "verdict": ""}
    bare = {name.removeprefix("model."): x for name, x in base.items()}
    bare["norm.weight"] = bare["norm.weight"] + 1
    code, rows, report = compared(cli, bare)
    assert report["totals"]["structure"] == "names differ by the prefix 'model.', which only A has"
    assert code == 1 and rows["model.norm.weight"]["change"] == "renamed: norm.weight"
    save_file(base, "base2.safetensors")
    ran = cli("diff", "other.safetensors", "base2.safetensors")
    assert "which only B has" in ran.out and ran.code == 1


def test_equal_bytes_under_many_names(cli: Cli, base: State) -> None:
    a = {f"{place}.{name}": torch.zeros(7) for place in ("x", "y") for name in ("bias", "shift")}
    save_file(a, "base.safetensors")
    _, rows, _ = compared(cli, {name.replace("x.", "left.").replace("y.", "right."): x for name, x in a.items()})
    assert sorted(row["change"] for row in rows.values()) == [
        *(f"renamed: {place}.{name}" for place in ("left", "right") for name in ("bias", "shift"))
    ]
    assert all(row["change"].rpartition(".")[2] == name.rpartition(".")[2] for name, row in rows.items())


def test_other_shapes_nan_and_dtypes(cli: Cli, base: State) -> None:
    q, v, norm = "model.layers.0.q.weight", "model.layers.0.v.weight", "model.norm.weight"
    other = base | {q: base[q][:90].contiguous(), v: base[v].clone(), norm: torch.arange(80)}
    other[v][3, 3] = math.nan
    code, rows, report = compared(cli, other)
    assert code == 1 and rows[q]["differs"] == "shape 96x80 → 90x80"
    assert rows[v]["differs"] == "1 of 7,680 elements are NaN or Inf on one side only"
    assert rows[norm]["dtype"] == "float32 → int64" and rows[norm]["beyond"]
    Path("saved.json").write_text(json.dumps({"schema": 1, "reports": [report]}))
    assert read_reports("saved.json")[0].totals == report["totals"]
    assert cli("diff", "base.safetensors", "other.safetensors", "-o", "page.html").code == 1


DTYPES = """float64 float32 float16 bfloat16 complex64 int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool
float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu"""


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")
@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_each_dtype_with_each(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    monkeypatch.chdir(tmp_path)
    names = [*DTYPES.split(), *(["complex32", "complex128"] if suffix == ".pt" else [])]
    values = 4 * torch.rand(2, 3, 4, dtype=torch.float64)

    def made(side: int, name: str) -> Tensor:
        dtype: torch.dtype = getattr(torch, name)
        part = values[side]
        return (torch.complex(part, part / 2) if dtype.is_complex else part).to(dtype, copy=True)

    sides = [{f"{a}.{b}": made(side, (a, b)[side]) for a in names for b in names} for side in (0, 1)]
    for side, state in zip("ab", sides, strict=True):
        save_file(state, f"{side}.safetensors") if suffix == ".safetensors" else torch.save(state, f"{side}.pt")
    ran = cli("diff", f"a{suffix}", f"b{suffix}", "-f", "json", "-q")
    (report,) = json.loads(ran.out)["reports"]
    assert ran.code == 1 and len(report["rows"]) == len(names) ** 2 and not report["skipped"]
    for row in report["rows"]:
        tensors = [state[row["fqn"]] for state in sides]
        wide = torch.complex128 if any(x.is_complex() for x in tensors) else torch.float64
        a, b = (torch.view_as_real(x.to(wide)) if wide.is_complex else x.to(wide) for x in tensors)
        assert row["max_abs"] == pytest.approx((a - b).abs().max().item())
        assert row["mean_abs"] == pytest.approx((a - b).abs().mean().item())
        assert row["rel_l2"] == pytest.approx(((a - b).norm() / a.norm()).item())


def test_gguf_against_safetensors(cli: Cli, base: State) -> None:
    writer = gguf.GGUFWriter("a.gguf", "llama")
    name = "model.layers.0.q.weight"
    x = torch.randn(16, 64)
    for of, kind in ((name, "Q8_0"), ("model.norm.weight", "BF16")):
        kind_of = gguf.GGMLQuantizationType[kind]
        values = x.numpy() if of == name else base[of].numpy()
        writer.add_tensor(of, gguf.quants.quantize(values, kind_of), raw_dtype=kind_of)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    save_file({name: x, "model.norm.weight": base["model.norm.weight"].bfloat16()}, "a.safetensors")
    ran = cli("diff", "a.safetensors", "a.gguf")
    assert ran.code == 0 and "1 of 2 tensors differ, within tolerance" in ran.out and "float32 → Q8_0" in ran.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("base.safetensors", "none.pt"), "none.pt: no such file"),
        (("base.safetensors", "resnet18"), "'MODEL --weights base.safetensors'"),
        (("resnet18", "base.safetensors"), "B 'base.safetensors': weights belong to a model"),
        (("base.safetensors", "base.safetensors", "--backward"), "--backward: both sides must be models, not files"),
        (("base.safetensors", "base.safetensors", "--match", "nope"), "no module or parameter matches 'nope'"),
        (("base.safetensors", "base.safetensors", "--columns", "mean"), "--columns: unknown column 'mean'"),
        (("base.safetensors", "base.safetensors", "--type", "Linear"), "--type: is for models; both sides are files"),
        (("base.safetensors", "bad.safetensors"), "bad.safetensors: damaged"),
    ],
)
def test_mistakes(cli: Cli, base: State, words: tuple[str, ...], said: str) -> None:
    Path("bad.safetensors").write_text("nonsense")
    ran = cli("diff", *words)
    assert (ran.code, ran.out) == (2, "") and said in ran.err and len(ran.err.splitlines()) <= 2


def test_nothing_in_common(cli: Cli, base: State) -> None:
    save_file({"x": torch.ones(3)}, "x.safetensors")
    ran = cli("diff", "base.safetensors", "x.safetensors")
    assert ran.code == 2 and "nothing to compare: the two sides have no tensor in common" in ran.err
    header = b'{"x":{"dtype":"F4","shape":[4],"data_offsets":[0,2]}}'
    Path("f4.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"12")
    ran = cli("diff", "f4.safetensors", "f4.safetensors")
    assert ran.code == 2 and "nothing to compare: values of the tensors in common can't be read" in ran.err
    assert ran.out.startswith("Nothing compared: the values of 1 tensor can't be read")


def test_what_was_compared_before_a_failure_is_shown(cli: Cli, base: State, monkeypatch: pytest.MonkeyPatch) -> None:
    from hookcli.diff.weights import report

    def fails(a: Any, b: Any) -> Any:
        if a.name == "model.norm.weight":
            raise KeyboardInterrupt
        return True

    monkeypatch.setattr(report, "same_bytes", fails)
    ran = cli("diff", "base.safetensors", "base.safetensors")
    assert ran.code == 130 and "4 tensors compared" in ran.out and "incomplete" in ran.out
