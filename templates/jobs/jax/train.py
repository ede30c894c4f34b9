"""Trains a small language model with JAX on all chips, and resumes after an interruption.

It learns to predict the next byte of the Korean text in sample/, on one TPU, on a slice of several
hosts, on several slices, or on a laptop's CPU. Replace `batch_at` with your data and `Model` with
your model; keep the rest.

    python train.py --steps 200
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx
from jax.experimental.multihost_utils import process_allgather
from jax.sharding import Mesh, NamedSharding, PartitionSpec

BYTES, LENGTH, WIDTH, HEADS, LAYERS = 256, 64, 128, 4, 2


def main() -> None:
    options = parse_options()
    if int(os.environ.get("TPUCTL_WORKERS", "1")) > 1:
        jax.distributed.initialize()  # finds the other hosts
    mesh = make_mesh(int(os.environ.get("TPUCTL_SLICES", "1")))
    if options.batch % mesh.size:
        raise SystemExit(f"--batch {options.batch} is not a multiple of {mesh.size} chips")
    report = print if jax.process_index() == 0 else lambda *_, **__: None
    kind, hosts, slices = jax.devices()[0].device_kind, jax.process_count(), mesh.shape["slice"]
    report(
        f"chips: {mesh.size} ({kind}), hosts: {hosts}, slices: {slices}, JAX {jax.__version__}",
        flush=True,
    )

    optimizer = optax.adamw(1e-3)
    model = nnx.graphdef(nnx.eval_shape(lambda: Model(nnx.Rngs(0))))

    def initialize():
        parameters = nnx.state(Model(nnx.Rngs(0)), nnx.Param)
        return {"parameters": parameters, "optimizer": optimizer.init(parameters)}

    shapes = jax.tree.map(partial(shard, mesh), jax.eval_shape(initialize))
    shardings = jax.tree.map(lambda shape: shape.sharding, shapes)

    @partial(jax.jit, donate_argnums=0, out_shardings=(shardings, None))
    def train(state, tokens):
        def mean_loss(parameters):
            logits = nnx.merge(model, parameters)(tokens[:, :-1])
            return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

        loss, gradients = jax.value_and_grad(mean_loss)(state["parameters"])
        updates, moments = optimizer.update(gradients, state["optimizer"], state["parameters"])
        parameters = optax.apply_updates(state["parameters"], updates)
        return {"parameters": parameters, "optimizer": moments}, loss

    checkpoints = ocp.CheckpointManager(  # one that was cut short does not count
        options.output if "://" in options.output else Path(options.output).resolve(),
        options=ocp.CheckpointManagerOptions(max_to_keep=2),
    )
    step = checkpoints.latest_step() or 0
    if step:
        state = checkpoints.restore(step, args=ocp.args.StandardRestore(shapes))
        report(f"resuming after step {step}", flush=True)
    else:
        state = jax.jit(initialize, out_shardings=shardings)()

    signals: list[int] = []  # a spot TPU gets SIGTERM before preemption
    signal.signal(signal.SIGTERM, lambda number, frame: signals.append(number))
    text = np.frombuffer(read_sample(), np.uint8)
    rows = NamedSharding(mesh, PartitionSpec(("slice", "data")))
    is_stopping = False
    while step < options.steps and not is_stopping:
        started, before = time.monotonic(), step
        while step < options.steps and (step == before or step % options.log_every):
            batch = batch_at(text, step, options.batch)
            tokens = jax.make_array_from_callback(batch.shape, rows, batch.__getitem__)
            state, loss = train(state, tokens)
            step += 1
        row = {"step": step, "loss": float(loss)}  # waits for the steps
        speed = (step - before) * options.batch * LENGTH / (time.monotonic() - started)
        report(json.dumps({**row, "tokens_per_second": round(speed)}), flush=True)
        # All hosts stop after the same step, even if the signal reaches them at different times.
        is_stopping = bool(process_allgather(np.array(len(signals))).any())
        if step % options.save_every == 0 or step == options.steps or is_stopping:
            checkpoints.save(step, args=ocp.args.StandardSave(state))
    checkpoints.close()  # saves in the background until here
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
        help="folder for checkpoints; gs:// on a slice",
    )
    return parser.parse_args()


def make_mesh(slices: int) -> Mesh:
    """All chips, by slice: within one they are connected, between slices is a network."""

    def slice_of(device: jax.Device) -> int:
        by_process = device.process_index * slices // jax.process_count()
        return getattr(device, "slice_index", by_process)  # CPUs have none

    devices = sorted(jax.devices(), key=slice_of) if slices > 1 else jax.devices()
    return Mesh(np.array(devices).reshape(slices, -1), ("slice", "data"))


def shard(mesh: Mesh, array: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """Distribute an array's rows over a slice's chips (FSDP), or copy it if they are indivisible.

    Each slice has all of it: between slices, only gradients are exchanged.
    """
    is_divisible = array.ndim > 0 and array.shape[0] % mesh.shape["data"] == 0
    sharding = NamedSharding(mesh, PartitionSpec("data") if is_divisible else PartitionSpec())
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)


def read_sample() -> bytes:
    folder = Path(__file__).resolve().parent / "sample"
    return b"\n".join(path.read_bytes() for path in sorted(folder.glob("*.txt")))


def batch_at(text: np.ndarray, step: int, size: int) -> np.ndarray:
    """Return the batch of a step, which a resumed run repeats: (size, LENGTH + 1) bytes."""
    starts = np.random.default_rng([1, step]).integers(len(text) - LENGTH, size=size)
    return text[starts[:, None] + np.arange(LENGTH + 1)].astype(np.int32)


class Block(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.norm_1 = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs)
        self.norm_2 = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.expand = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
        self.contract = nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attention(self.norm_1(x), mask=nnx.make_causal_mask(x[..., 0]))
        return x + self.contract(nnx.gelu(self.expand(self.norm_2(x))))


class Model(nnx.Module):
    """A GPT: the logits of each next byte."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.bytes = nnx.Embed(BYTES, WIDTH, rngs=rngs)
        self.positions = nnx.Embed(LENGTH, WIDTH, rngs=rngs)
        self.blocks = nnx.Sequential(*(Block(rngs) for _ in range(LAYERS)))
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.logits = nnx.Linear(WIDTH, BYTES, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.bytes(tokens) + self.positions(jnp.arange(tokens.shape[1]))
        return self.logits(self.norm(self.blocks(x)))


if __name__ == "__main__":
    main()
