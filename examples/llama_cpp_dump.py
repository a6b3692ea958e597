"""Make a dump of what llama.cpp computed, under the names that the modules have in Transformers.

    llama-eval-callback -m model.gguf -p 'The capital of France is' -n 1 > printed.txt
    python llama_cpp_dump.py printed.txt dumped        # or a folder of attn_norm-0.npy, l_out-0.npy ...
    hookcli diff 'hf:meta-llama/Llama-3.2-1B --weights DIR' dumped --text 'The capital of France is' --rtol 1e-2

llama-eval-callback prints the first and last three numbers of a row, with four decimals: to have all of them, replace
the 3 in `common_debug_print_tensor(data, t->type, t->ne, t->nb, 3` (common/debug.cpp) by 1 << 30, and build it.
"""

import json
import re
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

NAMES = {  # of the graphs in src/models/llama.cpp, and of most others; Q and K lie in another order than in PyTorch
    "inp_embd": "model.embed_tokens",
    "attn_norm": "model.layers.{}.input_layernorm",
    "Vcur": "model.layers.{}.self_attn.v_proj",
    "attn_out": "model.layers.{}.self_attn",
    "ffn_norm": "model.layers.{}.post_attention_layernorm",
    "ffn_gate": "model.layers.{}.mlp.gate_proj",
    "ffn_up": "model.layers.{}.mlp.up_proj",
    "ffn_out": "model.layers.{}.mlp",
    "l_out": "model.layers.{}",
    "result_norm": "model.norm",
    "result_output": "lm_head",
}
HEAD = re.compile(r"^\w+:\s+(\S+)(?: \(.*\))? = \((\w+)\)\s+\w+\(.*\) = \{(\d+), (\d+), (\d+), (\d+)\}")
NUMBER = re.compile(r"-?(?:\d+\.\d+|inf|nan)")


def printed(file: Path) -> dict[str, np.ndarray]:
    """The tensors that llama-eval-callback has printed, by name; of several of one name the first."""
    found: dict[str, tuple[list[int], list[str]]] = {}
    numbers: list[str] = []
    for line in file.open(errors="replace"):
        if head := HEAD.match(line):
            name, shape, numbers = head[1], [int(size) for size in head.groups()[2:]][::-1], []
            found.setdefault(name, (shape, numbers))
        elif "sum" in line:
            numbers = []
        elif "..." in line:
            sys.exit(f"{file}: rows are cut short (...); build llama-eval-callback so that it prints all numbers")
        else:
            numbers += NUMBER.findall(line)
    return {name: np.array(values, np.float32).reshape(shape) for name, (shape, values) in found.items() if values}


def main(read: str, written: str) -> None:
    source, target = Path(read), Path(written)
    found = {file.stem: np.load(file) for file in source.glob("*.npy")} if source.is_dir() else printed(source)
    tensors, rows = {}, []
    for name, values in found.items():
        base, _, layer = name.partition("-")
        if base not in NAMES:
            continue
        fqn, values = NAMES[base].format(layer), values.astype(np.float32)
        values = values.reshape(1, -1, values.shape[-1]) if base != "Vcur" else values.reshape(1, values.shape[-3], -1)
        row = {"fqn": fqn, "path": "[0]" if fqn.endswith("self_attn") else ""}
        if values.shape[1] < found["inp_embd"].shape[-2]:  # of the last layer it computes what the next token needs
            rows.append(row | {"reason": f"llama.cpp has it for {values.shape[1]} token only"})
        else:
            tensors[fqn] = values
            rows.append(row | {"file": "all.safetensors"})
    target.mkdir(parents=True, exist_ok=True)
    save_file(tensors, target / "all.safetensors")
    (target / "index.json").write_text(json.dumps({"schema": 1, "tensors": rows}))


if __name__ == "__main__":
    main(*sys.argv[1:])
