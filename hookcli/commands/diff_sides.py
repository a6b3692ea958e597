"""Parses the sides of `hookcli diff`, each a small command line, and builds their models."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hookcli.commands.diff_files import example
from hookcli.commands.diff_kinds import EXAMPLE, kinds_of, require_model
from hookcli.commands.mistakes import ending_in_example, mistake
from hookcli.commands.model import find_recipe
from hookcli.commands.option_fields import OnlyFields, as_typed, choice, names, option, takes_options
from hookcli.commands.options import BUILDING, LookOptions, Model, Options
from hookcli.commands.probe_command import setting_of
from hookcli.commands.typer_classes import typed_names, with_values
from hookcli.errors import UsageError, shortened
from hookcli.hooks.option_values import AMP, ATTENTION
from hookcli.sources.identity import source_of
from hookcli.system.files import is_folder
from hookcli.table.files import looks_saved

if TYPE_CHECKING:
    import torch

    from hookcli.engine.batches import DataBatches
    from hookcli.engine.lockstep.lockstep import SourceTree
    from hookcli.engine.prepare import PreparedRun
    from hookcli.engine.setting import Feedback, Setting
    from hookcli.hooks.torch_private.programs import Compile
    from hookcli.sources.base import Recipe

# The options that a side may have for itself; both sides share the input.
_COMPUTES = ("device", "dtype", "fastpath", "edit")
OWN = (*BUILDING, "train", *_COMPUTES)
_SWITCHES = {"train": "--train/--eval", "strict": "--no-strict", "fastpath": "--no-fastpath"}
_NAMES = [f"--{name}" for name in OWN if name not in _SWITCHES]


@dataclass(frozen=True)
class SideOptions(LookOptions):
    """The options that only a side has."""

    amp: str | None = choice(None, "Run under torch.autocast [bfloat16].", AMP)
    attention: str | None = choice(None, "The kernel of scaled_dot_product_attention.", ATTENTION)
    path: str | None = option(None, "Import the model from this folder.", metavar="DIR")


_ALONE = [*names(SideOptions)]
_FLAGS = (*_NAMES, *_ALONE, *_SWITCHES.values())
_TYPED = {"--emulate-casts": "--compile --emulate-casts", "--attention": "--attention math", "--path": "--path DIR"}
_QUOTED = "{} is an option of one side: put it into the quotes of that side, as in hookcli diff 'resnet18 {}'"
IN_QUOTES = {name: _QUOTED.format(name, _TYPED.get(name, name)) for name in _ALONE}


@dataclass(frozen=True)
class SideSpec:
    """A model and its options, as typed; `plain` is the text without the options on how it computes."""

    label: str
    text: str
    model: str
    options: Options
    own: SideOptions = SideOptions()
    plain: str = ""

    @property
    def file(self) -> str | None:
        """The saved report that the side names, if any."""
        return self.text if looks_saved(self.text) else None


def both_sides(a: str, b: str | None, shared: Options) -> tuple[str, str]:
    """The sides as typed. Without B, A's own options on how it computes belong to B alone. Raises UsageError."""
    if b is not None:
        return a, b
    plain = a if kinds_of(a) or is_folder(a) else parse_side("B", a, shared).plain
    if plain == a:
        raise UsageError("diff needs a second model, or options that B alone has, in quotes with it: 'resnet50 --amp'")
    return plain, a


def parsed_sides(a: str, b: str, shared: Options) -> list[SideSpec]:
    """Parse both sides, of which each is a model or a saved report. Raises UsageError, with an example."""
    with ending_in_example(example((a, b), EXAMPLE)):
        return [parse_side(label, text, shared) for label, text in (("A", a), ("B", b))]


def parse_side(label: str, text: str, shared: Options) -> SideSpec:
    """Parse a side. Its own options override the shared ones. Raises UsageError for invalid ones."""
    require_model(label, text)
    if looks_saved(text):
        return SideSpec(label, text, text, shared)
    if is_folder(text):
        raise UsageError(f"{label} {text!r}: is a folder without index.json, so no dump")
    app = typer.Typer(add_completion=False, context_settings={"help_option_names": []})
    app.command()(takes_options(_side))
    try:
        model, own, alone = app(args=with_values(shlex.split(text)), prog_name=label, standalone_mode=False)
    except ValueError as error:  # an unclosed quotation mark
        raise UsageError(f"{label} {text!r}: {error}") from error
    except typer.TyperException as error:
        about = f"its own options are {', '.join(_FLAGS)}; put all others outside the quotes"
        raise UsageError(f"{label} {text!r}: {mistake(error)} ({about})") from error
    computes = [*set(own).difference(_COMPUTES), *(["path"] if alone.path else [])]
    if len(computes) == len(own) + sum(bool(getattr(alone, one.name)) for one in fields(alone)):
        plain = text
    else:
        options = replace(Options(), **own)
        words = (word for name in OWN if name in computes for word in as_typed(options, name))
        plain = shlex.join([model, *words, *as_typed(alone, "path")])
    # Repeatable options add to the shared ones.
    own |= {name: [*getattr(shared, name), *value] for name, value in own.items() if isinstance(value, list)}
    return SideSpec(label, text, model, replace(shared, **own), alone, plain)


