"""`hookcli kv-cache` as it is typed: what fits, dtypes, folded rows, models of one's own, and mistakes."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
from capabilities.kv_cache.small import SMALL, arguments, built, generated, kept
from capabilities.kv_cache.test_caches import report_on
from support import require_clear_error, swept
from torch.nn.functional import scaled_dot_product_attention
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from hookcli.capabilities.kv_cache.fitting import Needed
from hookcli.table.formatting import size

Cli = Callable[..., Any]
OWN = """
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

SMALL = LlamaConfig(vocab_size=60, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
                    num_key_value_heads=2)

class Chat(nn.Module):
    def __init__(self):
        super().__init__()
        self.tower, self.talks = nn.Linear(4, 4), LlamaForCausalLM(SMALL)

    def forward(self, x):
        return self.talks(x).logits

class Reads(LlamaForCausalLM):
    def __init__(self):
        super().__init__(SMALL)

    def forward(self, input_ids=None, **keywords):
        if float(input_ids.sum()) < 0:
            raise ValueError
        return super().forward(input_ids, **keywords)

class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.main, self.draft = LlamaForCausalLM(SMALL), LlamaForCausalLM(SMALL)

    def forward(self, x):
        return self.main(x).logits + self.draft(x).logits

class Keeps(LlamaForCausalLM):
    def __init__(self):
        super().__init__(SMALL)

    def forward(self, input_ids=None, **keywords):
        self.state = input_ids.new_zeros(1, 5)
        return super().forward(input_ids, **keywords)

class Other(nn.Linear):
    def can_generate(self):
        return True

def adapted(kind="LoraConfig", **settings):
    import peft
    return peft.get_peft_model(LlamaForCausalLM(SMALL), getattr(peft, kind)(task_type="CAUSAL_LM", **settings))
"""
LLAMA = 3 * 2 * 2 * 8 * 4  # bytes of a token: layers, keys and values, heads, dimensions, float32


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)


def test_the_first_line_has_the_cache_beside_the_weights_and_a_tokens_bytes(cli: Cli) -> None:
    report = report_on(cli, "llama", "-b", "4", "--prompt", "1000", "--generate", "25")
    model = built("llama", "LlamaForCausalLM")
    weights = sum(x.numel() * 4 for x in (*model.parameters(), *model.buffers()))
    ratio = 4 * 1024 * LLAMA / weights
    beside = f"{ratio:.3g} times the weights ({weights / 1024:.4g} KiB)"
    whole = "Cache of 1,000 + 25 tokens, batch 4: 1.5 MiB"
    assert report["totals"]["verdict"] == f"{whole}, {beside}; 384 B for each further token of a sequence"
    row = report["rows"][1]
    assert (row["fqn"], row["kind"], row["cached_tokens"]) == ("model.layers.1", "full", 1024)
    assert (row["kv_heads"], row["key_dim"], row["value_dim"], row["token_bytes"]) == (2, 8, 8, LLAMA // 3)


PUBLISHED = {
    "deepseek_v3": (70_272, {}),
    "llama": (516_096, {"num_hidden_layers": 126, "num_attention_heads": 128, "hidden_size": 16384}),
    "qwen2": (327_680, {"num_hidden_layers": 80, "num_attention_heads": 64, "hidden_size": 8192}),
}
"""Bytes of a token in bfloat16 of DeepSeek-V3, Llama 3.1 405B and Qwen 2.5 72B, by table 1 of DeepSeek-AI's "Insights
into DeepSeek-V3" (2025, arXiv 2505.09343), and what differs from the defaults of the type besides 8 heads of keys."""


