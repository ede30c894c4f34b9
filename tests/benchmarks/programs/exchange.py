"""How a benchmark drives a training program: in rounds of a requested number of steps.

The program is started with the file of the batches, the size of the model as JSON and its own
choices. It prints one line of JSON when it is ready, then answers each number on its input, the
steps to take, with the seconds and the last loss.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

__all__ = ["OPTIMIZER", "request", "serve"]

OPTIMIZER = {
    "learning_rate": 1e-4,
    "weight_decay": 0.01,
    "beta_1": 0.9,
    "beta_2": 0.98,
    "epsilon": 1e-6,
    "global_clipnorm": 1.0,
}


def request() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arrays, each [sequences, ...], and the model: its sizes and the batch."""
    import numpy as np

    return dict(np.load(sys.argv[1])), json.loads(sys.argv[2])


def serve(train: Callable[[int], float], parameters: Callable[[], int]) -> None:
    """Take steps by `train`, which returns a loss, until the input ends.

    `parameters` counts the weights, once the first step has made them.
    """
    # What libraries print must not come between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    began = time.perf_counter()
    first = train(1)
    seconds = time.perf_counter() - began
    about = {"first_loss": first, "first_seconds": seconds, "parameters": parameters()}
    print(json.dumps(about), file=answers, flush=True)
    for line in sys.stdin:
        began, cpu_before = time.perf_counter(), time.process_time()
        loss = train(int(line))
        timing = {
            "seconds": time.perf_counter() - began,
            "cpu_seconds": time.process_time() - cpu_before,
        }
        print(json.dumps({**timing, "loss": loss}), file=answers, flush=True)
