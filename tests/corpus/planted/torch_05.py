"""Accelerate training loop that also runs on TPU; static shapes and joint checkpoints."""
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset

SEQ, VOCAB = 32, 128


class Copy(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(1, VOCAB, (n, SEQ), generator=g)
        self.lengths = torch.randint(4, SEQ, (n,), generator=g)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        ids = self.ids[i].clone()
        ids[self.lengths[i]:] = 0
        return {"ids": ids, "weight": (torch.arange(SEQ) < self.lengths[i]).float()}


class Model(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, dim)
        self.rnn = nn.Conv1d(dim, dim, 5, padding=2)
        self.out = nn.Linear(dim, VOCAB)

    def forward(self, ids):
        x = self.emb(ids)
        x = x + F.relu(self.rnn(x.transpose(1, 2))).transpose(1, 2)
        return self.out(x)


def weighted_loss(logits, batch):
    nll = F.cross_entropy(logits.flatten(0, 1), batch["ids"].flatten(), reduction="none")
    weight = batch["weight"].flatten()
    return (nll * weight).sum() / weight.sum().clamp(min=1.0)


def main():
    set_seed(0)
    accelerator = Accelerator(gradient_accumulation_steps=2)
    train = DataLoader(Copy(2048, 0), batch_size=16, shuffle=True, drop_last=True)
    valid = DataLoader(Copy(512, 1), batch_size=16, drop_last=True)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    model, optimizer, train, valid = accelerator.prepare(model, optimizer, train, valid)

    out = os.environ.get("OUT_DIR")
    for epoch in range(2):
        model.train()
        running = torch.zeros((), device=accelerator.device)
        for step, batch in enumerate(train):
            with accelerator.accumulate(model):
                loss = weighted_loss(model(batch["ids"]), batch)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            running += loss.detach()
            if (step + 1) % 100 == 0:
                accelerator.print(f"epoch {epoch} step {step + 1}: {running.item() / (step + 1):.4f}")

        model.eval()
        losses = []
        with torch.no_grad():
            for batch in valid:
                losses.append(accelerator.gather(weighted_loss(model(batch["ids"]), batch).reshape(1)))
        mean = torch.cat(losses).mean().item()
        if accelerator.is_main_process:
            print(f"epoch {epoch} valid {mean:.4f}")
        accelerator.wait_for_everyone()
        if out:
            accelerator.save_state(os.path.join(out, f"epoch_{epoch}"))
    accelerator.end_training()


if __name__ == "__main__":
    main()
