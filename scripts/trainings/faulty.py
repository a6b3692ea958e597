"""Small trainings, each with one fault, or none: python faulty.py NAME. `scripts/sweep learn` runs each."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

STEPS, SIZE = 60, 64
SEEDED = torch.Generator().manual_seed(1)
CENTERS = torch.randn(10, 3, 8, 8, generator=SEEDED)
LABELS = torch.randint(10, (1024,), generator=SEEDED)
IMAGES = CENTERS[LABELS] * 0.7 + torch.randn(1024, 3, 8, 8, generator=SEEDED)
SHUFFLED = LABELS[torch.randperm(1024, generator=SEEDED)]


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.norm(self.conv(x)))


class Net(nn.Module):
    def __init__(self, width: int = 16, blocks: int = 4, *, detaches: bool = False) -> None:
        super().__init__()
        self.detaches = detaches
        self.stem, self.norm = nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.drop, self.head = nn.Dropout(0.1), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(x)))
        for block in self.blocks:
            x = block(x)
        x = self.drop(x.mean((2, 3)))
        scores: Tensor = self.head(x.detach() if self.detaches else x)
        return scores


def drawn(labels: Tensor = LABELS, *, seed: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of rows that are drawn anew for each step, or by the same seed."""
    for step in range(STEPS):
        rows = torch.randint(1024, (SIZE,), generator=torch.Generator().manual_seed(step if seed is None else seed))
        yield IMAGES[rows], labels[rows]


def train(
    model: nn.Module,
    batches: Iterator[tuple[Tensor, Tensor]],
    lr: float = 0.05,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    clears: bool = True,
    steps: bool = True,
    after: Callable[[int], object] = lambda step: None,
    loss_of: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
) -> None:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr, momentum=0.9)
    for step, (x, y) in enumerate(batches):
        if clears:
            optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        if steps:
            optimizer.step()
        after(step)
    print("loss", loss.item())


def none() -> None:
    train(Net(), drawn())


def zero_grad() -> None:
    train(Net(), drawn(), clears=False)


def slow() -> None:
    train(Net(), drawn(), 0.0005)


def fast() -> None:
    train(Net(), drawn(), 50.0)


def labels() -> None:
    train(Net(), drawn(SHUFFLED))


def frozen() -> None:
    model = Net()
    model.blocks[1].requires_grad_(False)
    train(model, drawn())


def in_eval() -> None:
    model = Net()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    train(model, drawn())


def head() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    model.head = nn.Linear(16, 10)
    train(model, drawn(), optimizer=optimizer)


def same() -> None:
    train(Net(), drawn(seed=0))


def detached() -> None:
    train(Net(detaches=True), drawn())


def first_batch() -> None:
    loader = DataLoader(TensorDataset(IMAGES, LABELS), SIZE)
    train(Net(), (tuple(next(iter(loader))) for _ in range(STEPS)))


def kept_graphs() -> None:
    model, total = Net(), torch.zeros(())
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    for x, y in drawn():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        total = total + loss
    print("mean loss", total.item() / STEPS)


