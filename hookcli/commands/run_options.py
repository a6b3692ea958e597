"""Options of a run that several commands share: what to differentiate, and real input."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, make_dataclass
from typing import TYPE_CHECKING, Annotated, Any

from hookcli.commands.option_fields import OnlyFields, check_choice, choice, option
from hookcli.commands.options import DATA, GRADIENTS, Options
from hookcli.errors import UsageError, shortened
from hookcli.hooks.option_values import FURTHER_PROBES, VECTORS
from hookcli.registry.capability import RecorderOption, recorder_options

if TYPE_CHECKING:
    from hookcli.engine.step import Step
    from hookcli.sources.data.base import Data


def loss_option() -> Any:
    """The option --loss, of all commands that run backward."""
    text = (
        "sum, mean, cross-entropy, file.py:fn, an output's key; fn makes a scalar of the output, a key is such as "
        "losses.total [the model's own, or by kind of model]."
    )
    return option(None, text, panel=GRADIENTS, metavar="NAME")


if TYPE_CHECKING:

    @dataclass(frozen=True)
    class FurtherProbes:
        """Options that add FURTHER_PROBES to what a command measures."""

    @dataclass(frozen=True)
    class PartOptions:
        """Options for the parts of capabilities in a recording."""

else:

    def _of_part(one: RecorderOption) -> tuple[str, object, Any]:
        default = list if one.default == () else one.default
        kind = list[str] if default is list else bool if isinstance(default, bool) else str | None
        metavar = "|".join(one.words) or one.metavar
        settings = {"metavar": metavar} if metavar else {}
        return (
            one.typed or one.name,
            kind,
            option(default, one.help, words=one.words, after=one.after, seldom=one.seldom, **settings),
        )

    PartOptions = make_dataclass(
        "PartOptions",
        [*{one.typed or one.name: _of_part(one) for one in recorder_options().values()}.values()],
        namespace={"panel": "Recording", "__module__": __name__},
        frozen=True,
    )
    FurtherProbes = make_dataclass(
        "FurtherProbes",
        [(name, bool, option(False, text, seldom=True)) for name, text in FURTHER_PROBES.items()],
        namespace={"panel": "Further probes", "__module__": __name__},
        frozen=True,
    )


@dataclass(frozen=True)
class StepOptions:
    """Parts of a command's run besides one forward, as typed; see the engine's Step."""

    panel = GRADIENTS

    loss: str | None = loss_option()
    backward_vector: str | None = choice(
        None, "Without a loss: vector for a vector-Jacobian product of the outputs.", VECTORS, seldom=True
    )
    passes: int = option(1, "Passes without zeroing: gradients accumulate.", metavar="N", min=1, seldom=True)
    call: str = "backward"
    optimizer: str | None = None
    state_dict: bool = False

    def make(self) -> Step:
        """The engine's Step. Raises UsageError for an unknown loss, and for a loss together with a vector."""
        from hookcli.engine.step import Step

        check_choice("--backward-vector", self.backward_vector, VECTORS)
        if self.loss and self.backward_vector:
            raise UsageError("--loss and --backward-vector: both choose what to differentiate; give one of them")
        loss: object = self.loss
        if self.loss and ":" in self.loss:
            from hookcli.system.importing import load_object

            loss = load_object(self.loss)
            loss = loss() if isinstance(loss, type) else loss  # a module such as torch.nn:CrossEntropyLoss
        return Step(**vars(self) | {"loss": loss})


OnePassOptions = Annotated[StepOptions, OnlyFields(("loss", "backward_vector"))]
PassesOptions = Annotated[StepOptions, OnlyFields(("loss", "backward_vector", "passes"))]


_REAL = ("image", "text", "input_file", "data")
_GENERATED = ("input", "fill")
_MOST = 9  # digits of a number of batches


def overruled(typed: Collection[str]) -> set[str]:
    """The options that a configuration file gives in vain, since others on the command line choose the input."""
    if real := {*_REAL} & {*typed}:
        return {*_GENERATED, *DATA} - real - {"batches"}
    return {*DATA} if {*_GENERATED} & {*typed} else set()


def _batches(text: str) -> int | None:
    """The number of batches to run; None for all of them."""
    if text == "all":
        return None
    if text.isascii() and text.isdecimal() and len(text) <= _MOST and int(text):
        return int(text)
    raise UsageError(f"--batches {shortened(text)!r}: give a number from 1, or all", option="batches")


def data_of(options: Options) -> Data | None:
    """The real input that the options name, if any. Raises UsageError for missing files and contradictions."""
    batches = _batches(str(options.batches))  # a file has an integer
    named = [name for name in _REAL if getattr(options, name)]
    flags = [f"--{name.replace('_', '-')}" for name in named]
    if options.tokenizer and not options.text:
        raise UsageError(f"--tokenizer {options.tokenizer}: is for --text; add that", option="tokenizer")
    if not named:
        _refuse(batches != 1, f"--batches {options.batches}", "needs --data, --image or --text", "batches")
        return None
    _refuse(len(named) > 1, " and ".join(flags), "give one of them", named[0])
    real, both = flags[0].removeprefix("--"), "one generates input, the other is real: leave one out"
    _refuse(bool(options.input), f"--input and {flags[0]}", both, real)
    _refuse(
        options.fill != "randn", f"--fill and {flags[0]}", "real input has its values already; leave out --fill", real
    )
    if options.input_file:
        from hookcli.sources.data.tensor_files import file_input

        _refuse(batches != 1, f"--batches {options.batches}", "--input-file is one batch", "batches")
        return file_input(options.input_file)
    if options.image:
        from hookcli.sources.data.images import image_input

        return image_input(options.image, batches)
    if options.text:
        from hookcli.sources.data.texts import text_input

        return text_input(options.text, options.tokenizer, batches)
    assert options.data
    from hookcli.sources.data.iterables import iterable_input

    return iterable_input(options.data, batches)


def _refuse(wrong: bool, what: str, why: str, option: str = "") -> None:
    if wrong:
        raise UsageError(f"{what}: {why}", option=option.replace("_", "-"))
