"""hookcli kv-cache"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from hookcli.capabilities.kv_cache.layout import CACHE, FITS
from hookcli.commands.model import find_recipe
from hookcli.commands.option_fields import OnlyFields, choice, option
from hookcli.commands.options import SHOWING, Model, Options
from hookcli.commands.output import Output
from hookcli.commands.probe_command import feedback_of, setting_of
from hookcli.commands.progress import working
from hookcli.commands.room import RESERVE, parse_room
from hookcli.errors import UsageError

EXAMPLES = (
    "hookcli kv-cache hf:gpt2",
    "hookcli kv-cache hf:gemma3_text --prompt 8192 -b 16 --depth 1",
    "hookcli kv-cache hf:llama --dtype bfloat16 --fits 24GiB",
    "hookcli kv-cache hf:llama --cache-dtype float8_e4m3fn -b 1 --fits 48GiB",
)
COLUMNS = CACHE
FIRST = "prompt generate batch_size dtype cache_dtype fits reserve depth format output"
_SHARED = {"arg", "task", "input", "batch_size", "dtype", "threads", "depth", *SHOWING}
# Names that Transformers, vLLM and others have for these options.
_PROMPT = ("--prompt-len", "--prompt-length", "--seq-len", "--seq-length", "--input-len", "--context-length")
_GENERATE = ("--max-new-tokens", "--new-tokens", "--tokens", "--max-tokens", "--output-len")
_CACHE_DTYPE = ("--kv-cache-dtype", "--kv-dtype")
_FITS = ("--gpu-memory", "--memory", "--vram")
_MOST = 2**31 - 1  # tokens
_DTYPES = ("float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int8")


@dataclass(frozen=True)
class CacheOptions:
    """Options of `hookcli kv-cache` alone."""

    panel = "Generation"

    prompt: int = option(1024, "Tokens of each prompt.", metavar="N", min=1, max=_MOST, meant_by=_PROMPT)
    generate: int = option(256, "Tokens to generate after it.", metavar="N", min=1, max=_MOST, meant_by=_GENERATE)
    cache_dtype: str | None = choice(None, "dtype of keys and values [the model's].", _DTYPES, meant_by=_CACHE_DTYPE)
    fits: str | None = option(
        None,
        "Find the largest batch that fits; with --batch-size, the longest prompt.",
        metavar="BYTES",
        meant_by=_FITS,
    )
    reserve: str | None = option(
        None, f"Memory that --fits keeps free; +300MiB adds to it [{RESERVE}, at most half].", metavar="BYTES"
    )


def kv_cache(model: Model, *, own: CacheOptions, options: Annotated[Options, OnlyFields(_SHARED)]) -> int:
    """Show the memory of a text generator's cache, and what fits.

    The cache holds the keys and values of all tokens so far, which Transformers' `generate` keeps for each layer. The
    model runs on the meta device, so neither a GPU nor that much memory is needed, unless it reads values.
    """
    if own.fits is None and own.reserve is not None:
        raise UsageError(f"--reserve {own.reserve}: only --fits keeps memory free; give both", option="reserve")
    room = None if own.fits is None else parse_room(own.fits, own.reserve, "cuda")
    output = Output(options)
    output.check_columns(CACHE if room is None else FITS)
    with working(options) as progress:
        from hookcli.capabilities.kv_cache.generator import Generation
        from hookcli.capabilities.kv_cache.request import CacheRequest, generating_recipe
        from hookcli.sources.inputs import parse_dtype

        dtype = parse_dtype(own.cache_dtype, "cache-dtype") if own.cache_dtype else None
        asked = Generation(options.batch_size or 1, own.prompt, own.generate)
        alone = setting_of(replace(options, batch_size=None), train=False)
        searches = room is not None and options.batch_size is not None
        recipe = generating_recipe(lambda task: find_recipe(model, replace(options, task=task)), options.task)
        request = CacheRequest(recipe, alone, asked, dtype, room, searches, feedback_of(options, progress))
        report = request.report()
    output.write([report])
    return 0
