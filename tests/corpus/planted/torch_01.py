"""CIFAR-like convnet with torch_xla multiprocessing on a v5e-8."""
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.xla_multiprocessing as xmp
import torch_xla.runtime as xr
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

DEVICE = xm.xla_device()
EPOCHS = 2
BATCH = 32
OUT = os.environ.get("OUT_DIR", ".")


class Net(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.head = nn.Linear(32, classes)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        return self.head(x.mean(dim=(2, 3)))


def fake_cifar(n=2048):
    g = torch.Generator().manual_seed(0)
    y = torch.randint(0, 10, (n,), generator=g)
    x = torch.randn(n, 3, 32, 32, generator=g) + y[:, None, None, None] * 0.1
    return TensorDataset(x, y)


def worker(index):
    torch.manual_seed(1234)
    model = Net().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    data = fake_cifar()
    sampler = DistributedSampler(
        data, num_replicas=xr.world_size(), rank=xr.global_ordinal(), shuffle=True)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler, drop_last=True, num_workers=2)
    device_loader = pl.MpDeviceLoader(loader, DEVICE)

    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        model.train()
        for step, (x, y) in enumerate(device_loader):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            if step % 100 == 0:
                xm.add_step_closure(
                    lambda l, e, s: xm.master_print(f"epoch {e} step {s} loss {l.item():.4f}"),
                    args=(loss, epoch, step))
        if xm.is_master_ordinal():
            xm.save(model.state_dict(), os.path.join(OUT, f"net-{epoch}.pt"))
    xm.master_print("done")


if __name__ == "__main__":
    xmp.spawn(worker)
