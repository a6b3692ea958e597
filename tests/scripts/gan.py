#!/usr/bin/env python
"""A DCGAN on synthetic blobs: three steps of the critic for one of the generator, and an average of the generator.

    python gan.py --iterations 8 --out gan.pt
"""

import argparse
import copy
import time

import torch
from torch import nn
from torch.optim import Adam


def weights_init(m):
    name = m.__class__.__name__
    if "Conv" in name:
        nn.init.normal_(m.weight.data, 0.0, 0.02)
    elif "BatchNorm" in name:
        nn.init.normal_(m.weight.data, 1.0, 0.02)
        nn.init.constant_(m.bias.data, 0)


class Generator(nn.Module):
    def __init__(self, nz, ngf):
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(nz, ngf * 2, 4, 1, 0, bias=False),
            nn.BatchNorm2d(ngf * 2),
            nn.ReLU(True),
            nn.ConvTranspose2d(ngf * 2, ngf, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ngf),
            nn.ReLU(True),
            nn.ConvTranspose2d(ngf, 1, 4, 2, 1, bias=False),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.main(z)


class Discriminator(nn.Module):
    def __init__(self, ndf):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(1, ndf, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf, ndf * 2, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ndf * 2),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf * 2, 1, 4, 1, 0, bias=False),
        )

    def forward(self, x):
        return self.main(x).view(-1)


def real_images(n):
    """Soft round blobs of 16x16, at random places."""
    grid = torch.linspace(-1, 1, 16)
    center = torch.rand(n, 2, 1, 1) - 0.5
    distance = (grid.view(1, 16, 1) - center[:, 0]) ** 2 + (grid.view(1, 1, 16) - center[:, 1]) ** 2
    return (2 * torch.exp(-8 * distance) - 1).unsqueeze(1)


@torch.no_grad()
def update_average(average, model, decay):
    for a, p in zip(average.parameters(), model.parameters()):
        a.lerp_(p, 1 - decay)
    for a, b in zip(average.buffers(), model.buffers()):
        a.copy_(b)


parser = argparse.ArgumentParser()
parser.add_argument("--iterations", type=int, default=8)
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--critic-steps", type=int, default=3)
parser.add_argument("--nz", type=int, default=16)
parser.add_argument("--lr", type=float, default=2e-4)
parser.add_argument("--seed", type=int, default=999)
parser.add_argument("--out", default="gan.pt")
opt = parser.parse_args()

torch.manual_seed(opt.seed)
netG = Generator(opt.nz, 16)
netG.apply(weights_init)
netD = Discriminator(16)
netD.apply(weights_init)
averageG = copy.deepcopy(netG).eval().requires_grad_(False)

criterion = nn.BCEWithLogitsLoss()
optimizerD = Adam(netD.parameters(), lr=opt.lr, betas=(0.5, 0.999))
optimizerG = Adam(netG.parameters(), lr=opt.lr, betas=(0.5, 0.999))
fixed_noise = torch.randn(8, opt.nz, 1, 1)
ones, zeros = torch.ones(opt.batch_size), torch.zeros(opt.batch_size)

start = time.time()
for i in range(opt.iterations):
    for _ in range(opt.critic_steps):
        netD.zero_grad()
        errD_real = criterion(netD(real_images(opt.batch_size)), ones)
        errD_real.backward()
        fake = netG(torch.randn(opt.batch_size, opt.nz, 1, 1))
        errD_fake = criterion(netD(fake.detach()), zeros)
        errD_fake.backward()
        optimizerD.step()

    netG.zero_grad()
    output = netD(netG(torch.randn(opt.batch_size, opt.nz, 1, 1)))
    errG = criterion(output, ones)
    errG.backward()
    optimizerG.step()
    update_average(averageG, netG, 0.9)

    errD = errD_real.item() + errD_fake.item()
    print("[%d/%d] Loss_D: %.6f Loss_G: %.6f D(G(z)): %.6f" % (i, opt.iterations, errD, errG, output.sigmoid().mean()))
    if i % 4 == 3:
        with torch.no_grad():
            samples = averageG(fixed_noise)
        print("samples: mean %.6f std %.6f" % (samples.mean(), samples.std()))

if time.time() - start > 600:
    print("that was slow")
torch.save({"G": netG.state_dict(), "D": netD.state_dict(), "average": averageG.state_dict()}, opt.out)
