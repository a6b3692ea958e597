"""Exported programs that would run code when PyTorch loads or runs them, in every way that its loader has."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hookcli.errors import UsageError
from hookcli.sources.finding import find_recipe

Members = dict[str, bytes]
WEIGHTS, CONSTANTS = "data/weights/model_weights_config.json", "data/constants/model_constants_config.json"
INPUT, PROGRAM = "data/sample_inputs/model.pt", "models/model.json"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({"a b": nn.Linear(4, 3), "c-d": nn.ReLU()})
        self.shift = torch.ones(3)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"out": self.parts["c-d"](self.parts["a b"](x)) + self.shift, "rows": x.shape[0] * 2 + 1}  # type: ignore[dict-item]


class Runs:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Members:
    """The members of a good program, one of whose sizes is dynamic."""
    file = tmp_path_factory.mktemp("good") / "net.pt2"
    dynamic = {"x": {0: torch.export.Dim.DYNAMIC}}
    torch.export.save(torch.export.export(Net(), (torch.randn(5, 4),), dynamic_shapes=dynamic), file)
    with zipfile.ZipFile(file) as archive:
        return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}


def packed(file: Path, members: Members, *more: tuple[str, bytes], compressed: bool = False) -> Path:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED) as archive:
        for name, content in (*members.items(), *more):
            archive.writestr(f"net/{name}", content)
    return file


def saved(value: Any, new: bool = True) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer, _use_new_zipfile_serialization=new)
    return buffer.getvalue()


def code(mark: Path) -> str:
    return f"__import__('pathlib').Path('{mark}').touch()"


def changed(members: Members, change: Callable[[Any], None], name: str = PROGRAM) -> Members:
    document = json.loads(members[name])
    change(document)
    return members | {name: json.dumps(document).encode()}


def renamed(members: Members, old: str, new: str) -> Members:
    """The members with another name for a tensor or parameter, wherever it stands."""
    old, new = json.dumps(old), json.dumps(new)
    return {k: v.replace(old.encode(), new.encode()) if k.endswith(".json") else v for k, v in members.items()}


def nodes(program: Any) -> Any:
    return program["graph_module"]["graph"]["nodes"]


def sized(members: Members, expression: str) -> Members:
    def change(program: Any) -> None:
        for tensor in program["graph_module"]["graph"]["tensor_values"].values():
            tensor["sizes"][:1] = [{"as_expr": {"expr_str": expression, "hint": None}}]

    return changed(members, change)


def constant(members: Members, name: str, content: bytes) -> Members:
    def change(config: Any) -> None:
        (entry,) = config["config"].values()
        entry |= {"path_name": name, "use_pickle": True}

    return changed(members, change, CONSTANTS) | {f"data/constants/{name}": content}


def structured(members: Members, kind: str, context: Any) -> Members:
    def change(program: Any) -> None:
        signature = program["graph_module"]["module_call_graph"][0]["signature"]
        version, tree = json.loads(signature["out_spec"])
        signature["out_spec"] = json.dumps([version, tree | {"type": kind, "context": context}])

    return changed(members, change)


def calls(members: Members, target: str, **last: Any) -> Members:
    def change(program: Any) -> None:
        nodes(program)[-1] |= {"target": target, **last}

    return changed(members, change)


def hostile(members: Members, mark: Path) -> dict[str, Members]:
    """Programs by what is wrong with them."""
    run, runs = code(mark), Runs(mark)
    enum = {"__enum__": True, "fqn": "antigravity:Evil", "name": "x"}
    factory = {
        "default_factory_module": "antigravity",
        "default_factory_name": "geohash",
        "dict_context": ["out", "rows"],
    }
    return {
        "pickled input": members | {INPUT: saved((runs,))},
        "input pickled as before": members | {INPUT: saved((runs,), new=False)},
        "bare pickle": members | {INPUT: pickle.dumps((runs,))},
        "weights as before": members | {"data/weights/model.pt": saved({"w": runs})},
        "constants as before": members | {"data/constants/model.pt": saved({"w": runs})},
        "pickled constant": constant(members, "tensor_0", saved(runs)),
        "opaque object": constant(members, "opaque_obj_0", pickle.dumps(runs)),
        "object of TorchScript": constant(members, "custom_obj_0", saved(runs)),
        "member elsewhere": constant(members, "../constants/opaque_obj_0", pickle.dumps(runs)),
        "expression": sized(members, run),
        "expression in a call": sized(members, f"Max(1, {run})"),
        "expression in a text": sized(members, f"Max({run!r}, 1)"),
        "name of an input": renamed(members, "x", f"x={run}"),
        "name of a node": renamed(members, "relu", f"relu = {run}; y"),
        "name of a parameter": renamed(members, "parts.a b.weight", f'parts.a"), {run}, getattr(self, "b'),
        "name of a module": {
            k: v.replace(b"parts.a b,", f'parts.a\\"), {run}, getattr(self, \\"b,'.encode()) if k == PROGRAM else v
            for k, v in members.items()
        },
        "name of a keyword": calls(
            members,
            "torch.ops.higher_order.cond",
            inputs=[{"name": f"a={run}, b", "arg": {"as_int": 1}, "kind": 2}],
        ),
        "any function": calls(members, "torch.os.system"),
        "operator as argument": calls(
            members,
            "torch.ops.higher_order.strict_mode",
            inputs=[{"name": "", "arg": {"as_operator": "torch.os.system"}, "kind": 1}],
        ),
        "module of a type": structured(members, "collections.defaultdict", factory),
        "module of an enum": structured(members, "builtins.dict", json.dumps([enum, "rows"])),
        "enum in escapes": structured(members, "builtins.dict", json.dumps([enum]).replace("__e", "\\u005f_e")),
    }


@pytest.mark.sweep
def test_a_good_program_runs_and_needs_no_trust(members: Members, tmp_path: Path) -> None:
    file = packed(tmp_path / "net.pt2", members)
    recipe = find_recipe(str(file))
    model = recipe.build()
    assert recipe.example
    (x,) = recipe.example(model)  # type: ignore[misc]
    assert torch.equal(model(x)["out"], find_recipe(str(file), {"trust": True}).build()(x)["out"])
    assert model(torch.ones(2, 4))["rows"] == 5 and type(model.get_submodule("parts.a b")).__name__ == "Linear"


def test_a_hostile_program_is_refused_in_two_lines(
    members: Members, tmp_path: Path, cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")  # of someone who is used to it
    mark = tmp_path / "mark"
    for name, program in hostile(members, mark).items():
        assert program != members, name
        ran = cli("shapes", str(packed(tmp_path / "evil.pt2", program)))
        assert not mark.exists(), name
        assert ran.code == 2 and ran.err.count("\n") == 2 and not ran.out, (name, ran.err)
        assert "loading it could run code: " in ran.err and "give --arg trust=true" in ran.err, (name, ran.err)


def test_trust_lets_it_run(members: Members, tmp_path: Path, cli: Callable[..., Any]) -> None:
    mark = tmp_path / "mark"
    file = packed(tmp_path / "evil.pt2", hostile(members, mark)["pickled input"])
    assert cli("shapes", str(file), "--arg", "trust=1").code == 2 and not mark.exists()
    ran = cli("shapes", str(file), "--arg", "trust=true")
    assert mark.exists() and "Traceback" not in ran.err and ran.err.count("\n") <= 2, ran.err


def test_members_that_are_not_needed_are_not_loaded(members: Members, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    evil = saved((Runs(mark),))
    library = {"data/aotinductor/model/x.so": b"\x7fELF", "data/aotinductor/model/x.wrapper.cpp": b"int main(){}"}
    others = {"models/other.json": b"{", "data/sample_inputs/other.pt": evil, "extra/x": b"\xff"}
    guarded = changed(members, lambda program: program.update(guards_code=[code(mark)]))
    old = {"version": b"8.1", "serialized_exported_program.json": members[PROGRAM], "serialized_constants.pt": evil}
    file = packed(tmp_path / "net.pt2", guarded | library | others | old, (INPUT.upper(), evil))
    find_recipe(str(file)).build()
    assert not mark.exists()


def test_two_readers_of_one_archive_see_the_same(members: Members, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    evil = members | {INPUT: saved((Runs(mark),))}
    with pytest.warns(UserWarning, match="Duplicate"):
        twice = packed(tmp_path / "twice.pt2", members, (INPUT, evil[INPUT]))
    two = packed(tmp_path / "bad.pt2", evil).read_bytes() + packed(tmp_path / "net.pt2", members).read_bytes()
    (tmp_path / "two.pt2").write_bytes(two)
    for file in (twice, packed(tmp_path / "compressed.pt2", members, compressed=True)):
        with pytest.raises(UsageError, match=r"there twice|compressed"):
            find_recipe(str(file)).build()
    find_recipe(str(tmp_path / "two.pt2")).build()
    assert not mark.exists()
