"""The registry of plugins. Finding a plugin reads metadata only; loading imports that one.

Built-in plugins are listed here; other distributions declare theirs as entry points in the groups `hookcli.sources`,
`hookcli.probes`, `hookcli.reporters`, `hookcli.checks` and `hookcli.edits`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from types import MemberDescriptorType
from typing import Any

from hookcli.errors import PluginError, UserCode, class_name, in_brief, unknown

KINDS = ("sources", "probes", "reporters", "checks", "edits")

_BUILT_IN = {
    "sources": {
        "torchvision": "hookcli.sources.torchvision:TorchvisionSource",
        "importpath": "hookcli.sources.importpath:ImportPathSource",
        "package": "hookcli.sources.package:PackageSource",
    },
    "probes": {
        "shapes": "hookcli.probes.shapes:ShapesProbe",
        "inputs": "hookcli.probes.inputs:InputsProbe",
        "activations": "hookcli.probes.activations:ActivationsProbe",
        "grads": "hookcli.probes.grads:GradsProbe",
        "graph": "hookcli.probes.graph:GraphProbe",
        "trace": "hookcli.probes.trace:TraceProbe",
    },
    "reporters": {
        name: f"hookcli.reporters.{name}:{name.title()}Reporter"
        for name in (
            *("table", "json", "csv", "markdown", "dot", "svg", "chrome", "chart", "junit", "sarif", "github"),
            *("tensorboard", "parquet", "wandb"),
        )
    },
    "checks": {
        "HK001": "hookcli.checks.crash:Crash",
        "HK002": "hookcli.checks.finite:InputNotFinite",
        "HK003": "hookcli.checks.finite:ActivationNotFinite",
        "HK004": "hookcli.checks.finite:GradientNotFinite",
        "HK005": "hookcli.checks.finite:ParameterNotFinite",
        "HK006": "hookcli.checks.unused:NeverRan",
        "HK007": "hookcli.checks.unused:NotCalled",
        "HK008": "hookcli.checks.unused:NoGradient",
        "HK009": "hookcli.checks.unused:ZeroGradient",
        "HK010": "hookcli.checks.dead_units:DeadUnits",
        "HK011": "hookcli.checks.dead_units:SaturatedUnits",
        "HK012": "hookcli.checks.depth:VanishingGradients",
        "HK013": "hookcli.checks.depth:ExplodingGradients",
        "HK014": "hookcli.checks.depth:VanishingActivations",
        "HK015": "hookcli.checks.depth:ExplodingActivations",
        "HK016": "hookcli.checks.precision:Float16Overflow",
        "HK017": "hookcli.checks.precision:Float16Underflow",
        "HK018": "hookcli.checks.precision:Bfloat16Rounding",
        "HK019": "hookcli.checks.leftover_hooks:HooksLeft",
        "HK020": "hookcli.checks.evaluation:BatchDependence",
        "HK021": "hookcli.checks.output:UnexpectedOutput",
        "HK022": "hookcli.checks.budgets:TooManyParameters",
        "HK023": "hookcli.checks.budgets:TooManyMacs",
        "HK024": "hookcli.checks.budgets:TooMuchMemory",
        "HK025": "hookcli.checks.determinism:Nondeterminism",
        "HK026": "hookcli.checks.evaluation:SplitBatch",
        "HK027": "hookcli.checks.baseline:Changed",
        "HK028": "hookcli.checks.evaluation:RandomInEval",
        "HK029": "hookcli.checks.evaluation:StateInEval",
        "HK030": "hookcli.checks.registered:Unregistered",
        "HK031": "hookcli.checks.modes:EvalInTraining",
        "HK032": "hookcli.checks.modes:FrozenBetween",
    },
    "edits": {n: f"hookcli.hooks.edits.operations:{n}" for n in ("zero", "ones", "scale", "clamp", "noise", "square")},
}


@dataclass(frozen=True, slots=True, order=True)
class Plugin:
    """A plugin that was found, not loaded. `target` is `module:attribute`; `distribution` provides it."""

    kind: str
    name: str
    target: str
    distribution: str

    def load(self) -> Any:
        """Import the plugin's object. Raises PluginError, naming the distribution, for any error in it."""
        if self.built_in:
            return self._imported()
        with UserCode(lambda error: PluginError(f"{self} does not load: {in_brief(error)}")):
            found = self._imported()
            if wrong := _misfit(self.kind, found):
                raise PluginError(f"{self} is no plugin of hookcli: {wrong}")
            _owners[id(found)] = self, found
        return found

    def __str__(self) -> str:
        return f"plugin {self.name!r} ({self.kind}, from {self.distribution})"

    @property
    def built_in(self) -> bool:
        """True if the plugin is built in."""
        return self.distribution == "hookcli"

    @property
    def shadowed(self) -> bool:
        """True if a built-in plugin of the same name is used instead."""
        return not self.built_in and self.name in _BUILT_IN[self.kind]

    def _imported(self) -> Any:
        module, _, attribute = self.target.partition(":")
        return attrgetter(attribute)(import_module(module))