@pytest.mark.parametrize("kind", [*map(swept, PUBLISHED)])
def test_bytes_of_a_token_are_those_that_were_published(cli: Cli, kind: str) -> None:
    """Models far too large for this machine run on the meta device."""
    bytes_of_token, sizes = PUBLISHED[kind]
    sizes = sizes | ({"num_key_value_heads": 8} if sizes else {})
    given = [word for name, value in sizes.items() for word in ("--arg", f"{name}={value}")]
    ran = cli("kv-cache", f"hf:{kind}", *given, "--dtype", "bfloat16", "-f", "json", "-q")
    rows = json.loads(ran.out)["reports"][0]["rows"]
    assert sum(row["token_bytes"] for row in rows) == bytes_of_token


def test_kinds_of_layers(cli: Cli) -> None:
    rows = report_on(cli, "gemma3_text", "--prompt", "30", "--generate", "3")["rows"]
    assert [(row["kind"], row["window"], row["cached_tokens"]) for row in rows] == [
        *(("window", 8, 8), ("full", None, 32), ("window", 8, 8))
    ]
    rows = report_on(cli, "deepseek_v3")["rows"]
    assert {(row["kind"], row["kv_heads"], row["key_dim"], row["value_dim"]) for row in rows} == {("latent", 1, 12, 4)}
    rows = report_on(cli, "t5", "--prompt", "30", "--generate", "3")["rows"]
    assert [(row["fqn"], row["kind"], row["cached_tokens"]) for row in rows[:2]] == [
        *(("decoder.block.0", "full", 3), ("decoder.block.0", "cross", 30))
    ]


def test_windows_hold_the_whole_prompt_until_a_token_follows(cli: Cli) -> None:
    report = report_on(cli, "gemma3_text", "--prompt", "4096", "--generate", "2")
    early, late = (sum(row[name] for row in report["rows"]) for name in ("prompt_bytes", "cache_bytes"))
    token = 2 * 2 * 8 * 4
    assert early == 3 * 4096 * token and late == (4097 + 2 * 8) * token
    assert ": 514.1 KiB (1.5 MiB after the prompt), " in report["totals"]["verdict"]
    assert report["totals"]["phases"].startswith(
        "after the prompt: 1.5 MiB (layers with a window hold the whole prompt"
    )
    assert "phases" not in report_on(cli, "gemma3_text", "--prompt", "4", "--generate", "2")["totals"]
    ran = cli("kv-cache", "hf:gemma3_text", *arguments("gemma3_text"), "--columns", "layer,after-prompt", "-q")
    assert "After prompt" in ran.out, ran.err


def test_layers_of_a_kind_are_one_row_and_never_blank(cli: Cli) -> None:
    ran = cli("kv-cache", "hf:gemma3_text", *arguments("gemma3_text"), "--prompt", "30", "--depth", "1", "-f", "csv")
    heading, *lines = ran.out.splitlines()
    rows = [dict(zip(heading.split(","), line.split(","), strict=True)) for line in lines]
    assert [(row["kind"], row["layers"], row["cached_tokens"]) for row in rows] == [
        ("window", "2", "8"),
        ("full", "1", "285"),
    ]


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("searched", ["batch", "prompt"])
def test_fits_finds_the_largest_and_measures_the_next(cli: Cli, searched: str) -> None:
    """Beside a division: cache and weights are within the limit exactly up to that batch, or prompt.

    Activations of a model that does not run on the meta device are not known.
    """
    more = ["--prompt", "100", "--generate", "29"] if searched == "batch" else ["-b", "2", "--generate", "29"]
    ran = cli("kv-cache", "own.py:Reads", *more, "--fits", "8MiB", "--reserve", "1MiB", "-f", "json", "-q")
    report = json.loads(ran.out)["reports"][0]
    totals, rows = report["totals"], report["rows"]
    model = built("llama", "LlamaForCausalLM")
    weights = sum(x.numel() * 4 for x in (*model.parameters(), *model.buffers()))
    left = 7 * 2**20 - weights
    largest = left // (128 * LLAMA) if searched == "batch" else left // (2 * LLAMA) - 28
    assert f" {largest:,} before activations, with 1 MiB kept free (--reserve 1MiB)" in totals["verdict"]
    first = "Largest batch of 100 + 29 tokens in 8MiB: "
    if searched == "prompt":
        needs = weights + 2 * (1024 + 28) * LLAMA
        left = f"{size(needs)} of 7 MiB usable ({size(7 * 2**20 - needs)} left)"
        first = f"A batch of 2 with 1,024 + 29 tokens fits into 8MiB: {left}; the longest prompt is "
    assert totals["verdict"].startswith(first)
    by_number = {row[searched]: row for row in rows}
    assert by_number[largest]["room_bytes"] >= 0 > by_number[largest + 1]["room_bytes"]
    assert all(row["highest"] == weights + row["cache_bytes"] and row["prefill_bytes"] is None for row in rows)
    assert totals.get("largest_batch") == (largest if searched == "batch" else None)
    assert "not counted: activations, of which the prompt's pass has the most" in report["meta"]["notes"]


