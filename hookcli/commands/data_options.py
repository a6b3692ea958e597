"""Options of real input: pictures, texts, files of tensors, and batches from the user's own code."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from hookcli.commands.options import DATA, Options
from hookcli.errors import UsageError, shortened

if TYPE_CHECKING:
    from hookcli.sources.data.base import Data

_REAL = ("image", "text", "input_file", "data")
_GENERATED = ("input", "fill")
_MOST = 9  # digits of a number of batches


def overruled(typed: Collection[str]) -> set[str]:
    """The options that a configuration file gives in vain, since others on the command line choose the input."""
    if real := {*_REAL} & {*typed}:
        return {*_GENERATED, *DATA} - real - {"batches"}
    return {*DATA} if {*_GENERATED} & {*typed} else set()


def data_of(options: Options) -> Data | None:
    """The real input that the options name, None without one.

    Raises UsageError for a file, folder or object that is not there, and for options that contradict each other.
    """
    batches = _number(str(options.batches))  # a file has a number
    named = [name for name in _REAL if getattr(options, name)]
    flags = [f"--{name.replace('_', '-')}" for name in named]
    if options.tokenizer and not options.text:
        raise UsageError(f"--tokenizer {options.tokenizer}: is for --text; add that", option="tokenizer")
    if not named:
        _refuse(batches != 1, f"--batches {options.batches}", "needs --data, --image or --text", "batches")
        return None
    _refuse(len(named) > 1, " and ".join(flags), "give one of them", named[0])
    _refuse(bool(options.input), f"--input and {flags[0]}", "one generates input, the other is real: leave one out")
    _refuse(options.fill != "randn", f"--fill and {flags[0]}", "real input has its values already; leave out --fill")
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


def _number(text: str) -> int | None:
    if text == "all":
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= _MOST and int(text)):
        raise UsageError(f"--batches {shortened(text)!r}: give a number from 1, or all", option="batches")
    return int(text)
