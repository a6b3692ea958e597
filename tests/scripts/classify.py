"""Train an image classifier on random images, and keep the best checkpoint.

    python classify.py --epochs 2 --out classify.pt
"""

import argparse
import random
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, Subset
from torchvision import datasets, models, transforms


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--images", type=int, default=48)
    parser.add_argument("--image-size", type=int, default=16)
    parser.add_argument("--classes", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("classify.pt"))
    return parser.parse_args()


def seed_worker(worker_id):
    random.seed(torch.initial_seed() % 2**32)


def make_loaders(args):
    size = (3, args.image_size, args.image_size)
    normalize = [transforms.ToTensor(), transforms.Normalize([0.5] * 3, [0.25] * 3)]
    augment = [transforms.RandomCrop(args.image_size, padding=2), transforms.RandomHorizontalFlip()]
    train = datasets.FakeData(args.images + 16, size, args.classes, transforms.Compose(augment + normalize))
    val = datasets.FakeData(args.images + 16, size, args.classes, transforms.Compose(normalize))
    train_loader = DataLoader(
        Subset(train, range(args.images)),
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        worker_init_fn=seed_worker,
        generator=torch.Generator().manual_seed(args.seed),
        drop_last=True,
    )
    held_out = Subset(val, range(args.images, len(val)))
    val_loader = DataLoader(held_out, batch_size=args.batch_size, num_workers=args.workers)
    return train_loader, val_loader


def train_one_epoch(model, loader, optimizer, scheduler, epoch, clip):
    model.train()
    for step, (images, labels) in enumerate(loader):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels, label_smoothing=0.1)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        scheduler.step()
        print(f"epoch {epoch} step {step} loss {loss.item():.6f} norm {norm:.6f} lr {scheduler.get_last_lr()[0]:.6f}")


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    correct, total, loss = 0, 0, 0.0
    for images, labels in loader:
        logits = model(images)
        loss += F.cross_entropy(logits, labels, reduction="sum").item()
        correct += (logits.argmax(dim=1) == labels).sum().item()
        total += len(labels)
    return loss / total, correct / total


def main():
    args = parse_args()
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    train_loader, val_loader = make_loaders(args)

    model = models.resnet18(num_classes=args.classes)
    model.conv1 = nn.Conv2d(3, 64, kernel_size=3, padding=1, bias=False)  # images are small
    model.maxpool = nn.Identity()
    optimizer = optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4, nesterov=True)
    scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs * len(train_loader))

    best = float("inf")
    for epoch in range(args.epochs):
        train_one_epoch(model, train_loader, optimizer, scheduler, epoch, args.clip)
        loss, accuracy = evaluate(model, val_loader)
        print(f"epoch {epoch} val loss {loss:.6f} accuracy {accuracy:.3f}", flush=True)
        if loss < best:
            best = loss
            torch.save(model.state_dict(), args.out.with_suffix(".best.pt"))
    torch.save(model.state_dict(), args.out)
    print(f"saved {args.out.name}, best loss {best:.6f}")


if __name__ == "__main__":
    sys.exit(main())
