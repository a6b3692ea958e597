"""Dump what the modules of vLLM's model return for a prompt, under the names that they have in Transformers.

    VLLM_ALLOW_INSECURE_SERIALIZATION=1 python vllm_dump.py meta-llama/Llama-3.2-1B 'The capital of France is' dumped
    hookcli diff 'hf:meta-llama/Llama-3.2-1B --weights DIR --dtype bfloat16' dumped

vLLM computes q, k and v in one `qkv_proj` and both halves of the MLP in `gate_up_proj`, adds the residual in the next
norm, and has one row per token. Here they are split, added and shaped as in Transformers. Needs safetensors alone.
"""

import json
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

PATHS = {"self_attn": "[0]"}  # which of several tensors Transformers' module returns
SAME = {
    "embed_tokens",
    "input_layernorm",
    "o_proj",
    "self_attn",
    "post_attention_layernorm",
    "down_proj",
    "mlp",
    "norm",
}
LAYER = re.compile(r"(.*\.)?layers\.\d+")


def start(model: Any, folder: str) -> None:
    """Hook the modules of a model, in the worker that holds it; for `LLM.apply_model`."""
    tensors: dict[str, torch.Tensor] = {}
    rows: list[dict[str, str]] = []

    def keep(name: str, tensor: torch.Tensor) -> None:
        if name not in tensors:  # later calls are those of the next tokens
            tensors[name] = tensor.detach().to("cpu", copy=True).unsqueeze(0)  # later operators write in place
            rows.append({"fqn": name, "file": "all.safetensors", "path": PATHS.get(name.rpartition(".")[2], "")})

    def see(fqn: str, owner: Any, module: Any, args: Any, output: Any) -> None:
        first = output[0] if isinstance(output, tuple) else output
        parent, _, last = fqn.rpartition(".")
        if last == "qkv_proj":
            parts = first.split([owner.q_size, owner.kv_size, owner.kv_size], dim=-1)
            for name, part in zip(("q_proj", "k_proj", "v_proj"), parts, strict=True):
                keep(f"{parent}.{name}", part)
        elif last == "gate_up_proj":
            for name, part in zip(("gate_proj", "up_proj"), first.chunk(2, dim=-1), strict=True):
                keep(f"{parent}.{name}", part)
        elif LAYER.fullmatch(fqn):
            keep(fqn, output[0] + output[1])  # and the residual
        elif last in SAME:
            keep(fqn, first)

    modules = dict(model.named_modules())
    model.hookcli_handles = [
        module.register_forward_hook(partial(see, fqn, modules[fqn.rpartition(".")[0]]))
        for fqn, module in modules.items()
        if fqn
    ]
    model.hookcli_dump = folder, tensors, rows


def finish(model: Any, tokens: list[int]) -> None:
    """Remove the hooks, and write the dump with the tokens that led to it; for `LLM.apply_model`."""
    folder, tensors, rows = model.hookcli_dump
    for handle in model.hookcli_handles:
        handle.remove()
    del model.hookcli_dump, model.hookcli_handles
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: x.contiguous() for name, x in tensors.items()}, folder / "all.safetensors")
    save_file({"input0": torch.tensor([tokens])}, folder / "inputs-0.safetensors")
    inputs = [{"args": [], "kwargs": {"input_ids": {"tensor": "input0"}}}]
    (folder / "index.json").write_text(json.dumps({"schema": 1, "inputs": inputs, "tensors": rows}))


if __name__ == "__main__":
    from vllm import LLM, SamplingParams

    name, prompt, folder = sys.argv[1:]
    # Without compilation, or no hook fires; without cached prefixes, or not every token is computed.
    llm = LLM(name, enforce_eager=True, enable_prefix_caching=False)
    llm.apply_model(partial(start, folder=folder))
    [result] = llm.generate([prompt], SamplingParams(max_tokens=1, temperature=0))
    llm.apply_model(partial(finish, tokens=list(result.prompt_token_ids)))
