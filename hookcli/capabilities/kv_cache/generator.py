"""A model that generates text: found in a model, run on a few tokens, and asked for its cache of any size."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hookcli.capabilities.kv_cache.activations import peak_of
from hookcli.capabilities.kv_cache.caches import CachePart, LayerCache, holds_tensors, stored_bytes
from hookcli.engine import failure
from hookcli.engine.inputs import arguments
from hookcli.engine.prepare import PreparedRun
from hookcli.errors import ModelError, UsageError, UserCode, class_name
from hookcli.hooks.parts import uncompiled
from hookcli.table.names import is_within

_SEEN = 3  # tokens of the model's run
_BLOCK = re.compile(r"(?:.*?\.)?\d+(?=\.|$)")  # up to the first number: model.layers.0 of model.layers.0.self_attn
_KEYWORDS = ("cache", "past_key_values", "cache_params")  # the first since Transformers 5.24


@dataclass(frozen=True, slots=True)
class Generation:
    """So many sequences, each a prompt and further tokens, in numbers of tokens."""

    batch: int = 1
    prompt: int = 1024
    generated: int = 256


@dataclass(frozen=True, slots=True)
class Moments:
    """A cache layer by layer, after the prompt and at the end; and the bytes of one more token of one sequence."""

    prompt: Sequence[LayerCache]
    end: Sequence[LayerCache]
    token: Sequence[int]

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self.end)

    @property
    def prompt_bytes(self) -> int:
        return sum(layer.nbytes for layer in self.prompt)

    @property
    def highest(self) -> int:
        """The bytes at that moment of the two at which there are more."""
        return max(self.nbytes, self.prompt_bytes)


class Generator:
    """The cache that `generate` of a prepared run's model makes by itself, a DynamicCache. Runs the model once.

    Of several modules that generate it is the first, called `name`; the `others` are not counted.

    The last token that is generated is never put into it. In models with an encoder the prompt goes there, unless it is
    no text (`takes_text`), and the decoder begins with one token.
    """

    def __init__(self, run: PreparedRun, dtype: torch.dtype | None = None) -> None:
        self._run = run
        (self.name, self._module), *others = generating_modules(run).items()
        self.others = [name for name, _ in others]
        self.config: Any = self._module.config
        self.takes_text = self._module.main_input_name == "input_ids"
        self.has_encoder = bool(self.config.is_encoder_decoder)
        tensors = {id(x): x.nbytes for x in (*run.model.parameters(), *run.model.buffers())}
        self.weight_bytes = sum(tensors.values())
        forwards = (vars(base)["forward"] for base in type(self._module).__mro__ if "forward" in vars(base))
        self._taken = {name for forward in forwards for name in inspect.signature(forward).parameters}
        self._text_config = self.config.get_text_config(decoder=True)
        self._library: Any = sys.modules["transformers"]  # imported with the module
        with torch.no_grad(), uncompiled(run.model), UserCode(partial(failure.crashed, run.model, run.info)):
            before = kept_by_modules(run.model)
            filled = self._filled()
            self._kept = {fqn: names for fqn, names in kept_by_modules(run.model).items() if fqn not in before}
        self._blocks, ranks = blocks_of(run.model, self._module)
        part = partial(CachePart, make=self._empty, seen=_SEEN, ranks=ranks, dtype=dtype)
        crossed = getattr(filled, "cross_attention_cache", None)
        self._own = part(getattr(filled, "self_attention_cache", filled))
        self._cross = None if crossed is None else part(crossed, kind="cross")

    def moments(self, asked: Generation) -> Moments:
        """The cache of these sequences."""
        begun = 1 if self.has_encoder else asked.prompt
        before = max(begun + asked.generated - 2, 1)
        prompt, end, more = (self._held(asked, lengths) for lengths in ([begun], [before, 1], [before, 1, 1]))
        token = [(late.nbytes - early.nbytes) // asked.batch for early, late in zip(end, more, strict=True)]
        return Moments(prompt, prompt if asked.generated == 1 else end, token)

    def activations(self, asked: Generation) -> int | None:
        """The bytes in use at most in the pass over the prompts, beside the weights and the cache that it fills.

        `generate` asks for the logits of the last token alone. None where this can't be simulated: the model does not
        run on such prompts on the meta device, or it has states, which a GPU computes by other kernels.
        """
        weights = [*self._run.model.parameters(), *self._run.model.buffers()]
        has_states = any("state" in layer.kind for layer in self._own.held(1, [1]))
        if not self.takes_text or has_states or not all(x.is_meta for x in self._run.model.parameters()):
            return None
        caches: list[Any] = []

        def forward() -> Any:
            call, cache = self._call(asked.batch, asked.prompt)
            caches.append(cache)
            return self._module(**call, **({"logits_to_keep": 1} if "logits_to_keep" in self._taken else {}))

        crashed = UserCode(partial(failure.crashed, self._run.model, {}))
        try:
            with torch.no_grad(), uncompiled(self._run.model), crashed:
                peak = peak_of(forward, weights)
        except ModelError:
            return None
        parts = (getattr(caches[0], name, None) for name in ("self_attention_cache", "cross_attention_cache"))
        filled = [part for part in parts if part is not None] or caches
        return peak - sum(stored_bytes(layer) for part in filled for layer in part.layers)

    def uncounted(self) -> Mapping[str, str]:
        """The layers with tensors of unknown kinds in their cache, and modules that keep tensors, each in words."""
        unknown = self._own.uncounted().items()
        in_cache = {
            self.place(number): f"its cache has {name}, which hookcli does not know" for number, name in unknown
        }
        return in_cache | {fqn: f"it keeps {names} outside of the cache" for fqn, names in self._kept.items()}

    @property
    def unapplied(self) -> str:
        """The quantization that the configuration asks for and the model's weights lack; "" if there is none."""
        asked = getattr(self.config, "quantization_config", None)
        if not asked or getattr(self._module, "is_quantized", False) or hasattr(self._module, "hf_quantizer"):
            return ""
        method = asked.get("quant_method") if isinstance(asked, Mapping) else getattr(asked, "quant_method", None)
        return str(getattr(method, "value", method) or "unnamed")

    def place(self, number: int) -> str:
        """The name of the block whose cache has this number."""
        return self._blocks.get(number, f"layers.{number}")

    def _held(self, asked: Generation, lengths: Sequence[int]) -> list[LayerCache]:
        crossed = [] if self._cross is None else self._cross.held(asked.batch, [asked.prompt])
        return [*self._own.held(asked.batch, lengths), *crossed]

    def _call(self, batch: int, length: int, decoded: int = 1) -> tuple[dict[str, Any], Any]:
        """The arguments of a pass over prompts of so many tokens, and the cache among them, which is still empty.

        With an encoder, the decoder gets the `decoded` tokens.
        """
        tokens = torch.zeros(batch, length, dtype=torch.int64, device=next(self._run.model.parameters()).device)
        main = self._module.main_input_name
        call: dict[str, Any] = {main: tokens if self.takes_text else item_of(self._run, main)}
        call |= {} if self.has_encoder else {"use_cache": True}  # which some encoders refuse
        cache = self._empty()
        if self.has_encoder:
            call["decoder_input_ids"] = tokens[:, :decoded]
            cache = self._library.EncoderDecoderCache(cache, self._empty())
        keyword = next((name for name in _KEYWORDS if name in self._taken), "")
        return call | ({keyword: cache} if keyword else {}), cache

    def _filled(self) -> Any:
        """The cache after a pass over a few tokens. Raises UsageError where the model does not use it."""
        module, run = self._module, self._run
        call, cache = self._call(1, _SEEN, _SEEN)
        if any(name in call for name in _KEYWORDS):
            module(**call)
        own, fresh = getattr(cache, "self_attention_cache", cache).layers, self._empty().layers
        if fresh and len(own) != len(fresh):
            raise UsageError(f"{run.name}: its cache has {len(own)} layers, and its configuration {len(fresh)}")
        if not any(map(holds_tensors, own)):
            raise UsageError(f"{run.name}: {class_name(module)} does not keep its past in Transformers' DynamicCache")
        return cache

    def _empty(self) -> Any:
        return self._library.DynamicCache(config=self._text_config)


