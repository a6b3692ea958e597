"""A classifier and its data, a tenth of whose labels are wrong: as built, and after a short training."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

WIDTH, CLASSES, SAMPLES = 32, 10, 4096
generator = torch.Generator().manual_seed(0)
x = torch.randn(SAMPLES, WIDTH, generator=generator)
y = (x @ torch.randn(WIDTH, CLASSES, generator=generator)).argmax(1)
wrong = torch.rand(SAMPLES, generator=generator) < 0.1
y[wrong] = torch.randint(CLASSES, (int(wrong.sum()),), generator=generator)
loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(WIDTH, 64)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU()) for _ in range(2))
        self.head = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def trained(steps: int = 500) -> Net:
    """The classifier after this many steps."""
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    while steps > 0:
        for inputs, targets in loader:
            cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
            steps -= 1
    return model
