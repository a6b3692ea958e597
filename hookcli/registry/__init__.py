"""The registry of plugins. Finding a plugin reads metadata only; loading imports that one.

Built-in plugins are listed in `built_in`, or in the manifests of capabilities; other distributions declare theirs as
entry points in the groups `hookcli.sources`, `hookcli.probes`, `hookcli.reporters`, `hookcli.checks` and
`hookcli.edits`, or together as a `hookcli.capabilities`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

from hookcli.errors import PluginError, UserCode, in_brief, unknown
from hookcli.registry.built_in import built_in
from hookcli.registry.capability import any_declared, broken, capabilities, declared, load_text
from hookcli.registry.interfaces import misfit
from hookcli.registry.pieces import failures

KINDS = ("sources", "probes", "reporters", "checks", "edits")


@dataclass(frozen=True, slots=True, order=True)
class Plugin:
    """A plugin that was found, not loaded. `target` is `module:attribute`; `distribution` provides it."""

    kind: str
    name: str
    target: str
    distribution: str

    def load(self) -> object:
        """Import the plugin's object. Raises PluginError, naming the distribution, for any error in it."""
        failed = UserCode(lambda error: PluginError(f"{self} does not load: {in_brief(error)}"))
        with nullcontext() if self.built_in else failed:
            plugin = load_text(self.target)
            if not self.built_in and (wrong := misfit(self.kind, plugin)):
                raise PluginError(f"{self} is not a plugin of hookcli: {wrong}")
        if not self.built_in:
            _owners[id(plugin)] = self, plugin
        return plugin

    def __str__(self) -> str:
        return f"plugin {self.name!r} ({self.kind}, from {self.distribution})"

    @property
    def built_in(self) -> bool:
        return self.distribution == "hookcli"

    @property
    def shadowed(self) -> bool:
        """True if a built-in plugin of the same name is used instead."""
        return not self.built_in and self.name in built_in(self.kind)


_owners: dict[int, tuple[Plugin, object]] = {}  # by id(); the object is kept alive, so that its id is not reused
_remarks: dict[str, None] = {}


def external(made: object) -> Plugin | None:
    """Return the plugin of another distribution that this is, or that made this; None if it is hookcli's own."""
    return _owners.get(id(made), _owners.get(id(type(made)), (None,)))[0]


def guarded(made: object) -> AbstractContextManager[None, None]:
    """Return a context manager for calling a plugin's code; errors raised there name the plugin if it is external."""
    plugin = external(made)
    if plugin is None:
        return nullcontext()
    return UserCode(lambda error: PluginError(f"{plugin} failed: {in_brief(error)}"))


def remarks() -> dict[str, str]:
    """Return the remarks on plugins looked up, and pieces left out, so far, each once, with the traceback or ""."""
    texts = dict.fromkeys(_remarks, "") | {f"{piece} {what}": trace for piece, (what, trace) in failures.items()}
    _remarks.clear()
    failures.clear()
    return texts


@cache
def _external() -> tuple[Plugin, ...]:
    """Return the plugins that installed distributions declare, one by one or by a capability; cached."""
    if not any_declared():
        return ()
    plugins = set()
    for kind in KINDS:
        for entry, owner in declared(kind):
            plugins.add(Plugin(kind, entry.name, entry.value.replace(" ", ""), owner))
        for one in capabilities():
            if one.distribution != "hookcli":
                plugins |= {Plugin(kind, name, target, one.distribution) for name, target in one.plugins(kind).items()}
    _remarks.update(broken)
    return tuple(sorted(plugins))


def plugins(kind: str) -> Iterator[Plugin]:
    """Return every plugin of a kind without loading it, built-in plugins first."""
    for name, target in built_in(kind).items():
        yield Plugin(kind, name, target, "hookcli")
    yield from (plugin for plugin in _external() if plugin.kind == kind)


def other_owner(name: str) -> str:
    """Return the distribution that provides the probe or capability of this name; "" for hookcli itself, or none."""
    owners = {plugin.name: plugin.distribution for plugin in _external() if plugin.kind == "probes"}
    owners |= {one.name.replace("_", "-"): one.distribution for one in capabilities()}
    owner = owners.get(name, "")
    return "" if owner == "hookcli" or name in built_in("probes") else owner


def names(kind: str) -> list[str]:
    """Return the names of all plugins of a kind, each once."""
    return list(dict.fromkeys(plugin.name for plugin in plugins(kind)))


def find(kind: str, name: str) -> Plugin:
    """Return the plugin of this name, a built-in one first. Raises PluginError if none or several others have it."""
    ours = built_in(kind).get(name)
    matching = [Plugin(kind, name, ours, "hookcli")] if ours else []
    matching += (plugin for plugin in _external() if (plugin.kind, plugin.name) == (kind, name))
    for plugin in matching:
        if plugin.shadowed:
            _remarks[f"{plugin} is not used: a built-in plugin has the same name"] = None
            matching = matching[:1]  # ours come first
    if not matching:
        raise PluginError(unknown(kind.removesuffix("s"), name, names(kind)))
    if len(matching) > 1:
        owners = " and ".join(plugin.distribution for plugin in matching)
        raise PluginError(f"{kind.removesuffix('s')} {name!r} is ambiguous: {owners} both bring it; uninstall one")
    return matching[0]


def load(kind: str, name: str) -> Any:
    """Find a plugin and import its object."""
    return find(kind, name).load()
