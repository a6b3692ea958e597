"""The examples that dump from vLLM and from llama.cpp, on modules and text of their names and formats."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

EXAMPLES = Path(__file__).parents[2] / "examples"
HF = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM

def llama():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        sizes = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, vocab_size=50)
        heads = dict(num_attention_heads=4, num_key_value_heads=2, head_dim=8)
        return LlamaForCausalLM(LlamaConfig(**sizes, **heads)).eval()
"""
TOKENS = [3, 1, 4, 1, 5]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "llama.py").write_text(HF)
    monkeypatch.chdir(tmp_path)
    made: dict[str, Any] = {}
    exec(HF, made)
    return made["llama"]()


class Packed(nn.Module):
    """vLLM's QKVParallelLinear and MergedColumnParallelLinear: several layers in one, which returns (output, bias)."""

    def __init__(self, *parts: nn.Linear) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.cat([part.weight for part in parts]))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        return x @ self.weight.T, None


class Norm(nn.Module):
    """vLLM's RMSNorm: adds the residual, in place, and returns both."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight, self.eps = norm.weight, norm.variance_epsilon

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        if residual is not None:
            residual.add_(x)
            x.copy_(nn.functional.rms_norm(residual, residual.shape[-1:], self.weight, self.eps))
            return x, residual
        return nn.functional.rms_norm(x, x.shape[-1:], self.weight, self.eps)


class Attention(nn.Module):
    def __init__(self, theirs: Any, rotary: Any) -> None:
        super().__init__()
        self.q_size, self.kv_size = theirs.q_proj.out_features, theirs.k_proj.out_features
        self.qkv_proj, self.o_proj = Packed(theirs.q_proj, theirs.k_proj, theirs.v_proj), Packed(theirs.o_proj)
        self._theirs, self._rotary = [theirs], [rotary]

    def forward(self, positions: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

        q, k, v = self.qkv_proj(x)[0].split([self.q_size, self.kv_size, self.kv_size], dim=-1)
        q, k, v = (part.view(1, len(x), -1, 8).transpose(1, 2) for part in (q, k, v))
        q, k = apply_rotary_pos_emb(q, k, *self._rotary[0](x[None], positions[None]))
        out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(out.transpose(1, 2).reshape(len(x), -1))[0]


class MLP(nn.Module):
    def __init__(self, theirs: Any) -> None:
        super().__init__()
        self.gate_up_proj, self.down_proj = Packed(theirs.gate_proj, theirs.up_proj), Packed(theirs.down_proj)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up_proj(x)[0].chunk(2, dim=-1)
        return self.down_proj(nn.functional.silu(gate) * up)[0]


class Layer(nn.Module):
    def __init__(self, theirs: Any, rotary: Any) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(theirs.self_attn, rotary), MLP(theirs.mlp)
        self.input_layernorm = Norm(theirs.input_layernorm)
        self.post_attention_layernorm = Norm(theirs.post_attention_layernorm)

    def forward(self, positions: torch.Tensor, x: torch.Tensor, residual: torch.Tensor | None) -> Any:
        if residual is None:
            residual = x.clone()
            x = self.input_layernorm(x)
        else:
            x, residual = self.input_layernorm(x, residual)
        x, residual = self.post_attention_layernorm(self.self_attn(positions, x), residual)
        return self.mlp(x), residual


class VllmLlama(nn.Module):
    """The modules of vLLM's LlamaForCausalLM, by its names, with the parameters of Transformers' model."""

    def __init__(self, theirs: Any) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = theirs.model.embed_tokens
        self.model.layers = nn.ModuleList([Layer(layer, theirs.model.rotary_emb) for layer in theirs.model.layers])
        self.model.norm = Norm(theirs.model.norm)

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x, residual = self.model.embed_tokens(tokens).clone(), None
        for layer in self.model.layers:
            x, residual = layer(positions, x, residual)
        return self.model.norm(x, residual)[0]


def compared(cli: Any, *argv: str) -> tuple[int, dict[str, Any]]:
    ran = cli("diff", "llama.py:llama", "dumped", *argv, "--format", "json", "-q")
    assert ran.code < 2, ran.err
    return ran.code, json.loads(ran.out)["reports"][0]


def test_vllm(cli: Any, model: Any) -> None:
    """All modules that both have are compared, on the prompt's tokens, and agree; hooks are gone; a fault is found."""
    example, engine = runpy.run_path(str(EXAMPLES / "vllm_dump.py")), VllmLlama(model)

    def prompt() -> None:
        example["start"](engine, "dumped")
        with torch.no_grad():
            engine(torch.tensor(TOKENS), torch.arange(len(TOKENS)))
            engine(torch.tensor([7]), torch.tensor([len(TOKENS)]))  # the next token
        example["finish"](engine, TOKENS)

    prompt()
    code, found = compared(cli)
    names = {"input_layernorm", "post_attention_layernorm", "self_attn", "mlp"}
    names |= {f"self_attn.{name}_proj" for name in "qkvo"} | {f"mlp.{name}_proj" for name in ("gate", "up", "down")}
    expected = {f"model.layers.{n}{dot}" for n in (0, 1) for dot in ("", *(f".{name}" for name in names))}
    rows = {row["fqn"]: row for row in found["rows"] if not row.get("change")}
    assert code == 0 and {*rows} == expected | {"model.embed_tokens", "model.norm"}
    assert max(row["rel_l2"] for row in rows.values()) < 1e-5
    assert not any(module._forward_hooks for module in engine.modules())
    with torch.no_grad():
        engine.model.layers[1].mlp.down_proj.weight.mul_(1.1)
    prompt()
    code, found = compared(cli)
    assert code == 1 and found["totals"]["verdict"].startswith("First difference: model.layers.1.mlp")