@pytest.mark.parametrize("kind", ["llama", swept("gemma2"), swept("qwen3"), "bart"])
def test_activations_are_those_of_a_real_pass_over_the_prompt(cli: Cli, kind: str) -> None:
    """PyTorch's profiler on the CPU, where attention also returns a number for each query."""
    report = report_on(cli, kind, "--prompt", "600", "--generate", "1", "--fits", "64MiB", "--reserve", "0")
    row, model = report["rows"][1], built(kind, report["meta"]["architecture"])
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        generated(model, row["batch"], 600, 1)
    events = sorted(profiler.profiler.kineto_results.events(), key=lambda event: event.start_ns())
    used = [*accumulate(event.nbytes() for event in events if event.name() == "[memory]")]
    assert row["highest"] - row["weight_bytes"] == pytest.approx(max(used), rel=0.04)
    assert row["highest"] == row["weight_bytes"] + row["cache_bytes"] + row["prefill_bytes"]
    assert "before activations" not in report["totals"]["verdict"]


def test_what_fits_keeps_no_hook_and_no_kernel(cli: Cli) -> None:
    query = torch.empty(1, 2, 8, 8, device="meta")
    with FlopCounterMode(display=False) as before:
        scaled_dot_product_attention(query, query, query)
    report_on(cli, "llama", "--fits", "64MiB")
    with FlopCounterMode(display=False) as after:
        scaled_dot_product_attention(query, query, query)
    assert before.get_flop_counts() == after.get_flop_counts()


def test_what_fits_counts_the_larger_of_both_moments(cli: Cli) -> None:
    """After the prompt, windows are not cut yet."""
    report = report_on(cli, "gemma3_text", "--prompt", "4096", "--generate", "2", "--fits", "64MiB")
    assert report["rows"][0]["cache_bytes"] == 3 * 4096 * 2 * 2 * 8 * 4


def test_nothing_fits_and_everything_fits(cli: Cli) -> None:
    verdict = report_on(cli, "llama", "--fits", "64KiB")["totals"]["verdict"]
    kept = "with 32 KiB kept free (half of it; see --reserve): the weights alone "
    halved = "are more; --dtype bfloat16 halves them"
    assert verdict.startswith(f"No batch of 1,024 + 256 tokens fits into 64KiB, {kept}(")
    assert verdict.endswith(f", float32) {halved}")
    half = report_on(cli, "llama", "--dtype", "bfloat16", "--fits", "32KiB")["totals"]["verdict"]
    assert half.endswith(", bfloat16) are more")
    verdict = report_on(cli, "llama", "-b", "9", "--fits", "64KiB")["totals"]["verdict"]
    assert verdict.startswith("A batch of 9 with 1,024 + 256 tokens does not fit into 64KiB: ")
    assert "; no prompt does, with 32 KiB kept free" in verdict and verdict.endswith(halved)
    verdict = report_on(cli, "mamba", "-b", "1", "--fits", "64MiB")["totals"]["verdict"]
    assert verdict.endswith("; so does every prompt up to 1,048,576, the largest that is tried")


