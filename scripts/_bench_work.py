"""What scripts/bench times inside a process. It imports torch, which the parent of the measured processes must not."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torchvision
from _bench_table import BATCH, TOKENS
from torch import Tensor, nn

from hookcli import registry
from hookcli.tensors import library

Actions = dict[str, Callable[[], object]]


def build(name: str, train: bool = False, batch: int = BATCH, **where: Any) -> tuple[nn.Module, Tensor]:
    """The model and a batch; `where`: the device and dtype of both."""
    torch.manual_seed(0)
    return torchvision.models.get_model(name).train(train).to(**where), torch.randn(batch, 3, 224, 224).to(**where)


def forward(model: Callable[[Tensor], Any], x: Tensor) -> None:
    with torch.no_grad():
        model(x)


def backward(model: Callable[[Tensor], Any], x: Tensor) -> None:
    loss = nn.functional.cross_entropy(model(x), x.new_zeros(len(x)).long())
    torch.autograd.backward(loss)


def probed(
    probe: str,
    work: Callable[..., None],
    model: nn.Module,
    x: Tensor,
    ops: str | None = None,
    inside_compiled: bool = False,
    **settings: Any,
) -> int:
    """The work under a probe; how many rows it gave. All that hookcli does counts: attaching, reducing, the rows."""
    from hookcli.hooks.session import HookSession  # not above, so that a plain run's memory is without hookcli's

    made = registry.load("probes", probe)(**settings)
    with HookSession(model, ops=ops, inside_compiled=inside_compiled) as session:
        made.attach(session)
        work(model, x.detach().requires_grad_().clone() if made.needs_input_grad else x)
    return len(made.rows())


def insight(kernel: str) -> Actions:
    model, x = small_gpt2(kernel)
    return {
        "plain forward": partial(forward, model, x),
        "hookcli attention": partial(probed, "attention", forward, model, x),
    }


def rounding() -> Actions:
    """The weights, and what layers receive, in the formats that are measured unless others are asked for."""
    model, x = small_gpt2("sdpa")
    of = ("weights", "activations")
    rounded = {f"hookcli formats --of {one}": partial(probed, "formats", forward, model, x, of=(one,)) for one in of}
    return {"plain forward": partial(forward, model, x), **rounded}


def small_gpt2(kernel: str) -> tuple[nn.Module, Tensor]:
    """A gpt2 without its vocabulary, whose attention runs by PyTorch's kernel or by hand, and its tokens."""
    from transformers import GPT2Config, GPT2Model

    torch.manual_seed(0)
    config = GPT2Config(n_layer=4, n_positions=TOKENS, vocab_size=1000, bos_token_id=0, eos_token_id=0, use_cache=False)
    config._attn_implementation = kernel
    return GPT2Model(config).eval(), torch.randint(1000, (1, TOKENS))


def by_operators(model: nn.Module, x: Tensor) -> int:
    """As where there was no compiler when hookcli was installed."""
    with patch.object(library, "loaded", None):
        return probed("activations", forward, model, x)


def naive(model: nn.Module, x: Tensor) -> None:
    """What people write: every statistic by its own call, read at once, for every tensor that a module returns."""

    def hook(module: nn.Module, args: Any, output: Any) -> None:
        tensors = [t for t in (output if isinstance(output, tuple) else (output,)) if t is not None]
        rows.extend(
            [s.item() for s in (t.mean(), t.std(), t.min(), t.max(), t.norm(), (t == 0).sum())] for t in tensors
        )

    rows: list[list[float]] = []
    handles = [module.register_forward_hook(hook) for module in model.modules()]
    forward(model, x)
    for handle in handles:
        handle.remove()


def activations(name: str) -> Actions:
    model, x = build(name)
    return {
        "plain forward": partial(forward, model, x),
        "hookcli activations": partial(probed, "activations", forward, model, x),
        "hookcli activations --hist": partial(probed, "activations", forward, model, x, hist=True),
        "hookcli activations, installed without a compiler": partial(by_operators, model, x),
        "naive hooks, six .item() a tensor": partial(naive, model, x),
    }


def operators(name: str) -> Actions:
    model, x = build(name)
    return {
        "plain forward": partial(forward, model, x),
        "under the mode alone": partial(under_mode, model, x),
        "hookcli activations": partial(probed, "activations", forward, model, x),
        "hookcli activations --ops": partial(probed, "activations", forward, model, x, ops="functions"),
    }


