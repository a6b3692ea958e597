"""Keeps the first module that returns a NaN or infinity: its inputs, outputs and parameters, to reproduce the value."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path

import torch
from torch import Tensor, nn

from hookcli.capabilities.keep_bad.module_source import PLAIN, module_source
from hookcli.hooks.events import HookEvent
from hookcli.hooks.session import HookSession
from hookcli.system.escaping import visible
from hookcli.tensors import tree
from hookcli.tensors.random_state import accelerators, random_states


@dataclass
class _Call:
    """A call of a module as it began, with copies of all that it may change."""

    args: tuple[object, ...]
    kwargs: dict[str, object]
    state: dict[str, Tensor]
    rng: tuple[Tensor, ...]
    output: object = None


class KeepBad:
    """Copies what each module receives until it has returned finite values; keeps the first call that did not.

    With `operators` also those around it that return such values: an operator between their parts may have made the
    first one. It waits for an accelerator after each module. The copies take as much memory as the inputs and buffers
    of the modules that are running, one inside the other. Nothing asks for a tensor's node, which some views make only
    then.
    """

    def __init__(self, folder: Path, *, operators: bool = False) -> None:
        self._folder = folder
        self._operators = operators
        self._devices: list[torch.device] = []
        self._running: dict[tuple[str, int], _Call] = {}
        self._found: dict[str, tuple[nn.Module, _Call]] = {}

    def attach(self, session: HookSession) -> None:
        self._devices = accelerators(session.model, ())
        session.forward_pre(self._enter)
        session.forward(self._leave)

    @torch.no_grad()
    def _enter(self, event: HookEvent) -> None:
        if self._found or event.module is None:
            return
        with suppress(RuntimeError, TypeError, NotImplementedError):  # tensors of a kind that can't be copied
            args, kwargs = tree.replace((event.args, dict(event.kwargs)), _copy)
            buffers = {key: x.detach().clone() for key, x in event.module.named_buffers()}
            self._running[event.fqn, event.call] = _Call(args, kwargs, buffers, random_states(self._devices).torch)

    @torch.no_grad()
    def _leave(self, event: HookEvent) -> None:
        call = self._running.pop((event.fqn, event.call), None)
        if call is None or event.module is None:
            return
        if any(map(_is_bad, (x for _, x in tree.leaves(event.output)))):
            call.output = tree.replace(event.output, _copy)
            call.state |= {key: x.detach().clone() for key, x in event.module.named_parameters()}
            self._found[event.fqn] = event.module, call
            self._running = self._running if self._operators else {}

    def write(self, fqn: str, name: str, title: str) -> tuple[str, int]:
        """Write the module's call to files of this name; with a number if an earlier run has left some.

        Returns the path of the one that reproduces it, and how many of its values a person has to fill in. The path is
        empty if the module of this fqn was not kept. Raises OSError, or what safetensors raises for other tensors.
        """
        if fqn not in self._found:
            return "", 0
        from safetensors.torch import save_file

        module, call = self._found[fqn]
        values = _Values()
        arguments = [values.expression(arg, f"input.{number}") for number, arg in enumerate(call.args)]
        for key, arg in call.kwargs.items():
            expression = values.expression(arg, f"input.{key}")
            arguments.append(f"{key}={expression}" if key.isidentifier() else f"**{{{key!r}: {expression}}}")
        expected = values.expression(call.output, "output")
        tensors = values.tensors | {f"module.{key}": x for key, x in call.state.items()}
        tensors |= {f"rng.{device}": state for device, state in zip(["cpu", *self._devices], call.rng, strict=True)}
        self._folder.mkdir(parents=True, exist_ok=True)
        name = re.sub(r"[^\w.-]+", "_", name)
        stems = (self._folder / text for text in chain([name], (f"{name}-{number}" for number in count(2))))
        stem = next(path for path in stems if not Path(f"{path}.py").exists())
        save_file({key: x.contiguous() for key, x in tensors.items()}, f"{stem}.safetensors")
        script = Path(f"{stem}.py")
        source = module_source(module, Path(f"{stem}.pt"))
        lines = self.script(
            title=repr(title),
            definitions=source.definitions,
            module=source.expression + source.comment,
            unknown="\n    ".join(values.unknown),
            training=module.training,
            arguments=", ".join(arguments),
            expected=expected,
        )
        compile(lines, script, "exec")  # it must be Python whatever the program's names are
        script.write_text(lines, encoding="utf-8")
        return str(script), len(values.unknown) + bool(source.comment)

    def script(self, **parts: object) -> str:
        """The script that runs a kept call again, on its device and under its autocast, from these parts."""
        device = self._devices[0] if self._devices else torch.device("cpu")
        dtype, enabled = torch.get_autocast_dtype(device.type), torch.is_autocast_enabled(device.type)
        lines = _SCRIPT.format(
            device=device,
            autocast=f'torch.autocast("{device.type}", {dtype}, enabled={enabled})',
            seeded="\n    ".join(_SEED.format(device) for device in self._devices),
            **parts,
        )
        return re.sub(r"^ +\n", "", lines, flags=re.MULTILINE)  # of parts that are empty


_SCRIPT = """{title}
{definitions}

from pathlib import Path

import torch
from safetensors.torch import load_file


def reproduce() -> None:
    here = Path(__file__)
    kept = load_file(here.with_suffix(".safetensors"), device="{device}")
    module = {module}
    {unknown}
    state = {{key.removeprefix("module."): x for key, x in kept.items() if key.startswith("module.")}}
    module.load_state_dict(state, strict=False, assign=True)
    module.train({training})
    torch.set_rng_state(kept["rng.cpu"].cpu())
    {seeded}
    with torch.no_grad(), {autocast}:
        output = module({arguments})
    print("now: ", output)
    print("then:", {expected})


reproduce()
"""


_SEED = 'torch.get_device_module("{0}").set_rng_state(kept["rng.{0}"].cpu())'


def _is_bad(x: Tensor) -> bool:
    """True if the values that this process holds have NaN or infinities; of a kind that can't be asked, none."""
    with suppress(RuntimeError, TypeError, NotImplementedError):
        return x.is_floating_point() and not bool(tree.local(x).isfinite().all())
    return False


def _copy(path: str, x: Tensor) -> Tensor:
    return x.detach().clone()


@dataclass
class _Values:
    """Python that makes values anew: with `tensors` from `kept`, and with the lines that name `unknown` values."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)

    def expression(self, value: object, key: str) -> str:
        """Python that makes the value; its tensors have names that begin with the key."""
        if isinstance(value, Tensor):
            self.tensors[key] = value
            return f"kept[{key!r}]"
        if type(value) in PLAIN:
            return f"{type(value).__name__}({str(value)!r})" if isinstance(value, (float, complex)) else repr(value)
        if isinstance(value, Mapping) and all(type(k) in PLAIN for k in value):
            pairs = (f"{self.expression(k, '')}: {self.expression(v, f'{key}.{k}')}" for k, v in value.items())
            return f"{{{', '.join(pairs)}}}"
        if isinstance(value, (list, tuple)):
            items = "".join(f"{self.expression(item, f'{key}.{number}')}, " for number, item in enumerate(value))
            return f"({items})" if isinstance(value, tuple) else f"[{items.removesuffix(', ')}]"
        if isinstance(value, (torch.dtype, torch.device)):
            return repr(value)
        if key.startswith("output") and (tensors := dict(tree.leaves(value))):  # they are only printed
            return self.expression(tensors, key)
        self.unknown.append(f"value{len(self.unknown)} = ...  # a {visible(type(value).__name__)}")
        return self.unknown[-1].partition(" ")[0]
