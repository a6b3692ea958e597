"""`torch.package` export, with hooks that report where each module went and what blocked it."""

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

from hookcli.errors import ModelError, UsageError, UserCode, class_name, in_brief, message_of
from hookcli.hooks.torch_private.modules import PARTS
from hookcli.system import interrupts
from hookcli.system.escaping import shell_word

_ALWAYS = "always (torch, stdlib)"  # torch.package decides for these, except the modules sys and io
_ITSELF = "the model itself"


@dataclass(frozen=True, slots=True)
class Rule:
    """An action for the modules that match a pattern: `kind` is extern, intern, mock or deny.

    Raises UsageError for a pattern that torch.package rejects.
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
class PackagedModule:
    """A Python module that the model needs, or the model's own pickle.

    `action`: extern, intern, mock or deny; None where no rule decided.
    `rule`: the rule that decided.
    `needed_by`: the model's pickle if it needs the module, else the first module that imports it.
    `index`: the order in which the hooks fired.
    `problem`: the reason why the action is impossible.
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
        return self.name.partition(".")[0]


class BlockedError(Exception):
    """The export is impossible. `modules`: all that were found; some have a `problem`."""

    def __init__(self, modules: Sequence[PackagedModule]) -> None:
        super().__init__("the export is blocked")
        self.modules = tuple(modules)


def export(
    model: nn.Module, name: str, rules: Iterable[Rule], file: Path, package: str, texts: dict[str, str]
) -> list[PackagedModule]:
    """Write the model as `PACKAGE/model.pkl`, along with `texts`, and return its modules as the hooks saw them.

    The model does not change. Raises BlockedError, ModelError if the model can't be pickled, or UsageError if the file
    can't be written; the file is then unusable.
    """

    def fill(exporter: PackageExporter) -> None:
        with UserCode(lambda error: ModelError(f"{name} can't be pickled: {_culprit(model, error)}")):
            exporter.save_pickle(package, "model.pkl", model)
        for resource, text in texts.items():
            exporter.save_text(package, resource, text)

    with interrupts.waiting(), _Sink(file) as sink:
        return _export(cast(IO[bytes], sink), rules, fill)


def rehearse(roots: Iterable[str], rules: Iterable[Rule]) -> list[PackagedModule]:
    """Return how an export would treat these modules and all that they import, without a model. Raises BlockedError."""

    def fill(exporter: PackageExporter) -> None:
        for root in roots:
            exporter.add_dependency(root)

    return _export(io.BytesIO(), rules, fill)


def idle_rules(rules: Iterable[Rule], modules: Sequence[PackagedModule]) -> Iterator[tuple[Rule, str]]:
    """Yield the rules that did nothing, each with the reason.

    A rule that asks for what torch.package does anyway is not idle, nor is a deny rule that found nothing.
    """
    for rule in rules:
        matched = [m for m in modules if not m.is_pickle and rule.matches(m.name)]
        if not matched and rule.kind != "deny":
            yield rule, "matches no module"
        elif matched and all(m.action != rule.kind for m in matched):
            yield rule, f"has no effect, since {matched[0].name} is decided before: {matched[0].rule}"


def _export(file: IO[bytes], rules: Iterable[Rule], fill: Callable[[PackageExporter], None]) -> list[PackagedModule]:
    rules, fired = list(rules), list[str]()

    def hook(_: PackageExporter, module: str) -> None:
        fired.append(module)

    exporter = PackageExporter(file)
    try:
        with ExitStack() as handles:
            for rule in rules:
                getattr(exporter, rule.kind)(rule.pattern)
            for kind in ("extern", "intern", "mock"):
                handles.enter_context(getattr(exporter, f"register_{kind}_hook")(hook))
            fill(exporter)
            exporter.close()  # here the hooks fire
    except BaseException as error:
        # Finishes the archive. Its writer's destructor would do so later, and end the process if the file is closed.
        exporter.__exit__(type(error), error, error.__traceback__)
        if isinstance(error, PackagingError):
            raise BlockedError(_modules(exporter, rules, [])) from error
        raise
    return _modules(exporter, rules, fired)


def _modules(exporter: PackageExporter, rules: Sequence[Rule], fired: Sequence[str]) -> list[PackagedModule]:
    nodes: dict[str, dict[str, Any]] = exporter.dependency_graph.nodes
    order = {module: index for index, module in enumerate(fired)}
    modules = []
    for name, node in nodes.items():
        if not node:
            continue
        action = node["action"].name.lower() if "action" in node else None
        first = next((rule for rule in rules if rule.matches(name)), None)
        decided = str(first) if first and first.kind == action else _ALWAYS
        if name.startswith("<"):
            decided = _ITSELF
        importers = sorted(exporter.get_rdeps(name), key=lambda importer: not importer.startswith("<"))
        reason: Reason | None = node.get("error")
        problem = _PROBLEMS.get(reason, str(reason.value)).format(rule=decided) if reason else None
        needed_by = importers[0] if importers else ""
        modules.append(PackagedModule(name, action, decided, needed_by, order.get(name), problem))
    return sorted(modules, key=lambda module: order.get(module.name, 0))


_PROBLEMS = {
    Reason.NO_ACTION: "no pattern matches it",
    Reason.DENIED: "denied by {rule}",
    Reason.MOCKED_BUT_STILL_USED: "mocked by {rule}, but the model contains its objects",
    Reason.IS_EXTENSION_MODULE: "a C extension: it has no source to intern",
    Reason.NO_DUNDER_FILE: "no source file to intern",
    Reason.SOURCE_FILE_NOT_FOUND: "its source file is missing",
    Reason.DEPENDENCY_RESOLUTION_FAILED: "its imports can't be read",
}


class _Sink(io.RawIOBase):
    """A file that ignores a failure to write until it is closed, and raises UsageError then.

    PyTorch's writer finishes the archive in its destructor, and aborts the process if that fails (a full disk).
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("wb")
        self._failure: OSError | None = None

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


class _TrialPickler(pickle.Pickler):
    """A pickler that leaves out the data of tensors."""

    def persistent_id(self, obj: object) -> object:
        return "storage" if isinstance(obj, (torch.UntypedStorage, torch.TypedStorage)) else None


def _culprit(model: nn.Module, error: BaseException) -> str:
    """Name the object in the model that can't be pickled, and the reason."""
    for fqn, module in model.named_modules():
        where = f"{fqn or 'the model'} ({type(module).__name__})"
        if (why := _refused(type(module))) is not None:
            return f"the class of {where}: {why}"
        for attribute, value in vars(module).items():
            if attribute not in PARTS and (why := _refused(value)) is not None:
                return f"{attribute} of {where}: {why}"
    return in_brief(error)


def _refused(value: object) -> str | None:
    try:
        _TrialPickler(io.BytesIO(), protocol=3).dump(value)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever the object's own code raises
        return message_of(error).partition("\n")[0] or class_name(error)
    return None