def generating_modules(run: PreparedRun) -> dict[str, Any]:
    """The outermost modules with Transformers' `generate`, by name. Raises UsageError if there are none."""
    adapters = getattr(run.model, "peft_config", {}).values()
    if any(getattr(adapter, "is_prompt_learning", False) for adapter in adapters):
        raise UsageError(f"{run.name}: PEFT's virtual tokens are not counted; give the model without this adapter")
    kind = getattr(sys.modules.get("transformers"), "PreTrainedModel", ())
    generators: dict[str, Any] = {}
    for fqn, module in run.model.named_modules():
        is_outermost = not any(is_within(fqn, name) for name in generators)
        if is_outermost and isinstance(module, kind) and module.can_generate():
            generators[fqn] = module
    if not generators:
        needed = "give a model of Transformers that does, such as hf:llama"
        raise UsageError(f"{run.name}: {class_name(run.model)} generates no text; {needed}")
    return generators


def kept_by_modules(model: nn.Module) -> dict[str, str]:
    """The modules with tensors in attributes, other than parameters and buffers, and the names of these."""
    kept: dict[str, str] = {}
    for fqn, module in model.named_modules():
        names = [name for name, value in vars(module).items() if isinstance(value, Tensor) and value.dim()]
        if names:
            kept[fqn] = f"{class_name(module)}.{', '.join(names)}"
    return kept


def item_of(run: PreparedRun, name: str) -> Tensor:
    """The model's input of this name, of one item."""
    args, named = arguments(run.inputs)
    value = named.get(name, next(iter(args), None))
    if not isinstance(value, Tensor):
        raise UsageError(f"{run.name}: give the shape of {name} with --input", option="input")
    return value[:1]


def blocks_of(model: nn.Module, generator: Any) -> tuple[dict[int, str], dict[int, int]]:
    """The names of the blocks of the generator's decoder, by the number that their attention has, and the sizes of the
    latents of those that have some.
    """
    decoder = generator.get_decoder() if hasattr(generator, "get_decoder") else generator
    within = {id(module) for module in decoder.modules()}
    blocks: dict[int, str] = {}
    ranks: dict[int, int] = {}
    for fqn, module in model.named_modules():
        number, block = getattr(module, "layer_idx", None), _BLOCK.match(fqn)
        if isinstance(number, int) and block and id(module) in within:
            blocks.setdefault(number, block[0])
            if isinstance(rank := getattr(module, "kv_lora_rank", None), int):
                ranks[number] = rank
    return blocks, ranks
