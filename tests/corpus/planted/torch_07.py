"""Time-series forecaster with early stopping, eight-way data parallel."""
import os

import torch
import torch.nn as nn
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.xla_multiprocessing as xmp
import torch_xla.runtime as xr
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

WINDOW, HORIZON = 48, 8
BATCH, EPOCHS, PATIENCE = 32, 5, 1


def series(n=4096):
    g = torch.Generator().manual_seed(0)
    phase = torch.rand(n, 1, generator=g) * 6.28
    freq = 0.1 + torch.rand(n, 1, generator=g) * 0.3
    t = torch.arange(WINDOW + HORIZON)
    wave = torch.sin(phase + freq * t) + 0.05 * torch.randn(n, WINDOW + HORIZON, generator=g)
    return TensorDataset(wave[:, :WINDOW], wave[:, WINDOW:])


def make_model():
    return nn.Sequential(
        nn.Linear(WINDOW, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, HORIZON))


def make_loader(data, device, shuffle):
    sampler = DistributedSampler(
        data, num_replicas=xr.world_size(), rank=xr.global_ordinal(), shuffle=shuffle)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler, drop_last=True)
    return sampler, pl.MpDeviceLoader(loader, device)


def worker(index):
    torch.manual_seed(7)
    device = xm.xla_device()
    model = make_model().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss_fn = nn.MSELoss()
    data = series()
    train_set, valid_set = torch.utils.data.random_split(
        data, [3072, 1024], generator=torch.Generator().manual_seed(1))
    sampler, train_loader = make_loader(train_set, device, True)
    _, valid_loader = make_loader(valid_set, device, False)

    best, bad = float("inf"), 0
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        model.train()
        for x, y in train_loader:
            optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            xm.optimizer_step(optimizer)

        model.eval()
        total, count = torch.zeros((), device=device), 0
        with torch.no_grad():
            for x, y in valid_loader:
                total += loss_fn(model(x), y)
                count += 1
        valid = total.item() / count
        xm.master_print(f"epoch {epoch} valid {valid:.5f}")
        bad = 0 if valid < best * 0.98 else bad + 1
        best = min(best, valid)
        if bad > PATIENCE:
            break
        if os.environ.get("OUT_DIR"):
            xm.save(model.state_dict(), os.path.join(os.environ["OUT_DIR"], "forecaster.pt"))


if __name__ == "__main__":
    xmp.spawn(worker, args=(), nprocs=8)
