"""Small trainings after public recipes, which learn: python healthy.py NAME. `scripts/sweep learn` runs each."""

from __future__ import annotations

import copy
import itertools
import math
import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

SEEDED = torch.Generator().manual_seed(1)
CENTERS = torch.randn(10, 3, 8, 8, generator=SEEDED)


def images(number: int = 512) -> tuple[Tensor, Tensor]:
    labels = torch.randint(10, (number,), generator=SEEDED)
    return CENTERS[labels] * 0.7 + torch.randn(number, 3, 8, 8, generator=SEEDED), labels


def vectors(number: int = 512) -> tuple[Tensor, Tensor]:
    x = torch.randn(number, 8, generator=SEEDED)
    return x, (x @ torch.randn(8, 1, generator=SEEDED)).squeeze(1) + 0.1 * torch.randn(number, generator=SEEDED)


def convnet(classes: int = 10, width: int = 16) -> nn.Sequential:
    def block(a: int, b: int) -> list[nn.Module]:
        return [nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]

    body = [*block(3, width), *block(width, width), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1)]
    return nn.Sequential(*body, nn.Linear(width, classes))


def mlp(*sizes: int) -> nn.Sequential:
    layers = [layer for a, b in itertools.pairwise(sizes) for layer in (nn.Linear(a, b), nn.Tanh())]
    return nn.Sequential(*layers[:-1])


def classification() -> None:
    """After pytorch/examples, mnist: epochs with a test after each, and a schedule."""
    x, y = images()
    loader, held = DataLoader(TensorDataset(x, y), 32, shuffle=True), DataLoader(TensorDataset(*images(128)), 64)
    model = convnet()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)
    for _ in range(5):
        model.train()
        for batch, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(batch), labels)
            loss.backward()
            optimizer.step()
        schedule.step()
        model.eval()
        with torch.no_grad():
            print("loss", loss.item(), "right", sum((model(a).argmax(1) == b).sum().item() for a, b in held))


class Decoder(nn.Module):
    def __init__(self, words: int = 24, width: int = 32) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(words, width), nn.Parameter(0.02 * torch.randn(16, width))
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.1, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        scores: Tensor = self.head(self.body(self.embed(tokens) + self.position[: tokens.shape[1]], mask))
        return scores


def text(length: int = 4096, words: int = 24) -> Tensor:
    """Each word follows from the one before, nine times in ten."""
    after, noise = torch.randperm(words, generator=SEEDED), torch.randint(words, (length,), generator=SEEDED)
    tokens = [0]
    for number in range(length - 1):
        noisy = torch.rand((), generator=SEEDED) < 0.1
        tokens.append(int(noise[number]) if noisy else int(after[tokens[-1]]))
    return torch.tensor(tokens)


def language_model() -> None:
    """After nanoGPT: windows of one text, warm-up, clipped gradients, AdamW with and without decay."""
    tokens, model = text(), Decoder()
    decayed = {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1}
    others = {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}
    optimizer = torch.optim.AdamW([decayed, others], 3e-3)
    for step in range(120):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(1, (step + 1) / 20)
        starts = torch.randint(len(tokens) - 17, (16,))
        x = torch.stack([tokens[i : i + 16] for i in starts])
        y = torch.stack([tokens[i + 1 : i + 17] for i in starts])
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    print("loss", loss.item())


def gan() -> None:
    """After pytorch/examples, dcgan: both losses go up and down."""
    maker, judge = mlp(4, 32, 2), nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    of_maker, of_judge = (torch.optim.Adam(m.parameters(), 2e-3, betas=(0.5, 0.999)) for m in (maker, judge))
    ones, zeros = torch.ones(32, 1), torch.zeros(32, 1)
    for _ in range(150):
        real = torch.randn(32, 2) * 0.3 + torch.tensor([2.0, -1.0])
        judge.zero_grad()
        F.binary_cross_entropy_with_logits(judge(real), ones).backward()
        made = maker(torch.randn(32, 4))
        F.binary_cross_entropy_with_logits(judge(made.detach()), zeros).backward()
        of_judge.step()
        maker.zero_grad()
        loss = F.binary_cross_entropy_with_logits(judge(made), ones)
        loss.backward()
        of_maker.step()
    print("made", made.mean(0).tolist(), "loss", loss.item())


