import torch
import torch.nn.functional as F
from torch import nn


def double_conv(a, b):
    return nn.Sequential(
        nn.Conv2d(a, b, 3, padding=1, bias=False),
        nn.BatchNorm2d(b),
        nn.ReLU(inplace=True),
        nn.Conv2d(b, b, 3, padding=1, bias=False),
        nn.BatchNorm2d(b),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self, channels=3, classes=2, features=(16, 32, 64)):
        super().__init__()
        self.pool = nn.MaxPool2d(2)
        self.downs = nn.ModuleList()
        self.ups = nn.ModuleList()
        for f in features:
            self.downs.append(double_conv(channels, f))
            channels = f
        self.bottleneck = double_conv(features[-1], 2 * features[-1])
        for f in reversed(features):
            self.ups.append(nn.ConvTranspose2d(2 * f, f, 2, stride=2))
            self.ups.append(double_conv(2 * f, f))
        self.head = nn.Conv2d(features[0], classes, 1)

    def forward(self, x):
        skips = []
        for down in self.downs:
            x = down(x)
            skips.append(x)
            x = self.pool(x)
        x = self.bottleneck(x)
        for up, conv in zip(self.ups[::2], self.ups[1::2]):
            x, skip = up(x), skips.pop()
            if x.shape != skip.shape:
                x = F.interpolate(x, size=skip.shape[2:])
            x = conv(torch.cat([skip, x], 1))
        return self.head(x)
