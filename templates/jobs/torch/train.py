"""Trains a small language model with PyTorch on all chips, and resumes after an interruption.

It learns to predict the next byte of the Korean text in sample/. On a TPU, or on a CPU that has
PyTorch/XLA, it is one SPMD program for all chips; elsewhere it is plain PyTorch. Replace `batch_at`
with your data and `Model` with your model; keep the rest.

    python train.py --steps 200
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from pathlib import Path

import fsspec
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

try:
    import torch_xla
    import torch_xla.distributed.spmd as xs
    import torch_xla.runtime as xr
except ImportError:
    torch_xla = None

BYTES, LENGTH, WIDTH, HEADS, LAYERS = 256, 64, 128, 4, 2
PORT = 8482  # open between the hosts of a slice


def main() -> None:
    options = parse_options()
    hosts = Hosts()
    parts = hosts.mesh.size() if hosts.mesh else hosts.count
    if options.batch % parts:
        raise SystemExit(f"--batch {options.batch} is not a multiple of {parts} parts")
    report = print if hosts.index == 0 else lambda *_, **__: None
    kind = f"XLA on {xr.device_type()}" if hosts.mesh else "CPU"
    report(
        f"parts: {parts} ({kind}), hosts: {hosts.count}, PyTorch {torch.__version__}", flush=True
    )

    torch.manual_seed(0)  # the same parameters on all hosts
    model = Model().to(hosts.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = 0
    if checkpoint := load(f"{options.output}/checkpoint.pt"):
        step = checkpoint["step"]
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        report(f"resuming after step {step}", flush=True)

    def train(tokens: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        logits = model(tokens[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        hosts.average([loss.data, *(parameter.grad for parameter in model.parameters())])
        optimizer.step()
        hosts.sync()
        return loss.detach()

    signals: list[int] = []  # a spot TPU gets SIGTERM before preemption
    signal.signal(signal.SIGTERM, lambda number, frame: signals.append(number))
    text = np.frombuffer(read_sample(), np.uint8)
    is_stopping = False
    while step < options.steps and not is_stopping:
        started, before = time.monotonic(), step
        while step < options.steps and (step == before or step % options.log_every):
            loss = train(hosts.share(batch_at(text, step, options.batch)))
            step += 1
        row = {"step": step, "loss": loss.item()}  # waits for the steps
        speed = (step - before) * options.batch * LENGTH / (time.monotonic() - started)
        report(json.dumps({**row, "tokens_per_second": round(speed)}), flush=True)
        # All hosts stop after the same step, even if the signal reaches them at different times.
        is_stopping = hosts.any(step, bool(signals))
        if step % options.save_every == 0 or step == options.steps or is_stopping:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            if hosts.index == 0:  # all hosts have the same state
                save(f"{options.output}/checkpoint.pt", {"step": step, **on_cpu(state)})
    hosts.any("end", False)  # none leaves while another one saves
    if is_stopping and step < options.steps:
        report(f"stopped after step {step}, which is saved", flush=True)
        raise SystemExit(128 + signal.SIGTERM)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=32, help="batch size over all chips")
    parser.add_argument("--log-every", type=int, default=10, help="steps between log lines")
    parser.add_argument("--save-every", type=int, default=50, help="a multiple of --log-every")
    parser.add_argument(
        "--output",
        default=os.environ.get("TPUCTL_OUTPUT", "output"),  # survives preemption of the TPU
        help="folder for the checkpoint; gs:// on a slice",
    )
    return parser.parse_args()


class Hosts:
    """The processes that train together: one for each host of a slice.

    With XLA, each runs the program for the whole batch, and XLA divides it among the chips. On the
    CPUs of several hosts, where PyTorch/XLA cannot do that, each takes its share of the batch, and
    they average the gradients.
    """

    def __init__(self) -> None:
        self.index = int(os.environ.get("TPUCTL_WORKER", "0"))
        self.count = int(os.environ.get("TPUCTL_WORKERS", "1"))
        self.device, self.mesh = torch.device("cpu"), None
        first = os.environ.get("TPU_WORKER_HOSTNAMES", "localhost").split(",")[0]
        if torch_xla and (xr.device_type() == "TPU" or self.count == 1):
            xr.use_spmd()
            self.index, self.count = xr.process_index(), xr.process_count()
            chips = xr.global_runtime_device_count()
            self.device = torch_xla.device()
            self.mesh = xs.Mesh(np.arange(chips), (chips,), ("data",))
            if self.count > 1:
                first = xr.get_master_ip()
        if self.count > 1:
            self.store = dist.TCPStore(first, PORT, self.count, is_master=self.index == 0)
            if not self.mesh:
                torch.set_num_threads(1)  # the hosts of the local cloud share its cores
                dist.init_process_group(
                    "gloo", store=self.store, rank=self.index, world_size=self.count
                )

    def share(self, batch: np.ndarray) -> torch.Tensor:
        """Move what this host trains on to its device."""
        if not self.mesh:
            return torch.from_numpy(batch[self.index :: self.count])
        tokens = torch.from_numpy(batch).to(self.device)
        xs.mark_sharding(tokens, self.mesh, ("data", None))
        return tokens

    def average(self, tensors: list[torch.Tensor]) -> None:
        """Average over the hosts, in place. XLA inserts this itself."""
        if self.mesh or self.count == 1:
            return
        joined = torch.cat([tensor.flatten() for tensor in tensors])  # one message
        dist.all_reduce(joined)
        means = (joined / self.count).split([tensor.numel() for tensor in tensors])
        for tensor, mean in zip(tensors, means):
            tensor.copy_(mean.view_as(tensor))

    def sync(self) -> None:
        """Run the operations that XLA has recorded since the last call."""
        if self.mesh:
            torch_xla.sync()

    def any(self, moment: object, flag: bool) -> bool:
        """Whether the flag is true on any host; waits for all of them."""
        if self.count == 1:
            return flag
        self.store.set(f"{moment}/{self.index}", str(flag))
        return any(self.store.get(f"{moment}/{host}") == b"True" for host in range(self.count))


def read_sample() -> bytes:
    folder = Path(__file__).resolve().parent / "sample"
    return b"\n".join(path.read_bytes() for path in sorted(folder.glob("*.txt")))


def batch_at(text: np.ndarray, step: int, size: int) -> np.ndarray:
    """Return the batch of a step, which a resumed run repeats: (size, LENGTH + 1) bytes."""
    starts = np.random.default_rng([1, step]).integers(len(text) - LENGTH, size=size)
    return text[starts[:, None] + np.arange(LENGTH + 1)].astype(np.int64)


def load(path: str) -> dict | None:
    files, path = fsspec.url_to_fs(path)
    if not files.exists(path):
        return None
    with files.open(path) as file:
        return torch.load(file, map_location="cpu", weights_only=True)


def save(path: str, state: dict) -> None:
    """Replace a file in a folder or in a bucket; interrupted, the previous one stays."""
    files, path = fsspec.url_to_fs(path, auto_mkdir=True)
    with files.transaction, files.open(path, "wb") as file:
        torch.save(state, file)


def on_cpu(state: object) -> object:
    """Copy the tensors in a state from the device."""
    if isinstance(state, dict):
        return {key: on_cpu(value) for key, value in state.items()}
    if isinstance(state, list):
        return [on_cpu(value) for value in state]
    return state.cpu() if isinstance(state, torch.Tensor) else state


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.heads, self.join = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.expand, self.contract = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.heads(self.norm_1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        attention = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.join(attention.transpose(1, 2).flatten(2))
        return x + self.contract(functional.gelu(self.expand(self.norm_2(x))))


class Model(nn.Module):
    """A GPT: the logits of each next byte."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.positions = nn.Embedding(BYTES, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.logits = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, BYTES)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.bytes(tokens) + self.positions.weight[: tokens.shape[1]]
        return self.logits(self.norm(self.blocks(x)))


if __name__ == "__main__":
    main()
