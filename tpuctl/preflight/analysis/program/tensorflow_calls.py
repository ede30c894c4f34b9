"""Which functions TensorFlow and Keras trace."""

from __future__ import annotations

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
