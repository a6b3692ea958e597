"""Capabilities of hookcli: what a folder, or another distribution, adds to the command line and to what is measured."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

from hookcli.errors import PluginError, UserCode, class_name, in_brief
from hookcli.system.files import content

_FOLDER = Path(__file__).parents[1] / "capabilities"


@dataclass(frozen=True, kw_only=True, slots=True)
class RecorderOption:
    """An option of `run`, and an argument of `watch`, whose value the part of a recorder gets under this name.

    The value is a text, or None; True or False if the default is False; of one with the default (), a list of texts.
    """

    name: str
    """As an argument: "keep_bad" is --keep-bad."""
    help: str
    typed: str = ""
    """Its name on the command line, as an argument, if that is another."""
    metavar: str = ""
    default: str | bool | tuple[str, ...] | None = None
    words: Sequence[str] = ()
    """The values that it takes; none for any text."""
    folder: bool = False
    """True if the value is a folder, whose full path the part gets."""
    after: str = ""
    """The option of `run` after which it stands in the help; of several words the first that is there; "" for the end
    of its section."""
    first: bool = False
    """True if it is among the most used options, which -h shows."""
    seldom: bool = False
    """True if --help leaves it to `--help all` where it has too many options."""
    example: str = ""
    """A command line with it, for the examples of `run`."""
    searches: str = ""
    """The value with which it finds where values that are not finite begin, which advice names; "" if it doesn't."""
    read: str = ""
    """A function from the value as it is given to that which the part gets; raises UsageError."""
    check: str = ""
    """A function of a value that is not the default, and the RecordingPlan; raises UsageError where it does not fit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Capability:
    """The manifest of a capability: plain values, and texts such as "package.module:attribute", which load nothing.

    `name` names its command, its probe, its format and its flag. A capability of another distribution is an entry
    point of the group `hookcli.capabilities` with this name.
    """

    name: str
    page: str
    """Where its documentation is: a page below docs/, or an address."""
    after: str = ""
    """The command after which its own stands in the help, under the same question, or the format after which its own
    stands; of several words the first that is there; "" for the end."""
    order: int = 0
    """Its place among several that stand after the same: the lowest first, and of one number in the order of names."""
    question: str = ""
    """The heading in the help under which its command stands first; "" for the place that `after` gives."""
    summary: str = ""
    """The first line of its command's help."""
    command: str = ""
    """The module of its command, with a function of the capability's name, `_` for `-`; "" for the probe on a model, as
    it is."""
    probe: str = ""
    """Its probe, a class."""
    source: str = ""
    """Its source of models, a class; a specification that names it begins with the capability's name."""
    suffix: str = ""
    """The suffix of the files that its source serves by their name alone: ".gguf"."""
    reporter: str = ""
    """Its format, a class of a reporter or exporter: --format NAME."""
    extra: str = ""
    """The extra of hookcli with which pip installs the library that it needs."""
    checks: Mapping[str, str] = field(default_factory=dict)
    """Its checks, classes by id."""
    check_options: str = ""
    """The options that `check` and `report` have for its checks: a dataclass of fields made by
    `hookcli.commands.option_fields.option`, `after` the option that they follow."""
    measures: str = ""
    """A function that measures what no probe sees: from a `hookcli.engine.examiner.Subject` to the report that its
    checks read in `measured.probes`, under its name."""
    as_checked: str = ""
    """A function from the options, the step's options and the settings of a check to the words with which its command
    shows what its checks judged."""
    columns: str = ""
    """The columns that it declares: names with rules that hold in every report."""
    recorder: str = ""
    """Its part of a recorder: a `hookcli.record.observe.parts.RecorderPart`, made with the values of `options`."""
    options: Sequence[RecorderOption] = ()
    """The options of `run` for this part."""
    recorded_if_asked: bool = False
    """True if a run has this part only where one of these options is given."""
    charts: str = ""
    """Charts on the page of a record: titles by the columns of the one row that its part reports of a step."""
    lines: str = ""
    """The kinds of lines that this part writes into a record, each a `PartLine`."""
    headline: str = ""
    """A function from a record to the line, or the lines, that stand first in what is said of it; "" for none."""
    headline_place: int = 0
    """Where this stands among others' entries: the lowest first."""
    fault: str = ""
    """A function that says why `run` ends with exit code 1, given this part's options, or ""; its arguments are the
    record, and True if the summary has said more."""
    remark_on_ranks: str = ""
    """A function from a record of several ranks to a remark below them, or ""."""
    flag: str = ""
    """The help of the option --NAME of `run` and `check`, which adds the probe to what they measure; "" without one."""
    hooks: Mapping[str, str] = field(default_factory=dict)
    """The commands that show kinds of hooks, by kind: the rest of a command line, as in the list of `plugins`."""
    layout: str = ""
    """The columns of its report, if a saved report's columns leave a narrow table in another order than usual: this is
    the order."""
    reports: Sequence[str] = ()
    """The names of further reports of its command, to which the settings below apply as well."""
    complete: bool = False
    """True if each row of its reports has a value in every column, so that a saved report without one is damaged."""
    on_one_rank: bool = False
    """True if its command runs on rank 0 alone where torchrun has started several."""
    writes: bool = False
    """True if the --output of its command names what it writes besides the report."""
    shortens: bool = False
    """True if its command has --depth, which shows in full the lines below its table; else a screen shows two."""
    pictures: Sequence[str] = ()
    """The kinds of pictures that its reports can be drawn as, for formats that only some commands have: "moments"."""
    adds_to: Mapping[str, str] = field(default_factory=dict)
    """A few words on what its command shows besides, which stand below the reports of other commands, by command."""
    side: str = ""
    """A kind of side that `diff` compares, a `hookcli.commands.diff_kinds.Side`."""
    parting: str = ""
    """A function from two records and the model's name in each to two texts: where their runs part, and the command
    that tells more; both may be ""."""
    compares: bool = False
    """True if `diff` compares its saved reports, although their rows are a list."""
    hints: Mapping[str, str] = field(default_factory=dict)
    """Words for notes of the core, by the subject of the note: what its command, or its option, tells besides. Those on
    "help of COMMAND" are the last paragraph of that command's help; those on "command WORD" the command line, without
    `hookcli`, for another tool's name of its command, `{}` for the words that follow."""
    view: str = ""
    """The script of its part of a page, "package:file.js", beside its other scripts and styles: an ES module that calls
    `addPart` of `parts.js`. Pages of a model measure the probe for it, in a run without values."""
    library: str = ""
    """A library that this part needs, of those in hookcli/reporters/html/assets/vendor."""
    drawing: str = ""
    """How --format dot, svg and png draw its reports: a function of a graph (`reporters/digraph.py`), a report and its
    depth."""
    drawn: Sequence[str] = ()
    """The columns by which a report that is drawn so is known."""
    distribution: str = "hookcli"
    """The distribution that provides it; found, not given."""

    def __post_init__(self) -> None:
        """Raises TypeError for a field of another type than it is declared with."""
        for name, kind in _TYPES.items():
            if not isinstance(value := getattr(self, name), kind):
                raise TypeError(f"{name} must not be {class_name(value)}")

    def __str__(self) -> str:
        return f"capability {self.name!r} (from {self.distribution})"

    def plugins(self, kind: str) -> Mapping[str, str]:
        """Its plugins of this kind, by name."""
        by_kind: Mapping[str, Mapping[str, str]] = {
            "probes": {self.name: self.probe},
            "sources": {self.name: self.source},
            "reporters": {self.name: self.reporter},
            "checks": self.checks,
        }
        return {name: target for name, target in by_kind.get(kind, {}).items() if target}


