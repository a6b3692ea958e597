"""Runs a model as one training step does: forward, backward, and on request an optimizer step and a state dict."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hookcli.engine import failure
from hookcli.engine.preserve import SavedValues, same_layout
from hookcli.errors import (
    ModelError,
    NoGradientsError,
    NoLossError,
    StateDictError,
    UsageError,
    UserCode,
    in_brief,
    refuse_coroutine,
    unknown,
)
from hookcli.hooks.kinds import STATE_DICTS, HookKind
from hookcli.hooks.option_values import AUTOGRAD_CALLS, OPTIMIZERS, VECTORS
from hookcli.hooks.session import HookSession
from hookcli.hooks.torch_private.meta_operators import has_values
from hookcli.sources import losses
from hookcli.sources.base import Loss
from hookcli.table.meta import Meta
from hookcli.tensors import tree


@dataclass(frozen=True, slots=True)
class BatchShare:
    """One process's share of a run that `of` processes make together, each on its part of the batch.

    The sum of the shares' losses is the loss of the whole batch. `averaged`: backward averages the gradients of
    parameters over the processes, through the model itself or through the wrapper that `wrap` puts around it.
    """

    index: int = 0
    of: int = 1
    averaged: bool = False
    wrap: Callable[[nn.Module], nn.Module] | None = None


_MAKERS = (torch.optim.SGD, torch.optim.AdamW)
_OPTIMIZER: dict[str, Callable[..., torch.optim.Optimizer]] = dict(zip(OPTIMIZERS, _MAKERS, strict=True))


@dataclass(frozen=True, slots=True)
class Step:
    """Settings of a run that does more than one forward.

    `passes` forwards (and backward passes) are made without zeroing gradients in between. Gradients start from `loss`:
    a function of the output (and of the batch's `target`, where it takes one), "sum", "mean", "cross-entropy", or the
    path of an item of the output, such as "losses.total"; or from a `backward_vector` ("ones" or "randn") on every
    output. With neither, they start from the `loss` that the model itself returns, and for other models from the sum,
    or from the vector `otherwise`. `call` "grad" differentiates by `torch.autograd.grad` with respect to all
    parameters, which leaves `.grad` alone. `optimizer` ("sgd" or "adamw") takes a step at the end, and `state_dict`
    makes a round trip of the state dict. `backward`, `graph` (the forward records one, although nothing runs backward)
    and `input_grad` (the model's inputs require grad, too) follow from the probes. `gradients`: autograd records the
    forward and keeps what it saves, although only the model itself runs backward. The model and its loss run `within`
    such a context. `ran` is called with the output of the last pass, once it is differentiated. Raises UsageError for
    unknown names.
    """

    backward: bool = False
    loss: str | Loss | None = None
    target: object = None
    backward_vector: str | None = None
    otherwise: str | None = None
    call: str = "backward"
    passes: int = 1
    optimizer: str | None = None
    state_dict: bool = False
    graph: bool = False
    gradients: bool = False
    share: BatchShare = BatchShare()
    input_grad: bool = False
    within: Callable[[], AbstractContextManager[object]] = nullcontext
    ran: Callable[[object], object] | None = None

    def __post_init__(self) -> None:
        for what, value, choices in (
            ("backward_vector", self.backward_vector, VECTORS),
            ("otherwise", self.otherwise, VECTORS),
            ("call", self.call, AUTOGRAD_CALLS),
            ("optimizer", self.optimizer, OPTIMIZERS),
        ):
            if isinstance(value, str) and value not in choices:
                raise UsageError(unknown(what, value, choices))

    def run(self, session: HookSession, args: tuple[object, ...], kwargs: dict[str, Any], info: Meta) -> None:
        """Run the model and note in `info` what was differentiated. Each pass gets the inputs as the first had them."""
        for fqn, x in (*session.model.named_parameters(), *session.model.named_buffers()) if self.backward else ():
            if not is_lazy(x) and x.is_inference():
                raise UsageError(
                    f"no gradients: {fqn} was created under torch.inference_mode(), where autograd records nothing; "
                    "build the model outside of it"
                )
        if self.call == "grad" and session.wants(HookKind.MULTI_GRAD):
            raise UsageError("multi_grad hooks do not work under torch.autograd.grad: remove that kind")
        with self.mode():
            self._run(session, args, kwargs, info)

    def mode(self) -> AbstractContextManager[Any]:
        """Gradients on or off for the run, whatever the caller has set."""
        return torch.inference_mode(False) if self._records else torch.no_grad()

    @property
    def processes(self) -> int:
        """The number of processes over which backward averages gradients."""
        return self.share.of if self.backward and self.share.averaged else 1

    @property
    def _records(self) -> bool:
        """True if autograd records the forward."""
        return self.backward or self.graph or self.gradients

    def _run(self, session: HookSession, args: tuple[object, ...], kwargs: dict[str, Any], info: Meta) -> None:
        optimizer, called = self._optimizer(session, info), self._wrapped(session.model)
        random = torch.get_rng_state() if self.share.of > 1 else None
        inputs = SavedValues(tree.tensors((args, kwargs))) if self.passes > 1 else None
        for number in range(self.passes):
            session.begin_pass(number, self.passes)
            if inputs and number:
                inputs.put_back()
            call = tree.replace((args, kwargs), tree.once(self._own))
            with self.within():
                output = called(*call[0], **call[1])
            refuse_coroutine(output, f"forward of {type(session.model).__name__}", ModelError)
            if self.backward:
                self._differentiate(session, output, info)
            if self.ran and number == self.passes - 1:
                self.ran(output)
            del output, call
        if random is not None and not torch.equal(random, torch.get_rng_state()):
            info["random"] = "each process draws its own random numbers"
        if optimizer:
            optimizer.step()
        if self.state_dict and session.wants(*STATE_DICTS):
            _round_trip(session.model, optimizer)

    def _wrapped(self, model: nn.Module) -> nn.Module:
        """The model, in the wrapper that averages gradients over processes if there are any to average."""
        trains = any(p.requires_grad for p in model.parameters())
        if self.share.wrap and self.backward and self.call == "backward" and trains:  # else DDP does not work
            return self.share.wrap(model)
        return model

    def _own(self, path: str, x: Tensor) -> Tensor:
        """An input detached from the caller's graph, which shares the caller's memory where possible."""
        if self.input_grad and (x.is_floating_point() or x.is_complex()):
            # A copy is not a leaf, so the model may write into it.
            return same_layout((same_layout(x) if x.is_inference() else x.detach()).requires_grad_())
        if x.is_inference():
            return same_layout(x) if self._records else x  # autograd saves none
        return x.detach().requires_grad_(x.requires_grad)

    def _differentiate(self, session: HookSession, output: object, info: Meta) -> None:
        with self.within():
            roots, vectors = self.start(session, output, info)
        del output
        session.backward_begins(roots)
        if self.call == "backward":
            torch.autograd.backward(roots, vectors)
            session.backward_ended()
            return
        info["call"] = "torch.autograd.grad"
        wanted = [p for p in session.model.parameters() if p.requires_grad]
        torch.autograd.grad(roots, wanted, vectors, allow_unused=True)

    def start(self, session: HookSession, output: object, info: Meta) -> tuple[list[Tensor], list[Tensor] | None]:
        """The tensors at which backward starts, and a vector for each."""
        if self.backward_vector:
            return self._vectors(self.backward_vector, output, info)
        if self.loss is None:
            returned, why_not = losses.own_loss(output)
            if why_not:
                info["no_own_loss"] = why_not
            if returned is not None:
                return self._scalar(returned, "the model's own loss", info)
            if self.otherwise:
                return self._vectors(self.otherwise, output, info)
        return self._loss(self.loss or "sum", session, output, info)

    def _vectors(self, kind: str, output: object, info: Meta) -> tuple[list[Tensor], list[Tensor] | None]:
        tensors = losses.floating(output)
        if not tensors:
            raise NoLossError(NO_LOSS)
        roots = [t for t in tensors if t.requires_grad]
        if not roots:
            raise NoGradientsError(_NO_GRADIENTS)
        info["backward_vector"] = kind
        vectors = []
        for root in roots:
            if kind == "ones":
                vector = torch.ones_like(root)
            elif root.is_nested:  # it has no shape to draw numbers for
                with torch.random.fork_rng([]):
                    torch.manual_seed(0)
                    vector = torch.randn_like(root)
            else:  # of the random values that one process would draw for the whole batch, this one's share
                shape = (root.shape[0] * self.share.of, *root.shape[1:]) if root.dim() else root.shape
                drawn = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float32).to(root)
                vector = drawn.chunk(self.share.of)[self.share.index] if root.dim() else drawn
            vectors.append(vector)
        return roots, vectors

    def _loss(self, loss: str | Loss, session: HookSession, output: object, info: Meta) -> tuple[list[Tensor], None]:
        with session.inner_gradients():  # a loss function may compute gradients itself, for a penalty on them
            value, name = self.loss_of(loss, output, info)
        if not value.requires_grad:
            raise NoGradientsError(_NO_GRADIENTS)
        return self._scalar(value, name, info)

    def loss_of(self, loss: str | Loss, output: object, info: Meta) -> tuple[Tensor, str]:
        """A loss of an output, and its name. Raises ModelError if it fails, UsageError if it is not of one element."""
        text = type(loss).__name__ if isinstance(loss, nn.Module) else repr(loss)  # a module's text has several lines
        name = loss if isinstance(loss, str) else getattr(loss, "__qualname__", text)
        function = (losses.NAMED.get(loss) or partial(losses.at_path, path=loss)) if isinstance(loss, str) else loss

        def failed(error: BaseException) -> ModelError:
            message = f"the loss {name} failed on the model's output: {failure.describe(error)}"
            info["error"] = message.partition("\n")[0]
            return ModelError(message)

        with UserCode(failed):
            value = losses.applied(function, output, self.target)
        refuse_coroutine(value, "the loss")
        if not isinstance(value, Tensor) or value.numel() != 1:
            one = f"one of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
            raise UsageError(f"the loss must be a tensor of one element, not {one}")
        return value, name

    def _scalar(self, value: Tensor, name: str, info: Meta) -> tuple[list[Tensor], None]:
        if self.share.of > 1 and name != "sum":  # treated as a mean over the batch, as DistributedDataParallel does
            value = value / self.share.of
            info["loss_reduction"] = "mean"
        info.setdefault("loss", name)
        info["loss_value"] = float(value.detach()) if has_values(value) else None
        return [value], None

    def _optimizer(self, session: HookSession, info: Meta) -> torch.optim.Optimizer | None:
        trained = [p for p in session.model.parameters() if p.requires_grad]
        if not (self.optimizer and trained):
            return None
        info["optimizer"] = self.optimizer
        optimizer = _OPTIMIZER[self.optimizer](trained, lr=1e-3)
        session.optimizers.attach(optimizer)
        return optimizer


def _round_trip(*parts: Any) -> None:
    try:
        for part in filter(None, parts):
            part.load_state_dict(part.state_dict())
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise StateDictError(f"a round trip of the state dict failed: {in_brief(error)}") from error


NO_LOSS = "the model returned no floating-point tensor; give --loss"
_NO_GRADIENTS = "no gradients: nothing in the output requires grad (no parameters, or all frozen or quantized)"
