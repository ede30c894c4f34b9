"""Write which functions of TensorFlow need operations that XLA has not for a TPU.

    operations.py > tpuctl/preflight/rules/tensorflow_steps/tpu004_operations.json

Asks TensorFlow which kernels are registered for the TPU's compiler, and follows each public
function of TensorFlow to the operations that its source makes. Needs tensorflow-tpu, no TPU.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import textwrap
import types
from collections.abc import Iterator
from typing import Any

os.environ.update(
    TPU_LIBRARY_PATH="/nonexistent",  # the import waits for minutes for a TPU otherwise
    TF_CPP_MIN_LOG_LEVEL="3",
)
import tensorflow as tf
from tensorflow.python.framework import kernels
from tensorflow.python.util import tf_decorator

# The compiler takes these apart before it looks for kernels.
FUNCTIONAL = {
    *("PartitionedCall", "StatefulPartitionedCall", "If", "StatelessIf", "While"),
    *("StatelessWhile", "Case", "StatelessCase", "SymbolicGradient", "Switch", "Merge"),
    *("Enter", "Exit", "NextIteration", "LoopCond", "Placeholder", "VarHandleOp"),
}
# Need such operations for some of their arguments only, or belong to the host.
LEFT_OUT = ("tf.image.resize", "tf.debugging.", "tf.tpu.", "tf.test.", "tf.data.", "tf.train.")
LEFT_OUT += ("tf.saved_model.", "tf.config.", "tf.distribute.", "tf.keras.", "tf.summary.")
LEFT_OUT += (
    "tf.linalg.lstsq",
    "tf.nondifferentiable_",
    "tf.dtensor.",
    "tf.experimental.dtensor.",
    "tf.lookup.",
    "tf.nn.embedding_lookup_",
)
HIDDEN = ("tf.compat", "tf.raw_ops", "tf.dtensor", "tf.internal", "tf.tools", "tf.keras")
# What sources do not show, each compiled and refused.
ADDED = {
    "tf.nn.sampled_softmax_loss": ["LogUniformCandidateSampler"],
    "tf.nn.nce_loss": ["LogUniformCandidateSampler"],
    "tf.nn.embedding_lookup_sparse": ["SegmentSum"],
    "tf.nn.safe_embedding_lookup_sparse": ["SparseReshape"],
    "tf.strings.reduce_join": ["ReduceJoin"],
}
MADE = re.compile(r'TFE_Py_FastPathExecute\(\s*_ctx, "(\w+)"')


def public(module: types.ModuleType, name: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    for key in dir(module):
        full = f"{name}.{key}"
        if key.startswith("_") or full.startswith(HIDDEN):
            continue
        try:
            value = getattr(module, key)
        except Exception:  # what is loaded lazily may be missing
            continue
        if isinstance(value, types.ModuleType):
            if depth < 4 and "._api." in value.__name__:
                yield from public(value, full, depth + 1)
        elif callable(value):
            yield full, value


def operations(function: Any, depth: int) -> set[str]:
    """The operations that a function's source makes, and those of what it calls."""
    _, function = tf_decorator.unwrap(function)
    function = inspect.unwrap(function)
    if not isinstance(function, types.FunctionType):
        return set()
    if not (function.__module__ or "").startswith("tensorflow.python"):
        return set()
    source = textwrap.dedent(inspect.getsource(function))
    found = set(MADE.findall(source))
    if found or not depth:
        return found
    for node in ast.walk(ast.parse(source)):
        target = None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            target = function.__globals__.get(node.func.id)
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
        ):
            owner = function.__globals__.get(node.func.value.id)
            if isinstance(owner, types.ModuleType):
                target = getattr(owner, node.func.attr, None)
        if callable(target) and not isinstance(target, type):
            found |= operations(target, depth - 1)
    return found


def registered() -> set[str]:
    """The operations that the TPU's compiler has; making one program registers them."""

    @tf.function(jit_compile=True)
    def program(x: Any) -> Any:
        return x + 1

    program.experimental_get_compiler_ir(tf.TensorSpec((2,)))(stage="hlo", platform_name="TPU")
    registered_kernels = kernels.get_all_registered_kernels().kernel
    return {kernel.op for kernel in registered_kernels if kernel.device_type == "XLA_TPU_JIT"}


def main() -> None:
    has = registered() | FUNCTIONAL
    refused: dict[str, list[str]] = dict(ADDED)
    for name, function in public(tf, "tf"):
        if name.startswith(LEFT_OUT):
            continue
        created = operations(function, 1) or operations(function, 3)
        lacking = sorted(created - has)
        if lacking:
            refused[name] = lacking
    tables = {
        "generated_by": "tests/benchmarks/programs/operations.py",
        "source": f"kernels of XLA_TPU_JIT in tensorflow-tpu {tf.__version__}",
        "has": sorted(has),
        "refused": {
            name.removeprefix("tf."): lacking
            for name, lacking in sorted(refused.items())
            if lacking
        },
    }
    print(json.dumps(tables, indent=1))


if __name__ == "__main__":
    main()
