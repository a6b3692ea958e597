"""`torch.package` hooks: an export in which they tell which module went which way, and what stood in its way."""

from __future__ import annotations

import io
import pickle
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO, Any

import torch
from torch import nn
from torch.package.glob_group import GlobGroup
from torch.package.package_exporter import PackageExporter, PackagingError
from torch.package.package_exporter import PackagingErrorReason as Reason

from hookcli.errors import ModelError, UsageError

_ALWAYS = "always (torch, stdlib)"  # torch.package itself; of the standard library all but sys and io
_ITSELF = "the model itself"


@dataclass(frozen=True, slots=True)
class Rule:
    """What to do with the modules that a pattern matches: `kind` is extern, intern, mock or deny.

    Raises UsageError for a pattern that torch.package does not understand.
    """

    kind: str
    pattern: str

    def __post_init__(self) -> None:
        try:
            GlobGroup(self.pattern)
        except ValueError as error:
            says = "** stands for whole names between dots, as in torch.**"
            raise UsageError(f"--{self.kind} {self.pattern!r}: {says}") from error

    def matches(self, module: str) -> bool:
        return GlobGroup(self.pattern).matches(module)

    def __str__(self) -> str:
        return f"--{self.kind} {shlex.quote(self.pattern)}"


@dataclass(frozen=True, slots=True)
class Module:
    """A module that the model needs, or the model's own pickle.

    `action` is what was decided (None: no rule did), `rule` by what; `needed_by` the first module that imports it.
    `index` tells when its hook fired; `problem` why it can't go that way.
    """

    name: str
    action: str | None
    rule: str
    needed_by: str
    index: int | None = None
    problem: str | None = None

    @property
    def is_pickle(self) -> bool:
        return self.name.startswith("<")

    @property
    def top(self) -> str:
        """The top-level package that it is in."""
        return self.name.partition(".")[0]


class BlockedError(Exception):
    """The export can't be done. `modules` are all that were found, those with a `problem` among them."""

    def __init__(self, modules: Sequence[Module]) -> None:
        super().__init__("the export is blocked")
        self.modules = tuple(modules)


def export(
    model: nn.Module, name: str, rules: Iterable[Rule], file: str | IO[bytes], package: str, texts: dict[str, str]
) -> list[Module]:
    """Write the model as `PACKAGE/model.pkl`, with texts beside it, and return what the hooks saw, in their order.

    Nothing on the model changes. Raises BlockedError, or ModelError where the model can't be pickled; the file is
    then of no use.
    """

    def fill(exporter: PackageExporter) -> None:
        try:
            exporter.save_pickle(package, "model.pkl", model)
        except Exception as error:  # pickling runs the model's own code
            if "PytorchStreamWriter" in str(error):
                raise UsageError(f"can't write {file}: {error}") from error
            raise ModelError(f"{name} can't be pickled: {_culprit(model, error)}") from error
        for resource, text in texts.items():
            exporter.save_text(package, resource, text)

    return _run(file, rules, fill)


def rehearse(roots: Iterable[str], rules: Iterable[Rule]) -> list[Module]:
    """What would become of these modules and of all that they import, without a model. Raises BlockedError."""

    def fill(exporter: PackageExporter) -> None:
        for root in roots:
            exporter.add_dependency(root)

    return _run(io.BytesIO(), rules, fill)


def idle(rules: Iterable[Rule], modules: Sequence[Module]) -> Iterator[tuple[Rule, str]]:
    """The rules that did nothing, each with the reason. One that says what would happen anyway did it."""
    for rule in rules:
        matched = [m for m in modules if not m.is_pickle and rule.matches(m.name)]
        if not matched:
            yield rule, "matches no module"
        elif all(m.action != rule.kind for m in matched):
            first = matched[0]
            yield rule, f"has no effect: {first.name} went another way: {first.rule}"


def _run(file: str | IO[bytes], rules: Iterable[Rule], fill: Callable[[PackageExporter], None]) -> list[Module]:
    rules = list(rules)
    fired: list[str] = []

    def hook(_: PackageExporter, module: str) -> None:
        fired.append(module)

    try:
        with ExitStack() as handles, PackageExporter(file) as exporter:
            for rule in rules:
                getattr(exporter, rule.kind)(rule.pattern)
            for register in (
                exporter.register_extern_hook,
                exporter.register_intern_hook,
                exporter.register_mock_hook,
            ):
                handles.enter_context(register(hook))  # fires when the exporter closes, before the handles do
            fill(exporter)
    except PackagingError as error:
        raise BlockedError(_modules(exporter, rules, [])) from error
    return _modules(exporter, rules, fired)


def _modules(exporter: PackageExporter, rules: Sequence[Rule], fired: Sequence[str]) -> list[Module]:
    order = {module: index for index, module in enumerate(fired)}
    found = [_module(name, node, exporter, rules, order.get(name)) for name, node in _nodes(exporter) if node]
    return sorted(found, key=lambda module: order.get(module.name, 0))


def _nodes(exporter: PackageExporter) -> Iterable[tuple[str, dict[str, Any]]]:
    nodes: dict[str, dict[str, Any]] = exporter.dependency_graph.nodes
    return nodes.items()


def _module(
    name: str, node: dict[str, Any], exporter: PackageExporter, rules: Sequence[Rule], index: int | None
) -> Module:
    action = node["action"].name.lower() if "action" in node else None
    first = next((rule for rule in rules if rule.matches(name)), None)
    decided = str(first) if first and first.kind == action else _ALWAYS
    if name.startswith("<"):
        decided = _ITSELF
    importers = exporter.get_rdeps(name)
    needed_by = importers[0] if importers else ""
    problem = _problem(node["error"], decided) if "error" in node else None
    return Module(name, action, decided, needed_by, index, problem)


def _problem(reason: Reason, rule: str) -> str:
    said: dict[Reason, str] = {
        Reason.NO_ACTION: "no pattern matches it",
        Reason.DENIED: f"denied by {rule}",
        Reason.MOCKED_BUT_STILL_USED: f"mocked by {rule}, but the model has objects of it",
        Reason.IS_EXTENSION_MODULE: "a C extension: it has no source to intern",
        Reason.NO_DUNDER_FILE: "no source file to intern",
        Reason.SOURCE_FILE_NOT_FOUND: "its source file is not there",
        Reason.DEPENDENCY_RESOLUTION_FAILED: "its imports can't be read",
    }
    return said.get(reason) or str(reason.value)


class _Dry(pickle.Pickler):
    """Pickles all but the numbers in tensors."""

    def persistent_id(self, obj: Any) -> Any:
        return "storage" if isinstance(obj, (torch.UntypedStorage, torch.TypedStorage)) else None


def _culprit(model: nn.Module, error: BaseException) -> str:
    """Which object of the model it is that can't be pickled, and why."""
    for fqn, module in model.named_modules():
        where = f"{fqn or 'the model'} ({type(module).__name__})"
        if (why := _refused(type(module))) is not None:
            return f"the class of {where}: {why}"
        for attribute, value in vars(module).items():
            if attribute not in ("_modules", "_parameters", "_buffers") and (why := _refused(value)) is not None:
                return f"{attribute} of {where}: {why}"
    return f"{type(error).__name__}: {error}"


def _refused(value: Any) -> str | None:
    try:
        _Dry(io.BytesIO(), protocol=3).dump(value)
    except Exception as error:  # whatever the object's own code raises
        return str(error).partition("\n")[0] or type(error).__name__
    return None
