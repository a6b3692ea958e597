"""Declares options: fields of dataclasses, which become parameters of a command."""

from __future__ import annotations

import functools
import inspect
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import MISSING, Field, field, fields, is_dataclass
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from hookcli.errors import UsageError, unknown
from hookcli.registry.capability import Capability, first_there, require_distinct

T = TypeVar("T")

MOST_RUNS = 10**6
"""The greatest number of passes, steps or repetitions: hours of work, which a slip of the keyboard should not begin."""
GREATEST_TOLERANCE = 1e9
"""For --rtol and --atol."""


def option(default: object, text: str | None, *names: str, **settings: object) -> Any:
    """A field of a dataclass of options: its default (`list` for a repeatable one) and help.

    `settings`: typer.Option's, and `short`, a name like -q; `words`, the values that it takes; `panel`, its
    heading in help, by default the `panel` of the dataclass, or Options; `after`, another field, if not the one before
    is to precede it; `seldom`, True if --help leaves it to `--help all` where it has too many; `meant_by`, names that
    people type for it, as other tools have it: the error on one suggests it; and `blank`, True if "" is a value of it,
    as the name of the model itself. It is named after the field. A number with a `min` goes up to MOST_RUNS, unless it
    has a `max`.
    """
    if "min" in settings:
        settings.setdefault("max", MOST_RUNS)
    initial: Any = {"default_factory": list} if default is list else {"default": default}
    return field(**initial, metadata={"help": text, "names": names, **settings})


def tolerance_option(text: str, **settings: object) -> Any:
    """An option for a tolerance."""
    return option(None, text, metavar="X", min=0, max=GREATEST_TOLERANCE, **settings)


def choice(default: object, text: str, words: Sequence[str], **settings: object) -> Any:
    """An option that takes one of these words, which its help lists."""
    return option(default, text, words=words, metavar="|".join(words), **settings)


def _declared(kind: Any, one: Field[object]) -> object:
    """The option of a field, for Typer; a switch has one name, that which changes its default."""
    owner = next(base for base in reversed(kind.__mro__) if one.name in getattr(base, "__dataclass_fields__", ()))
    settings: dict[str, Any] = {"panel": getattr(owner, "panel", None), **one.metadata}
    names, short, panel = settings.pop("names"), settings.pop("short", ""), settings.pop("panel")
    for ours in ("words", "after", "seldom", "meant_by", "blank"):
        settings.pop(ours, None)
    name = flag(one.name)
    if not names and (short or isinstance(one.default, bool)):
        names = (f"{name}/--no-{name[2:]}" if one.default is True else name, *filter(None, [short]))
    return typer.Option(*names, rich_help_panel=panel, **settings)


def flag(name: str) -> str:
    """The option of a field of this name, as typed: --batch-size."""
    return f"--{name.replace('_', '-')}"


def as_typed(options: Any, name: str) -> Iterator[str]:
    """The words of an option on a command line; none if it has its default."""
    value, typed = getattr(options, name), flag(name)
    if value == getattr(type(options)(), name):
        return
    if isinstance(value, bool):
        names = next(one for one in fields(options) if one.name == name).metadata["names"]
        on, _, off = (names[0] if names else f"{typed}/--no-{typed[2:]}").partition("/")
        yield on if value else off
        return
    for item in value if isinstance(value, list) else [value]:
        yield from (typed, str(item))


AMBIGUOUS = ("--module", "--output", "--quiet", "--debug", "--check", "--serve")
"""Options of `hookcli run` which many programs have themselves."""


def names(options: Any) -> dict[str, Field[Any]]:
    """The fields of a dataclass of options, by their names on the command line."""
    return {flag(one.name): one for one in in_order(options)}


def in_order(options: Any) -> list[Field[Any]]:
    """The fields of a dataclass of options as help lists them; one after a field that is not there comes last.

    One that comes after another stands behind all that do so already, and behind those that come after these.
    """
    there = {one.name for one in fields(options)}
    after = {one.name: first_there(one.metadata["after"], there) for one in fields(options) if "after" in one.metadata}
    placed = [one for one in fields(options) if one.name not in after]
    for one in fields(options):
        if one.name in after:
            behind, place = {after[one.name]}, len(placed)
            for number, other in enumerate(placed):
                if other.name in behind or after.get(other.name) in behind:
                    behind.add(other.name)
                    place = number + 1
            placed.insert(place, one)
    return placed


def require_new(
    command: str, options: type, bases: Sequence[type], added: Iterable[tuple[str, Capability]], own: Iterable[str]
) -> None:
    """Raises PluginError if a capability adds an option that a command has as its own, or that another one adds.

    `options`: the command's, `bases` the dataclasses of what was `added`, and `own` its further parameters.
    """
    kinds = [kind for kind in options.__mro__ if not any(issubclass(base, kind) for base in bases)]
    names = [*own, "help", *(name for kind in kinds for name in inspect.get_annotations(kind))]
    require_distinct(f"`hookcli {command}`", [*map(flag, names)], [(flag(name), one) for name, one in added])