def diffusion() -> None:
    """After DDPM: the noise at a random time, with a moving average of the weights."""
    model = mlp(3, 64, 64, 2)
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    for _ in range(200):
        clean = torch.randint(2, (64, 2)) * 2.0 - 1
        time, noise = torch.rand(64, 1), torch.randn(64, 2)
        noisy = (1 - time).sqrt() * clean + time.sqrt() * noise
        loss = F.mse_loss(model(torch.cat([noisy, time], 1)), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for a, p in zip(average.parameters(), model.parameters(), strict=True):
                a.lerp_(p, 0.05)
    print("loss", loss.item())


def policy_gradient() -> None:
    """After pytorch/examples, reinforce: a loss that says nothing of what is learned."""
    policy = mlp(4, 32, 3)
    optimizer = torch.optim.Adam(policy.parameters(), 1e-2)
    best = torch.randn(4, 3, generator=SEEDED)
    for _ in range(120):
        chosen, rewards = [], []
        for _ in range(8):
            state = torch.randn(4)
            choice = torch.distributions.Categorical(logits=policy(state))
            action = choice.sample()
            chosen.append(choice.log_prob(action))
            rewards.append(float((state @ best).argmax() == action))
        gains = torch.tensor(rewards)
        loss = -(torch.stack(chosen) * (gains - gains.mean())).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("rewards", sum(rewards))


def q_learning() -> None:
    """After PyTorch's DQN tutorial: targets from a copy, so that a squared error may rise."""
    online = mlp(2, 32, 2)
    target = copy.deepcopy(online)
    optimizer = torch.optim.AdamW(online.parameters(), 3e-3)
    for step in range(200):
        state, action = torch.rand(32, 2), torch.randint(2, (32, 1))
        following = (state + 0.1 * (2 * action - 1)).clamp(0, 1)
        reward = (following[:, :1] > 0.8).float()
        with torch.no_grad():
            wanted = reward + 0.95 * target(following).amax(1, keepdim=True)
        loss = F.mse_loss(online(state).gather(1, action), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 9:
            target.load_state_dict(online.state_dict())
    print("loss", loss.item())


def contrastive() -> None:
    """After SimCLR: each row of a batch is its own class."""
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(150):
        x = torch.randn(64, 16)
        a, b = (F.normalize(model(x + 0.3 * torch.randn_like(x)), dim=1) for _ in range(2))
        loss = F.cross_entropy(a @ b.T / 0.2, torch.arange(64))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("loss", loss.item())


def distillation() -> None:
    """After BYOL and knowledge distillation: a frozen teacher in eval mode, and a moving average of the student."""
    x, y = images()
    teacher, student = convnet().eval().requires_grad_(False), convnet(width=8)
    average = copy.deepcopy(student).requires_grad_(False)
    optimizer = torch.optim.AdamW(student.parameters(), 3e-3)
    for _ in range(80):
        rows = torch.randint(len(x), (32,))
        with torch.no_grad():
            soft = teacher(x[rows]).softmax(1)
        scores = student(x[rows])
        loss = F.cross_entropy(scores, y[rows]) + 0.5 * F.kl_div(scores.log_softmax(1), soft, reduction="batchmean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for a, p in zip(average.parameters(), student.parameters(), strict=True):
                a.lerp_(p, 0.01)
    print("loss", loss.item())


class LoRA(nn.Module):
    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a, self.b = nn.Linear(base.in_features, rank, bias=False), nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x: Tensor) -> Tensor:
        adapted: Tensor = self.base(x) + self.b(self.a(x))
        return adapted


def low_rank() -> None:
    """After LoRA: adapters beside frozen layers, and a new head."""
    x, y = images()
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    model[:5].requires_grad_(False)
    model[1], model[3] = LoRA(model[1]), LoRA(model[3])
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 3e-3)
    for _ in range(100):
        rows = torch.randint(len(x), (32,))
        loss = F.cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("loss", loss.item())


class Rounded(nn.Linear):
    """A layer whose weights are rounded to 8 bits in forward, with the gradient of the identity."""

    def forward(self, x: Tensor) -> Tensor:
        scale = self.weight.detach().abs().max() / 127
        rounded = self.weight + ((self.weight / scale).round() * scale - self.weight).detach()
        return F.linear(x, rounded, self.bias)


def quantized() -> None:
    """After quantization-aware training: statistics of BatchNorm are frozen for the last third."""
    x, y = images()
    model = nn.Sequential(nn.Flatten(), Rounded(192, 64), nn.BatchNorm1d(64), nn.ReLU(), Rounded(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    for step in range(120):
        if step == 80:
            model[2].eval()
        rows = torch.randint(len(x), (32,))
        loss = F.cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("loss", loss.item())


def physics() -> None:
    """After physics-informed networks: u' = cos(t), u(0) = 0, on the same points in every step."""
    model = mlp(1, 32, 32, 1)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(200):
        t = torch.linspace(0, 3, 64).unsqueeze(1).requires_grad_()
        u = model(t)
        slope = torch.autograd.grad(u.sum(), t, create_graph=True)[0]
        loss = (slope - t.cos()).square().mean() + model(torch.zeros(1, 1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("loss", loss.item())


def lbfgs() -> None:
    """After pytorch/examples, time_sequence_prediction: the whole data, and a closure."""
    x, y = vectors()
    model = mlp(8, 16, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), 0.5, max_iter=5)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x[:400]).squeeze(1), y[:400])
        loss.backward()
        return loss

    for _ in range(20):
        loss = optimizer.step(closure)
    print("loss", float(loss))


def accumulation() -> None:
    """Four micro-batches a step, each a quarter of the loss."""
    x, y = images()
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    loader = DataLoader(TensorDataset(x, y), 16, shuffle=True)
    for _ in range(8):
        for number, (batch, labels) in enumerate(loader):
            loss = F.cross_entropy(model(batch), labels) / 4
            loss.backward()
            if number % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
    print("loss", loss.item())


def mixed_precision() -> None:
    """After PyTorch's recipe: autocast, and a GradScaler whose first steps overflow."""
    x, y = images()
    model = convnet()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    for _ in range(80):
        rows = torch.randint(len(x), (32,))
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(x[rows]), y[rows])
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    print("loss", loss.item())


def compiled() -> None:
    """torch.compile, with a backend that needs no compiler."""
    x, y = images()
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 10))
    fast = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(80):
        rows = torch.randint(len(x), (32,))
        optimizer.zero_grad()
        loss = F.cross_entropy(fast(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
    print("loss", loss.item())


def sharpness_aware() -> None:
    """After SAM: two passes a step, the second at weights uphill."""
    x, y = images()
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    for _ in range(80):
        rows = torch.randint(len(x), (32,))
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        size = math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters() if p.grad is not None))
        uphill = [0.05 * p.grad / size for p in model.parameters() if p.grad is not None]
        with torch.no_grad():
            for p, way in zip(model.parameters(), uphill, strict=True):
                p.add_(way)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[rows]), y[rows])
        loss.backward()
        with torch.no_grad():
            for p, way in zip(model.parameters(), uphill, strict=True):
                p.sub_(way)
        optimizer.step()
        optimizer.zero_grad()
    print("loss", loss.item())


