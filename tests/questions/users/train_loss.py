"""Cross-entropy by hand: log(softmax) is log(0) once the model is sure."""

import torch
from torch import nn


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(8, 32)
        self.act = nn.ReLU()
        self.fc2 = nn.Linear(32, 4)

    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))


torch.manual_seed(0)
model = Classifier()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(15):
    x = torch.randn(16, 8)
    if step == 9:
        x = x * 5000
    y = torch.randint(4, (16,))
    p = model(x).softmax(1)
    loss = -(nn.functional.one_hot(y, 4) * p.log()).sum(1).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"step {step}: loss {loss.item():.4g}")