def under_mode(model: nn.Module, x: Tensor) -> int:
    """The calls of functions and modules as events, of which nothing is measured; how many there are."""
    from hookcli.hooks.session import HookSession

    seen: list[str] = []
    with HookSession(model, ops="functions") as session:
        session.forward(lambda event: seen.append(event.fqn))
        forward(model, x)
    return len(seen)


def torchlens(name: str) -> Actions:
    """For its own process, because TorchLens leaves PyTorch's functions wrapped."""
    from torchlens import trace

    model, x = build(name)
    return {
        "plain forward": partial(forward, model, x),
        "torchlens.trace (keeps every tensor)": partial(forward, partial(trace, model), x),
        "torchlens.trace and its stats_table": partial(forward, lambda x: trace(model, x).stats_table(), x),
    }


def grads(kinds: tuple[str, ...]) -> tuple[Actions, Callable[[], object]]:
    """The ways, and what clears the gradients between them."""
    model, x = build("resnet50", train=True)
    actions: Actions = {"plain": partial(backward, model, x)}
    for of in kinds:
        actions[f"hookcli grads --of {of}"] = partial(probed, "grads", backward, model, x, of=of)
    return actions, partial(model.zero_grad, set_to_none=True)


class Step:
    """A training step whose backward pass can be timed apart from its forward pass."""

    def __init__(self, name: str) -> None:
        self.model, self.x = build(name, train=True)

    def forward(self) -> None:
        self.model.zero_grad(set_to_none=True)
        self.loss = nn.functional.cross_entropy(self.model(self.x), self.x.new_zeros(len(self.x)).long())

    def plain(self) -> None:
        torch.autograd.backward(self.loss)

    def native(self, statistics: bool) -> int:
        """All counts: attaching the hooks, reducing, removing the hooks, the records."""
        from hookcli.hooks.native.timeline import Timeline

        with Timeline([self.loss], statistics=statistics) as timeline:
            self.plain()
        return len(timeline.nodes())

    def python(self) -> int:
        """The same by hooks in Python, which always take statistics."""
        from hookcli.capabilities.graph.probe import GraphProbe
        from hookcli.hooks.session import HookSession

        probe = GraphProbe()
        with HookSession(self.model) as session:
            probe.attach(session)
            session.backward_begins([self.loss])
            self.plain()
        return len(probe.rows())


def keep_freed_memory() -> None:
    """Have glibc keep what was freed: whether it gives some back is luck, and costs up to 70,000 page faults a pass."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(-3, 32 << 20)  # M_MMAP_THRESHOLD: the most that it takes, above resnet50's largest gradient
        libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD


def graph() -> tuple[Actions, Callable[[], object]]:
    """The ways to run the backward pass, and the forward pass that comes before each."""
    step = Step("resnet50")
    actions: Actions = {
        "plain": step.plain,
        "Python hooks and statistics": step.python,
        "C++ hooks": partial(step.native, False),
        "C++ hooks and statistics": partial(step.native, True),
    }
    return actions, step.forward


def twice(name: str, probe: str | None = None, **settings: Any) -> None:
    """Twice, because what is kept past a run shows in the next one's peak. `name`: forward or backward."""
    work = {"forward": forward, "backward": backward}[name]
    model, x = build("resnet50", train=work is backward)
    for _ in range(2):
        model.zero_grad(set_to_none=True)
        if probe:
            probed(probe, work, model, x, **settings)
        else:
            work(model, x)


def reductions() -> tuple[int, int, int]:
    """Rows, distinct outputs and tensors reduced of hookcli activations. One seen again unchanged is not distinct."""
    from hookcli.tensors import stats

    model, x = build("resnet50")
    distinct: dict[tuple[int, int], Tensor] = {}  # holds the tensors, so that no id is used twice
    for module in model.modules():
        module.register_forward_hook(lambda module, args, y: distinct.update({(id(y), y._version): y}))
    with patch.object(stats, "measure", wraps=stats.measure) as measure:
        rows = probed("activations", forward, model, x)
    return rows, len(distinct), measure.call_count


if __name__ == "__main__":
    # As in: forward activations; backward grads of=inputs
    twice(*sys.argv[1:3], **dict(setting.split("=") for setting in sys.argv[3:]))
