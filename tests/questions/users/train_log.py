"""A log of zero at step 7, where a batch has an empty row."""

import torch
from torch import nn


class Density(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(8, 32)
        self.act = nn.ReLU()
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        share = x / x.sum(1, keepdim=True)
        return self.head(self.act(self.encoder(torch.log(share))))


def main():
    torch.manual_seed(0)
    model = Density()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(15):
        x = torch.rand(16, 8) + 0.1
        if step == 7:
            x[3, 2] = 0.0
        target = torch.randint(4, (16,))
        loss = nn.functional.cross_entropy(model(x), target)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {step}: loss {loss.item():.4g}")


if __name__ == "__main__":
    main()