@pytest.mark.parametrize("length", ["1", "3000"])
def test_the_parts_that_do_not_fit_add_up_to_the_peak(cli: Cli, length: str) -> None:
    """At the end there are no activations; in the pass over a long prompt the cache is the prompt's."""
    more = ["--prompt", length, "--generate", "200", "--fits", "1MiB", "--reserve", "0"]
    report = report_on(cli, "llama", "-b", "100", *more)
    row, verdict = report["rows"][0], report["totals"]["verdict"]
    asked = next(row for row in report["rows"] if row["prompt"] == int(length))
    assert f"does not fit into 1MiB: {size(asked['highest'])} of 1 MiB usable" in verdict
    cache = row["highest"] - row["weight_bytes"]
    assert row["prompt"] == 1 and cache == row["cache_bytes"] == 100 * 200 * LLAMA
    parts = f"{size(row['weight_bytes'])} of weights and {size(cache)} of cache"
    assert verdict.endswith(f": a prompt of 1 needs {size(row['highest'])}: {parts}")


def test_the_parts_of_the_pass_over_the_prompt() -> None:
    need = Needed(weights=3 * 2**20, cache=2**20, activations=2**19)
    assert need.highest == 4.5 * 2**20
    assert need.in_words() == "4.5 MiB: 3 MiB of weights, 1 MiB of cache and 512 KiB of activations"


@pytest.mark.parametrize(("dtype", "share"), [("float8_e4m3fn", 0.25), swept("int8", 0.25), swept("bfloat16", 0.5)])
def test_keys_and_values_of_another_dtype(cli: Cli, dtype: str, share: float) -> None:
    """States keep the dtype of the model."""
    plain, other = (report_on(cli, "jamba", *more)["rows"] for more in ((), ("--cache-dtype", dtype)))
    for a, b in zip(plain, other, strict=True):
        assert b["cache_bytes"] == a["cache_bytes"] * (share if a["kind"] == "full" else 1)
    assert {row["dtype"] for row in other if row["kind"] == "full"} == {dtype}


def test_a_model_in_another_dtype(cli: Cli) -> None:
    model = built("llama", "LlamaForCausalLM").bfloat16()
    rows = report_on(cli, "llama", "--prompt", "11", "--generate", "6", "-b", "2", "--dtype", "bfloat16")["rows"]
    assert sum(row["cache_bytes"] for row in rows) == kept(generated(model, 2, 11, 6))


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(("name", "where"), [("Chat", "talks.model.layers.0"), ("Reads", "model.layers.0")])
def test_models_of_ones_own(cli: Cli, name: str, where: str) -> None:
    ran = cli("kv-cache", f"own.py:{name}", "--prompt", "100", "--generate", "29", "-f", "json", "-q")
    assert ran.code == 0, ran.err
    report = json.loads(ran.out)["reports"][0]
    assert report["rows"][0]["fqn"] == where
    assert sum(row["cache_bytes"] for row in report["rows"]) == 128 * LLAMA
    real = [note for note in report["meta"]["notes"] if note.startswith("ran for real, not on the meta device")]
    assert len(real) == (name == "Reads")


@pytest.mark.usefixtures("own")
def test_what_is_not_counted_is_said(cli: Cli) -> None:
    """Another generator beside the first, and tensors that modules keep in attributes."""
    pair, keeps = (
        json.loads(cli("kv-cache", f"own.py:{name}", "-f", "json", "-q").out)["reports"][0]
        for name in ("Pair", "Keeps")
    )
    assert "the cache is main's; not counted: draft's" in pair["meta"]["notes"] and not pair["skipped"]
    assert keeps["skipped"] == [{"fqn": "", "reason": "not counted: it keeps Keeps.state outside of the cache"}]
    assert sum(row["token_bytes"] for row in keeps["rows"]) == LLAMA