class TwoTasks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 32), nn.ReLU())
        self.value, self.sign = nn.Linear(32, 1), nn.Linear(32, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        shared = self.body(x)
        return self.value(shared).squeeze(1), self.sign(shared)


def two_tasks() -> None:
    """Two losses, and an optimizer each for the body and the heads."""
    x, y = vectors()
    model = TwoTasks()
    of_body = torch.optim.Adam(model.body.parameters(), 3e-3)
    of_heads = torch.optim.SGD([*model.value.parameters(), *model.sign.parameters()], 0.05)
    for _ in range(120):
        rows = torch.randint(len(x), (32,))
        value, sign = model(x[rows])
        loss = F.mse_loss(value, y[rows]) + F.cross_entropy(sign, (y[rows] > 0).long())
        of_body.zero_grad()
        of_heads.zero_grad()
        loss.backward()
        of_body.step()
        of_heads.step()
    print("loss", loss.item())


def autoencoder() -> None:
    """After pytorch/examples, vae: a penalty that is raised slowly, so that the loss may rise."""
    x, _ = images()
    x = x.flatten(1)
    encoder, decoder = nn.Linear(192, 16), nn.Linear(8, 192)
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], 3e-3)
    for step in range(150):
        rows = torch.randint(len(x), (32,))
        mean, log_var = encoder(x[rows]).chunk(2, 1)
        code = mean + torch.randn_like(mean) * (log_var / 2).exp()
        penalty = -0.5 * (1 + log_var - mean.square() - log_var.exp()).sum(1).mean()
        loss = F.mse_loss(decoder(code), x[rows], reduction="sum") / 32 + min(1, step / 100) * penalty
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("loss", loss.item())


class Graph(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 4)

    def forward(self, x: Tensor, near: Tensor) -> Tensor:
        hidden = F.dropout(F.relu(near @ self.first(x)), 0.5, self.training)
        scores: Tensor = near @ self.second(hidden)
        return scores


def graph_network() -> None:
    """After pyg's gcn: the whole graph in every step, a loss on some of its nodes, and a test in each epoch."""
    labels = torch.randint(4, (200,), generator=SEEDED)
    x = torch.randn(200, 16, generator=SEEDED) + 1.5 * F.one_hot(labels, 16)
    near = (torch.rand(200, 200, generator=SEEDED) < 0.005 + 0.1 * (labels == labels[:, None])).float() + torch.eye(200)
    near = near / near.sum(1, keepdim=True)
    trained = torch.arange(200) < 60
    model = Graph()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2, weight_decay=5e-4)
    for _ in range(100):
        model.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x, near)[trained], labels[trained])
        loss.backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            right = (model(x, near).argmax(1) == labels)[~trained].float().mean()
    print("loss", loss.item(), "right", right.item())


def meta_learning() -> None:
    """After MAML: a step within the step, on weights that are functions of the model's."""
    model = mlp(1, 32, 1)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(80):
        optimizer.zero_grad()
        for _ in range(4):
            size, phase = torch.rand(2) * 3 + 0.5
            x = torch.rand(20, 1) * 6 - 3
            y = size * (x + phase).sin()
            weights = dict(model.named_parameters())
            inner = F.mse_loss(torch.func.functional_call(model, weights, (x[:10],)), y[:10])
            grads = torch.autograd.grad(inner, [*weights.values()], create_graph=True)
            moved = {name: p - 0.02 * g for (name, p), g in zip(weights.items(), grads, strict=True)}
            loss = F.mse_loss(torch.func.functional_call(model, moved, (x[10:],)), y[10:])
            loss.backward()
        optimizer.step()
    print("loss", loss.item())


def frozen_norms() -> None:
    """After torchvision's detection references: BatchNorm keeps the statistics that it came with."""
    x, y = images()
    model = convnet()
    for _ in range(10):  # as if it came with statistics
        with torch.no_grad():
            model(x[:64])
    model[:2].requires_grad_(False)
    model[-1] = nn.Linear(16, 10)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.05, momentum=0.9)
    for _ in range(80):
        model.train()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval().requires_grad_(False)
        rows = torch.randint(len(x), (32,))
        loss = F.cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("loss", loss.item())


