"""Small models that call PyTorch in many ways, for `scripts/sweep ops`. Each takes an input of 2x3x8x8."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint


class Functional(nn.Module):
    """Functions in place of modules, changes in place, views, several outputs, and `out=`."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 3, 3, 3))
        self.table = nn.Parameter(torch.randn(10, 4))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = nn.functional.conv2d(x, self.weight, padding=1)
        y = nn.functional.relu(y) + nn.functional.gelu(y)
        y += y.mean(dim=(2, 3), keepdim=True)
        y[:, 0] = 1
        y[:, 1].mul_(0.5)
        y = nn.functional.group_norm(nn.functional.dropout(y, 0.5, self.training), 2)
        y = nn.functional.interpolate(nn.functional.pad(nn.functional.max_pool2d(y, 2), (1, 1)), scale_factor=2.0)
        left, right = y.chunk(2, dim=1)
        values, places = torch.cat([left * 2, 1 - right]).flatten(1).topk(5)
        written = torch.empty_like(values)
        torch.mul(values, 3, out=written)
        found = nn.functional.embedding(places % 10, self.table).to(torch.float64).float()
        found = nn.functional.normalize(found, dim=-1).contiguous()
        scores = torch.einsum("bic,bjc->bij", found, found)
        scores = scores.masked_fill(torch.ones(5, 5, dtype=torch.bool).triu(1), -torch.inf)
        weights = nn.functional.log_softmax(scores, dim=-1).exp()
        ordered = torch.where(weights > 0.1, weights, 0.0).sort(dim=-1).values
        return {"written": written.cumsum(-1), "found": weights @ found, "ordered": ordered.squeeze().T}


class Attention(nn.Module):
    """Attention as a module, as a function, and inside Transformer layers."""

    def __init__(self) -> None:
        super().__init__()
        self.own = nn.MultiheadAttention(8, 2, batch_first=True)
        self.cross = nn.MultiheadAttention(8, 2, kdim=3, vdim=3)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
        self.decoder = nn.TransformerDecoderLayer(8, 2, 16, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        given = x[:, 0]
        y, weights = self.own(given, given, given)
        z = self.cross(y.transpose(0, 1), x[:, :, 0].permute(2, 0, 1), x[:, :, 1].permute(2, 0, 1))[0]
        y = self.encoder(y + z.transpose(0, 1))
        q, k, v = (y.view(2, 8, 2, 4).transpose(1, 2) * scale for scale in (1.0, 2.0, 3.0))
        return (
            self.decoder(y, nn.functional.scaled_dot_product_attention(q, k, v).flatten(2).view(2, 8, 8))
            * weights.sum()
        )


class Repeated(nn.Module):
    """One module called many times, recurrent ones, and parameters that are computed."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True))
        self.cell = nn.GRUCell(8, 8)
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.normed = parametrizations.weight_norm(nn.Linear(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        y = self.shared(self.shared(x[:, 0]) + x[:, 1])
        state = y.new_zeros(2, 8)
        for step in y.unbind(1):
            state = self.cell(step, state) * 0.5
        outputs, _ = self.lstm(y)
        return self.normed(torch.stack([state, outputs[:, -1]]))


class _Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        s = x.sigmoid()
        return grads[0] * (s + x * s * (1 - s))


@torch.jit.script
def _scripted(x: Tensor) -> Tensor:
    return torch.tanh(x) * 2


class Transformed(nn.Module):
    """Functions of one's own with a gradient, TorchScript, `torch.func`, checkpointing, complex and sparse tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        y = _Swish.apply(x[:, 0])
        y = checkpoint(self._part, y, use_reentrant=False)
        y = torch.func.vmap(lambda row: (row * row).sum(-1))(y) + _scripted(y).sum(-1)
        y = torch.fft.ifft(torch.fft.fft(y) * 2).real
        sparse = (self.weight * (self.weight > 0)).to_sparse()
        y = torch.linalg.solve(torch.eye(8) + self.weight @ self.weight.T, torch.sparse.mm(sparse, y.T)).T
        return torch.func.functional_call(self.inner, {"weight": self.weight}, (y,))

    def _part(self, y: Tensor) -> Tensor:
        return torch.tanh(self.inner(y)) + y