def dead_units() -> None:
    """A ReLU before the head, whose bias is far below zero."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 32), nn.ReLU(), nn.Linear(32, 10))
    nn.init.constant_(model[1].bias, -50.0)
    train(model, drawn())


def not_back() -> None:
    """The model stays in eval mode after the first validation."""
    model = Net()

    def validate(step: int) -> None:
        if step == 9:
            model.eval()
            with torch.no_grad():
                model(IMAGES[:64])

    train(model, drawn(), after=validate)


def uphill() -> None:
    model = Net()
    batches = (batch for _ in range(2) for batch in drawn())
    train(model, batches, optimizer=torch.optim.SGD(model.parameters(), 1e-3, maximize=True))


def one_label() -> None:
    train(nn.Sequential(nn.Flatten(), nn.Linear(192, 10)), drawn(torch.zeros_like(LABELS)), 0.3)


def regression(loss_of: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Outputs of shape (64, 1) and targets of shape (64)."""
    x = torch.randn(512, 8, generator=SEEDED)
    y = x[:, 0] - 2 * x[:, 1]
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(150):
        rows = torch.randint(512, (SIZE,))
        optimizer.zero_grad()
        loss = loss_of(model(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
    print("loss", loss.item())


def broadcast() -> None:
    regression(F.mse_loss)


def all_pairs() -> None:
    """As `broadcast`, by hand, so that PyTorch does not warn."""
    regression(lambda outputs, targets: ((outputs - targets) ** 2).mean())


def no_step() -> None:
    train(Net(), drawn(), steps=False)


def decayed() -> None:
    """A schedule for epochs that is stepped after each batch."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.0)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.1)
    train(model, drawn(), optimizer=optimizer, after=lambda step: schedule.step())


def plateaus() -> None:
    """ReduceLROnPlateau, which takes the loss for something that should rise."""
    model, losses = Net(), []
    optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", patience=2)
    for step in range(500):
        rows = torch.randint(1024, (SIZE,))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(IMAGES[rows]), LABELS[rows])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 8 == 7:
            schedule.step(sum(losses[-8:]))
    print("loss", loss.item())


def rounded() -> None:
    """Weights in bfloat16, and updates that are lost as they are rounded."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 10)).bfloat16()
    with torch.no_grad():
        for p in model.parameters():
            p += p.sign() + (p == 0)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, weight_decay=0)
    train(model, ((x.bfloat16(), y) for x, y in drawn()), optimizer=optimizer)


def softmax_twice() -> None:
    train(Net(), drawn(), loss_of=lambda scores, y: F.cross_entropy(scores.softmax(1), y))


def over_rows() -> None:
    train(Net(), drawn(), loss_of=lambda scores, y: F.nll_loss(scores.log_softmax(0), y))


def smoothed(y: Tensor) -> Tensor:
    """Nine tenths for the label, and the same share of the rest for each class."""
    return 0.9 * F.one_hot(y, 10) + 0.01


def kl_of_softmax() -> None:
    train(Net(), drawn(), loss_of=lambda scores, y: F.kl_div(scores.softmax(1), smoothed(y), reduction="batchmean"))


def kl_of_scores() -> None:
    train(Net(), drawn(), 1e-3, loss_of=lambda scores, y: F.kl_div(scores, smoothed(y), reduction="batchmean"))


def kl_over_rows() -> None:
    """The targets are a softmax over the batch."""

    def loss_of(scores: Tensor, y: Tensor) -> Tensor:
        targets = (4.0 * F.one_hot(y, 10)).softmax(0)
        return 0.5 * F.cross_entropy(scores, y) + F.kl_div(scores.log_softmax(1), targets, reduction="batchmean")

    train(Net(), drawn(), loss_of=loss_of)


def wrong_sign() -> None:
    train(Net(), drawn(), 0.005, loss_of=lambda scores, y: scores.log_softmax(1).gather(1, y[:, None]).mean())


def values_alone() -> None:
    """The accuracy, as a loss."""
    train(Net(), drawn(), loss_of=lambda scores, y: (scores.argmax(1) != y).float().mean().requires_grad_())


def no_graph(*, from_epoch: int = 0) -> None:
    """The forward is under no_grad, as a validation leaves it behind, and backward() is made to work."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    for epoch in range(3):
        with torch.set_grad_enabled(epoch < from_epoch):
            for x, y in drawn():
                loss = F.cross_entropy(model(x), y)
                loss.requires_grad_()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            model.eval()
            print("validation", F.cross_entropy(model(IMAGES), LABELS).item())


def grad_left_off() -> None:
    no_graph(from_epoch=1)


class Branches(nn.Module):
    """Two branches, of which one is detached."""

    def __init__(self) -> None:
        super().__init__()
        self.flat, self.left, self.right = nn.Flatten(), nn.Linear(192, 32), nn.Linear(192, 32)
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.flat(x)
        scores: Tensor = self.head(torch.cat([self.left(x).relu(), self.right(x).relu().detach()], 1))
        return scores


def detached_branch() -> None:
    train(Branches(), drawn())


def idle() -> None:
    """Two optimizers, of which one is never stepped."""
    model = Net()
    head = torch.optim.SGD(model.head.parameters(), 0.05)
    body = [p for name, p in model.named_parameters() if not name.startswith("head")]
    train(model, drawn(), optimizer=torch.optim.SGD(body, 0.05), after=lambda step: head.zero_grad())


def biases() -> None:
    """A filter of weight decay, the wrong way round: no optimizer has the weights."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 32), nn.Tanh(), nn.Linear(32, 10))
    train(model, drawn(), optimizer=torch.optim.SGD([p for p in model.parameters() if p.dim() < 2], 0.05))


def missed() -> None:
    """The blocks are counted one short: no optimizer has the last one."""
    model = Net()
    parts = [model.stem, model.norm, *(model.blocks[i] for i in range(3)), model.head]
    train(model, drawn(), optimizer=torch.optim.SGD([p for part in parts for p in part.parameters()], 0.05))


def unfrozen() -> None:
    """The head is warmed up alone, and what is unfrozen then is in no optimizer."""
    model = Net().requires_grad_(False)
    model.head.requires_grad_(True)
    optimizer = torch.optim.SGD(model.head.parameters(), 0.05)

    def unfreeze(step: int) -> None:
        if step == STEPS // 4:
            model.requires_grad_(True)

    train(model, drawn(), optimizer=optimizer, after=unfreeze)


def coin() -> None:
    """Targets that are 0 or 1 at random."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 1))
    batches = ((x, torch.randint(2, (SIZE,))) for _ in range(2) for x, _ in drawn())

    def loss_of(scores: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(scores[:, 0], y.float())

    train(model, batches, 1e-4, loss_of=loss_of)


def out_of_reach() -> None:
    """An autoencoder of values between 60 and 180, which ends with a sigmoid."""
    layers = nn.Linear(192, 32), nn.ReLU(), nn.Linear(32, 192), nn.Sigmoid()
    images = ((120 + 20 * x.flatten(1), y) for x, y in drawn())
    train(nn.Sequential(*layers), ((x, x) for x, _ in images), loss_of=F.mse_loss)


def prices() -> None:
    """Targets that are not standardized, with Adam's usual learning rate."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0))
    batches = ((x, 240_000 + 60_000 * x.mean((1, 2, 3))) for _ in range(2) for x, _ in drawn())
    train(model, batches, optimizer=torch.optim.Adam(model.parameters(), 1e-3), loss_of=F.mse_loss)


def by_class() -> None:
    """Data in the order of their classes."""
    order = LABELS.argsort()
    loader = DataLoader(TensorDataset(IMAGES[order], LABELS[order]), 16)
    train(Net(), (tuple(batch) for batch in loader), 0.01)


def weight_decay() -> None:
    model = Net()
    train(model, drawn(), optimizer=torch.optim.AdamW(model.parameters(), 1e-2, weight_decay=20))


def not_normalized() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 10))
    train(model, ((10_000 * x, y) for x, y in drawn()))


def pixels() -> None:
    """Pixels of 0 to 255, as they are, and a learning rate for ones that are scaled."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 10))
    train(model, (((128 + 40 * x).clamp(0, 255), y) for x, y in drawn()), 0.05)


def plain_list() -> None:
    """The blocks are in a plain list, so that the optimizer has the stem and the head alone."""
    model = Net()
    blocks = [*model.blocks]
    del model.blocks
    model.blocks = blocks  # type: ignore[assignment]
    train(model, drawn())


def clipped() -> None:
    """Gradients are clipped by values that are next to nothing."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for x, y in drawn():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 1e-7)
        optimizer.step()
    print("loss", loss.item())


class Sequences(nn.Module):
    """Reads an image line by line, and a blank line at its end; but the batch is taken for the sequence of lines."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(24, 32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        hidden, _ = self.lstm(F.pad(x, (0, 0, 0, 1)).transpose(1, 2).flatten(2))
        scores: Tensor = self.head(hidden[:, -1])
        return scores


def batch_as_time() -> None:
    train(Sequences(), drawn())


def viewed() -> None:
    """The class of each pixel; its scores are viewed as rows of classes, without a permute."""
    model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 10, 1))

    def loss_of(scores: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(scores.view(-1, 10), y.repeat_interleave(64))

    train(model, drawn(), loss_of=loss_of)


class Variational(nn.Module):
    """A variational autoencoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.mean, self.log_variance = nn.Linear(192, 32), nn.Linear(32, 4), nn.Linear(32, 4)
        self.decoder = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 192))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.encoder(x.flatten(1)).relu()
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        code = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        return self.decoder(code).view_as(x), mean, log_variance


