import torch
from torch import nn


class Residual(nn.Module):
    def __init__(self, a, b, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(a, b, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(b)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(b, b, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(b)
        self.down = nn.Conv2d(a, b, 1, stride=stride) if a != b or stride > 1 else nn.Identity()

    def forward(self, x):
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(y + self.down(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.layer1 = Residual(16, 16, 1)
        self.layer2 = Residual(16, 32, 2)
        self.layer3 = Residual(32, 32, 1)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(32, 10)

    def forward(self, x):
        x = self.layer3(self.layer2(self.layer1(self.stem(x))))
        return self.fc(self.pool(x).flatten(1))