def regression() -> None:
    """A small table, in full batches of a DataLoader."""
    x, y = vectors(128)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(120):
        for batch, wanted in DataLoader(TensorDataset(x, y), 128):
            loss = F.mse_loss(model(batch).squeeze(1), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print("loss", loss.item())


def one_batch_gan() -> None:
    """A discriminator that sees real and made rows in one batch: its loss stays near ln 2 when all is well."""
    x, _ = vectors()
    maker, judge = mlp(4, 32, 8), mlp(8, 32, 1)
    makers, judges = (torch.optim.Adam(model.parameters(), 2e-3) for model in (maker, judge))
    targets = torch.cat([torch.ones(32), torch.zeros(32)])
    for _ in range(150):
        rows, made = x[torch.randint(len(x), (32,))], maker(torch.randn(32, 4))
        judges.zero_grad()
        loss = F.binary_cross_entropy_with_logits(judge(torch.cat([rows, made.detach()]))[:, 0], targets)
        loss.backward()
        judges.step()
        makers.zero_grad()
        F.binary_cross_entropy_with_logits(judge(made)[:, 0], torch.ones(32)).backward()
        makers.step()
    print("loss", loss.item())


def domains() -> None:
    """After DANN: features from which a second head can't tell the domain, whose loss stays at ln 2."""
    x, y = images()
    body, head, domain = convnet(16), nn.Linear(16, 10), mlp(16, 16, 2)
    both = torch.optim.Adam([*body.parameters(), *head.parameters()], 3e-3)
    of_domain = torch.optim.Adam(domain.parameters(), 1e-3)
    for _ in range(100):
        rows = torch.randint(len(x), (32,))
        of_domain.zero_grad()
        F.cross_entropy(domain(body(x[rows]).detach()), rows % 2).backward()
        of_domain.step()
        features = body(x[rows])
        both.zero_grad()
        loss = F.cross_entropy(head(features), y[rows]) - 0.1 * F.cross_entropy(domain(features), rows % 2)
        loss.backward()
        both.step()
    print("loss", loss.item())


class Momentum(nn.Module):
    """A network, and a moving average of it, which the same optimizer has."""

    def __init__(self) -> None:
        super().__init__()
        self.network, self.predictor = mlp(8, 32, 16), mlp(16, 16)
        self.average = copy.deepcopy(self.network)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            target = self.average(x + 0.1 * torch.randn_like(x))
        return 1 - F.cosine_similarity(self.predictor(self.network(x)), target).mean()


def momentum() -> None:
    """After BYOL, with the target within the model, under no_grad alone."""
    x, _ = vectors()
    model = Momentum()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(100):
        loss = model(x[torch.randint(len(x), (32,))])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for a, b in zip(model.average.parameters(), model.network.parameters(), strict=True):
                a.lerp_(b, 0.02)
    print("loss", loss.item())


class Bootstrap(nn.Module):
    """A network with BatchNorm and a moving average of it, frozen, which normalizes by each batch as well."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16))
        self.predictor = mlp(16, 16)
        self.average = copy.deepcopy(self.network).requires_grad_(False)

    def forward(self, x: Tensor, near: Tensor) -> Tensor:
        return 1 - F.cosine_similarity(self.predictor(self.network(x)), self.average(near)).mean()


def bootstrap() -> None:
    """After BYOL, with a pretrained network on other data: the statistics of the target move in training mode."""
    x, _ = vectors()
    model = Bootstrap()
    with torch.no_grad():
        for _ in range(30):  # as if it came with statistics
            model(x[:64], x[:64])
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 1e-3)
    for _ in range(100):
        rows = 2 + x[torch.randint(len(x), (32,))]
        loss = model(rows, rows + 0.1 * torch.randn_like(rows))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for a, b in zip(model.average.parameters(), model.network.parameters(), strict=True):
                a.lerp_(b, 0.02)
    print("loss", loss.item())


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.first, self.second = mlp(8, 32, 32), nn.Linear(32, 2), nn.Linear(32, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.body(x).tanh()
        return self.first(x), self.second(x)


def in_turns() -> None:
    """Two tasks in turns, each with its own head."""
    x, y = vectors()
    model = TwoHeads()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for step in range(150):
        rows = torch.randint(len(x), (32,))
        first, second = model(x[rows])
        loss = F.mse_loss(second[:, 0], y[rows]) if step % 4 else F.cross_entropy(first, (y[rows] > 0).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("loss", loss.item())


def swapped_average() -> None:
    """A moving average of the weights is swapped in for each validation, and the weights put back."""
    x, y = images()
    model = convnet()
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    for step in range(80):
        rows = torch.randint(len(x), (32,))
        loss = F.cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for a, p in zip(average.parameters(), model.parameters(), strict=True):
                a.lerp_(p, 0.1)
        if step % 8 == 7:
            kept = copy.deepcopy(model.state_dict())
            model.load_state_dict(average.state_dict() | dict(model.named_buffers()))
            with torch.no_grad():
                model.eval()(x[:64])
            model.train().load_state_dict(kept)
    print("loss", loss.item())


def clipped_critic() -> None:
    """After WGAN: the critic's weights are clipped after each of its steps."""
    maker, critic = mlp(4, 32, 2), nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    of_maker, of_critic = (torch.optim.RMSprop(m.parameters(), 5e-3) for m in (maker, critic))
    for step in range(150):
        real = torch.randn(32, 2) * 0.3 + torch.tensor([2.0, -1.0])
        of_critic.zero_grad()
        (critic(maker(torch.randn(32, 4)).detach()).mean() - critic(real).mean()).backward()
        of_critic.step()
        with torch.no_grad():
            for p in critic.parameters():
                p.clamp_(-0.05, 0.05)
        if step % 3 == 2:
            of_maker.zero_grad()
            loss = -critic(maker(torch.randn(32, 4))).mean()
            loss.backward()
            of_maker.step()
    print("loss", loss.item())


def reptile() -> None:
    """After Reptile: each task begins at the same weights, which go a part of its way."""
    model = mlp(1, 32, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.02)
    for _ in range(30):
        before = copy.deepcopy(model.state_dict())
        size, phase = torch.rand(2) * 3 + 0.5
        for _ in range(5):
            x = torch.rand(20, 1) * 6 - 3
            loss = F.mse_loss(model(x), size * (x + phase).sin())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        after = model.state_dict()
        model.load_state_dict({name: old + 0.3 * (after[name] - old) for name, old in before.items()})
    print("loss", loss.item())


def folds() -> None:
    """Cross-validation: new weights, and a new optimizer, for each fold."""
    x, y = images()
    model = convnet()
    for fold in range(4):
        for module in model.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear, nn.BatchNorm2d)):
                module.reset_parameters()
        optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
        kept = torch.arange(len(x))[torch.arange(len(x)) % 4 != fold]
        for rows in kept[torch.randperm(len(kept))].split(32):
            loss = F.cross_entropy(model(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print("loss", loss.item())


class Cascade(nn.Module):
    """A coarse choice, from which a second layer makes a finer one."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.coarse, self.fine = mlp(8, 32, 32), nn.Linear(32, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        coarse = self.coarse(self.body(x).tanh())
        return coarse, self.fine(coarse)


def coarse_first() -> None:
    """The last layer runs, and is trained later than the others."""
    x, _ = vectors()
    model = Cascade()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for step in range(150):
        rows = torch.randint(len(x), (32,))
        coarse, fine = model(x[rows])
        loss = F.cross_entropy(coarse, x[rows, :4].argmax(1))
        if step >= 120:
            loss = loss + F.cross_entropy(fine, x[rows, :3].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("loss", loss.item())


class Reader(nn.Module):
    """Reads the lines of an image; the state is detached after every third."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(24, 32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(len(x), 32)
        for number, line in enumerate(x.transpose(1, 2).flatten(2).unbind(1)):
            state = self.cell(line, state.detach() if number % 3 == 2 else state)
        scores: Tensor = self.head(state)
        return scores


def truncated() -> None:
    """Truncated backpropagation through time."""
    x, y = images()
    model = Reader()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(100):
        rows = torch.randint(len(x), (32,))
        loss = F.cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("loss", loss.item())


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, layer = nn.Embedding(24, 32, padding_idx=0), nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.body, self.head = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), nn.Linear(32, 6)

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.head(self.body(self.embed(tokens), src_key_padding_mask=tokens == 0))
        return scores


def tagging() -> None:
    """Padded sentences: attention hides the padding, and the loss ignores it; several passes a step, and a warm-up."""
    model = Tagger()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 50))
    for _ in range(100):
        tokens = torch.randint(1, 24, (32, 12)) * (torch.arange(12) < torch.randint(4, 13, (32, 1)))
        labels = (tokens % 6).masked_fill(tokens == 0, -100)
        optimizer.zero_grad()
        for of_tokens, of_labels in zip(tokens.chunk(4), labels.chunk(4), strict=True):
            loss = F.cross_entropy(model(of_tokens).flatten(0, 1), of_labels.flatten())
            (loss / 4).backward()
        optimizer.step()
        schedule.step()
    print("loss", loss.item())


