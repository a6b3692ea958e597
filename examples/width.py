"""A small network as PyTorch initializes it, and in muP, whose learning rate transfers to larger widths."""

import torch
from torch import Tensor, nn

BASE = 32
"""The width for which the learning rate was found."""


def batches() -> list[tuple[Tensor, Tensor]]:
    """A batch with a random class for each sample, which a good learning rate learns by heart in a few steps."""
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(64, 16, generator=generator), torch.randint(10, (64,), generator=generator))]


class Net(nn.Module):
    """Residual blocks between two layers whose other side does not grow with the width."""

    def __init__(self, width: int = BASE) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(16, width), nn.Linear(width, 10)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(self.norm(x)).relu())


def mu(width: int = BASE) -> Net:
    """The network in muP: the last layer's weights are smaller by the root of how much wider it is."""
    net = Net(width)
    with torch.no_grad():
        net.head.weight.div_((width / BASE) ** 0.5)
    return net


def mu_adam(net: Net, lr: float = 1e-3) -> torch.optim.Optimizer:
    """Adam in muP: matrices whose inputs grow with the width get a learning rate that falls with it."""
    wide = [p for name, p in net.named_parameters() if p.dim() > 1 and not name.startswith("embed")]
    others = [p for p in net.parameters() if all(p is not w for w in wide)]
    return torch.optim.Adam([{"params": wide, "lr": lr * BASE / net.head.in_features}, {"params": others}], lr=lr)
