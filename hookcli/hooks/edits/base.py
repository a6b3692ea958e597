"""Edits, written as `PATTERN:WHAT=OP`: for example `layer4.*:grad_output=scale(2)`.

The operation of an edit is a function `(tensor, *arguments) -> tensor` that keeps shape and dtype. It gets activations
or gradients, and gradients flow through it as through any operation. The built-in ones are in operations.py; other
distributions declare theirs as entry points in the group `hookcli.edits`; any function can be given as `pkg.mod:fn`. A
function with a parameter `generator` gets a `torch.Generator`, so that the model still draws the same random numbers;
one with a parameter `place` gets a mapping with the tensor's `kind` (one of WHATS), `fqn`, `batch`, `call`, `pass` and
`path`, and its arguments may be texts without quotes.
"""

from __future__ import annotations

import ast
import inspect
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hookcli import registry
from hookcli.errors import HookcliError, UsageError, UserCode, in_brief, refuse_coroutine, unknown
from hookcli.hooks.tensor_origins import version_of
from hookcli.system.importing import load_object
from hookcli.table.names import no_match
from hookcli.tensors.tree import dtype_text, shape_text

WHATS = ("input", "output", "grad_output", "grad_input", "grad")


@dataclass
class Edit:
    """One edit: where it applies, what it does, and how often it was `applied`.

    `pattern` is a glob on the fqns of modules; for `what="grad"`, of parameters. Edits leave integer tensors alone:
    `left_alone` is the dtype of the last such tensor. `numbers`: the numbers of the batch and the pass
    that run. `part`: only these elements along the last dimension change.
    """

    text: str
    pattern: str
    what: str
    op: str
    function: Callable[..., object]
    arguments: Sequence[object] = ()
    settings: Mapping[str, object] = field(default_factory=dict)
    seed: int = 0
    number: int = 0
    applied: int = 0
    part: slice | None = None
    left_alone: str = field(default="", init=False)
    numbers: dict[str, int] = field(default_factory=lambda: {"batch": 0, "pass": 0}, init=False)

    def matches(self, fqn: str) -> bool:
        """Return whether it applies to this module or parameter. The model itself is "" or (model)."""
        return fnmatchcase(fqn, self.pattern) or (fqn == "" and self.pattern == "(model)")

    def apply(self, fqn: str, call: int, path: str, x: Tensor) -> Tensor:
        """Return the tensor to put in place of the one at this path, at a call of a module.

        Raises UsageError if the operation fails, or returns something that can't replace the tensor.
        """
        if not (x.is_floating_point() or x.is_complex()):
            self.left_alone = dtype_text(x)
            return x
        where = f"--edit {self.text!r}, at {self.what} {path}".rstrip() + f" of {fqn or 'the model'}"
        version, settings = version_of(x), dict(self.settings)
        if _takes(self.function, "place"):
            settings["place"] = {"kind": self.what, "fqn": fqn, "call": call, "path": path, **self.numbers}
        if _takes(self.function, "generator") and x.device.type != "meta":
            # One seed per place and call, so that a recomputed forward gets the same noise.
            place = f"{self.seed} {self.number} {self.text} {fqn} {call} {path}".encode(errors="backslashreplace")
            settings["generator"] = torch.Generator(x.device).manual_seed(zlib.crc32(place))
        try:
            with UserCode(lambda error: UsageError(f"{self.op} failed: {in_brief(error)}")):
                y = self.function(x, *self.arguments, **settings)
        except UsageError as error:
            raise UsageError(f"{where}: {error}") from (error.__cause__ or error)
        refuse_coroutine(y, f"{where}: {self.op}")
        if not isinstance(y, Tensor):
            raise UsageError(f"{where}: returned {type(y).__name__}, not a tensor; return the new tensor")
        if y.shape != x.shape:
            raise UsageError(f"{where}: returned shape {shape_text(y)} for a tensor of shape {shape_text(x)}")
        if (has := f"{dtype_text(y)} on {y.device}") != (right := f"{dtype_text(x)} on {x.device}"):
            raise UsageError(f"{where}: returned {has} for a tensor of {right}")
        if version_of(x) != version:
            raise UsageError(f"{where}: changes its tensor in place, which the model still uses; return a new tensor")
        self.applied += 1
        if self.part is not None and x.dim():
            inside = torch.zeros(x.shape[-1:], dtype=torch.bool, device=x.device)
            inside[self.part] = True
            return torch.where(inside, y, x)
        return y


def _takes(function: Callable[..., object], name: str) -> bool:
    with suppress(TypeError, ValueError):  # built in C
        return name in inspect.signature(function).parameters
    return False


def parse_edit(text: str, seed: int = 0) -> Edit:
    """Parse `PATTERN:WHAT=OP`. Raises UsageError that repeats the text and says what would be right."""
    place, separator, op = text.partition("=")
    pattern, colon, what, op = (part.strip() for part in (*place.rpartition(":"), op))
    if not (separator and colon and op):
        raise UsageError(f"--edit {text!r}: give 'PATTERN:WHAT=OP', for example 'layer4.*:output=zero'")
    if what not in WHATS:
        raise UsageError(f"--edit {text!r}: {unknown('place', what, WHATS)}")
    named = re.fullmatch(r"([^()]+)(?:\((.*)\))?", op, re.DOTALL)
    if not named:
        raise UsageError(
            f"--edit {text!r}: {op!r} is not an operation; examples: zero, scale(2), clamp(-1,1), pkg.mod:fn"
        )
    function = _function(text, named[1])
    arguments, settings = _arguments(text, named[2] or "", names=_takes(function, "place"))
    _require_callable(f"--edit {text!r}: ", function, named[1], arguments, settings)
    return Edit(text, pattern, what, op, function, arguments, settings, seed)