def test_more_bytes_than_pytorch_counts(cli: Cli) -> None:
    most = str(2**31 - 1)
    rows = report_on(cli, "llama", "--prompt", most, "--generate", most, "-b", most)["rows"]
    assert sum(row["cache_bytes"] for row in rows) == (2**31 - 1) * (2**32 - 3) * LLAMA


@pytest.mark.usefixtures("own")
def test_peft_adapters(cli: Cli) -> None:
    """LoRA changes nothing; virtual tokens are refused."""
    pytest.importorskip("peft")
    lora = ("own.py:adapted", "--arg", "r=2", "--arg", "target_modules=['q_proj']")
    ran = cli("kv-cache", *lora, "--prompt", "11", "--generate", "6", "-b", "2", "-f", "json", "-q")
    rows = json.loads(ran.out)["reports"][0]["rows"]
    own: dict[str, Any] = {}
    exec(OWN, own)
    model = own["adapted"](r=2, target_modules=["q_proj"]).eval()
    assert sum(row["cache_bytes"] for row in rows) == kept(generated(model.base_model.model, 2, 11, 6))
    virtual = ("--arg", "kind=PrefixTuningConfig", "--arg", "num_virtual_tokens=4")
    ran = cli("kv-cache", "own.py:adapted", *virtual)
    assert ran.code == 2 and "PEFT's virtual tokens are not counted" in ran.err


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("torch.nn:Identity",), "Identity generates no text"),
        (("hf:gpt2", "--max-new-tokens", "9"), "unknown option '--max-new-tokens'; did you mean --generate?"),
        (("hf:gpt2", "--seq-len", "9"), "unknown option '--seq-len'; did you mean --prompt?"),
        (("hf:gpt2", "--vram", "9GiB"), "unknown option '--vram'; did you mean --fits?"),
        (("own.py:Other", "--arg", "in_features=1", "--arg", "out_features=1"), "Other generates no text"),
        (("hf:gpt2", "--input", "4x77:int64"), "--input 4x77:int64: has no effect; give --prompt and --batch-size"),
        (("hf:llama", "--task", "base"), "LlamaModel generates no text"),
        (("hf:rwkv", "--arg", "num_hidden_layers=1"), "does not keep its past in Transformers' DynamicCache"),
        (("hf:gpt2", "--reserve", "1GiB"), "only --fits keeps memory free"),
        (("hf:gpt2", "--fits", "much"), "give a size, such as 24GiB"),
        (("hf:gpt2", "--cache-dtype", "int3"), "--cache-dtype"),
        (("hf:gpt2", "--prompt", "0"), "--prompt"),
        (("hf:whisper", "-b", "1", "--fits", "1GiB"), "its prompt is not text"),
    ],
)
@pytest.mark.usefixtures("own")
def test_mistakes(cli: Cli, argv: tuple[str, ...], says: str) -> None:
    ran = cli("kv-cache", *argv)
    assert ran.code == 2 and says in ran.err, ran.err
    require_clear_error(ran, says)


def test_more_positions_than_the_configuration_has(cli: Cli) -> None:
    said = "its configuration is for 1,024 positions; 1,280 are more"
    gpt2 = report_on(cli, "gpt2", "--generate", "256")
    assert said in gpt2["meta"]["notes"]
    assert said not in report_on(cli, "gpt2", "--prompt", "768")["meta"]["notes"]


def test_a_quantization_that_is_not_applied_is_said(cli: Cli, tmp_path: Path) -> None:
    """Folders have no weights, so those of a model are built as its code has them."""
    import transformers

    config = transformers.LlamaConfig(**SMALL["llama"]).to_dict()
    said = "weights count without the quantization of its configuration (bitsandbytes)"
    for more in ({}, {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}):
        (tmp_path / "config.json").write_text(json.dumps(config | more))
        ran = cli("kv-cache", f"hf:{tmp_path}", "-f", "json", "-q")
        assert (said in json.loads(ran.out)["reports"][0]["meta"]["notes"]) == bool(more)
