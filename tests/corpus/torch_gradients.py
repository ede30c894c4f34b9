"""Prints the gradients that optimizers of PyTorch/XLA use, for `test_rules_by_torch.py`.

Programs that train on several devices import `range` from here, also in the processes that they
start, and do a few steps. Each line is a JSON list of the device's number and the last gradients.
Gradients that are sums over devices are "exchanged" instead, and end the process: the CPU's
runtime aborts when it adds them up.
"""

from __future__ import annotations

import builtins
import json
import os
import threading
from typing import Any

import torch_xla
from torch.optim.optimizer import register_optimizer_step_post_hook

STEPS = 3
PRINTING = threading.Lock()  # devices have threads
SUM_OVER_DEVICES = "xla::cross_replica_sum"


def range(*bounds: int) -> Any:
    return builtins.range(*bounds)[:STEPS]


def print_gradients(optimizer: Any, _: object, __: object) -> None:
    gradients = [
        parameter.grad for group in optimizer.param_groups for parameter in group["params"]
    ]
    device = torch_xla.runtime.global_ordinal()
    if SUM_OVER_DEVICES in torch_xla._XLAC._get_xla_tensors_text(gradients):
        with PRINTING:
            print(json.dumps([device, "exchanged"]), flush=True)
            os._exit(0)
    values = [gradient.flatten().tolist() for gradient in gradients]
    with PRINTING:
        print(json.dumps([device, values]), flush=True)


register_optimizer_step_post_hook(print_gradients)