_TYPES: Mapping[str, type | tuple[type, ...]] = {
    each.name: {"str": str, "int": int, "bool": bool}.get(
        str(each.type), Mapping if str(each.type).startswith("Mapping") else (list, tuple)
    )
    for each in fields(Capability)
}


def recorder_options() -> dict[str, RecorderOption]:
    """The options of all parts of a recorder, by name; of two with one name the first."""
    by_name: dict[str, RecorderOption] = {}
    for option in (option for one in capabilities() for option in one.options):
        by_name.setdefault(option.name, option)
    return by_name


def search_option() -> RecorderOption | None:
    """The option of `run` that finds where values that are not finite begin; None without a part that does."""
    return next((option for option in recorder_options().values() if option.searches), None)


def search_words() -> list[str]:
    """This option as it is typed, such as --NAME VALUE; none without it."""
    option = search_option()
    return [f"--{(option.typed or option.name).replace('_', '-')}", option.searches] if option else []


def hint(subject: str) -> str:
    """What a capability tells besides on this subject of the core's notes; "" for nothing."""
    return next((one.hints[subject] for one in capabilities() if subject in one.hints), "")


def file_sources() -> dict[str, str]:
    """The sources of models that serve files by their name alone, by suffix."""
    return {one.suffix: one.name for one in capabilities() if one.suffix}


def file_source(spec: str) -> str:
    """The source of models that serves a file of this name; "" if none does."""
    return next((name for suffix, name in file_sources().items() if spec.endswith(suffix)), "")


def load_text(target: str) -> Any:
    """Import the object that a manifest or an entry point names as "package.module:attribute", or a module."""
    name, _, attribute = target.partition(":")
    module = import_module(name)
    return attrgetter(attribute)(module) if attribute else module


