"""Patterns that would let a blocked export pass, tried before they are suggested."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path

from hookcli.hooks.packaging import BlockedError, PackagedModule, Rule, idle_rules, rehearse

_INSTALLED = ("site-packages", "dist-packages")
_ROUNDS = 20  # each opens a level of imports at most
_PASSES_ANYTHING = (Rule("extern", "**"),)


def suggestion(rules: Iterable[Rule], modules: Sequence[PackagedModule]) -> list[Rule]:
    """The rules, with what lets all these modules pass: one's own code interned, installed packages extern.

    What no rule decided is added behind, what a rule decided in a way that can't be goes before it. Rules that have
    no effect any more are left out.
    """
    roots = [m.name for m in modules if m.needed_by.startswith("<")]
    tried = list(rules)
    found = list(modules)
    for _ in range(_ROUNDS):
        if not any(m.problem for m in found):
            without_effect = [rule for rule, _ in idle_rules(tried, found)]
            return [rule for rule in tried if rule not in without_effect]
        tried = _amended(tried, [m for m in found if m.problem])
        try:
            found = rehearse(roots, tried)
        except BlockedError as error:
            found = list(error.modules)
    return list(_PASSES_ANYTHING)


def _amended(rules: Sequence[Rule], blocked: Sequence[PackagedModule]) -> list[Rule]:
    before = dict.fromkeys(_way_out(m) for m in blocked if m.action)
    behind = dict.fromkeys(_way_out(m) for m in blocked if not m.action)
    return list(dict.fromkeys([*before, *rules, *behind]))


def _way_out(module: PackagedModule) -> Rule:
    failed = module.action == "intern"  # then it has no source that could be interned
    kind = "intern" if not failed and _is_own(module.name) else "extern"
    return Rule(kind, module.top if _stands_alone(module.top) else f"{module.top}.**")


def _is_own(name: str) -> bool:
    """Whether a module's source lies outside of where packages are installed."""
    file = _file(name)
    if name.partition(".")[0] in sys.stdlib_module_names or file is None:
        return False
    return file.suffix == ".py" and not any(part in _INSTALLED for part in file.parts)


def _stands_alone(top: str) -> bool:
    """Whether a top-level module has no modules in it."""
    module = sys.modules.get(top)
    return module is not None and not hasattr(module, "__path__")


def _file(name: str) -> Path | None:
    try:
        file = getattr(import_module(name), "__file__", None)
    except Exception:  # whatever it raises, it can't be known to be one's own
        return None
    return Path(file) if file else None