def _side(
    ctx: typer.Context,
    model: Model,
    *,
    alone: SideOptions,
    options: Annotated[Options, OnlyFields(OWN)],
) -> tuple[str, dict[str, object], SideOptions]:
    """The model, its own options as given, and the options that only a side has."""
    return model, {name: getattr(options, name) for name in typed_names(ctx).intersection(OWN)}, alone


@dataclass
class BuiltSide:
    """A side's model with its recipe, setting and source tree; `compiled` are the parts that it came with compiled."""

    spec: SideSpec
    recipe: Recipe
    setting: Setting
    prepared: PreparedRun
    tree: SourceTree | None
    compiled: dict[str, Compile]


def build(spec: SideSpec, backward: bool, feedback: Feedback) -> BuiltSide:
    """Build a side's model, in a source tree of the side's if its code comes from files."""
    from hookcli.engine.prepare import prepare_run
    from hookcli.engine.setting import META
    from hookcli.hooks.torch_private.programs import unwrapped

    train = backward if spec.options.train is None else spec.options.train
    setting = replace(setting_of(spec.options, train, targets=backward), needs_input=False, data=None)
    if setting.device == META:
        raise UsageError("--device meta: no values to compare")
    tree, place = _source(spec)
    with tree() if tree else nullcontext():
        recipe = find_recipe(place, spec.options)
        recipe.require_gradients(backward)
        run = prepare_run(recipe, setting, feedback=feedback)
        return BuiltSide(spec, recipe, setting, run, tree, unwrapped(run.model))


def _source(spec: SideSpec) -> tuple[SourceTree | None, str]:
    """The source tree of a side, and its model's spec relative to the working directory."""
    from hookcli.engine.lockstep.lockstep import SourceTree

    place, _, name = spec.model.rpartition(":")
    source, _ = source_of(spec.model)
    path = spec.own.path
    if path and not is_folder(path):
        raise UsageError(f"--path {shortened(path)}: no such folder")
    if source != "importpath":
        if path:
            raise UsageError(f"--path {path}: {spec.model} is a {source} model, not code in a folder")
        return None, spec.model
    folder = Path(path or ".")
    if place.endswith(".py") or "/" in place:
        file = folder / place
        return SourceTree(file.parent), f"{file}:{name}"
    return SourceTree(folder), spec.model


@dataclass(frozen=True)
class CommonInput:
    """The input of both sides: of each the `first` batch, in words, and all batches of real input."""

    first: Sequence[Any]
    described: str
    casts: Sequence[tuple[torch.device, torch.dtype | None]]
    data: DataBatches | None = None

    def each(self) -> Iterator[tuple[Any, object, object]] | None:
        """Every batch for both sides, in their own memory, with its target; None unless several are run."""
        from hookcli.engine.inputs import cast_to
        from hookcli.engine.preserve import copied

        if not (self.data and self.data.several):
            return None
        return ((*(copied(cast_to(x.inputs, *cast)) for cast in self.casts), x.target) for x in self.data.each())

    def of_side(self, number: int) -> DataBatches | None:
        """Open the batches again for one side, which runs separately."""
        return self.data.cast(*self.casts[number]) if self.data else None


def common_input(a: BuiltSide, b: BuiltSide, options: Options, train: bool) -> CommonInput:
    """The input for both sides. It is made once, in the wider dtype, then cast and moved for each.

    A's source knows the input, else B's. Real input, and an example that a model comes with, are cast only for a side
    of another dtype. Raises UsageError if neither source knows an input.
    """
    import torch

    from hookcli.engine.batches import DataBatches
    from hookcli.engine.inputs import cast_to, inputs_for
    from hookcli.engine.run_info import model_dtype

    setting = setting_of(options, train, targets=a.setting.targets)
    setting = replace(setting, dtype=None, device=torch.device("cpu"), needs_input=False)
    dtypes = [model_dtype(side.prepared.model) for side in (a, b)]
    for built, own in zip((a, b), dtypes, strict=True):
        data = DataBatches(built.recipe, built.prepared.model, setting) if setting.data else None
        if data:
            made, described = data.first.inputs, data.first.described
        else:
            made, described = inputs_for(built.recipe, built.prepared.model, setting, torch.promote_types(*dtypes))
        if described:
            generated = not data and bool(setting.inputs or built.recipe.inputs)
            casts = [
                (side.setting.device, dtype if generated or side.setting.dtype or dtype != own else None)
                for side, dtype in zip((a, b), dtypes, strict=True)
            ]
            return CommonInput([cast_to(made, *cast) for cast in casts], described, casts, data)
    inputs_for(a.recipe, a.prepared.model, replace(setting, needs_input=True))  # raises, and says what is missing
    raise AssertionError