def both_ways() -> None:
    """After CLIP: pairs are found both ways, in two passes a step; hard ones, so that the loss stays near guessing."""
    left, right = nn.Linear(16, 8), nn.Linear(16, 8)
    optimizer = torch.optim.Adam([*left.parameters(), *right.parameters()], 1e-4)
    for _ in range(100):
        optimizer.zero_grad()
        for _ in range(2):
            x = torch.randn(16, 16)
            a, b = (F.normalize(side(x + 2 * torch.randn_like(x)), dim=1) for side in (left, right))
            scores, rows = a @ b.T, torch.arange(16)
            loss = (F.cross_entropy(scores, rows) + F.cross_entropy(scores.T, rows)) / 2
            (loss / 2).backward()
        optimizer.step()
    print("loss", loss.item())


def summed() -> None:
    """Squared errors of noisy numbers, summed over two passes a step."""
    x, y = vectors()
    y = y / y.std() + 1.5 * torch.randn(len(y), generator=SEEDED)
    model = mlp(8, 16, 1)
    optimizer = torch.optim.SGD(model.parameters(), 2e-4, momentum=0.9)
    for _ in range(120):
        optimizer.zero_grad()
        for rows in torch.randint(len(x), (64,)).chunk(2):
            loss = F.mse_loss(model(x[rows])[:, 0], y[rows], reduction="sum")
            loss.backward()
        optimizer.step()
    print("loss", loss.item() / 32)


