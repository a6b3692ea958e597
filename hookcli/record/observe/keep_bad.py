"""Keeps the first module that returns a NaN or infinity: its inputs, outputs and parameters, to reproduce the value."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hookcli.hooks.events import HookEvent
from hookcli.hooks.session import HookSession
from hookcli.tensors import tree
from hookcli.tensors.random_state import accelerators, random_states, set_random_states

_PLAIN = (type(None), bool, int, float, complex, str)


@dataclass
class _Call:
    """A call of a module as it began, with copies of all that it may change."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    state: dict[str, Tensor]
    rng: tuple[Tensor, ...]
    output: Any = None


class KeepBad:
    """Copies what each module receives until it has returned finite values; keeps the first call that did not.

    It waits for an accelerator after each module. The copies take as much memory as the inputs and buffers of the
    modules that are running, one inside the other. Nothing asks for a tensor's node, which some views make only then.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._devices: list[torch.device] = []
        self._running: dict[tuple[str, int], _Call] = {}
        self._found: tuple[str, nn.Module, _Call] | None = None

    def attach(self, session: HookSession) -> None:
        """Register hooks before and after each module."""
        self._devices = accelerators(session.model, ())
        session.forward_pre(self._enter)
        session.forward(self._leave)

    @torch.no_grad()
    def _enter(self, event: HookEvent) -> None:
        if self._found is not None or event.module is None:
            return
        with suppress(RuntimeError, TypeError, NotImplementedError):  # tensors of a kind that can't be copied
            args, kwargs = tree.replace((event.args, dict(event.kwargs)), _copy)
            buffers = {key: _copy("", x) for key, x in event.module.named_buffers()}
            self._running[event.fqn, event.call] = _Call(args, kwargs, buffers, random_states(self._devices).torch)

    @torch.no_grad()
    def _leave(self, event: HookEvent) -> None:
        call = self._running.pop((event.fqn, event.call), None)
        if call is None or self._found is not None or event.module is None:
            return
        if any(_is_bad(x) for _, x in tree.leaves(event.output)):
            call.output = tree.replace(event.output, _copy)
            call.state |= {key: _copy("", x) for key, x in event.module.named_parameters()}
            self._found = event.fqn, event.module, call
            self._running.clear()

    def write(self, fqn: str, name: str, title: str) -> str:
        """Write the module's call to files of this name. Returns the path of the one that reproduces it.

        Empty if the module of this fqn was not kept. Raises OSError, or what safetensors raises for other tensors.
        """
        if self._found is None or self._found[0] != fqn:
            return ""
        from safetensors.torch import save_file

        _, module, call = self._found
        tensors: dict[str, Tensor] = {}
        given = [_expression(arg, f"input.{number}", tensors) for number, arg in enumerate(call.args)]
        given += [f"{key}={_expression(arg, f'input.{key}', tensors)}" for key, arg in call.kwargs.items()]
        expected = _expression(call.output, "output", tensors)
        tensors |= {f"module.{key}": x for key, x in call.state.items()}
        tensors |= {f"rng.{device}": state for device, state in zip(["cpu", *self._devices], call.rng, strict=True)}
        self._folder.mkdir(parents=True, exist_ok=True)
        stem = self._folder / re.sub(r"[^\w.-]+", "_", name)
        save_file({key: x.contiguous() for key, x in tensors.items()}, f"{stem}.safetensors")
        device = self._devices[0] if self._devices else torch.device("cpu")
        script = Path(f"{stem}.py")
        lines = _SCRIPT.format(
            title=title.replace('"""', "'''").replace("\\", "/"),
            device=device,
            module="\n".join(_module_lines(module, Path(f"{stem}.pt"))),
            training=module.training,
            autocast=_autocast(device.type),
            seeded="\n".join(_SEED.format(device) for device in self._devices),
            given=", ".join(given),
            expected=expected,
        )
        script.write_text(lines)
        return str(script)


_SCRIPT = '''"""{title}"""

from pathlib import Path

import torch
from safetensors.torch import load_file

here = Path(__file__)
kept = load_file(here.with_suffix(".safetensors"), device="{device}")
{module}
state = {{key.removeprefix("module."): x for key, x in kept.items() if key.startswith("module.")}}
module.load_state_dict(state, strict=False, assign=True)
module.train({training})
torch.set_rng_state(kept["rng.cpu"].cpu())
{seeded}
with torch.no_grad(), {autocast}:
    output = module({given})
print("now: ", output)
print("then:", {expected})
'''


_SEED = 'torch.get_device_module("{0}").set_rng_state(kept["rng.{0}"].cpu())'


def _is_bad(x: Tensor) -> bool:
    """True if the values that this process holds have NaN or infinities; of a kind that can't be asked, none."""
    with suppress(RuntimeError, TypeError, NotImplementedError):
        return x.is_floating_point() and not bool(tree.local(x).isfinite().all())
    return False


def _copy(path: str, x: Tensor) -> Tensor:
    return x.detach().clone()


def _autocast(device: str) -> str:
    dtype = torch.get_autocast_dtype(device)
    return f'torch.autocast("{device}", {dtype}, enabled={torch.is_autocast_enabled(device)})'


def _expression(value: Any, key: str, tensors: dict[str, Tensor]) -> str:
    """Python that makes the value anew, with tensors from `kept`; these are added to `tensors`."""
    if isinstance(value, Tensor):
        tensors[key] = value
        return f"kept[{key!r}]"
    if type(value) in _PLAIN:
        return repr(value) if not isinstance(value, float) else f"float({str(value)!r})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k!r}: {_expression(v, f'{key}.{k}', tensors)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        items = [_expression(item, f"{key}.{number}", tensors) for number, item in enumerate(value)]
        return f"({''.join(f'{item}, ' for item in items)})" if isinstance(value, tuple) else f"[{', '.join(items)}]"
    return f"{value!r}" if isinstance(value, (torch.dtype, torch.device)) else f"...  # a {type(value).__name__}"


def _module_lines(module: nn.Module, pickled: Path) -> Iterator[str]:
    """Lines that build the module: from its repr if that is enough, else from a pickle."""
    expression = f"torch.nn.{module!r}"
    if _builds(expression, module):
        yield f"module = {expression}"
        return
    try:
        torch.save(module, pickled)
    except Exception as error:  # the class decides what can be pickled
        yield f"module = ...  # {tree.type_text(module)} can't be pickled ({error}): build it as the program does"
        return
    if type(module).__module__ == "__main__":
        script = Path(getattr(sys.modules["__main__"], "__file__", None) or "program.py").absolute()
        yield f"import sys; sys.path.insert(0, {str(script.parent)!r})"
        yield f"from {script.stem} import *  # where {type(module).__name__} is; trains, unless it asks for __main__"
    yield "module = torch.load(here.with_suffix('.pt'), weights_only=False)"


def _builds(expression: str, module: nn.Module) -> bool:
    """True if the expression builds a module of the same class with parameters and buffers of the same sizes."""
    if not type(module).__module__.startswith("torch.nn.") or "\n" in expression:
        return False
    states = random_states([])
    try:
        with torch.device("meta"):
            made = eval(expression, {"torch": torch})
    except Exception:  # the repr is for people
        return False
    finally:
        set_random_states([], states)
    sizes = [{key: x.shape for key, x in (*m.named_parameters(), *m.named_buffers())} for m in (made, module)]
    return type(made) is type(module) and sizes[0] == sizes[1]
