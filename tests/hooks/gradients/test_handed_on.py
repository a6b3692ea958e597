"""Modules that hand on a tensor that they received, and hooks of the program that change what flows on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from hooks.gradients.input_users import Fn, figures, of
from support import assert_stats, float64_stats
from torch import Tensor, nn

HANDED_ON = "hands on a tensor that it received; the row is the tensor's whole gradient, over all of its uses"


class Named(NamedTuple):
    y: Tensor
    same: Tensor


@dataclass
class Data:
    y: Tensor
    same: Tensor


class Opaque:
    """An object that is not a container."""

    same: Tensor


def opaque(x: Tensor, into: Opaque | None = None) -> Opaque:
    into = into or Opaque()
    into.same = x
    return into


def keep(module: nn.Module, x: Tensor) -> Tensor:
    module.aux = [x]
    return x * 1


def taken(found: Any, read: Callable[[Any], Tensor]) -> tuple[Tensor, Tensor]:
    return found[0], read(found[1])


WAYS: dict[str, tuple[Callable[..., Any], Callable[..., tuple[Tensor, Tensor]]]] = {
    "a tuple": (lambda self, x: (self.l(x), x), lambda part, x: part(x)),
    "a named tuple": (lambda self, x: Named(self.l(x), x), lambda part, x: part(x)),
    "a dataclass": (lambda self, x: Data(self.l(x), x), lambda part, x: ((out := part(x)).y, out.same)),
    "a dict": (lambda self, x: {"y": self.l(x), "same": [x]}, lambda part, x: ((o := part(x))["y"], o["same"][0])),
    "an object": (lambda self, x: (self.l(x), opaque(x)), lambda part, x: taken(part(x), lambda o: o.same)),
    "a list that it received": (
        lambda self, x, c: (c.append(x), self.l(x))[1],
        lambda part, x: (part(x, cache := []), cache[0]),
    ),
    "a dict that it received": (
        lambda self, x, past: (past.update(k=x), self.l(x))[1],
        lambda part, x: (part(x, past=(cache := {})), cache["k"]),
    ),
    "an object that it received": (
        lambda self, x, into: (opaque(x, into), self.l(x))[1],
        lambda part, x: (part(x, into := Opaque()), into.same),
    ),
    "an attribute": (
        lambda self, x: (setattr(self, "aux", x), self.l(x))[1],
        lambda part, x: (part(x), part.aux),
    ),
    "an attribute of a part": (
        lambda self, x: self.l(x) + 0 * self.part(x),
        lambda part, x: (part(x), part.part.aux[0]),
    ),
}


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("name", WAYS)
def test_a_module_that_uses_a_tensor_and_hands_it_on_has_its_whole_gradient(name: str) -> None:
    """loss = sum(part.l(h) + 3 next(h)), where next finds h by way of the part."""
    torch.manual_seed(0)
    body, call = WAYS[name]
    part = Fn(body, l=nn.Linear(3, 3), part=Fn(keep))

    def forward(self: Any, x: Tensor) -> Tensor:
        y, same = call(self.part, self.first(x))
        return y + 3 * self.next(same)

    model = Fn(forward, first=nn.Linear(3, 3), part=part, next=nn.Linear(3, 3))
    report = of("inputs", model, torch.randn(2, 3), loss="sum")
    ones, inner, following = torch.ones(2, 3).double(), part.l.weight.double(), 3 * model.next.weight.double()
    whole = (ones @ (inner + following)).detach()
    by_module = {fqn: stats for (fqn, _), stats in figures(report).items()}
    assert_stats(by_module["part"], float64_stats(whole))
    assert_stats(by_module["part.l"], float64_stats((ones @ inner).detach()))
    assert_stats(by_module["next"], float64_stats((ones @ following).detach()))
    handed_on = [row.fqn for row in report.rows if row.get("handed_on")]
    assert handed_on == (["part", "part.part"] if "part" in name.split() else ["part"])
    [note] = report.meta["notes"]
    assert note.startswith("part") and note.endswith(HANDED_ON)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(
    "body",
    [
        lambda self, x, seen, past: self.l(x),
        lambda self, x, seen, past: (self.l(x), x.detach(), x * 1)[0],
        lambda self, x, seen, past: self.l(seen.same + past[0]) * 0.5,
        lambda self, x, seen, past: (past.clear(), self.l(x))[1],
    ],
)
def test_what_is_not_handed_on_counts_for_the_modules_own_use_alone(body: Any) -> None:
    """The caller's list and object hold the tensor, too: the module did not put it there."""
    torch.manual_seed(0)

    def forward(self: Any, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.part(h, opaque(h), [h]) + 3 * h

    model = Fn(forward, first=nn.Linear(3, 3), part=Fn(body, l=nn.Linear(3, 3)))
    report = of("inputs", model, torch.randn(2, 3), loss="sum")
    expected = torch.ones(2, 3) @ model.part.l.weight.detach()
    assert_stats(figures(report)["part", "[0]"], float64_stats(expected))
    assert not any(row.get("handed_on") for row in report.rows)
    assert [note.partition(":")[0] for note in report.meta["notes"]] == ["part"]  # it came in several places


@pytest.mark.usefixtures("way")
def test_a_view_that_is_handed_on_and_changed_in_place_is_said_to_be() -> None:
    """The change takes the gradient past the view: without its own hook the figure would be a part."""

    def forward(self: Any, x: Tensor) -> Tensor:
        y = self.part(self.first(x)[:, :2], cache := [])
        return cache[0].mul_(3).sum() + y.sum()

    part = Fn(lambda self, x, cache: (cache.append(x), 2 * x)[1])
    report = of("inputs", Fn(forward, first=nn.Linear(3, 3), part=part), torch.randn(2, 3), loss=lambda y: y)
    assert ("part", "[0]") not in figures(report)
    [reason] = [item.reason for item in report.skipped if item.fqn == "part"]
    assert "in place" in reason


def test_a_tensor_that_comes_several_times_is_named() -> None:
    layer = nn.MultiheadAttention(4, 2, batch_first=True)
    model = Fn(lambda self, x: self.attend(h := self.first(x), h, h)[0], first=nn.Linear(4, 4), attend=layer)
    [note] = of("inputs", model, torch.randn(2, 3, 4)).meta["notes"]
    assert note.startswith("attend: receives a tensor several times; each of the tensor's rows is its gradient by all")
    apart = Fn(lambda self, x: self.attend(h := self.first(x), h * 1, h * 1)[0], first=nn.Linear(4, 4), attend=layer)
    assert "notes" not in of("inputs", apart, torch.randn(2, 3, 4)).meta


def doubled(*given: Any) -> Any:
    return tuple(None if grad is None else 2 * grad for grad in given[-2])


def add_hook(module: nn.Module, kind: str) -> Any:
    if kind == "node":
        return module.register_forward_hook(lambda m, x, y: (y.grad_fn.register_hook(doubled), None)[1])
    return getattr(module, f"register_{kind}_hook")(doubled)


@pytest.mark.usefixtures("way")
@pytest.mark.filterwarnings("ignore:.*backward hook")
@pytest.mark.parametrize("kind", ["full_backward", "backward", "node"])
@pytest.mark.parametrize("make", [nn.Tanh, nn.Identity])
def test_a_hook_of_the_program_that_changes_a_gradient_shows_in_what_flows_on(
    kind: str, make: Callable[[], nn.Module]
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), make(), nn.Linear(3, 3))
    handle = add_hook(model[1], kind)
    x = torch.randn(2, 3)
    report = of("inputs", model, x, loss="sum")
    h = model[0](x)
    (expected,) = torch.autograd.grad(model[2](model[1](h)).sum(), h)
    handle.remove()
    assert_stats(figures(report)["1", ""], float64_stats(expected))
    assert_stats(figures(report)["2", ""], float64_stats(torch.ones(2, 3) @ model[2].weight.detach()))