def _require_callable(
    place: str,
    function: Callable[..., object],
    name: str,
    arguments: Sequence[object],
    settings: Mapping[str, object],
) -> None:
    """Raises UsageError, which begins with `place`, if the function does not take a tensor and these arguments."""
    ours = {key: None for key in ("generator", "place") if _takes(function, key)}
    for key in ours.keys() & settings.keys():
        seeded = "; seed it with --seed" if key == "generator" else ""
        raise UsageError(f"{place}{name} gets its {key} from hookcli{seeded}")
    try:
        inspect.signature(function).bind(None, *arguments, **settings, **ours)
    except TypeError as error:
        parameters = list(inspect.signature(function).parameters.values())[1:]
        takes = [p.name for p in parameters if p.kind != p.KEYWORD_ONLY and p.name not in ours]
        right = f"{name}({', '.join(takes)})" if takes else f"{name}, without arguments"
        raise UsageError(f"{place}{error}; use {right}") from error
    except ValueError:  # built in C: let it speak for itself
        pass


def _function(text: str, name: str) -> Callable[..., object]:
    if ":" in name:
        try:
            operation: object = load_object(name)
        except HookcliError as error:
            raise type(error)(f"--edit {text!r}: {error}") from error
    elif name in (known := registry.names("edits")):
        operation = registry.load("edits", name)
    else:
        raise UsageError(f"--edit {text!r}: {unknown('operation', name, known)}, or your own function as pkg.mod:fn")
    if not callable(operation):
        raise UsageError(f"--edit {text!r}: {name} is {type(operation).__name__}, not a function from tensor to tensor")
    return operation


def _arguments(text: str, source: str, *, names: bool = False) -> tuple[list[object], dict[str, object]]:
    """Parse the text between the parentheses: Python literals, by position or by name; `names` need no quotes."""
    if names and source and not {*"'\"="} & {*source}:
        return [part.strip() for part in source.split(",")], {}
    try:
        call = ast.parse(f"_({source})", mode="eval").body
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
            raise ValueError("more than one pair of parentheses")
        named = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
        if None in named:
            raise ValueError("** is not a plain value")
        return [ast.literal_eval(argument) for argument in call.args], cast("dict[str, object]", named)
    except (SyntaxError, ValueError, TypeError) as error:
        raise UsageError(f"--edit {text!r}: ({source}) must contain plain values, for example clamp(-1,1)") from error


def matching_edits(edits: Iterable[Edit], fqn: str) -> dict[str, list[Edit]]:
    """Return the edits that apply to a module or parameter, by what they change, in their order."""
    by_place: dict[str, list[Edit]] = {}
    for edit in [edit for edit in edits if edit.matches(fqn)]:
        by_place.setdefault(edit.what, []).append(edit)
    return by_place


def check_edits(edits: Iterable[Edit], model: nn.Module, backward: bool) -> None:
    """Raise UsageError for an edit that matches nothing in the model, or edits gradients in a run without backward."""
    modules = [name for name, _ in model.named_modules()]
    parameters = [name for name, p in model.named_parameters() if p.requires_grad and not is_lazy(p)]
    for edit in edits:
        if not any(map(edit.matches, parameters if edit.what == "grad" else modules)):
            raise UsageError(f"--edit {edit.text!r} matches nothing: {_why_nothing(edit, model)}")
        if edit.what.startswith("grad") and not backward:
            raise UsageError(f"--edit {edit.text!r}: there are no gradients here; use `hookcli grads`")


def _why_nothing(edit: Edit, model: nn.Module) -> str:
    """Say why the edit can't change what its pattern matches, or name the nearest match."""
    modules: dict[str, nn.Module | Tensor] = dict(model.named_modules(remove_duplicate=False))
    parameters: dict[str, nn.Module | Tensor] = dict(model.named_parameters(remove_duplicate=False))
    kind, right, other = ("parameter", parameters, modules) if edit.what == "grad" else ("module", modules, parameters)
    for name in filter(edit.matches, right):
        named = [*model.named_parameters(), *model.named_modules()]
        first = next(known for known, item in named if item is right[name])
        if first != name:
            return f"{name} is another name of {first}: use that"
        why = "lazy: it takes no hook yet" if right[name].requires_grad else "frozen (requires_grad=False)"
        return f"{name} is {why}"
    for name in filter(edit.matches, other):
        if edit.what == "grad":
            return f"{name or 'the model'} is a module: name its parameters, as in '{f'{name}.*'.lstrip('.')}:grad'"
        return f"{name} is a parameter: what changes is its gradient, '{name}:grad'"
    return no_match(edit.pattern, right, kind)


def check_applied(edits: Iterable[Edit], reports: Sequence[object]) -> None:
    """Raise UsageError, with the run's reports, for an edit that was never applied."""
    never = "what it matches was never called, or"
    for edit in [edit for edit in edits if not edit.applied]:
        grad = f"no gradient reached it; {never} needs none"
        why = grad if "grad" in edit.what else f"{never} had no tensor as {edit.what}"
        if edit.left_alone:
            why = f"it reached only {edit.left_alone} tensors, which edits leave alone"
        raise UsageError(f"--edit {edit.text!r} changed nothing: {why}", reports)