@cache
def capabilities() -> Sequence[Capability]:
    """All capabilities: hookcli's own, then other distributions', each in the order of their names, but one
    that comes `after` another behind that.

    A manifest of another distribution that can't be read is left out, and `broken` says why. Of two with one name the
    first is taken; `require_no_two` raises.
    """
    own = (path.parent.name for path in _FOLDER.glob("*/__init__.py"))
    manifests: list[Capability] = [import_module(f"hookcli.capabilities.{name}").CAPABILITY for name in sorted(own)]
    for entry, owner in (
        sorted(declared("capabilities"), key=lambda manifests: manifests[0].name) if any_declared() else ()
    ):
        named = f"capability {entry.name!r} (from {owner})"
        try:
            with UserCode(partial(_unloaded, named)):
                manifest = entry.load()
                if not isinstance(manifest, Capability):
                    raise PluginError(f"{named} is not a Capability, but {class_name(manifest)}")
                manifests.append(replace(manifest, name=entry.name, distribution=owner))
        except PluginError as error:
            broken[str(error)] = None
    by_name: dict[str, Capability] = {}
    for one in manifests:
        if one.name in by_name:
            owners = f"{by_name[one.name].distribution} and {one.distribution}"
            _ambiguous.append(f"capability {one.name!r} is ambiguous: {owners} both bring it; uninstall one")
        by_name.setdefault(one.name, one)
    return each_after_its_own(by_name)


def each_after_its_own(by_name: Mapping[str, Capability]) -> tuple[Capability, ...]:
    """The capabilities in this order, but each behind the one that it comes `after`."""
    ordered: dict[str, Capability] = {}
    for one in by_name.values():
        chain = [one]
        while (before := by_name.get(first_there(chain[-1].after, by_name))) and before not in chain:
            chain.append(before)
        ordered |= {each.name: each for each in reversed(chain)}
    return tuple(ordered.values())


def first_there(words: str, names: Container[str]) -> str:
    """The first of these words that is one of the names; "" if none is."""
    return next((word for word in words.split() if word in names), "")


def _unloaded(named: str, error: BaseException) -> PluginError:
    return PluginError(f"{named} does not load: {in_brief(error)}")


broken: dict[str, None] = {}
"""Why manifests of other distributions were left out."""
_ambiguous: list[str] = []


def require_no_two() -> None:
    """Raises PluginError if two capabilities have one name."""
    capabilities()
    if _ambiguous:
        raise PluginError(_ambiguous[0])


def require_distinct(owner: str, own: Collection[str], added: Iterable[tuple[str, Capability]]) -> None:
    """Raises PluginError if a capability adds an option that `owner` has as its own, or that another one adds."""
    holders = dict.fromkeys(own, owner)
    for name, one in added:
        if name in holders:
            both = f"{holders[name]} and {one}"
            raise PluginError(f"option {name} is ambiguous: {both} both have it; uninstall {one.distribution}")
        holders[name] = str(one)


def placed(core: Mapping[str, Sequence[str]], added: Sequence[Capability]) -> dict[str, tuple[str, ...]]:
    """The names of commands, or formats, under each heading, each of the added ones where its manifest says.

    Several that name one command follow it in the order of their numbers.
    """
    lists = {heading: list(names) for heading, names in core.items()}
    every = {one.name for one in added}.union(*core.values())
    last: dict[str, str] = {}
    for one in sorted(added, key=lambda one: one.order):
        if one.question and one.question in lists:
            lists[one.question].insert(0, one.name)
            continue
        after = first_there(one.after, every)
        before = last.get(after, after)
        names = next((names for names in lists.values() if before in names), [*lists.values()][-1])
        names.insert(names.index(before) + 1 if before in names else len(names), one.name)
        last[after] = one.name
    return {heading: tuple(names) for heading, names in lists.items()}


def declared(kind: str) -> Iterator[tuple[Any, str]]:
    """The entry points of this kind that installed distributions declare, each with the distribution."""
    from importlib.metadata import entry_points

    for entry in entry_points(group=f"hookcli.{kind}"):
        yield entry, f"{entry.dist.name} {entry.dist.version}" if entry.dist else "unknown distribution"


def any_declared() -> bool:
    """Return whether a distribution on sys.path may declare plugins; ten times as fast as `importlib.metadata`."""
    for place in map(Path, sys.path):
        if place.is_file():
            return True  # a zip file: leave it to those who can read it
        with suppress(OSError), os.scandir(place) as folders:
            for folder in folders:
                if folder.name.endswith((".dist-info", ".egg-info")):
                    with suppress(OSError):
                        if b"[hookcli." in content(Path(folder, "entry_points.txt")):
                            return True
    return False