def as_printed(name: str, x: torch.Tensor, digits: int = 9) -> str:
    """A tensor in the format of llama-eval-callback (common/debug.cpp), with all of its numbers."""
    sizes = [*reversed(x.shape), *[1] * (4 - x.dim())]
    shape = ", ".join(map(str, sizes))
    text = f"common_debug_cb_eval: {name:>24} = (f32)        MUL(norm{{{shape}}}, w{{{sizes[0]}, 1, 1, 1}}}})"
    text += f" = {{{shape}}}\n"
    for block in x.reshape(*reversed(sizes)).reshape(-1, sizes[1], sizes[0]):
        lines = ["        [" + ", ".join(f"{value:12.{digits}f}" for value in row) + "],\n" for row in block.tolist()]
        text += f"    [\n{''.join(lines)}    ],\n"
    return f"{text}    sum = {x.sum():f}\n"


@pytest.mark.sweep
def test_llama_cpp(cli: Any, model: Any) -> None:
    """What it prints, or writes to files, becomes a dump; the last layer has one token, which is said."""
    example = runpy.run_path(str(EXAMPLES / "llama_cpp_dump.py"))
    seen: dict[str, torch.Tensor] = {}
    keep = lambda name: lambda _, __, out: seen.update({name: (out[0] if isinstance(out, tuple) else out)[0]})  # noqa: E731
    model.model.embed_tokens.register_forward_hook(keep("inp_embd"))
    for n, layer in enumerate(model.model.layers):
        named = {"attn_norm": "input_layernorm", "attn_out": "self_attn", "ffn_norm": "post_attention_layernorm"}
        named |= {"ffn_gate": "mlp.gate_proj", "ffn_out": "mlp", "l_out": ""}
        for name, fqn in named.items():
            layer.get_submodule(fqn).register_forward_hook(keep(f"{name}-{n}"))
    with torch.no_grad():
        model(input_ids=torch.tensor([TOKENS]))
    seen = {name: x[-1:] if name in ("ffn_norm-1", "ffn_out-1", "l_out-1") else x for name, x in seen.items()}
    text = "llama_context: n_ctx = 512\n" + "".join(as_printed(name, x) for name, x in seen.items())
    Path("printed.txt").write_text(text + as_printed("kq-0", torch.ones(2, 3)))
    Path("folder").mkdir()
    for name, x in seen.items():
        np.save(f"folder/{name}.npy", x.numpy())
    torch.save(torch.tensor([TOKENS]), "ids.pt")
    for source in ("printed.txt", "folder"):
        example["main"](source, "dumped")
        code, found = compared(cli, "--input-file", "input_ids=ids.pt", "--rtol", "1e-4")
        rows = [row["fqn"] for row in found["rows"] if not row.get("change")]
        assert code == 0 and len(rows) == 10, found["totals"]
        left = {row["fqn"]: row["reason"] for row in found["skipped"]}
        assert left["model.layers.1"] == "llama.cpp has it for 1 token only"
    Path("cut.txt").write_text(text.replace("    sum", "   ..., \n    sum"))
    with pytest.raises(SystemExit, match="cut short"):
        example["main"]("cut.txt", "dumped")