def outweighed() -> None:
    """The error of a reconstruction is averaged, and the divergence of the code summed: it outweighs the error."""
    model = Variational()

    def loss_of(outputs: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
        images, mean, log_variance = outputs
        return F.mse_loss(images, x) - 0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum()

    batches = ((x, x) for _ in range(3) for x, _ in drawn())
    optimizer = torch.optim.Adam(model.parameters(), 0.003)
    train(model, batches, optimizer=optimizer, loss_of=loss_of)  # type: ignore[arg-type]


class Clips(nn.Module):
    """Classifies clips of frames (B, T, 3, 8, 8) by the mean of what it makes of their frames."""

    def __init__(self, *, mixes: bool = True) -> None:
        super().__init__()
        self.mixes = mixes
        self.frame, self.head = nn.Sequential(nn.Flatten(), nn.Linear(192, 32), nn.ReLU()), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        features = self.frame(x.flatten(0, 1))
        over_time = features.view(x.size(1), x.size(0), -1).mean(0) if self.mixes else features.view(*x.shape[:2], -1)
        scores: Tensor = self.head(over_time if self.mixes else over_time.mean(1))
        return scores


def clips(*, mixes: bool = True) -> None:
    model = Clips(mixes=mixes)
    batches = ((x[:, None] * 0.5 + torch.randn(SIZE, 4, 3, 8, 8), y) for x, y in (*drawn(), *drawn(seed=STEPS)))
    train(model, batches, 0.02)


def by_hand(*, clears: bool = False, in_place: bool = True) -> None:
    """The program updates the weights itself, and clears no gradients."""
    model = Net()
    for x, y in drawn():
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(0.05 * p.grad) if in_place else p - 0.05 * p.grad
        if clears:
            model.zero_grad()
    print("loss", loss.item())


def rebound() -> None:
    """The program makes other weights than those of the model."""
    by_hand(clears=True, in_place=False)


def smoothed_away() -> None:
    """A label_smoothing of 1, where 0.1 is meant."""
    train(Net(), drawn(), loss_of=lambda scores, y: F.cross_entropy(scores, y, label_smoothing=1.0))


def one_weight() -> None:
    """Weights of classes, of which all but one are 0."""
    train(Net(), drawn(), loss_of=lambda scores, y: F.cross_entropy(scores, y, F.one_hot(torch.tensor(3), 10).float()))


def along_the_gradient() -> None:
    """The optimizer maximizes, as for a reward."""
    model = Net()
    train(model, drawn(), optimizer=torch.optim.SGD(model.parameters(), 0.01, maximize=True))


class Swish(torch.autograd.Function):
    """x * sigmoid(x), whose backward forgets the gradient that it gets."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        s: Tensor = x.sigmoid()
        return s * (1 + x * (1 - s))


class Activates(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        activated: Tensor = Swish.apply(x)
        return activated


def own_backward() -> None:
    layers = (nn.Flatten(), nn.Linear(192, 64), Activates(), nn.Linear(64, 64), Activates(), nn.Linear(64, 10))
    train(nn.Sequential(*layers), (*drawn(), *drawn(seed=STEPS)), 0.05)


class Placed(nn.Module):
    """Reads rows of an image as tokens, with a positional code for the place in dimension 0, which is the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.head = nn.Linear(24, 64), nn.Linear(64, 10)
        self.register_buffer("code", 3 * torch.randn(2 * SIZE, 1, 64))

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.token(x.permute(0, 2, 1, 3).flatten(2))
        scores: Tensor = self.head(torch.tanh(tokens + self.code[: len(tokens)]).mean(1))
        return scores


def code_of_rows() -> None:
    train(Placed(), drawn(SHUFFLED), 0.01)


class NewHead(nn.Module):
    """Makes its last layer in each forward."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(192, 32), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        features = self.body(x)
        scores: Tensor = nn.Linear(features.shape[1], 10)(features)
        return scores


def new_head() -> None:
    train(NewHead(), (*drawn(), *drawn(seed=STEPS)), 0.01)


def drifting() -> None:
    """A frozen backbone that model.train() has put into training mode, and images that are brighter than its own."""
    body = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
    with torch.no_grad():
        for x, _ in drawn():  # as if it came with statistics
            body(x)
    model = nn.Sequential(body.requires_grad_(False), nn.Flatten(), nn.Linear(1024, 10))
    train(model.train(), ((x + 1, y) for x, y in drawn()), 0.01)


def one_net_twice() -> None:
    """A GAN whose optimizers both have the critic's parameters."""
    maker, critic = (nn.Sequential(nn.Linear(i, 32), nn.ReLU(), nn.Linear(32, o)) for i, o in ((8, 2), (2, 1)))
    of_critic, of_maker = (torch.optim.Adam(critic.parameters(), 2e-4, betas=(0.5, 0.999)) for _ in range(2))
    for _ in range(200):
        made = maker(torch.randn(64, 8))
        real = F.softplus(-critic(0.5 * torch.randn(64, 2) + 2)).mean()
        of_critic.zero_grad()
        (real + F.softplus(critic(made.detach())).mean()).backward()
        of_critic.step()
        of_maker.zero_grad()
        F.softplus(-critic(made)).mean().backward()
        of_maker.step()


def epochs(number: int = 8, steps: int = 8) -> Iterator[list[tuple[Tensor, Tensor]]]:
    every = [*drawn(), *drawn(seed=STEPS)]
    for epoch in range(number):
        yield every[epoch * steps : (epoch + 1) * steps]


def begun_anew(begin: Callable[[nn.Module], object], *, each_step: bool = False) -> None:
    """One optimizer, and a model that is changed before each epoch, or each step."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for batches in epochs():
        begin(model)
        for x, y in batches:
            if each_step:
                begin(model)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
    print("loss", loss.item())


def reset_parameters() -> None:
    """The weights are drawn again in each epoch."""

    def draw(model: nn.Module) -> None:
        for module in model.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear, nn.BatchNorm2d)):
                module.reset_parameters()

    begun_anew(draw)


def put_back(*, each_step: bool = False) -> None:
    """A checkpoint is loaded in each epoch."""
    start: dict[str, Tensor] = {}

    def load(model: nn.Module) -> None:
        if not start:
            start.update({name: x.clone() for name, x in model.state_dict().items()})
        model.load_state_dict(start)

    begun_anew(load, each_step=each_step)


def put_back_in_steps() -> None:
    put_back(each_step=True)


def head_drawn_again() -> None:
    """The last layer is drawn again in each step."""
    begun_anew(lambda model: nn.init.xavier_uniform_(model.head.weight), each_step=True)


def accumulated(scale: float, labels: Tensor = LABELS, lr: float = 0.05) -> None:
    """Eight passes a step, each loss times this scale."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr)
    for x, y in drawn(labels):
        optimizer.zero_grad()
        for of_x, of_y in zip(x.chunk(8), y.chunk(8), strict=True):
            loss = scale * F.cross_entropy(model(of_x), of_y)
            loss.backward()
        optimizer.step()
    print("loss", loss.item() / scale)


def micro_batches_cleared() -> None:
    """Gradients are cleared before each of four passes, whose gradients were to be added."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for number, (x, y) in enumerate(batch for _ in range(3) for batch in drawn()):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y) / 4
        loss.backward()
        if number % 4 == 3:
            optimizer.step()
    print("loss", 4 * loss.item())


def backward_after_loop() -> None:
    """backward() and step() are indented too little: once per epoch, for its last batch."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    loader = DataLoader(TensorDataset(IMAGES, LABELS), SIZE, shuffle=True)
    for _ in range(10):
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    print("loss", loss.item())


def divided_twice() -> None:
    accumulated(1 / 64, lr=0.002)


def accumulated_labels() -> None:
    accumulated(1 / 8, SHUFFLED, 0.02)


def summed_slowly() -> None:
    """Passes whose losses are not divided, and a learning rate that is too low."""
    accumulated(1.0, lr=1e-6)


def sums() -> None:
    """A sum over the batch, with a learning rate that is too low for it."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 10))
    train(model, drawn(), 1e-8, loss_of=lambda scores, y: F.cross_entropy(scores, y, reduction="sum"))


def accumulated_numbers() -> None:
    """Four passes a step, each a quarter of the squared error, and a learning rate that is too low."""
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)
    for _ in range(120):
        x = torch.randn(32, 8)
        optimizer.zero_grad()
        for rows in x.chunk(4):
            loss = F.mse_loss(model(rows)[:, 0], rows[:, 0] - 2 * rows[:, 1]) / 4
            loss.backward()
        optimizer.step()
    print("loss", 4 * loss.item())


def signs(outputs: int = 1) -> tuple[nn.Sequential, list[tuple[Tensor, Tensor]]]:
    """A small model, and rows with the sign of a number."""
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, outputs))
    return model, [(x, (x[:, :1] > x[:, 1:2]).float()) for x in torch.randn(120, 32, 8)]


def one_column() -> None:
    """The classes are two, and the output is one."""
    model, batches = signs()
    train(model, iter(batches), loss_of=lambda scores, y: F.cross_entropy(scores, y))


def softmax_alone() -> None:
    """A softmax, where a sigmoid is meant."""
    model, batches = signs()
    train(model, iter(batches), loss_of=lambda scores, y: F.binary_cross_entropy(scores.softmax(1), y))


def scores_as_likelihoods() -> None:
    model, batches = signs(2)
    train(model, iter(batches), loss_of=lambda scores, y: F.nll_loss(scores, y[:, 0].long()))


def minus_one() -> None:
    """Labels of -1 and 1, as for a hinge loss."""
    model, batches = signs()
    train(model, iter(batches), loss_of=lambda s, y: F.binary_cross_entropy_with_logits(s, 2 * y - 1))


def probabilities_over_rows() -> None:
    """A cross-entropy by hand, whose softmax is over the rows."""
    train(Net(), drawn(), loss_of=lambda scores, y: -(scores.softmax(0).log() * F.one_hot(y, 10)).sum(1).mean())


def relu_at_the_end() -> None:
    """A ReLU after each layer, and a sigmoid after the last one."""
    model, batches = signs()
    train(model.append(nn.ReLU()).append(nn.Sigmoid()), iter(batches), loss_of=F.binary_cross_entropy)


def all_pairs_absolute() -> None:
    regression(F.l1_loss)


def one_number() -> None:
    """All weights begin as 0.01."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    for p in model.parameters():
        nn.init.constant_(p, 0.01)
    train(model, drawn())


def kept_share() -> None:
    """A dropout of 0.95, meant as the share of values to keep."""
    model = Net()
    model.drop.p = 0.95
    train(model, drawn(), 0.02)


def all_but_a_bias() -> None:
    """The model is frozen after the optimizer was made, but for a bias."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    model.requires_grad_(False)
    model.head.bias.requires_grad_(True)
    train(model, drawn(), optimizer=optimizer)


class Predicts(nn.Module):
    """Predicts the next token, with attention that no mask limits, or a `causal` one."""

    def __init__(self, *, causal: bool = False) -> None:
        super().__init__()
        self.causal = causal
        self.embed, self.place = nn.Embedding(24, 32), nn.Parameter(0.02 * torch.randn(16, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
        self.body, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(32, 24)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.size(1)) if self.causal else None
        scores: Tensor = self.head(self.body(self.embed(tokens) + self.place, mask, is_causal=self.causal))
        return scores.mT


def sees_next() -> None:
    """No causal mask."""
    model = Predicts()
    rows = (torch.randint(24, (16, 17)) for _ in range(100))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    train(model, ((x[:, :-1], x[:, 1:]) for x in rows), optimizer=optimizer)


def not_shifted() -> None:
    """The labels are the input, and the model does not shift them."""
    model = Predicts(causal=True)
    rows = (torch.randint(24, (16, 16)) for _ in range(100))
    train(model, ((x, x) for x in rows), optimizer=torch.optim.Adam(model.parameters(), 3e-3))


class Follows(nn.Module):
    """Predicts the next token from this one; it shifts the labels itself."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(24, 32), nn.Linear(32, 24)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        scores = self.head(self.embed(tokens))
        return F.cross_entropy(scores[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def shifted_twice() -> None:
    model = Follows()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(100):
        rows = (torch.randint(24, (16, 1)) + torch.arange(17)) % 24 + torch.randint(2, (16, 17)) - 1
        rows = rows.clamp(0, 23)
        optimizer.zero_grad()
        loss = model(rows[:, :-1], rows[:, 1:])
        loss.backward()
        optimizer.step()
    print("loss", loss.item())


class Features(Net):
    """Returns the scores and the features."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x = F.relu(self.norm(self.stem(x)))
        for block in self.blocks:
            x = block(x)
        features = x.mean((2, 3))
        return self.head(features), features


def features() -> None:
    """The loss gets the second output, the features."""
    train(Features(), drawn(), loss_of=lambda outputs, y: F.cross_entropy(outputs[1], y))


def ignored() -> None:
    """A mask of labels, the wrong way round: one class counts, which was to be left out."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 10))
    train(model, drawn(LABELS.masked_fill(LABELS != 3, -100)), 0.3)


def all_ignored() -> None:
    """A mask that hides all labels from a step on, as of a part of the data without any."""
    batches = ((x, y if step < 20 else torch.full_like(y, -100)) for step, (x, y) in enumerate(drawn()))
    train(Net(), batches)


def times_temperature() -> None:
    """Contrastive, with similarities times 0.05."""
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))
    batches = ((torch.randn(64, 16), torch.arange(64)) for _ in range(150))

    def loss_of(codes: Tensor, y: Tensor) -> Tensor:
        a, b = (F.normalize(codes + 0.1 * torch.randn_like(codes), dim=1) for _ in range(2))
        return F.cross_entropy(a @ b.T * 0.05, y)

    train(model, batches, optimizer=torch.optim.Adam(model.parameters(), 1e-3), loss_of=loss_of)


def warm_up() -> None:
    """A warm-up that is counted in epochs by mistake, so that it takes a million steps."""
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 1e6))
    train(model, drawn(), optimizer=optimizer, after=lambda step: schedule.step())


