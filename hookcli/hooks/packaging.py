"""`torch.package` hooks: an export in which they tell which module went which way, and what stood in its way."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import torch
from torch import nn
from torch.package.glob_group import GlobGroup
from torch.package.package_exporter import PackageExporter, PackagingError
from torch.package.package_exporter import PackagingErrorReason as Reason

from hookcli.errors import ModelError, UsageError, class_name, in_brief, message_of
from hookcli.system.escaping import shell_word

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
        return f"--{self.kind} {shell_word(self.pattern)}"


@dataclass(frozen=True, slots=True)
class Module:
    """A module that the model needs, or the model's own pickle.

    `action` is what was decided (None: no rule did), `rule` by what; `needed_by` the model's pickle, else the first
    module that imports it. `index` tells when its hook fired; `problem` why it can't go that way.
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
    model: nn.Module, name: str, rules: Iterable[Rule], file: Path, package: str, texts: dict[str, str]
) -> list[Module]:
    """Write the model as `PACKAGE/model.pkl`, with texts beside it, and return what the hooks saw, in their order.

    Nothing on the model changes. Raises BlockedError, ModelError where the model can't be pickled, or UsageError where
    the file can't be written; the file is then of no use.
    """

    def fill(exporter: PackageExporter) -> None:
        try:
            exporter.save_pickle(package, "model.pkl", model)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # pickling runs the model's own code
            raise ModelError(f"{name} can't be pickled: {_culprit(model, error)}") from error
        for resource, text in texts.items():
            exporter.save_text(package, resource, text)

    with _Sink(file) as sink:
        return _run(cast(IO[bytes], sink), rules, fill)


def rehearse(roots: Iterable[str], rules: Iterable[Rule]) -> list[Module]:
    """What would become of these modules and of all that they import, without a model. Raises BlockedError."""

    def fill(exporter: PackageExporter) -> None:
        for root in roots:
            exporter.add_dependency(root)

    return _run(io.BytesIO(), rules, fill)


def idle(rules: Iterable[Rule], modules: Sequence[Module]) -> Iterator[tuple[Rule, str]]:
    """The rules that did nothing, each with the reason.

    One that asks for what torch.package does anyway is not idle, nor is one that found nothing to deny.
    """
    for rule in rules:
        matched = [m for m in modules if not m.is_pickle and rule.matches(m.name)]
        if not matched and rule.kind != "deny":
            yield rule, "matches no module"
        elif matched and all(m.action != rule.kind for m in matched):
            yield rule, f"has no effect, since {matched[0].name} is decided before: {matched[0].rule}"


def _run(file: IO[bytes], rules: Iterable[Rule], fill: Callable[[PackageExporter], None]) -> list[Module]:
    rules = list(rules)
    fired: list[str] = []

    def hook(_: PackageExporter, module: str) -> None:
        fired.append(module)

    exporter = PackageExporter(file)
    try:
        with ExitStack() as handles:
            for rule in rules:
                getattr(exporter, rule.kind)(rule.pattern)
            registers = exporter.register_extern_hook, exporter.register_intern_hook, exporter.register_mock_hook
            for register in registers:
                handles.enter_context(register(hook))
            fill(exporter)
            exporter.close()  # here the hooks fire
    except BaseException as error:
        # Finishes the archive. Its writer's destructor would do so later, and end the process if the file is closed.
        exporter.__exit__(type(error), error, error.__traceback__)
        if isinstance(error, PackagingError):
            raise BlockedError(_modules(exporter, rules, [])) from error
        raise
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
    importers = sorted(exporter.get_rdeps(name), key=lambda importer: not importer.startswith("<"))
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


class _Sink(io.RawIOBase):
    """A file that goes on after a failure to write, and tells it at the end.

    PyTorch's writer finishes the archive in its destructor, and ends the process where that fails (a full disk).
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("wb")
        self._failure: OSError | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        try:
            if self._failure is None:
                self._file.write(data)
        except OSError as error:
            self._failure = error
        return len(data)

    def __exit__(self, *error: object) -> None:
        try:
            self._file.close()
        except OSError as failure:  # what was still in its buffer
            self._failure = self._failure or failure
        if self._failure is not None:
            raise UsageError(f"can't write to {self._path.parent}/: {self._failure.strerror}") from self._failure


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
    return in_brief(error)


def _refused(value: Any) -> str | None:
    try:
        _Dry(io.BytesIO(), protocol=3).dump(value)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever the object's own code raises
        return message_of(error).partition("\n")[0] or class_name(error)
    return None
