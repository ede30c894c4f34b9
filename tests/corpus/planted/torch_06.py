"""Accelerate script: metric learning on synthetic clusters."""
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

OUT = os.environ.get("OUT_DIR", "metric-out")
CLASSES = 16


def clusters(n=4096, dim=32):
    g = torch.Generator().manual_seed(0)
    centres = torch.randn(CLASSES, dim, generator=g) * 2
    y = torch.randint(0, CLASSES, (n,), generator=g)
    return TensorDataset(centres[y] + torch.randn(n, dim, generator=g), y)


class Embedder(nn.Module):
    def __init__(self, dim=32, out=16):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, 128), nn.ReLU(), nn.Linear(128, out))
        self.proxies = nn.Parameter(torch.randn(CLASSES, out))

    def forward(self, x):
        z = F.normalize(self.net(x), dim=-1)
        return z @ F.normalize(self.proxies, dim=-1).t() * 16.0


def main():
    torch.manual_seed(0)
    accelerator = Accelerator()
    loader = DataLoader(clusters(), batch_size=64, shuffle=True, drop_last=True)
    model = Embedder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=128)
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)

    best = float("inf")
    for epoch in range(2):
        total = 0.0
        for step, (x, y) in enumerate(loader):
            x, y = x.to(accelerator.device), y.to(accelerator.device)
            loss = F.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            total += loss.item()
        mean = total / (step + 1)
        accelerator.print(f"epoch {epoch}: loss {mean:.4f}")

        if accelerator.is_main_process and mean < best:
            best = mean
            os.makedirs(OUT, exist_ok=True)
            accelerator.wait_for_everyone()
            state = accelerator.unwrap_model(model).state_dict()
            torch.save({k: v.cpu() for k, v in state.items()}, os.path.join(OUT, "best.pt"))

    accelerator.print("best", best)


if __name__ == "__main__":
    main()
