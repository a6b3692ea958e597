"""What a rank does to see whether hooks change anything under DistributedDataParallel and fully_shard."""

import copy
import sys
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(sys.argv[1]))]

from models import Net
from support import equal, hooks_on

import hookcli
from hookcli.engine.ranks.group import joined
from hookcli.engine.ranks.parallel import shard
from hookcli.probes.grads import GradsProbe
from hookcli.system.torchrun import world

PROBES = {
    "activations": lambda: ["inputs", "activations"],
    "parameters": lambda: [GradsProbe()],
    "outputs": lambda: [GradsProbe("outputs")],
    "inputs": lambda: [GradsProbe("inputs")],
}


def sharded(model):
    shard(model, torch.device("cpu"), world().size)
    return model


WAYS = {"ddp": lambda model: DistributedDataParallel(model, find_unused_parameters=True), "fsdp": sharded}


def step(model, call, x):
    """The output, the gradients and the buffers of a step, each as plain tensors."""
    torch.manual_seed(1)
    for parameter in model.parameters():
        parameter.grad = None
    output = call(x)
    output.sum().backward()
    grads = [None if p.grad is None else getattr(p.grad, "to_local", lambda g=p.grad: g)() for p in model.parameters()]
    return output.detach(), grads, list(model.buffers())


def mobilenet():
    import torchvision

    return torchvision.models.mobilenet_v3_small()


def main(name: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    make, size = {"Net": (Net, 8), "mobilenet": (mobilenet, 32)}[name]
    original = make()
    with joined(world(), 120) as group:
        group.connect("gloo", torch.device("cpu"))
        x = torch.randn(4, 3, size, size) + world().rank
        for way, parallel in WAYS.items():
            plain = copy.deepcopy(original)
            expected = step(plain, parallel(plain), x)
            for seen, probes in PROBES.items():
                model = copy.deepcopy(original)
                call = parallel(model)
                before = hooks_on(model)
                with hookcli.watch(model, probes()) as watched:
                    found = step(model, call, x)
                    rows = sum(len(report.rows) for report in watched.reports())
                assert rows > 5, (way, seen)
                assert equal(found, expected), (way, seen)
                assert hooks_on(model) == before, (way, seen)
    sys.stdout.write("same\n")  # in one piece: print writes the line and its end apart, and two ranks share the pipe


main(sys.argv[2])