_owners: dict[int, tuple[Plugin, Any]] = {}  # by id(); the object is kept alive, so that its id is not reused
_remarks: dict[str, None] = {}


def guarded(made: Any) -> AbstractContextManager[None, None]:
    """Return a context manager for calling a plugin's code; errors raised there name the plugin if it is external."""
    plugin = _owners.get(id(made), _owners.get(id(type(made)), (None,)))[0]
    if plugin is None:
        return nullcontext()
    return UserCode(lambda error: PluginError(f"{plugin} failed: {in_brief(error)}"))


def remarks() -> list[str]:
    """Return the remarks on plugins looked up so far, each once."""
    said = list(_remarks)
    _remarks.clear()
    return said


# The methods that a plugin's class must have (or one of two), and the types of the attributes that it may have.
_METHODS = {
    "sources": ("recipe",),
    "probes": ("attach", "rows"),
    "reporters": ("render or export",),
    "checks": ("judge",),
}
_ATTRIBUTES: dict[str, dict[str, str | type]] = {
    "sources": {},
    "probes": {
        "name": str,
        "columns": "Column",
        **dict.fromkeys(("needs_backward", "needs_input_grad", "watches_parameters", "values", "fastpath"), bool),
        "grouping": str,
    },
    "reporters": {
        **dict.fromkeys(("suffixes", "needs"), "str"),
        **dict.fromkeys(("command", "target", "then"), str),
        **dict.fromkeys(("for_people", "live"), bool),
    },
    "checks": {
        **dict.fromkeys(("id", "name", "severity", "means", "advice"), str),
        "needs": "str",
        **dict.fromkeys(("whole", "values"), bool),
    },
}


def _misfit(kind: str, found: Any) -> str | None:
    """Return the reason why an object can't be a plugin of this kind; None if it can."""
    if kind == "edits":
        return None if callable(found) else f"an edit is a function, not {class_name(found)}"
    if not isinstance(found, type):
        return f"its entry point names {class_name(found)}, not a class"
    for name in _METHODS[kind]:
        if not any(callable(getattr(found, one, None)) for one in name.split(" or ")):
            return f"the class {found.__qualname__} has no method {name}"
    return misfitting_attribute(kind, found)


def misfitting_attribute(kind: str, made: Any) -> str | None:
    """Describe the first attribute of a plugin, or of an object that it made, that has the wrong type."""
    for name, wanted in _ATTRIBUTES[kind].items():
        value = getattr(made, name, None)
        if value is None or isinstance(value, (property, MemberDescriptorType)):  # of each instance
            continue
        if isinstance(wanted, type):
            if not isinstance(value, wanted):
                return f"{name} must be {wanted.__name__}, not {class_name(value)}"
        elif not (isinstance(value, (tuple, list)) and all(class_name(item) == wanted for item in value)):
            return f"{name} must be a tuple of {wanted}, not {class_name(value)}"
    return None


def _any_declared() -> bool:
    """Return whether a distribution on sys.path may declare plugins; ten times as fast as `importlib.metadata`."""
    for place in map(Path, sys.path):
        if place.is_file():
            return True  # a zip file: leave it to those who can read it
        with suppress(OSError), os.scandir(place) as folders:
            for folder in folders:
                if folder.name.endswith((".dist-info", ".egg-info")):
                    with suppress(OSError):
                        if b"[hookcli." in Path(folder, "entry_points.txt").read_bytes():
                            return True
    return False


@cache
def _external() -> tuple[Plugin, ...]:
    """Return the plugins that installed distributions declare, cached for the process."""
    if not _any_declared():
        return ()
    from importlib.metadata import entry_points

    found = set()
    for kind in KINDS:
        for entry in entry_points(group=f"hookcli.{kind}"):
            owner = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "unknown distribution"
            found.add(Plugin(kind, entry.name, entry.value.replace(" ", ""), owner))
    return tuple(sorted(found))


def plugins(kind: str) -> Iterator[Plugin]:
    """Return every plugin of a kind without loading it, built-in plugins first."""
    for name, target in _BUILT_IN[kind].items():
        yield Plugin(kind, name, target, "hookcli")
    yield from (plugin for plugin in _external() if plugin.kind == kind)


def names(kind: str) -> list[str]:
    """Return the names of all plugins of a kind, each once."""
    return list(dict.fromkeys(plugin.name for plugin in plugins(kind)))


def find(kind: str, name: str) -> Plugin:
    """Return the plugin of this name, a built-in one first. Raises PluginError if none or several others have it."""
    found = [plugin for plugin in plugins(kind) if plugin.name == name]
    for plugin in found:
        if plugin.shadowed:
            _remarks[f"{plugin} is not used: a built-in plugin has the same name"] = None
            found = found[:1]  # ours come first
    if not found:
        raise PluginError(unknown(kind.removesuffix("s"), name, names(kind)))
    if len(found) > 1:
        owners = " and ".join(plugin.distribution for plugin in found)
        raise PluginError(f"{kind.removesuffix('s')} {name!r} is ambiguous: {owners} both bring it; uninstall one")
    return found[0]


def load(kind: str, name: str) -> Any:
    """Find a plugin and import its object."""
    return find(kind, name).load()
