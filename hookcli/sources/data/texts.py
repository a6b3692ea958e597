"""Input from texts, by the tokenizer of a folder or the model's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hookcli.errors import UsageError, UserCode, in_brief, shortened
from hookcli.sources.base import Recipe
from hookcli.sources.data.base import ITEMS, AllInput, Batches, Data, wrong
from hookcli.sources.libraries import load_tokenizer
from hookcli.system import files

_HUGE = 1 << 20  # tokenizers without a limit say 10**30


def text_input(texts_or_files: Sequence[str], tokenizer: str | None, batches: int | None) -> Data:
    """Texts as typed, or the lines of files that are not empty.

    Raises UsageError for a file without a line, or a tokenizer's folder that is not there.
    """
    texts = [line for text in texts_or_files for line in _lines(text)]
    option = " ".join(f"--text {shortened(text, 60)!r}" for text in texts_or_files)
    if tokenizer is not None and not files.is_folder(tokenizer):
        raise wrong("tokenizer", f"no folder {shortened(tokenizer)!r}")

    def open_(recipe: Recipe, size: int | None) -> Batches:
        if tokenizer is None:
            maker: object = _of_model(recipe)
        else:
            try:
                import transformers
            except ImportError as error:
                why = "reading it needs Transformers: pip install 'hookcli[huggingface]'"
                raise UsageError(f"--tokenizer {tokenizer}: {why}", option="tokenizer") from error
            try:
                maker = load_tokenizer(transformers, tokenizer)
            except Exception as error:  # Transformers fails in many ways on a folder without a tokenizer
                why = f"has no tokenizer that Transformers can read ({in_brief(error)})"
                raise UsageError(f"--tokenizer {shortened(tokenizer)}: {why}", option="tokenizer") from error
        number = min(size or ITEMS, len(texts))
        groups = [texts[start : start + number] for start in range(0, len(texts), number)]
        each = (AllInput(_tokens(maker, group), spare=True) for group in groups)
        return Batches(each, len(groups), {"texts": len(texts), "tokenizer": type(maker).__name__})

    return Data(option, open_, batches)


def _lines(text: str) -> list[str]:
    if not files.is_file(text):
        return [text]
    try:
        lines = [line for line in files.content(text).decode("utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"--text {shortened(text)}: can't be read as text ({in_brief(error)})", option="text"
        ) from error
    if not lines:
        raise UsageError(f"--text {shortened(text)}: the file has no text", option="text")
    return lines


def _of_model(recipe: Recipe) -> Callable[..., Mapping[str, object]]:
    if recipe.tokenizer is None:
        raise wrong("text", f"{recipe.name} comes with no tokenizer; give --tokenizer FOLDER")
    with UserCode(lambda error: wrong("text", f"the tokenizer of {recipe.name} can't be made: {in_brief(error)}")):
        return recipe.tokenizer()


def _tokens(tokenizer: Any, texts: Sequence[str]) -> dict[str, object]:
    """The texts as a batch of token ids with their mask, padded to the longest, cut to the tokenizer's limit."""
    if len(texts) > 1 and getattr(tokenizer, "pad_token", "") is None:
        tokenizer.pad_token = tokenizer.eos_token  # as is common; the mask leaves it out
        if tokenizer.pad_token is None:
            raise wrong("text", "the tokenizer has no token to pad with; use --batch-size 1")
    limited = getattr(tokenizer, "model_max_length", _HUGE) < _HUGE
    try:
        return dict(tokenizer(list(texts), return_tensors="pt", padding=len(texts) > 1, truncation=limited))
    except Exception as error:
        raise wrong("text", f"the tokenizer failed: {in_brief(error)}") from error
