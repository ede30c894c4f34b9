"""Saves by a manager at step 0, and not yet at step 1."""

from pathlib import Path

import jax.numpy as jnp
import orbax.checkpoint as ocp

options = ocp.CheckpointManagerOptions(save_interval_steps=50)
manager = ocp.CheckpointManager(Path("saved").resolve(), options=options)
for step in range(2):
    manager.save(step, args=ocp.args.StandardSave({"weights": jnp.ones(4)}))
manager.wait_until_finished()