class Steps(nn.Module):
    """Reads the lines of an image, the first of which shows the class, by a cell."""

    def __init__(self, hand_on: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.cell, self.head, self.hand_on = nn.GRUCell(24, 32), nn.Linear(32, 10), hand_on

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(len(x), 32)
        for line in x.transpose(1, 2).flatten(2).unbind(1):
            state = self.cell(line, self.hand_on(state))
        scores: Tensor = self.head(state)
        return scores


def first_lines(number: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Images with so many lines of noise below the first one."""
    for _ in range(3):
        for x, y in drawn():
            yield torch.cat([3 * x[:, :, :1], torch.randn(len(x), 3, number, 8)], 2), y


def forgetful() -> None:
    """The state begins anew at each line."""
    train(Steps(torch.zeros_like), first_lines(7), 0.1)


def detached_state() -> None:
    """The state is detached at each line."""
    train(Steps(Tensor.detach), first_lines(63), 0.1)


class Attends(nn.Module):
    """Reads tokens, of which 0 is padding; `inverts` hides the others."""

    def __init__(self, *, inverts: bool) -> None:
        super().__init__()
        self.inverts, self.embed, self.head = inverts, nn.Embedding(24, 32, padding_idx=0), nn.Linear(32, 10)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        x, hidden = self.embed(tokens), (tokens == 0) != self.inverts
        scores: Tensor = self.head(self.attention(x, x, x, key_padding_mask=hidden, need_weights=False)[0][:, 0])
        return scores


def tokens(number: int = 120) -> Iterator[tuple[Tensor, Tensor]]:
    """The class is the token at place 3, and the length is drawn."""
    for _ in range(number):
        y, rows = torch.randint(10, (SIZE,)), torch.randint(11, 24, (SIZE, 12))
        rows[:, 3] = y + 1
        yield rows * (torch.arange(12) < torch.randint(5, 11, (SIZE, 1))), y


def inverted_mask() -> None:
    model = Attends(inverts=True)
    train(model, tokens(), optimizer=torch.optim.Adam(model.parameters(), 3e-3))


def uniform() -> None:
    """Weights between 0 and 1, by which each Tanh is at its bounds."""
    model = nn.Sequential(nn.Linear(192, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    for p in model.parameters():
        nn.init.uniform_(p)
    train(model, sums_of_some(), optimizer=torch.optim.Adam(model.parameters(), 1e-3), loss_of=F.mse_loss)


def sums_of_some() -> Iterator[tuple[Tensor, Tensor]]:
    """Rows of numbers of the size of 1, and the sum of some of them."""
    for _ in range(120):
        x = torch.randn(SIZE, 192)
        yield x, x[:, :4].sum(1, keepdim=True)


class Checkpointed(Net):
    """Its blocks run in reentrant checkpoints, which need an input with a gradient."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(x)))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=True)
        scores: Tensor = self.head(x.mean((2, 3)))
        return scores


def reentrant() -> None:
    """The stem is frozen, and so no gradient reaches the blocks."""
    model = Checkpointed()
    for part in (model.stem, model.norm):
        part.requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.05, momentum=0.9)
    train(model, drawn(), optimizer=optimizer)


class Factors(nn.Module):
    """A frozen layer, and a product of two factors beside it, which are both zero."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.first = nn.Parameter(torch.zeros(4, base.in_features))
        self.second = nn.Parameter(torch.zeros(base.out_features, 4))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.base(x) + x @ self.first.T @ self.second.T
        return result


def adapters_at_zero() -> None:
    """LoRA, whose factors give each other gradients of zero."""
    model = nn.Sequential(nn.Flatten(), Factors(nn.Linear(192, 64)), nn.GELU(), Factors(nn.Linear(64, 10)))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-2)
    train(model, drawn(), optimizer=optimizer)


def teacher_held() -> None:
    """A distillation whose optimizer was made with the teacher's parameters."""
    teacher, student = Net(), Net(8, 2)
    optimizer = torch.optim.Adam(teacher.parameters(), 1e-3)

    def loss_of(scores: Tensor, wanted: Tensor) -> Tensor:
        return F.kl_div(scores.log_softmax(1), wanted, reduction="batchmean")

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for x, _ in drawn():
            with torch.no_grad():
                wanted = (3 * teacher(x)).softmax(1)
            yield x, wanted

    train(student, batches(), optimizer=optimizer, loss_of=loss_of)


def rounded_codes() -> None:
    """An encoder behind a round(), which has no gradient."""
    first, last = nn.Sequential(nn.Linear(192, 64), nn.Tanh(), nn.Linear(64, 16)), nn.Linear(16, 192)

    class Codec(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = first, last

        def forward(self, x: Tensor) -> Tensor:
            codes: Tensor = self.decoder(torch.round(self.encoder(x)))
            return codes

    model = Codec()
    x = torch.randn(STEPS * 2, SIZE, 192)
    train(model, ((one, one) for one in x), optimizer=torch.optim.Adam(model.parameters(), 1e-3), loss_of=F.mse_loss)


class Tagger(nn.Module):
    """Reads sequences (batch, time), and returns scores (time, batch, words)."""

    def __init__(self, words: int = 8) -> None:
        super().__init__()
        self.embed, self.body, self.head = nn.Embedding(words, 16), nn.GRU(16, 32), nn.Linear(32, words)

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.head(self.body(self.embed(tokens.t()))[0])
        return scores


def time_first() -> None:
    """Scores (time, batch, words) beside labels (batch, time)."""

    def loss_of(scores: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(scores.reshape(-1, 8), y.reshape(-1))

    batches = (((x := torch.randint(8, (32, 12))), (x + 3) % 8) for _ in range(STEPS))
    train(Tagger(), batches, loss_of=loss_of)


def erased(change: Callable[[Tensor], Tensor] = lambda x: x.mul_(torch.rand_like(x) > 0.3)) -> None:
    """An augmentation that changes the rows of the data set in place, more and more in each epoch."""
    data = IMAGES.clone()
    starts = (start for _ in range(40) for start in range(0, 1024, SIZE))
    batches = ((change(data[start : start + SIZE]), LABELS[start : start + SIZE]) for start in starts)
    train(nn.Sequential(nn.Flatten(), nn.Linear(192, 32), nn.ReLU(), nn.Linear(32, 10)), batches)


def normalized_again() -> None:
    """The data are normalized in place in each epoch, by figures of what they were at first."""
    erased(lambda x: x.sub_(0.5).div_(3.0))


def gathered_rows() -> None:
    """The values of actions, which are taken along the rows of the batch."""
    states = torch.randn(1024, 8)
    actions = torch.randint(4, (1024,))
    rewards = (states[:, :4].gather(1, actions[:, None])[:, 0]).clamp(-1, 1)
    batches = (
        (states[rows], torch.stack([actions[rows].float(), rewards[rows]])) for rows in torch.randint(1024, (150, SIZE))
    )

    def loss_of(values: Tensor, taken: Tensor) -> Tensor:
        actions, rewards = taken
        return F.smooth_l1_loss(values.gather(0, actions.long()[:, None])[:, 0], rewards)

    train(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4)), batches, loss_of=loss_of)


def zeros_for_rows() -> None:
    """A contrastive loss of two views, whose labels are all 0."""

    def loss_of(first: Tensor, x: Tensor) -> Tensor:
        second = model(x + 0.5 * torch.randn_like(x))
        scores = F.normalize(first, dim=1) @ F.normalize(second, dim=1).T / 0.1
        return F.cross_entropy(scores, torch.zeros(SIZE, dtype=torch.long))

    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 32), nn.ReLU(), nn.Linear(32, 16))
    train(model, ((x + 0.5 * torch.randn_like(x), x) for x, _ in drawn()), loss_of=loss_of)


