"""Data-parallel training with torch_xla, one process per chip."""
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.runtime as xr
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

FLAGS = {"batch": 32, "epochs": 3, "lr": 1e-3, "log_every": 100, "use_dropout": True}


class TiedAutoencoder(nn.Module):
    def __init__(self, dim=64, hidden=128):
        super().__init__()
        self.enc = nn.Linear(dim, hidden)
        self.bias = nn.Parameter(torch.zeros(dim))
        self.drop = nn.Dropout(0.1 if FLAGS["use_dropout"] else 0.0)

    def forward(self, x):
        h = self.drop(F.gelu(self.enc(x)))
        return F.linear(h, self.enc.weight.t(), self.bias)


def dataset(n=4096, dim=64):
    g = torch.Generator().manual_seed(0)
    basis = torch.randn(8, dim, generator=g)
    x = torch.randn(n, 8, generator=g) @ basis
    x[x.abs() > 8] = 0.0
    return TensorDataset(x)


def log(loss, epoch, step):
    xm.master_print(f"epoch {epoch} step {step} loss {loss.item():.5f}")


def train(index):
    device = torch_xla.device()
    torch.manual_seed(0)
    model = TiedAutoencoder().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=FLAGS["lr"])
    data = dataset()
    sampler = DistributedSampler(
        data, num_replicas=xr.world_size(), rank=xr.global_ordinal(), shuffle=True, drop_last=True)
    loader = DataLoader(data, batch_size=FLAGS["batch"], sampler=sampler, drop_last=True)
    loader = pl.MpDeviceLoader(loader, device)

    step = 0
    for epoch in range(FLAGS["epochs"]):
        sampler.set_epoch(epoch)
        for (x,) in loader:
            optimizer.zero_grad(set_to_none=True)
            loss = F.mse_loss(model(x), x)
            loss.backward()
            xm.reduce_gradients(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if step % FLAGS["log_every"] == 0:
                xm.add_step_closure(log, args=(loss.detach(), epoch, step))
            step += 1
        if os.environ.get("OUT_DIR"):
            state = {"model": model.state_dict(), "optim": optimizer.state_dict(), "epoch": epoch}
            xm.save(state, os.path.join(os.environ["OUT_DIR"], f"epoch{epoch}.pt"))

    mean_loss = xm.mesh_reduce("final_loss", loss.item(), lambda v: sum(v) / len(v))
    if xm.is_master_ordinal():
        print(f"finished {step} steps, final loss {mean_loss:.5f}")


if __name__ == "__main__":
    torch_xla.launch(train)
