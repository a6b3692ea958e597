"""float16: the weights of `scale` double in each step, until its features pass 65504."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.scale, self.head = nn.Linear(8, 32), nn.Linear(32, 32), nn.Linear(32, 2)

    def forward(self, x):
        return self.head(self.scale(torch.relu(self.embed(x))))


torch.manual_seed(0)
model = Net().half()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for step in range(24):
    with torch.no_grad():
        model.scale.weight *= 2.0
    y = model(torch.randn(16, 8).half())
    top = y.abs().max().item()
    loss = (y.float() / 1e6).pow(2).mean()
    print(f"step {step}: largest output {top:.4g}, loss {loss.item():.4g}")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