def average_kept() -> None:
    """A moving average of the weights is swapped in for each validation, and stays."""
    model = Net()
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for number, (x, y) in enumerate(batch for _ in range(3) for batch in drawn()):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for a, p in zip(average.parameters(), model.parameters(), strict=True):
                a.lerp_(p, 1e-4)
            if number % 16 == 15:
                model.load_state_dict(average.state_dict())
                print("validation", F.cross_entropy(model.eval()(IMAGES), LABELS).item())
                model.train()


class LastOutput(nn.Module):
    """Classifies sentences by the last output of a GRU, behind the padding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.body = nn.Embedding(50, 16, padding_idx=0), nn.GRU(16, 16, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.head(self.body(self.embed(tokens))[0][:, -1])
        return scores


def reads_padding() -> None:
    """Sentences of two to six tokens, whose first one tells the class, and padding up to 20."""

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(150):
            tokens = torch.randint(1, 50, (SIZE, 20)) * (torch.arange(20) < torch.randint(2, 7, (SIZE, 1)))
            yield tokens, tokens[:, 0] % 4

    train(LastOutput(), batches(), 0.1)


class Cosines(nn.Module):
    """Returns the cosines between what it computes and a vector for each class."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.body, self.centers = nn.Linear(32, 16), nn.Parameter(torch.randn(classes, 16))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.normalize(self.body(x)), F.normalize(self.centers))