class Pooled(nn.Module):
    """Attends over the rows of a set, and over the numbers of a row, of which there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.value, self.one = nn.Linear(8, 2), nn.Linear(8, 2), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.gate(x).softmax(0) * self.one(x).softmax(1)
        pooled: Tensor = (weights * self.value(x)).sum(0)
        return pooled


def pooled() -> None:
    """After multiple-instance learning, one set a step: the weights of its rows are a softmax over them."""
    model = Pooled()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(150):
        x = torch.randn(16, 8)
        row = x[x[:, 0].argmax()]
        loss = F.l1_loss(model(x), row[1:3])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("loss", loss.item())


def noisy_labels() -> None:
    """After the tricks for GANs: labels of 0 and 1 with noise; and an entropy that is to stay high."""
    x, y = vectors()
    model = mlp(8, 32, 1)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(120):
        rows = torch.randint(len(x), (32,))
        labels = (y[rows] > 0).float() + 0.2 * torch.randn(32)
        scores = model(x[rows])[:, 0]
        chance = scores.sigmoid()
        entropy = -(chance * F.logsigmoid(scores) + (1 - chance) * F.logsigmoid(-scores)).mean()
        loss = F.binary_cross_entropy_with_logits(scores, labels) - 0.01 * entropy
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("loss", loss.item())


class Modulated(nn.Module):
    """A block that begins as the identity: its gate, and what it adds, begin at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 64)
        for p in (*self.gate.parameters(), *self.down.parameters()):
            nn.init.zeros_(p)

    def forward(self, x: Tensor) -> Tensor:
        return x + (1 + self.gate(x)) * self.down(self.up(x).relu())


def begins_at_zero() -> None:
    """After adaLN-Zero and Fixup: layers, and the head, begin at zero."""
    x, y = images()
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 64), Modulated(), Modulated(), nn.Linear(64, 10))
    nn.init.zeros_(model[4].weight)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(80):
        rows = torch.randint(len(x), (32,))
        loss = F.cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("loss", loss.item())


class Translator(nn.Module):
    """Attention sees all of the source, and of the target what came before."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(24, 32), nn.Parameter(0.02 * torch.randn(12, 32))
        self.body = nn.Transformer(32, 4, 1, 1, 64, dropout=0.1, batch_first=True)
        self.head = nn.Linear(32, 24)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        source, target = self.embed(source) + self.place, self.embed(target) + self.place
        scores: Tensor = self.head(self.body(source, target, tgt_mask=mask))
        return scores


def translation() -> None:
    """Each word of the target follows from the one before; the source is as long, so that attentions are, too."""
    translate(Translator())


def translate(model: nn.Module) -> None:
    """Train on rows of a text, and the same rows in other words."""
    tokens = text()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(100):
        target = torch.stack([tokens[i : i + 13] for i in torch.randint(len(tokens) - 13, (16,))])
        loss = F.cross_entropy(model(23 - target[:, 1:], target[:, :-1]).mT, target[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("loss", loss.item())


def masked_words() -> None:
    """After BERT: attention sees all words of a row, which are alike, and of which some are hidden and predicted."""
    model = Translator()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(100):
        words, hidden = torch.randint(1, 24, (16, 1)).expand(16, 12), torch.rand(16, 12) < 0.3
        scores = model.head(model.body.encoder(model.embed(words.masked_fill(hidden, 0)) + model.place))
        loss = F.cross_entropy(scores.mT, words.masked_fill(~hidden, -100))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("loss", loss.item())


class Captioner(nn.Module):
    """Attention sees all words of the question; a GRU writes the answer, of as many words, and attends to them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(24, 32), nn.Parameter(0.1 * torch.randn(12, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
        self.body, self.cell = nn.TransformerEncoder(layer, 1), nn.GRU(32, 32, batch_first=True)
        self.looks, self.head = nn.MultiheadAttention(32, 4, batch_first=True), nn.Linear(64, 24)

    def forward(self, question: Tensor, answer: Tensor) -> Tensor:
        words, (states, _) = self.body(self.embed(question) + self.place), self.cell(self.embed(answer) + self.place)
        looked, _ = self.looks(states, words, words)
        scores: Tensor = self.head(torch.cat([states, looked], 2))
        return scores


def captions() -> None:
    """After Show, Attend and Tell: each word of the answer follows from the one before."""
    translate(Captioner())


def antecedents() -> None:
    """After coreference resolution: each mention chooses among those before it, the first one among one."""
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(80):
        losses = []
        for number in range(1, 5):
            mentions, others, right = torch.randn(16, 8), torch.randn(16, number, 8), torch.randint(number, (16,))
            others[torch.arange(16), right] = mentions + 0.1 * torch.randn(16, 8)
            pairs = torch.cat([mentions[:, None] * others, (mentions[:, None] - others).abs()], 2)
            losses.append(F.cross_entropy(model(pairs)[..., 0], right))
        loss = torch.stack(losses).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("loss", loss.item())


def reranked() -> None:
    """After rerankers: the right one of eight candidates comes first, and the model scores each by itself."""
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(80):
        query, found = torch.randn(32, 8), torch.randn(32, 8, 8)
        found[:, 0] = query + 0.1 * torch.randn(32, 8)
        pairs = torch.cat([query[:, None] * found, (query[:, None] - found).abs()], 2)
        loss = F.cross_entropy(model(pairs)[..., 0], torch.zeros(32, dtype=torch.long))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("loss", loss.item())


def classes_and_rows() -> None:
    """After UniCL: the class of each row, and the rows of each class."""
    x, y = images()
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(80):
        rows = torch.randint(len(x), (32,))
        scores, right = model(x[rows]), F.one_hot(y[rows], 10).float()
        of_classes = -(right * scores.log_softmax(1)).sum(1).mean()
        loss = of_classes - (right / right.sum(0).clamp(min=1) * scores.log_softmax(0)).sum(0).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("loss", loss.item())


def portfolios() -> None:
    """The weights of 40 assets, which are the rows, in three portfolios."""
    model, worth = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3)), 0.3 * torch.randn(8, 3)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(100):
        assets = torch.randn(40, 8)
        returns = assets @ worth + 0.3 * torch.randn(40, 3)
        loss = -(model(assets).softmax(0) * returns).sum(0).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("loss", loss.item())


