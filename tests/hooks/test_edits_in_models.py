"""Edits in models as people have them: nested outputs, several calls, checkpoints, dropout."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from hooks.edited import OWN, Checkpointed, Keywords, grads_of
from support import Box, Hand, Nested, Shared, each_once, equal
from torch import Tensor, nn

from hookcli import capture, watch
from hookcli.errors import UsageError


@pytest.fixture(autouse=True)
def own_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "math_of_tests.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)


def test_inputs_by_keyword_and_in_lists_are_edited_for_the_time_of_the_call() -> None:
    with watch(Keywords(), edits=["inner:input=scale(10)"]) as seen:
        found = seen.session.model(torch.ones(2))
    assert found["a"].tolist() == [300, 300]  # x and mask, but not the integer
    assert found["b"].tolist() == [50, 50]
    assert found["sum of the list"].tolist() == [5, 5]


def test_each_tensor_of_a_dict_is_edited_and_its_gradient_too() -> None:
    x = torch.ones(2, requires_grad=True)
    with watch(Keywords(), edits=["inner:output=scale(10)", "inner:grad_output=scale(2)"]) as seen:
        found = seen.session.model(x)
        (found["a"].sum() + found["b"].sum()).backward()
    assert found["a"].tolist() == [30, 30] and found["b"].tolist() == [50, 50]
    assert x.grad is not None and x.grad.tolist() == [160, 160]  # 2 * 10 * (3 + 5)


@pytest.mark.parametrize("what", ["dict", "tuple", "named", "dataclass"])
def test_nested_outputs_keep_their_type(what: str) -> None:
    model = Nested(what)
    plain = model(torch.ones(1, 3))
    with watch(model, edits=["(model):output=zero"]):
        found = model(torch.ones(1, 3))
    assert type(found) is type(plain)
    tensors = vars(found) if isinstance(found, Box) else found
    assert all(not t.any() for t in torch.utils._pytree.tree_leaves(tensors))


def test_a_module_called_three_times_is_edited_each_time() -> None:
    model, ids = Shared(), torch.tensor([[1, 2]])
    with torch.no_grad():
        model.mix.weight.copy_(torch.eye(5))
        model.mix.bias.zero_()
    plain = model(ids)
    with watch(model, edits=["mix:output=scale(2)"]) as seen:
        torch.testing.assert_close(model(ids), 8 * plain)
    rows = [row for row in seen.reports()[0].rows if row.get("edited")]
    assert [(row.fqn, row["call"], row["edited"]) for row in rows] == [("mix", n, "scale(2)") for n in range(3)]


def test_noise_differs_between_the_calls_of_one_module() -> None:
    noises: list[Tensor] = []
    model = Shared()
    with watch(model, edits=["mix:output=zero", "mix:output=noise(1)"]) as seen:
        seen.session.forward(lambda event: noises.append(event.output.clone()) if event.fqn == "mix" else None)
        model(torch.tensor([[1, 2]]))
    assert len({tuple(noise.flatten().tolist()) for noise in noises}) == 3


def test_noise_follows_the_seed() -> None:
    noises = []
    for seed in (0, 1, 1):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Identity())
        with watch(model, edits="0:output=noise(1)"):
            noises.append(model(torch.zeros(8)))
    assert equal(noises[1], noises[2]) and not equal(noises[0], noises[1])


def test_what_an_embedding_receives_is_left_alone_and_that_is_said() -> None:
    with pytest.raises(UsageError, match=r"^--edit 'embed:input=zero' changed nothing: it reached only int64"):
        capture(Shared(), torch.tensor([[1, 2]]), ["activations"], edits=["embed:input=zero"])
    [report] = capture(Shared(), torch.tensor([[1, 2]]), ["activations"], edits=["*:input=zero"])
    rows = {(row.fqn, row["call"]): row.stats for row in report.rows}
    stats = rows["embed", 0]
    assert stats is not None and stats.zeros < stats.numel  # its row was looked up, not row 0
    assert rows["head", 0] == rows["", 0]


@pytest.mark.parametrize("edited", ["relu:input=scale(-1)", "relu:output=scale(-1)"])
def test_a_module_that_works_in_place_gets_the_edited_tensor(edited: str) -> None:
    model = nn.Sequential()
    model.add_module("lin", nn.Linear(4, 4).double())
    model.add_module("relu", nn.ReLU(inplace=True))
    x = torch.randn(3, 4, dtype=torch.float64)
    flow = model.get_submodule("lin")(x)
    expected = (-flow).relu() if "input" in edited else -flow.relu()
    with watch(model, edits=[edited, "relu:grad_input=scale(2)"]) as seen:
        leaf = x.clone().requires_grad_()
        result = model(leaf)
        result.sum().backward()
    assert torch.equal(result, expected)
    twin = leaf.detach().clone().requires_grad_()
    lin = model.get_submodule("lin")(twin)
    ((-lin).relu() if "input" in edited else -lin.relu()).sum().backward()
    assert leaf.grad is not None and twin.grad is not None
    torch.testing.assert_close(leaf.grad, 2 * twin.grad)
    assert {row.fqn: row.get("edited") for row in seen.reports()[0].rows}["lin"] is None


@pytest.mark.parametrize(
    ("reentrant", "edit"),
    each_once(
        [False, True],
        ["one:output=noise(0.5)", "two:input=noise(1)", "one:output=scale(2)", "one:grad_output=scale(2)"],
    ),
)
def test_a_recomputed_forward_gets_the_same_edit(reentrant: bool, edit: str) -> None:
    torch.manual_seed(0)
    model = Checkpointed(reentrant).double()
    x = torch.randn(3, 4, dtype=torch.float64)
    found = grads_of(copy.deepcopy(model), x, [edit])
    model.reentrant = None  # type: ignore[assignment]
    expected = grads_of(copy.deepcopy(model), x, [edit])
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    plain = grads_of(model, x)
    assert any(not torch.allclose(expected[key], plain[key]) for key in plain)


def test_noise_does_not_shift_the_models_own_dropout() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8), nn.Dropout(0.5)).train()
    x, masks = torch.randn(4, 8), {}
    for name, edits in {"plain": [], "noisy": ["0:output=noise(3)", "2:output=noise(3)"]}.items():
        torch.manual_seed(0)
        with watch(model, edits=edits) as seen:
            kept: list[Tensor] = []
            seen.session.forward(
                lambda e, kept=kept: kept.append(e.output == 0) if type(e.module) is nn.Dropout else None
            )
            model(x)
        masks[name] = [*kept, torch.get_rng_state()]
    assert equal(masks["plain"][-1], masks["noisy"][-1])
    assert len(masks["plain"]) == 3 and equal(masks["plain"], masks["noisy"])


def test_bfloat16_flows_through_edits_forward_and_backward() -> None:
    model = Hand().bfloat16()
    x = torch.ones(2, 2, dtype=torch.bfloat16)
    edits = ["relu:output=noise(0.1)", "relu:grad_output=noise(0.1)", "out.weight:grad=scale(2)", "first:input=ones"]
    [report] = capture(model, x, ["grads"], edits=edits)
    assert {row["dtype"] for row in report.rows} == {"bfloat16"}
    assert {row.fqn: row.get("edited") for row in report.rows}["out.weight"] == "scale(2)"