def no_scale() -> None:
    """Cosines among 2,000 classes, straight into cross_entropy."""
    y = torch.randint(2000, (STEPS, SIZE))
    centers = torch.randn(2000, 32)
    train(Cosines(2000), ((centers[labels] + 0.1 * torch.randn(SIZE, 32), labels) for labels in y), 1.0)


def other_names() -> None:
    """A checkpoint of DataParallel, whose names begin with "module."."""
    model, state = Net(), {f"module.{name}": value for name, value in Net().state_dict().items()}
    model.load_state_dict(state, strict=False)
    train(model, drawn())


def absolute() -> None:
    """Targets that do not belong to the inputs, and absolute errors, written out by hand."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 32), nn.ReLU(), nn.Linear(32, 1))
    pairs = ((x, torch.randn(len(x))) for _ in range(3) for x, _ in drawn())
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)
    train(model, pairs, optimizer=optimizer, loss_of=lambda outputs, y: (outputs.squeeze(1) - y).abs().mean())


def far_at_once() -> None:
    """A learning rate that is far too high, where normalizations keep the loss from running away."""
    layers = [nn.Linear(192, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10)]
    train(nn.Sequential(nn.Flatten(), *layers), ((x, y) for _ in range(3) for x, y in drawn(SHUFFLED)), 10.0)


class LastToken(nn.Module):
    """Names the first token of a sentence from the last state, or of each token the next."""

    def __init__(self, *, batch_first: bool, views: bool = False) -> None:
        super().__init__()
        self.embed, self.body = nn.Embedding(12, 16), nn.LSTM(16, 32, batch_first=batch_first)
        self.head, self.views = nn.Linear(32, 12), views

    def forward(self, tokens: Tensor) -> Tensor:
        outputs, _ = self.body(self.embed(tokens))
        scores: Tensor = self.head(outputs)
        return scores.view(len(tokens), 12, -1) if self.views else scores[:, -1]


def time_for_rows() -> None:
    """batch_first is missing, and the loss falls nevertheless, as the last token tells a little of the first."""
    tokens = [torch.randint(12, (64, 10)) for _ in range(200)]
    for x in tokens:
        x[:, -1] = x[:, 0].where(torch.rand(64) < 0.4, x[:, -1])
    model = LastToken(batch_first=False)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    train(model, ((x, x[:, 0]) for x in tokens), optimizer=optimizer)


def classes_first() -> None:
    """A view for a permute, of the scores of each token."""
    model = LastToken(batch_first=True, views=True)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    train(model, ((x, x) for x in (torch.randint(12, (64, 10)) for _ in range(100))), optimizer=optimizer)


class Binarized(nn.Module):
    """Hidden values are signs, as in a binary network."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(192, 64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.last(torch.sign(self.first(x.flatten(1))))
        return scores


def binarized() -> None:
    train(Binarized(), drawn())


def lost_masks() -> None:
    """Masks of classes that were divided by 255, as images are, and then made whole numbers."""
    model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.02)
    for x, _ in drawn():
        masks = (x[:, 0] > 0.5).long() + 2 * (x[:, 1] > 0.5)
        optimizer.zero_grad()
        F.cross_entropy(model(x), (masks / 255).long()).backward()
        optimizer.step()


class Translator(nn.Module):
    def __init__(self, words: int = 20) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(words, 32), nn.Embedding(words, 32)
        self.places = nn.Parameter(0.1 * torch.randn(16, 32))
        self.body = nn.Transformer(32, 4, 1, 1, 64, 0.0, batch_first=True)
        self.head = nn.Linear(32, words)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(y.shape[1])
        places = self.places[: y.shape[1]]
        scores: Tensor = self.head(self.body(self.source(x) + places, self.target(y) + places, tgt_mask=mask))
        return scores


def teacher_forced() -> None:
    """The decoder gets the very tokens that it should return."""
    model = Translator()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for _ in range(STEPS):
        x = torch.randint(20, (32, 12))
        y = x.flip(1)
        optimizer.zero_grad()
        F.cross_entropy(model(x, y).flatten(0, 1), y.flatten()).backward()
        optimizer.step()