def energy_distance() -> None:
    """Numbers that are made, compared with as many others, each with all."""
    model = mlp(4, 32, 1)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(100):
        made, others = model(torch.randn(64, 4)), 2 + 0.3 * torch.randn(64)
        loss = 2 * (made - others).abs().mean() - (made - made.T).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("loss", loss.item())


def sampled_blocks() -> None:
    """After LISA: four of six blocks are trained, others after every tenth step."""
    x, y = images()
    blocks = [nn.Sequential(nn.Linear(32, 32), nn.ReLU()) for _ in range(6)]
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 32), *blocks, nn.Linear(32, 10))
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for step in range(120):
        if step % 10 == 0:
            trained = torch.randperm(6)[:4].tolist()
            for number, block in enumerate(blocks):
                block.requires_grad_(number in trained)
        rows = torch.randint(len(x), (32,))
        loss = F.cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("loss", loss.item())


def labelled_rows() -> None:
    """After OGB's baselines of graphs: each step takes the same rows, by a mask."""
    x, y = images()
    labelled = torch.rand(len(x), generator=SEEDED) < 0.25
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(60):
        loss = F.cross_entropy(model(x[labelled]), y[labelled])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("loss", loss.item())


def mutual() -> None:
    """After deep mutual learning: each of two models learns from the labels, and from the other."""
    x, y = images()
    models = [nn.Sequential(nn.Flatten(), nn.Linear(192, 32), nn.ReLU(), nn.Linear(32, 10)) for _ in range(2)]
    optimizers = [torch.optim.Adam(model.parameters(), 3e-3) for model in models]
    for _ in range(80):
        rows = torch.randint(len(x), (32,))
        scores = [model(x[rows]).log_softmax(1) for model in models]
        for one, other, optimizer in zip(scores, reversed(scores), optimizers, strict=True):
            likely = F.kl_div(one, other.detach().exp(), reduction="batchmean")
            loss = F.nll_loss(one, y[rows]) + likely
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print("loss", loss.item())


