"""A CNN: act2 is all dead, act3 has 30 % dead channels (planted)."""

import torch
from torch import nn


class CNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.act1 = nn.Conv2d(3, 20, 3, padding=1), nn.ReLU()
        self.conv2, self.act2 = nn.Conv2d(20, 20, 3, padding=1), nn.ReLU()
        self.conv3, self.act3 = nn.Conv2d(20, 20, 3, padding=1), nn.ReLU()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(20, 10)
        with torch.no_grad():
            self.conv3.bias[:6] = -100.0

    def forward(self, x):
        x = self.act1(self.conv1(x))
        x = self.act2(self.conv2(x))
        x = self.act3(self.conv3(x))
        return self.fc(self.pool(x).flatten(1))


class AllDead(CNN):
    def __init__(self):
        super().__init__()
        with torch.no_grad():
            self.conv2.bias.fill_(-100.0)