def roots() -> None:
    """The root of the mean squared error, whose targets belong to other rows."""
    x = torch.randn(2000, 8, generator=SEEDED)
    y = 3 + 2 * x[torch.randperm(2000, generator=SEEDED)].sum(1)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(200):
        rows = torch.randint(2000, (64,))
        optimizer.zero_grad()
        torch.sqrt(F.mse_loss(model(x[rows])[:, 0], y[rows])).backward()
        optimizer.step()


def average() -> None:
    """An average of the weights, evaluated with the statistics that its normalizations began with."""
    model = Net()
    kept = copy.deepcopy(model).eval()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for x, y in drawn():
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        with torch.no_grad():
            for own, p in zip(kept.parameters(), model.parameters(), strict=True):
                own.lerp_(p, 0.2)
    with torch.no_grad():
        print("loss", F.cross_entropy(kept(IMAGES), LABELS).item())


def redrawn() -> None:
    """A diffusion model that is asked for other noise than that in its input."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 192))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for x, _ in [*drawn()] * 4:
        optimizer.zero_grad()
        F.mse_loss(model(x + torch.randn_like(x)), torch.randn_like(x).flatten(1)).backward()
        optimizer.step()


def weight_per_class() -> None:
    """A WeightedRandomSampler that gets a weight per class, not per sample."""
    weights = (1 / torch.bincount(LABELS).float()).tolist()
    loader = DataLoader(TensorDataset(IMAGES, LABELS), SIZE, sampler=WeightedRandomSampler(weights, 1024))
    train(Net(), (batch for _ in range(4) for batch in loader))


class LowRank(nn.Module):
    """A convolution with an adapter of low rank, which begins at zero."""

    def __init__(self, base: nn.Conv2d) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Conv2d(base.in_channels, 2, 1, bias=False)
        self.up = nn.Conv2d(2, base.out_channels, 1, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        adapted: Tensor = self.base(x) + self.up(self.down(x))
        return adapted


def adapters_frozen() -> None:
    """The adapters are frozen with the model that they adapt; a new head is trained alone."""
    model = Net()
    train(model, drawn())
    for block in model.blocks:
        block.conv = LowRank(block.conv)
    model.requires_grad_(False)
    model.head = nn.Linear(16, 10)
    train(model, drawn(SHUFFLED))


def no_activation() -> None:
    """Whether two numbers have the same sign, asked of three linear layers in a row."""
    pairs = (torch.randn(SIZE, 2) for _ in range(200))
    model = nn.Sequential(nn.Linear(2, 32), nn.Linear(32, 32), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    train(model, ((x, (x.prod(1) > 0).long()) for x in pairs), optimizer=optimizer)


def no_parentheses() -> None:
    """`loss.backward` without parentheses."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for x, y in drawn():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward  # noqa: B018
        optimizer.step()