def soft_labels() -> None:
    """After mixup: each row is a mixture of two, and so are its targets."""
    x, y = images()
    model, targets = convnet(), F.one_hot(y, 10).float()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(100):
        rows, others, share = torch.randint(len(x), (32,)), torch.randint(len(x), (32,)), float(torch.rand(()))
        scores = model(torch.lerp(x[others], x[rows], share))
        likely = scores - scores.logsumexp(1, keepdim=True)
        loss = F.kl_div(likely, torch.lerp(targets[others], targets[rows], share), reduction="batchmean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("loss", loss.item())


def noise_floor() -> None:
    """Labels of which half are noise: the learning rate falls again and again, as nothing is left to learn."""
    x, y = images()
    model, losses = convnet(), []
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=2)
    for step in range(900):
        rows = torch.randint(len(x), (32,))
        labels = torch.where(torch.rand(32) < 0.5, torch.randint(10, (32,)), y[rows])
        loss = F.cross_entropy(model(x[rows]), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 16 == 15:
            schedule.step(sum(losses[-16:]))
    print("loss", loss.item())


def recordings() -> None:
    """Each batch is one recording, of one class, drawn by chance."""
    model = mlp(192, 32, 10)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(200):
        label = torch.randint(10, ())
        rows = CENTERS[label].flatten() * 0.7 + torch.randn(16, 192)
        loss = F.cross_entropy(model(rows), label.expand(16))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("loss", loss.item())


def fading() -> None:
    """Images of ever less contrast, as a curriculum has them, for a model that normalizes each."""
    x, y = images()
    model = nn.Sequential(nn.InstanceNorm2d(3), nn.Flatten(), nn.Linear(192, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for step in range(160):
        rows = torch.randint(len(x), (32,))
        contrast = torch.linspace(0, -3, 160)[step].exp() ** 2
        loss = F.cross_entropy(model(contrast * x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("loss", loss.item())


def by_hand() -> None:
    """After a tutorial without torch.optim: the program updates the weights, and clears the gradients."""
    x, y = images()
    model = convnet()
    for batch, labels in DataLoader(TensorDataset(x.repeat(4, 1, 1, 1), y.repeat(4)), 32, shuffle=True):
        loss = F.cross_entropy(model(batch), labels, label_smoothing=0.1)
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
                p.grad.zero_()
    print("loss", loss.item())


def unbalanced() -> None:
    """One image in ten is of another class than the rest."""
    x, y = images()
    rare = (y == 0).long()
    model = nn.Sequential(nn.Flatten(), mlp(192, 32, 2))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(200):
        rows = torch.randint(len(x), (64,))
        loss = F.cross_entropy(model(x[rows]), rare[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("loss", loss.item())


class Pixels(nn.Module):
    """After ImageGPT: the model itself puts a first token before the others, and leaves the last one out."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.start = nn.Embedding(16, 32), nn.Parameter(torch.randn(1, 1, 32) / 6)
        self.places = nn.Parameter(torch.randn(16, 32) / 6)
        self.body, self.head = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.cat([self.start.expand(len(x), -1, -1), self.embed(x)[:, :-1]], 1) + self.places
        scores: Tensor = self.head(self.body(h, nn.Transformer.generate_square_subsequent_mask(x.shape[1])))
        return scores


def shifts_itself() -> None:
    model = Pixels()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(150):
        x = (torch.randint(16, (32, 1)) + torch.randint(1, 4, (32, 1)) * torch.arange(16)) % 16
        loss = F.cross_entropy(model(x).flatten(0, 1), x.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("loss", loss.item())


class Critics(nn.Module):
    """Two critics in one module, and their targets, which follow them (TD3)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.first_target, self.second, self.second_target = (mlp(4, 32, 1) for _ in range(4))
        for target, one in ((self.first_target, self.first), (self.second_target, self.second)):
            target.load_state_dict(one.state_dict())
            target.requires_grad_(False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        targets = torch.minimum(self.first_target(x.roll(1, 0)), self.second_target(x.roll(1, 0)))
        return self.first(x), self.second(x), targets


def critics() -> None:
    model = Critics()
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 1e-3)
    for _ in range(200):
        x = torch.randn(64, 4)
        first, second, future = model(x)
        target = x.sum(1, keepdim=True) + 0.5 * future.detach()
        loss = F.mse_loss(first, target) + F.mse_loss(second, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            pairs = (model.first, model.first_target), (model.second, model.second_target)
            for one, of_target in (pair for a, b in pairs for pair in zip(a.parameters(), b.parameters(), strict=True)):
                of_target.lerp_(one, 0.01)
    print("loss", loss.item())


def quantiles() -> None:
    """As many quantiles as rows, each of each row."""
    model = mlp(2, 32, 1)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(300):
        x, levels = torch.rand(32, 1), torch.rand(32, 1)
        less = (x[:, 0] + 0.3 * torch.randn(32)) - model(torch.cat([x, levels], 1))
        loss = torch.maximum(levels * less, (levels - 1) * less).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("loss", loss.item())


def decaying_gradients() -> None:
    """Gradients that decay in place of zero_grad(): a momentum without a buffer."""
    x, y = images()
    model = convnet()
    optimizer = torch.optim.SGD(model.parameters(), 0.02)
    for _ in range(150):
        rows = torch.randint(len(x), (32,))
        loss = F.cross_entropy(model(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
        for p in model.parameters():
            p.grad.mul_(0.9)
    print("loss", loss.item())


TRAININGS: dict[str, Callable[[], None]] = {
    one.__name__: one
    for one in (
        classification, language_model, gan, diffusion, policy_gradient, q_learning, contrastive, distillation,
        low_rank, quantized, physics, lbfgs, accumulation, mixed_precision, compiled, sharpness_aware, two_tasks,
        autoencoder, graph_network, meta_learning, frozen_norms, regression, one_batch_gan, domains, momentum, in_turns,
        bootstrap, swapped_average, clipped_critic, reptile, folds, coarse_first, truncated, tagging, both_ways,
        summed, pooled, noisy_labels, begins_at_zero, translation, masked_words,
        captions, antecedents, reranked, classes_and_rows, portfolios, energy_distance, sampled_blocks,
        labelled_rows, mutual, soft_labels, noise_floor,
        recordings, fading, by_hand, unbalanced, shifts_itself, critics, quantiles, decaying_gradients,
    )
}  # fmt: skip

if __name__ == "__main__":
    torch.manual_seed(0)
    TRAININGS[sys.argv[1]]()
