"""A communication hook: encode gradients, let all ranks add them up, decode.

    hookcli comm resnet50 --hook examples/fp16_allreduce.py:hook

In training: `ddp_model.register_comm_hook(None, hook)`.
"""

import torch
import torch.distributed as dist
from torch.futures import Future


def encode(gradients: torch.Tensor) -> torch.Tensor:
    return gradients.to(torch.float16).div_(dist.get_world_size())


def hook(state: object, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    gradients = bucket.buffer()  # of many parameters in one flat tensor, this rank's own
    sum_of_ranks = dist.all_reduce(encode(gradients), async_op=True).get_future()

    def decode(future: Future[list[torch.Tensor]]) -> torch.Tensor:
        return gradients.copy_(future.value()[0])

    return sum_of_ranks.then(decode)
