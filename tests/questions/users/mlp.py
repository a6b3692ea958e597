import torch
from torch import nn


class MLP(nn.Module):
    """Twelve sigmoid layers: each passes at most a quarter of its gradient on."""

    def __init__(self, width=64, depth=12):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(32 if i == 0 else width, width) for i in range(depth)])
        self.act = nn.Sigmoid()
        self.out = nn.Linear(width, 10)

    def forward(self, x):
        for layer in self.layers:
            x = self.act(layer(x))
        return self.out(x)


class Saturated(nn.Module):
    """tanh layers; the bias of layers.6 puts it at its bound, so that layers.0 to 6 learn nothing."""

    def __init__(self, width=64, depth=10, bad=6):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(32 if i == 0 else width, width) for i in range(depth)])
        self.acts = nn.ModuleList([nn.Tanh() for _ in range(depth)])
        self.out = nn.Linear(width, 10)
        for layer in self.layers:
            nn.init.xavier_normal_(layer.weight, gain=5 / 3)
        with torch.no_grad():
            self.layers[bad].bias.fill_(8.0)

    def forward(self, x):
        for layer, act in zip(self.layers, self.acts):
            x = act(layer(x))
        return self.out(x)
