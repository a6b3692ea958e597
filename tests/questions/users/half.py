import torch
from torch import nn


class Big(nn.Module):
    """The features of fc2 pass 65504."""

    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(16, 64), nn.Linear(64, 64), nn.Linear(64, 4)
        with torch.no_grad():
            self.fc2.weight.mul_(1e6)
            self.fc3.weight.mul_(1e-6)

    def forward(self, x):
        return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x)))))


class Tiny(nn.Module):
    """The features of fc2 are below float16's smallest normal number, 6.1e-5."""

    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(16, 64), nn.Linear(64, 64), nn.Linear(64, 4)
        with torch.no_grad():
            self.fc2.weight.mul_(1e-6)
            self.fc2.bias.mul_(1e-6)

    def forward(self, x):
        return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x)))) * 1e6)


class Flushed(Tiny):
    """The features of fc2 are below 6e-8, where float16 has only zero."""

    def __init__(self):
        super().__init__()
        with torch.no_grad():
            self.fc2.weight.mul_(1e-3)
            self.fc2.bias.mul_(1e-3)
