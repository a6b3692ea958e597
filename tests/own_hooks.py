"""Communication hooks of users: some that work, and some that go wrong."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future


def _allreduce(tensor: Tensor) -> Any:
    return dist.all_reduce(tensor.div_(dist.get_world_size()), async_op=True).get_future()


def own_allreduce(state, bucket):
    return _allreduce(bucket.buffer()).then(lambda future: future.value()[0])


class Instance:
    def __call__(self, state, bucket):
        return own_allreduce(state, bucket)


instance = Instance()
partly = functools.partial(lambda extra, state, bucket: own_allreduce(state, bucket), 1)


def raises(state, bucket):
    raise KeyError("lost")


def raises_in_then(state, bucket):
    return _allreduce(bucket.buffer()).then(lambda future: future.value()[0] / nothing())


def nothing():
    raise ZeroDivisionError("nothing to divide by")


def returns_tensor(state, bucket):
    return bucket.buffer()


def returns_none(state, bucket):
    _allreduce(bucket.buffer()).wait()


def resolves_to_list(state, bucket):
    return _allreduce(bucket.buffer())


def resolves_to_half_of_it(state, bucket):
    return _allreduce(bucket.buffer()).then(lambda future: future.value()[0][::2])


def resolves_to_bytes(state, bucket):
    return _allreduce(bucket.buffer()).then(lambda future: future.value()[0].to(torch.uint8))


def resolves_to_text(state, bucket):
    return _allreduce(bucket.buffer()).then(lambda future: "done")


def random_numbers(state, bucket):
    """Changes the random state, as stochastic rounding would."""
    torch.rand(3)
    return own_allreduce(state, bucket)


def gathers(state, bucket):
    """An allgather, a broadcast of three numbers, and a functional collective that Python does not see."""
    from torch.distributed import _functional_collectives as functional

    mine = bucket.buffer().half()
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.broadcast(torch.ones(3), 0)
    functional.all_reduce(torch.ones(5), "sum", dist.group.WORLD).wait()
    future = dist.all_gather(parts, mine, async_op=True).get_future()
    return future.then(lambda future: torch.stack(parts).float().mean(0))


def new_group(state, bucket):
    group = dist.new_group()
    dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), group=group)
    done: Future[Any] = Future()
    done.set_result(bucket.buffer())
    return done


def annotated(state: object, bucket: dist.GradBucket) -> Future[Tensor]:
    return own_allreduce(state, bucket)


def misnamed(state, grads): ...


def three(state, bucket, more): ...


number = 3
