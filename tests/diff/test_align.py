"""Places of two models are paired by name, then by order and type."""

from __future__ import annotations

import torchvision
from torch import nn

from hookcli.diff.align import NamedPart, align, structure, structure_line


def places(*pairs: str) -> list[NamedPart]:
    """Modules as "name:type", operators as "name@type"."""
    return [NamedPart(*pair.split("@" if "@" in pair else ":")) for pair in pairs]


def of(model: nn.Module) -> list[NamedPart]:
    return [NamedPart(fqn, type(module).__name__) for fqn, module in model.named_modules()]


def test_same_names_are_paired_whatever_their_order() -> None:
    found = align(places("a:Conv2d", "b:ReLU"), places("b:ReLU", "a:Conv2d"))
    assert found.in_b == {"a": "a", "b": "b"} and not (found.added or found.removed or found.renamed)


def test_a_renamed_container_is_followed() -> None:
    a = places(":Net", "body:Sequential", "body.conv:Conv2d", "body.act:ReLU", "head:Linear")
    b = places(":Net", "trunk:Sequential", "trunk.conv:Conv2d", "trunk.act:ReLU", "head:Linear")
    found = align(a, b)
    assert found.in_b["body.conv"] == "trunk.conv" and found.in_a["trunk.act"] == "body.act"
    assert [(x.fqn, y.fqn) for x, y in found.renamed] == [
        ("body", "trunk"), ("body.conv", "trunk.conv"), ("body.act", "trunk.act"),
    ]  # fmt: skip


def test_a_whole_model_in_a_wrapper_is_followed() -> None:
    """As `module.` before every name: what a wrapper adds is added, nothing is paired across."""
    model = torchvision.models.resnet18(weights=None)
    wrapped = nn.Module()
    wrapped.add_module("module", model)
    found = align(of(model), of(wrapped))
    inner = {a.fqn: b.fqn for a, b in found.pairs if a.fqn}
    assert all(b == f"module.{a}" for a, b in inner.items()) and len(inner) == len(of(model)) - 1


def test_what_was_added_and_removed_is_listed() -> None:
    found = align(places("a:Conv2d", "drop:Dropout", "c:Linear"), places("a:Conv2d", "c:Linear", "norm:LayerNorm"))
    assert [p.fqn for p in found.removed] == ["drop"] and [p.fqn for p in found.added] == ["norm"]


def test_a_renamed_place_does_not_overtake_a_paired_one() -> None:
    """A Linear before the anchor is not a Linear after it."""
    found = align(places("x:Linear", "anchor:ReLU"), places("anchor:ReLU", "y:Linear"))
    assert [p.fqn for p in found.removed] == ["x"] and [p.fqn for p in found.added] == ["y"]


def test_another_type_at_the_same_name_is_paired_last() -> None:
    """First the ReLU that moved is found, then what is left is a change of type."""
    changed = align(places("act:ReLU"), places("act:GELU"))
    assert changed.in_b == {"act": "act"} and not changed.renamed
    shifted = align(places("0:Conv2d", "1:ReLU"), places("0:Conv2d", "1:BatchNorm2d", "2:ReLU"))
    assert shifted.in_b == {"0": "0", "1": "2"} and [p.fqn for p in shifted.added] == ["1"]


def test_nothing_is_aligned_with_nothing() -> None:
    assert not align([], []).pairs and [p.fqn for p in align([], places("a:X")).added] == ["a"]


def test_operators_are_paired_by_function_and_order_whatever_their_numbers() -> None:
    a = places("@Net", ":add_1@add", ":relu_1@relu", ":add_2@add", "b@Block", "b:mul_1@mul", "b:cat_1@cat")
    b = places(
        "@Net", ":add_1@add", ":add_2@add", ":relu__1@relu_", ":add_3@add", "c@Block", "c:cat_1@cat", "c:mul_1@mul"
    )
    found = align(a, b)
    assert found.in_b == {
        "": "",
        "b": "c",
        ":add_1": ":add_2",
        ":relu_1": ":relu__1",
        ":add_2": ":add_3",
        "b:mul_1": "c:mul_1",
    }
    assert [p.fqn for p in found.removed] == ["b:cat_1"] and [p.fqn for p in found.added] == [":add_1", "c:cat_1"]
    assert [(x.fqn, y.fqn) for x, y in found.renamed] == [("b", "c")]


def test_operators_of_the_loss_function_are_paired_though_it_is_no_module() -> None:
    found = align(places("@Net", "(loss):mul_1@mul", "(loss):sum_1@sum"), places("@Net", "(loss):sum_1@sum"))
    assert [(a.fqn, b.fqn) for a, b in found.pairs] == [("", ""), ("(loss):sum_1", "(loss):sum_1")]
    assert [place.fqn for place in found.removed] == ["(loss):mul_1"] and not found.added


def test_operators_shift_past_one_that_is_new() -> None:
    a = places("@Net", ":mul_1@mul", ":relu_1@relu", ":mul_2@mul", ":sum_1@sum")
    b = places("@Net", ":exp_1@exp", ":mul_1@mul", ":mul_2@mul", ":relu_1@relu", ":mul_3@mul", ":sum_1@sum")
    found = align(a, b)
    assert found.in_b[":mul_1"] == ":mul_2" and found.in_b[":mul_2"] == ":mul_3"
    assert [p.fqn for p in found.added] == [":exp_1", ":mul_1"]
    assert structure_line(found) == "the structures differ: 2 only in B (:exp_1, :mul_1)"


def test_operators_of_a_module_that_only_one_model_has_are_not_listed_beside_it() -> None:
    found = align(places("@Net"), places("@Net", "new@Block", "new:add_1@add"))
    assert [text for _, text in structure(found)] == ["new (Block) is in B only"] and len(found.added) == 2
