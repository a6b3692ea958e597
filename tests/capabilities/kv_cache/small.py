"""Small models of Transformers with random weights, and the bytes that `generate` really leaves in their caches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

_PLAIN = {"vocab_size": 60, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3}
_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
_SOME = _PLAIN | _HEADS
_WINDOW = {"sliding_window": 8}
_MIXED = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
_MLA = {"kv_lora_rank": 12, "q_lora_rank": None, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 10}
_MLA |= {"num_attention_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
_MLA |= {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "num_key_value_heads": 4}
_ENCODER = {"encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
_ENCODER |= {"encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "d_model": 32, "vocab_size": 60}
_STATE = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}
_HEADED = {"head_dim": 8, "num_heads": 8, "n_groups": 2, "expand": 2, "chunk_size": 4}
_DELTA = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
_DELTA |= {"layer_types": ["linear_attention", "full_attention", "linear_attention"], "head_dim": 8}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
_EXPERTS |= {"shared_expert_intermediate_size": 8}
SMALL: Mapping[str, dict[str, Any]] = {
    "llama": _SOME,
    "gpt2": {"vocab_size": 60, "n_embd": 32, "n_layer": 2, "n_head": 4},
    "mistral": _SOME | _WINDOW,
    "gemma2": _SOME | _WINDOW | {"head_dim": 8},
    "gemma3_text": _SOME | _WINDOW | _MIXED | {"head_dim": 8},
    "qwen2": _SOME,
    "qwen3": _SOME | {"head_dim": 16},
    "deepseek_v2": _PLAIN | _MLA,
    "deepseek_v3": _PLAIN | _MLA,
    "deepseek_v32": _PLAIN | _MLA | {"q_lora_rank": 8, "index_n_heads": 2, "index_head_dim": 8, "index_topk": 4},
    "t5": {"vocab_size": 60, "d_model": 32, "d_kv": 6, "d_ff": 48, "num_layers": 2, "num_heads": 4},
    "bart": _ENCODER,
    "falcon": {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
    "mamba": _STATE,
    "mamba2": _STATE | _HEADED,
    "jamba": _SOME | {"num_experts": 2, "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 8},
    "falcon_h1": _SOME | {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8},
    "qwen3_next": _SOME | _EXPERTS | _DELTA,
    "whisper": _ENCODER
    | {"num_mel_bins": 8, "max_source_positions": 12, "max_target_positions": 40}
    | {"pad_token_id": 0},
}
"""Arguments of configurations, by the model's type."""


def arguments(kind: str) -> list[str]:
    """These arguments on a command line."""
    return [word for name, value in SMALL[kind].items() for word in ("--arg", f"{name}={value}")]


def built(kind: str, class_name: str) -> Any:
    """The model on the CPU."""
    import transformers

    config = transformers.CONFIG_MAPPING[kind](**SMALL[kind])
    torch.manual_seed(0)
    return getattr(transformers, class_name)(config).eval()


def generated(model: Any, batch: int, prompt: int, tokens: int) -> Any:
    """The cache that `generate` returns after so many tokens."""
    inputs = torch.randint(3, 50, (batch, prompt))
    if model.main_input_name == "input_features":
        inputs = torch.randn(batch, model.config.num_mel_bins, 2 * model.config.max_source_positions)
    settings = {"min_new_tokens": tokens, "max_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}
    settings |= {"return_dict_in_generate": True, "eos_token_id": None, "suppress_tokens": None}
    settings |= {"decoder_start_token_id": 0} if model.config.is_encoder_decoder else {}
    made = model.generate(inputs, begin_suppress_tokens=None, **settings)
    return made["cache"] if "cache" in made else made["past_key_values"]


def tensors(value: object, seen: dict[int, object]) -> Iterator[Tensor]:
    """All tensors but scalars that can be reached from an object."""
    if id(value) in seen:
        return
    seen[id(value)] = value
    if isinstance(value, Tensor):
        if value.dim():
            yield value
    elif isinstance(value, (list, tuple, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors(item, seen)
    elif type(value).__module__.startswith("transformers.cache_utils"):
        yield from tensors(vars(value), seen)


def kept(value: object) -> int:
    """The bytes of the storages of these tensors, each counted once."""
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors(value, {})}
    return sum(storages.values())
