"""PyTorch as it is written every day: a dataset, a loader, a module, items and masks."""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Shapes(Dataset):
    def __init__(self, count=256, size=16):
        generator = torch.Generator().manual_seed(0)
        self.labels = torch.randint(0, 2, (count,), generator=generator)
        self.images = torch.rand((count, 1, size, size), generator=generator) * 0.3
        self.images[self.labels == 1, :, 4:12, 4:12] += 0.7

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.images[index], self.labels[index]


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 8, 3, stride=2)
        self.second = nn.Conv2d(8, 16, 3, stride=2)
        self.head = nn.LazyLinear(2)

    def forward(self, x):
        x = F.relu(self.first(x))
        x = F.relu(self.second(x))
        if x.max() > 1e4:
            x = x / x.max()
        return self.head(x.flatten(1))


def evaluate(model, loader, device):
    model.eval()
    right = total = 0
    hard = []
    with torch.no_grad():
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            probabilities = model(images).softmax(-1)
            guess = probabilities.argmax(-1)
            right += (guess == labels).sum().item()
            total += len(labels)
            unsure = probabilities.max(-1).values < 0.6
            hard.extend(labels[unsure].cpu().numpy().tolist())
            if torch.any(torch.isnan(probabilities)):
                raise RuntimeError("not a number")
    kinds, counts = torch.unique(torch.tensor(hard or [0]), return_counts=True)
    print("unsure of", dict(zip(kinds.tolist(), counts.tolist())))
    return right / total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--batch", type=int, default=30)
    parser.add_argument("--checkpoints", type=Path)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    loader = DataLoader(Shapes(), batch_size=args.batch, shuffle=True)
    model = Network().to(device)
    model(torch.zeros(1, 1, 16, 16, device=device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(enabled=device.type == "cuda")

    done = 0
    while done < args.steps:
        for images, labels in loader:
            model.train()
            optimizer.zero_grad(set_to_none=True)
            loss = F.cross_entropy(model(images.to(device)), labels.to(device))
            scaler.scale(loss).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            done += 1
            if done % 5 == 0:
                print(f"step {done}: {loss.item():.4f}")
            if done >= args.steps or not torch.isfinite(loss):
                break
    print("accuracy", evaluate(model, loader, device))
    if args.checkpoints:
        args.checkpoints.mkdir(exist_ok=True)
        torch.save(model.state_dict(), args.checkpoints / "last.pt")


if __name__ == "__main__":
    main()