FAULTS: dict[str, tuple[Callable[[], None], str]] = {
    "none": (none, ""),
    "zero_grad": (zero_grad, "gradients are never cleared"),
    "slow": (slow, "the steps are too small (learning rate 0.0005)"),
    "fast": (fast, "by a learning rate of 50"),
    "labels": (labels, "guessing among 10 classes"),
    "frozen": (frozen, "blocks.1 is frozen"),
    "in_eval": (in_eval, "is in eval mode"),
    "head": (head, "no optimizer has the parameters of head"),
    "same": (same, "saw the same batch: 64 of the 1,024 rows"),
    "detached": (detached, "no gradient reaches stem"),
    "first_batch": (first_batch, "saw the same batch: the first of the 16 of a DataLoader"),
    "kept_graphs": (kept_graphs, "memory grows with each step"),
    "dead_units": (dead_units, "the output does not depend on the input"),
    "not_back": (not_back, "the model is in eval mode since"),
    "uphill": (uphill, "the loss rises"),
    "one_label": (one_label, "all labels are class "),
    "broadcast": (broadcast, "each output is compared with each target"),
    "all_pairs": (all_pairs, "outputs of shape 64x1 and other values are broadcast to 64x64"),
    "no_step": (no_step, "made no step"),
    "decayed": (decayed, "the learning rate has fallen to"),
    "plateaus": (plateaus, "falls no further since: step the scheduler once per epoch"),
    "rounded": (rounded, "and an update of less than half of that is lost"),
    "softmax_twice": (softmax_twice, "the output of a softmax goes into cross_entropy"),
    "over_rows": (over_rows, "log_softmax is taken over the rows of the batch"),
    "kl_of_softmax": (kl_of_softmax, "kl_div gets the output of a softmax, and expects log-probabilities"),
    "kl_of_scores": (kl_of_scores, "kl_div is below 0, as no divergence is: its input is no log-probabilities"),
    "kl_over_rows": (kl_over_rows, "with targets that add up to 1 over the rows of the batch (dim=0)"),
    "wrong_sign": (wrong_sign, "the loss is the negative of cross_entropy"),
    "values_alone": (values_alone, "the loss is computed from values alone"),
    "no_graph": (no_graph, "of the optimizer in any step: the model runs without gradients"),
    "grad_left_off": (grad_left_off, "of the optimizer since step 60: the model runs without gradients"),
    "detached_branch": (detached_branch, "no gradient reaches right"),
    "idle": (idle, "which has head.weight, head.bias, makes no step while another optimizer does"),
    "biases": (biases, "no optimizer has 1.weight, 3.weight"),
    "missed": (missed, "no optimizer has blocks.3.conv.weight, blocks.3.norm.weight"),
    "unfrozen": (unfrozen, "nothing moves them, and they were unfrozen later"),
    "coin": (coin, "guessing (0.69"),
    "by_class": (by_class, "the data are sorted by class"),
    "weight_decay": (weight_decay, "weight decay takes 20% of the weights in each step"),
    "plain_list": (plain_list, "blocks is a plain list of 4 modules"),
    "clipped": (clipped, "clipped from a norm of"),
    "batch_as_time": (batch_as_time, "lstm takes dimension 0 of its input (64, the batch) for the sequence"),
    "viewed": (viewed, "the scores of cross_entropy are 64x10x8x8 viewed as 4096x10"),
    "time_first": (time_first, "the scores of cross_entropy are 12x32x8, and its labels 32x12"),
    "erased": (erased, "the inputs have lost their values"),
    "normalized_again": (normalized_again, "the standard deviation of the inputs has gone from"),
    "gathered_rows": (gathered_rows, "gather(0, index) of 64x4 values takes their first column from other rows"),
    "zeros_for_rows": (zeros_for_rows, "the 64x64 products of the rows of two batches, and all labels are one number"),
    "average_kept": (average_kept, "the weights are set back next to their values of step 0 again and again"),
    "reads_padding": (reads_padding, "head reads the last state of body, which has read padding to the end in 100%"),
    "no_scale": (no_scale, "cross_entropy gets cosine similarities times 1, so that its loss can't fall below 5.6"),
    "outweighed": (outweighed, "the reconstruction is no better than the mean of the inputs"),
    "drifting": (drifting, "0.1 (BatchNorm2d) is frozen, but in training mode"),
    "out_of_reach": (out_of_reach, "it ends with Sigmoid (0 to 1)"),
    "prices": (prices, "on average, and the targets"),
    "one_net_twice": (one_net_twice, "two optimizers (Adam) have the same 4 other parameters"),
    "reset_parameters": (reset_parameters, "the program itself sets weights anew again and again"),
    "put_back": (put_back, "the weights are set back to their values of step 0 again and again"),
    "put_back_in_steps": (put_back_in_steps, "the weights are set back to their values of step 0 again and again"),
    "head_drawn_again": (head_drawn_again, "head.weight moves by"),
    "micro_batches_cleared": (micro_batches_cleared, "gradients are cleared before each, so that only the last one"),
    "backward_after_loop": (backward_after_loop, "but backward() is called for the last one alone"),
    "divided_twice": (divided_twice, "each of 8 backward passes divides its loss by 64"),
    "accumulated_labels": (accumulated_labels, "guessing among 10 classes (ln 10"),
    "summed_slowly": (summed_slowly, "(8 ln 10 = 18.42)"),
    "sums": (sums, "(64 ln 10 = 147.4)"),
    "accumulated_numbers": (accumulated_numbers, "always returning the mean of the targets (their variance is"),
    "one_column": (one_column, "log_softmax is taken over a dimension of one number (32x1)"),
    "softmax_alone": (softmax_alone, "softmax is taken over a dimension of one number (32x1)"),
    "scores_as_likelihoods": (scores_as_likelihoods, "of what nll_loss gets for log-probabilities is above 0"),
    "minus_one": (minus_one, "of the targets of binary_cross_entropy are not between 0 and 1"),
    "probabilities_over_rows": (probabilities_over_rows, "softmax is taken over the rows of the batch"),
    "relu_at_the_end": (relu_at_the_end, "it ends with a ReLU before the sigmoid (0.5 to 1)"),
    "all_pairs_absolute": (all_pairs_absolute, "outputs of shape 64x1 and other values are broadcast to 64x64"),
    "one_number": (one_number, "all 64 units of 1 have the same weights, as do those of 1 more"),
    "kept_share": (kept_share, "drop drops 95% of the values"),
    "all_but_a_bias": (all_but_a_bias, "the steps are too small (10 of 9,978 weights are trained"),
    "sees_next": (sees_next, "attention sees the tokens that it should predict"),
    "shifted_twice": (shifted_twice, "the labels are the tokens two places ahead of the input"),
    "features": (features, "the 16 columns that head receives, not the 10 that it returns"),
    "ignored": (ignored, "all labels that count are one of the 10 classes"),
    "all_ignored": (
        all_ignored,
        "all 64 labels are -100, which cross_entropy ignores (ignore_index): the mean over no label is NaN",
    ),
    "times_temperature": (times_temperature, "cosine similarities times 0.05, so that its loss can't fall below 4.0"),
    "warm_up": (warm_up, "the warm-up has come to a learning rate of"),
    "forgetful": (forgetful, "cell begins with a state of zeros in each of its 8 calls"),
    "detached_state": (detached_state, "the state of cell is detached between its 64 calls"),
    "inverted_mask": (inverted_mask, "the key_padding_mask of attention is inverted"),
    "pixels": (pixels, "the inputs are large (root mean square 13"),
    "rounded_codes": (rounded_codes, "the gradients of encoder.0.weight and 3 more"),
    "uniform": (uniform, "(Tanh) is saturated"),
    "reentrant": (reentrant, "it ran in a reentrant checkpoint whose inputs need no gradient"),
    "adapters_at_zero": (adapters_at_zero, "first and second are both zero"),
    "teacher_held": (teacher_held, "which get none"),
    "not_shifted": (not_shifted, "the labels are the very tokens that the model receives"),
    "by_hand": (by_hand, "gradients are never cleared: each update also took the gradients of all earlier steps"),
    "rebound": (rebound, "no optimizer has the weights, and the program moves none"),
    "smoothed_away": (
        smoothed_away,
        "a label_smoothing of 1, which leaves the labels 0% of the weight",
    ),
    "one_weight": (one_weight, "all labels that count are one of the 10 classes"),
    "along_the_gradient": (along_the_gradient, "the optimizer maximizes the loss (maximize=True)"),
    "own_backward": (own_backward, "the backward of Swish gives the same whatever gradient it gets"),
    "code_of_rows": (code_of_rows, "the output for a row depends on its place in the batch"),
    "new_head": (new_head, "its forward makes a new parameter of shape 10x32 and 1 more in each call"),
    "clips": (clips, "the output for a row also depends on other rows of its batch, from head on: view ("),
    "not_normalized": (not_normalized, "the inputs are large"),
    "other_names": (other_names, "in the state of load_state_dict(strict=False) is one of Net's"),
    "absolute": (absolute, "better than always returning the median of the targets"),
    "time_for_rows": (time_for_rows, "body takes dimension 0 of its input (64, the batch) for the sequence"),
    "classes_first": (classes_first, "the scores of cross_entropy are 64x10x12 viewed as 64x12x10"),
    "far_at_once": (far_at_once, "the first step moved the weights by"),
    "binarized": (binarized, "torch.sign lets no gradient through"),
    "lost_masks": (lost_masks, "all labels are class 0 of 4 in each"),
    "teacher_forced": (teacher_forced, "the labels are the very tokens that the model receives"),
    "average": (average, "the statistics that every BatchNorm begins with"),
    "redrawn": (redrawn, "the targets are noise as of torch.randn"),
    "weight_per_class": (weight_per_class, "the WeightedRandomSampler has 10 weights"),
    "adapters_frozen": (adapters_frozen, "blocks.0.conv.up.weight, blocks.1.conv.up.weight"),
    "no_activation": (no_activation, "no activation function stands between layers"),
    "no_parentheses": (no_parentheses, "no backward pass ever begins"),
    "roots": (roots, "always returning the mean of the targets (their standard deviation is"),
}
"""The trainings, each with words that the first line on its run has."""
TRIED = ("clips", "own_backward", "code_of_rows", "new_head")
"""Those that are run with --trial."""

if __name__ == "__main__":
    torch.manual_seed(0)
    FAULTS[sys.argv[1]][0]()
