"""Which functions TensorFlow and Keras trace, and which they call on the host."""

from __future__ import annotations

import ast

from tpuctl.preflight.analysis.source import Module

__all__ = ["KERAS_METHODS", "TRACE_ARGUMENTS", "is_host"]

# Methods that Keras traces, and whether it differentiates them.
KERAS_METHODS = {
    "call": True,
    "train_step": False,
    "test_step": False,
    "predict_step": False,
    "compute_loss": True,
    "compute_metrics": False,
    "update_state": False,
    "update_step": False,
    "__call__": False,
}
# Functions that trace their arguments: the positions of those arguments.
TRACE_ARGUMENTS = {
    "tensorflow.cond": (1, 2),
    "tensorflow.case": (0,),
    "tensorflow.while_loop": (0, 1),
    "tensorflow.map_fn": (0,),
    "tensorflow.vectorized_map": (0,),
    "tensorflow.scan": (0,),
    "tensorflow.foldl": (0,),
    "tensorflow.foldr": (0,),
    "tensorflow.recompute_grad": (0,),
    "tensorflow.custom_gradient": (0,),
    "tensorflow.switch_case": (1,),
    "tensorflow.nest.map_structure": (0,),
}
# Dataset methods that run functions on the host.
HOST_METHODS = {"map", "filter", "flat_map", "interleave", "from_generator", "reduce", "scan"}
HOST_METHODS |= {"group_by_window", "bucket_by_sequence_length", "take_while", "apply", "batch"}
HOST_METHODS |= {
    "distribute_datasets_from_function",
    "experimental_distribute_datasets_from_function",
}
HOST_FUNCTIONS = {"tensorflow.py_function", "tensorflow.numpy_function", "tensorflow.py_func"}


def is_host(module: Module, call: ast.Call) -> bool:
    """Whether a call passes functions to `tf.data` or to Python on the host."""
    name = module.names.of(call.func)
    if name in HOST_FUNCTIONS:
        return True
    is_method = isinstance(call.func, ast.Attribute) and call.func.attr in HOST_METHODS
    is_jax = (name or "").startswith("jax.")
    return is_method and not is_jax and name not in TRACE_ARGUMENTS
