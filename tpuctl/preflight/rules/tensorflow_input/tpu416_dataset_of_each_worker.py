"""TPU416 dataset-of-each-worker."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.functions import function_of
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import (
    Function,
    argument,
    dotted,
    identifiers_in,
    parameters_of,
    words_of,
)
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.analysis.tensorflow.strategy_scopes import tpu_strategies
from tpuctl.preflight.findings import Finding, Rule, Severity, Target
from tpuctl.preflight.rules._common import CONNECT

SCRIPT = (
    CONNECT
    + """
GLOBAL_BATCH = 1024


def dataset_fn(context):
DATA

iterator = iter(strategy.distribute_datasets_from_function(dataset_fn))
"""
)

RULE = Rule(
    code="TPU416",
    name="dataset-of-each-worker",
    severity=Severity.risk,
    summary="Function for each worker's dataset does not divide the batch or the data",
    rationale=(
        "`distribute_datasets_from_function` calls the function once for each worker and changes "
        "nothing in the dataset: each replica gets a batch as it is there, so that a global batch "
        "is as many times too large as there are replicas. Without `shard`, all workers of a "
        "slice read the same examples; in the same order, every step repeats them."
    ),
    bad=SCRIPT.replace(
        "DATA",
        "    data = tf.data.Dataset.range(100_000)\n"
        "    return data.repeat().batch(GLOBAL_BATCH, drop_remainder=True)\n",
    ),
    good=SCRIPT.replace(
        "DATA",
        "    data = tf.data.Dataset.range(100_000)\n"
        "    data = data.shard(context.num_input_pipelines, context.input_pipeline_id)\n"
        "    batch_size = context.get_per_replica_batch_size(GLOBAL_BATCH)\n"
        "    return data.repeat().batch(batch_size, drop_remainder=True)\n",
    ),
    target=Target(workers=2),
)

DISTRIBUTE = ("distribute_datasets_from_function", "experimental_distribute_datasets_from_function")
BATCHES = {"batch", "padded_batch"}
# Datasets with the same elements in the same order in all workers, and methods that keep that.
SOURCES = {
    f"tensorflow.data.{name}"
    for name in ("Dataset.range", "Dataset.from_tensor_slices", "Dataset.from_tensors")
} | {f"tensorflow.data.{name}" for name in ("TFRecordDataset", "TextLineDataset")}
KEEPS_ORDER = {
    *("map", "repeat", "prefetch", "cache", "take", "skip", "filter", "enumerate", "unbatch"),
    *("with_options", *BATCHES),
}


def find(project: Project, target: Target) -> Iterator[Finding]:
    if target.replicas == 1 or not tpu_strategies(project):
        return
    global_sizes = _global_sizes(project)
    reported: set[Function] = set()
    for module in project:
        for call in module.calls:
            if not isinstance(call.func, ast.Attribute) or call.func.attr not in DISTRIBUTE:
                continue
            passed = argument(call, 0, "dataset_fn")
            function = None if passed is None else function_of(project, module, passed)
            if function is None or function[1] in reported:
                continue
            reported.add(function[1])
            calls = _calls_in(*function)
            if target.workers != 1:
                yield from _same_data(*function, calls)
            yield from _whole_batch(function[0], calls, global_sizes)


def _calls_in(module: Module, function: Function) -> list[ast.Call]:
    calls = [node for node in module.own_nodes(function) if isinstance(node, ast.Call)]
    return sorted(calls, key=lambda call: (call.end_lineno or 0, call.end_col_offset or 0))


def _global_sizes(project: Project) -> set[str]:
    """The names of batch sizes by which losses are divided over all replicas."""
    sizes = {
        dotted(keyword.value)
        for module in project
        for call in module.calls
        for keyword in call.keywords
        if keyword.arg == "global_batch_size"
    }
    return {size for size in sizes if size is not None}


def _same_data(module: Module, function: Function, calls: list[ast.Call]) -> Iterator[Finding]:
    """A dataset that certainly has the same elements in the same order for all workers."""
    context = {parameter.arg for parameter in parameters_of(function)}
    if context & {node.id for node in module.own_nodes(function) if isinstance(node, ast.Name)}:
        return
    source = None
    for call in calls:
        name = module.names.of(call.func)
        if name in SOURCES:
            source = call
        elif name is not None and name.startswith("tensorflow."):
            if name.startswith("tensorflow.data."):
                return  # another dataset
        elif not isinstance(call.func, ast.Attribute) or not _keeps_order(call.func.attr, call):
            return
    if source is not None:
        message = f"{quoted(module, source)} has the same examples in all workers of a slice"
        hint = (
            "Read a part in each:\n"
            "    data = data.shard(context.num_input_pipelines, context.input_pipeline_id)"
        )
        yield finding_at(RULE, module, source, message, hint)


def _keeps_order(method: str, call: ast.Call) -> bool:
    if method != "shuffle":
        return method in KEEPS_ORDER
    seed = argument(call, 1, "seed")
    return isinstance(seed, ast.Constant) and seed.value is not None


def _whole_batch(
    module: Module, calls: list[ast.Call], global_sizes: set[str]
) -> Iterator[Finding]:
    if any(getattr(call.func, "attr", "") == "get_per_replica_batch_size" for call in calls):
        return
    for call in calls:
        if not isinstance(call.func, ast.Attribute) or call.func.attr not in BATCHES:
            continue
        size = argument(call, 0, "batch_size")
        if not isinstance(size, (ast.Name, ast.Attribute)):
            continue
        if dotted(size) in global_sizes or "global" in words_of(identifiers_in(size)):
            message = f"each replica gets a batch of {quoted(module, size)}, the size for all"
            hint = "Use context.get_per_replica_batch_size(…) of the function's argument."
            yield finding_at(RULE, module, size, message, hint)