def moved_before(own: Any, typed: Sequence[str], kept: Collection[str] = AMBIGUOUS) -> str:
    """The line of `hookcli run` with its options moved before the program, but for those that are `kept` there.

    It is "" if none stands after it.
    """
    moved, rest, words, options = list[str](), list[str](), iter(typed), names(own)
    for word in words:
        name, has_value, _ = word.partition("=")
        if name not in options or name in kept:
            rest.append(word)
        else:
            moved += [word] if has_value or options[name].default is False else [word, next(words, "")]
    before = [word for item in reversed(options.values()) for word in as_typed(own, item.name)]  # -m last
    return shlex.join(["hookcli", "run", *before, *moved, *rest]) if moved else ""


def words_of(texts: Iterable[str]) -> list[str]:
    """The words of a repeatable option that takes several at once, as in `a,b`."""
    return [word.strip() for text in texts for word in text.split(",") if word.strip()]


def check_choice(option: str, word: str | None, words: Sequence[str]) -> None:
    """Raises UsageError unless the word is one of these, or None."""
    if word is not None and word not in words:
        raise UsageError(unknown(option, word, words), option=option.removeprefix("--").replace("-", "_"))


class OnlyFields(frozenset[str]):
    """Metadata of an annotated dataclass of options: the fields that a command has; the others keep their defaults."""


def takes_options(function: Callable[..., T]) -> Callable[..., T]:
    """The command with a parameter for each field of its dataclass parameters, which it gets filled.

    Such a parameter may be `Annotated` with the `OnlyFields` that this command has. The command raises UsageError for a
    value that is not among the `words` of its option, and for an empty path.
    """
    hints = get_type_hints(function, include_extras=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, tuple[Callable[..., Any], list[str]]] = {}
    for parameter in inspect.signature(function).parameters.values():
        hint = hints[parameter.name]
        kind, only = _dataclass_of(hint)
        if kind:
            added = [*_parameters(kind, only)]
            groups[parameter.name] = kind, [one.name for one in added]
            parameters += added
        else:
            parameters.append(parameter.replace(annotation=hint, kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(function)
    def command(**values: object) -> T:
        filled = {name: kind(**{key: values.pop(key) for key in keys}) for name, (kind, keys) in groups.items()}
        for options in filled.values():
            for one in fields(options):
                name, value = flag(one.name), getattr(options, one.name)
                if words := one.metadata.get("words"):
                    check_choice(name, value, words)
                metavar = one.metadata.get("metavar") or ""
                optional = one.metadata.get("blank") or metavar.startswith("[")  # those may stand alone
                if value in ("", [""]) and metavar and not optional:
                    raise UsageError(f"{name}: a value is missing; give {name} {metavar}", option=one.name)
        return function(**values, **filled)

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


def fields_of(function: Callable[..., object]) -> list[Field[Any]]:
    """The fields of a function's dataclass parameters that its command has as options."""
    hints = get_type_hints(function, include_extras=True).values()
    kinds = [(kind, only) for kind, only in map(_dataclass_of, hints) if kind]
    return [one for kind, only in kinds for one in fields(kind) if only is None or one.name in only]


def seldom_used(function: Callable[..., object]) -> frozenset[str]:
    """The fields of a function's dataclass parameters that are declared as `seldom` used."""
    return frozenset(one.name for one in fields_of(function) if one.metadata.get("seldom"))


def instead_of(function: Callable[..., object]) -> dict[str, str]:
    """The options to suggest for names of other tools, by these, as a function's dataclass parameters declare them."""
    return {name: flag(one.name) for one in fields_of(function) for name in one.metadata.get("meant_by", ())}


def _dataclass_of(hint: Any) -> tuple[Any, OnlyFields | None]:
    """The dataclass of options that a parameter is annotated with, and the fields that its command has if not all."""
    kind = getattr(hint, "__origin__", hint)
    only = next((item for item in getattr(hint, "__metadata__", ()) if isinstance(item, OnlyFields)), None)
    return (kind, only) if is_dataclass(kind) else (None, None)


def _parameters(kind: Any, only: OnlyFields | None) -> Iterator[inspect.Parameter]:
    """A parameter for each field of a dataclass; a list is Typer's own for each call."""
    hints = get_type_hints(kind, include_extras=True)
    for one in in_order(kind):
        if only is None or one.name in only:
            default = one.default if one.default is not MISSING else []
            hint: object = Annotated[hints[one.name], _declared(kind, one)] if one.metadata else hints[one.name]
            yield inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
