"""Tied-embedding language model, torch_xla.launch on all chips."""
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
from torch.utils.data import DataLoader, TensorDataset

VOCAB, DIM, SEQ = 320, 64, 32
BATCH, EPOCHS = 16, 2


class TinyLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, DIM)
        self.mix = nn.ModuleList(nn.Conv1d(DIM, DIM, 4) for _ in range(2))
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, VOCAB, bias=False)

    def tie_weights(self):
        self.head.weight = self.emb.weight

    def forward(self, ids):
        x = self.emb(ids)
        for conv in self.mix:
            h = F.pad(x.transpose(1, 2), (3, 0))
            x = x + F.gelu(conv(h)).transpose(1, 2)
        return self.head(self.norm(x))


def corpus(n=2048):
    g = torch.Generator().manual_seed(0)
    start = torch.randint(0, VOCAB, (n, 1), generator=g)
    stride = torch.randint(1, 5, (n, 1), generator=g)
    return TensorDataset((start + stride * torch.arange(SEQ + 1)) % VOCAB)


def log(loss, step):
    xm.master_print(f"step {step} loss {loss.item():.4f}")


def train(index):
    torch.manual_seed(0)
    device = torch_xla.device()
    model = TinyLM()
    model.tie_weights()
    model = model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    compiled = torch.compile(model)

    loader = DataLoader(corpus(), batch_size=BATCH, shuffle=True, drop_last=True)
    loader = pl.MpDeviceLoader(loader, device)
    step = 0
    for epoch in range(EPOCHS):
        for (ids,) in loader:
            optimizer.zero_grad()
            logits = compiled(ids[:, :-1])
            loss = F.cross_entropy(logits.reshape(-1, VOCAB), ids[:, 1:].reshape(-1))
            loss.backward()
            xm.optimizer_step(optimizer)
            if step % 100 == 0:
                xm.add_step_closure(log, args=(loss.detach(), step))
            step += 1
        if os.environ.get("OUT_DIR"):
            xm.save(model.state_dict(), os.path.join(os.environ["OUT_DIR"], f"lm-{epoch}.pt"))


if __name__ == "__main__":
    torch_xla.launch(train)
