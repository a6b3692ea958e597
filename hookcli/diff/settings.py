"""The settings of modules that differ between two models (a stride, an epsilon, a probability), and classes that do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from hookcli.diff.align import Alignment
from hookcli.table import Finding
from hookcli.table.formatting import counted, listed
from hookcli.table.names import in_words

ERROR, NOTE = "error", "note"
_ABSENT = "nothing"
_NAMED = 3
_ALLOW = "--allow-settings"
_ALLOWED = ", as allowed"
_IN_TRAINING = ", which acts only in train mode"
_ON_GRADIENTS = ", which acts only on gradients"
_NEVER = ", which changes no figure"


@dataclass(frozen=True)
class ChangedSettings:
    """The settings of one module, by A's name, that differ: `1e-05 → 1e-06` by name.

    `idle` has, for those that can't change a figure of this run, the reason as the end of a sentence.
    """

    fqn: str
    type: str
    changes: Mapping[str, str]
    idle: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """In words: eps 1e-05 → 0.01, momentum 0.1 → 0.2."""
        return ", ".join(f"{name} {change}" for name, change in self.changes.items())


class Cause(NamedTuple):
    """Modules that differ in the same way by themselves, whatever they received, in a sentence.

    `severity` as in a finding: an error, or a note where the settings are allowed to differ; "" if other findings
    tell of it. `acts`: the difference can change a figure of this run. `names`: the settings' names.
    """

    fqns: Sequence[str]
    sentence: str
    severity: str
    acts: bool
    names: str = ""


def changes_of(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, str]:
    """The settings that differ: `1e-05 → 0.01` by name."""
    both = {name: (old.get(name, _ABSENT), new.get(name, _ABSENT)) for name in {**old, **new}}
    changed = {name: (x, y) for name, (x, y) in both.items() if x != y and repr(x) != repr(y)}  # NaN is equal to NaN
    return {name: f"{_text(x)} → {_text(y)}" for name, (x, y) in changed.items()}


def why_idle(kind: str, name: str, *, trains: bool, backward: bool) -> str:
    """The reason why a setting of a class can't change a figure of a run, as the end of a sentence; "" if it can.

    A setting that is not known to be without effect has one.
    """
    drops = any(word in text.lower() for text in (kind, name) for word in ("drop", "stochasticdepth"))
    if not trains and (drops or (name == "momentum" and "Norm" in kind)):
        return _IN_TRAINING
    if not backward and kind == "Embedding" and name in ("padding_idx", "scale_grad_by_freq", "sparse"):
        return _ON_GRADIENTS
    return _NEVER if name == "inplace" else ""


def causes(settings: Iterable[ChangedSettings], alignment: Alignment, allowed: Sequence[str]) -> list[Cause]:
    """What differs in the modules themselves: settings, of which those `allowed` match, and the classes of leaves."""
    groups: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for module in settings:
        remarks: dict[str, list[str]] = {}
        for name in module.changes:
            permitted = _ALLOWED if any(fnmatchcase(name, pattern) for pattern in allowed) else ""
            remarks.setdefault(module.idle.get(name) or permitted, []).append(name)
        for remark, names in remarks.items():
            changed = tuple(f"{name} ({module.changes[name]})" for name in names)
            groups.setdefault((module.type, remark, changed), []).append(module.fqn)
    differing = []
    for (kind, remark, changed), fqns in groups.items():
        more = [f"{len(changed) - _NAMED} more"] if changed[_NAMED:] else []
        *most, last = [*changed[:_NAMED], *more]
        what = f"{', '.join(most)} and {last}" if most else last
        sentence = f"{_who(fqns, kind)}: changed {what}{remark}"
        settings_changed = ", ".join(text.partition(" (")[0] for text in changed)
        differing.append(Cause(fqns, sentence, NOTE if remark else ERROR, remark in ("", _ALLOWED), settings_changed))
    return differing + list(_retyped(alignment))


def _retyped(alignment: Alignment) -> Iterator[Cause]:
    """The modules without parts whose class differs, which is what a refactoring may do."""
    containers = {fqn.rpartition(".")[0] for pair in alignment.pairs for fqn in (a.fqn for a in pair)}
    groups: dict[tuple[str, str], list[str]] = {}
    for a, b in alignment.pairs:
        if a.type != b.type and not a.is_operator and a.fqn not in containers and b.fqn not in containers:
            groups.setdefault((a.type, b.type), []).append(a.fqn)
    for (old, new), fqns in groups.items():
        which = f"is {new}" if len(fqns) == 1 else f"are {new}s"
        yield Cause(fqns, f"{_who(fqns, old)} {which} in B", "", acts=True)


def _who(fqns: Sequence[str], kind: str) -> str:
    return f"{in_words(fqns[0])} ({kind})" if len(fqns) == 1 else counted(len(fqns), kind)


def sentences(of: Sequence[Cause]) -> str:
    """The causes in one sentence, the first of many."""
    more = [f"and {counted(len(of) - _NAMED, 'more such difference')}"] if of[_NAMED:] else []
    return "; ".join([*(cause.sentence for cause in of[:_NAMED]), *more])


def findings_of(differing: Iterable[Cause], check: str) -> list[Finding]:
    """A finding for each cause that no other finding tells of, at the first of its modules."""
    findings = []
    for cause in differing:
        if cause.severity:
            remedy = f"{_ALLOW} {cause.names.replace(' ', '')}" if cause.severity == ERROR else ""
            findings.append(Finding(check, cause.severity, cause.fqns[0], cause.sentence, remedy=remedy))
    return findings


def advice(findings: Iterable[Finding]) -> str:
    """The option that allows the settings of these findings to differ; "" if there are none."""
    names = dict.fromkeys(finding.remedy.removeprefix(f"{_ALLOW} ") for finding in findings if finding.remedy)
    return f"{_ALLOW} {','.join(names)}" if names else ""


def settings_line(of: Iterable[Cause]) -> str:
    """The modules of the causes that a verdict only counts; "" if there are none."""
    many = [cause for cause in of if cause.names and cause.fqns[1:]]
    named = [f"{cause.names} in {listed([*map(in_words, cause.fqns)], _NAMED)}" for cause in many]
    return f"settings differ: {'; '.join(named)}" if named else ""


def _text(value: Any) -> str:
    """A value as Python writes it; equal numbers are written once."""
    if isinstance(value, (list, tuple)) and value:
        same = len({str(item) for item in value}) == 1 and not isinstance(value[0], (list, tuple))
        return _text(value[0]) if same else "x".join(map(_text, value))
    return str(value)
