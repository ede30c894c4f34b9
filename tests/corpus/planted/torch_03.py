"""Masked token model on a single TPU chip, plain torch_xla loop."""
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch_xla.core.xla_model as xm

VOCAB, DIM, SEQ, BATCH = 500, 64, 32, 16
MASK_ID = 1
STEPS = 60


class Encoder(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM)
        self.pos = nn.Parameter(torch.zeros(SEQ, DIM))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(DIM, 4, 4 * DIM, dropout=0.0, batch_first=True)
            for _ in range(layers))
        self.out = nn.Linear(DIM, VOCAB)

    def forward(self, ids):
        x = self.tok(ids) + self.pos
        for block in self.blocks:
            x = block(x)
        return self.out(x)


def batches(seed=0):
    g = torch.Generator().manual_seed(seed)
    while True:
        start = torch.randint(2, VOCAB - SEQ, (BATCH, 1), generator=g)
        ids = start + torch.arange(SEQ)
        masked = torch.rand(ids.shape, generator=g) < 0.15
        yield torch.where(masked, torch.tensor(MASK_ID), ids), ids, masked


def masked_loss(logits, targets, masked):
    picked = logits[masked]
    return F.cross_entropy(picked, targets[masked])


def main():
    torch.manual_seed(0)
    device = xm.xla_device()
    model = Encoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model = model.to(device)
    model.train()

    data = batches()
    total = torch.zeros((), device=device)
    for step in range(STEPS):
        inputs, targets, masked = (t.to(device) for t in next(data))
        optimizer.zero_grad()
        loss = masked_loss(model(inputs), targets, masked)
        loss.backward()
        optimizer.step()
        total += loss.detach()
    print(f"mean loss over {STEPS} steps: {total.item() / STEPS:.4f}")

    cpu_state = {k: v.cpu() for k, v in model.state_dict().items()}
    torch.save(cpu_state, "encoder.pt")


if __name__ == "__main__":
    main()
