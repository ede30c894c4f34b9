"""Converts a TensorFlow function that updates variables into a pure function.

Lowering without a TPU does not support variables. The compiled program is the same: variables
become arguments, and their new values become results. The traced operations are copied one by
one; functions, branches and loops receive and return the values of the variables that they use.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf  # type: ignore[import-untyped, import-not-found, unused-ignore]
from tensorflow.python.framework import func_graph, ops  # type: ignore[import-untyped, import-not-found, unused-ignore]
from tensorflow.python.ops import control_flow_util_v2, gen_functional_ops, handle_data_util  # type: ignore[import-untyped, import-not-found, unused-ignore]

from .variable_updates import READS, UPDATES

CALLS = ("PartitionedCall", "StatefulPartitionedCall")
BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")
LOOPS = ("While", "StatelessWhile")
IDENTITIES = ("Identity", "IdentityN")
OMITTED_ATTRIBUTES = ("_class", "_output_shapes", "_XlaMustCompile")


class ImpureOperation(Exception):
    """An operation uses a variable or another resource in a way that has no pure equivalent."""

    def __init__(self, operation: Any) -> None:
        super().__init__(f"{operation.type} {operation.name}")
        self.operation = operation


@dataclass(frozen=True)
class VariableHandle:
    """Represents a resource handle: the number of its variable, or None for another resource."""

    variable: int | None


class PureFunction:
    """The pure equivalent of `concrete`, a concrete function.

    When traced, it takes the values of `variables` (their specs), then the `inputs`. It returns
    the function's own `results` results, then the new values of `updated_variables`, which are
    indices of `variables`. Raises ImpureOperation when traced.
    """

    def __init__(self, concrete: Any) -> None:
        self.graph = concrete.graph
        captured = list(concrete.captured_inputs)
        graph_inputs = self.graph.inputs
        split = len(graph_inputs) - len(captured)
        self.inputs = graph_inputs[:split]
        self.variables: list[Any] = []
        self._captured: list[tuple[Any, Any]] = []
        numbers: dict[int, int] = {}  # a handle may be captured several times
        for handle, graph_input in zip(captured, graph_inputs[split:], strict=True):
            if graph_input.dtype != tf.resource:
                self._captured.append((graph_input, handle))
                continue
            spec = variable_spec(handle)
            if spec is None:
                self._captured.append((graph_input, VariableHandle(None)))
                continue
            if id(handle) not in numbers:
                numbers[id(handle)] = len(self.variables)
                self.variables.append(spec)
            self._captured.append((graph_input, VariableHandle(numbers[id(handle)])))
        self.results = sum(output.dtype != tf.resource for output in self.graph.outputs)
        other = VariableHandle(None)
        inputs = [other if tensor.dtype == tf.resource else tensor for tensor in self.inputs]
        self.updated_variables = sorted(updated_variables(self.graph, self._bindings(inputs)))

    def _bindings(self, values: Sequence[Any]) -> dict[str, Any]:
        pairs = [*zip(self.inputs, values, strict=True), *self._captured]
        return {tensor.name: value for tensor, value in pairs}

    def __call__(self, *values: Any) -> list[Any]:
        count = len(self.variables)
        state = dict(enumerate(values[:count]))
        outputs = rebuild(self.graph, self._bindings(values[count:]), state)
        value_outputs = [output for output in outputs if not isinstance(output, VariableHandle)]
        return [*value_outputs, *(state[number] for number in self.updated_variables)]


def variable_spec(handle: Any) -> Any:
    """The spec of a handle's variable; None if it is not a variable's handle."""
    handle_data = getattr(handle, "_handle_data", None)
    if handle_data is None or not handle_data.is_set or not handle_data.shape_and_type:
        return None
    first = handle_data.shape_and_type[0]
    return tf.TensorSpec(tf.TensorShape(first.shape), tf.dtypes.as_dtype(first.dtype))


def called_graphs(operation: Any) -> list[Any]:
    """The graphs that an operation runs: called functions, branches, a loop's condition and body.

    Their operations have tracebacks if TensorFlow kept them from tracing.
    """
    names: list[str] = []
    # Attributes are unordered; reverse order puts `then_branch` before `else_branch`.
    for _, attribute in sorted(operation.node_def.attr.items(), reverse=True):
        if attribute.HasField("func"):
            names.append(attribute.func.name)
        names += [function.name for function in attribute.list.func]
    return [operation.graph._get_function(name).graph for name in names]


def required_operations(graph: Any) -> list[Any]:
    """The operations that results and side effects depend on, in topological order.

    The order of creation does not suffice: gradients add inputs to existing loops.
    """
    order: dict[str, Any] = {}
    visited: set[str] = set()
    roots = [tensor.op for tensor in graph.outputs] + list(graph.control_outputs)
    stack = [(operation, False) for operation in reversed(roots)]
    while stack:
        operation, is_ready = stack.pop()
        if is_ready:
            order[operation.name] = operation
        elif operation.name not in visited:
            visited.add(operation.name)
            stack.append((operation, True))
            dependencies = [*(tensor.op for tensor in operation.inputs), *operation.control_inputs]
            stack += [
                (dependency, False) for dependency in dependencies if dependency.name not in visited
            ]
    return list(order.values())


def updated_variables(graph: Any, inputs: dict[str, Any]) -> set[int]:
    """The numbers of the variables that a graph may update; `inputs` binds its inputs by name."""
    bindings, updated = dict(inputs), set()
    for operation in required_operations(graph):
        input_values = [bindings.get(tensor.name) for tensor in operation.inputs]
        numbers = _numbers(input_values)
        if not numbers:
            continue
        kind = operation.type
        if kind in IDENTITIES:
            bindings.update(
                (out.name, binding)
                for out, binding in zip(operation.outputs, input_values, strict=True)
            )
        elif kind in (*CALLS, *BRANCHES, *LOOPS):
            body_values = input_values[1:] if kind in BRANCHES else input_values
            for body in called_graphs(operation):
                updated |= updated_variables(body, _bind_inputs(body, body_values))
            if kind in LOOPS:
                bindings.update(
                    (out.name, binding)
                    for out, binding in zip(operation.outputs, input_values, strict=True)
                )
        elif kind not in READS:
            updated |= numbers
    return updated


def _numbers(values: Sequence[Any]) -> set[int]:
    variables = {value.variable for value in values if isinstance(value, VariableHandle)}
    return {variable for variable in variables if variable is not None}


def rebuild(graph: Any, bindings: dict[str, Any], state: dict[int, Any]) -> list[Any]:
    """Copy a graph's operations into the one being traced; return its outputs.

    `bindings` has a value or a VariableHandle for each of its inputs, `state` the variables'
    values, which are updated.
    """
    values = dict(bindings)
    for operation in required_operations(graph):
        if operation.outputs and operation.outputs[0].name in values:
            continue  # an input
        inputs = [values[tensor.name] for tensor in operation.inputs]
        outputs = _rebuild_operation(operation, inputs, state)
        values.update(
            (out.name, value) for out, value in zip(operation.outputs, outputs, strict=True)
        )
    return [values[output.name] for output in graph.outputs]


class _OperationVariables:
    """The variables among an operation's inputs; supports reading and updating."""

    def __init__(self, numbers: list[int], state: dict[int, Any]) -> None:
        self._numbers, self._state = numbers, state

    def __getitem__(self, index: int) -> Any:
        return self._state[self._numbers[index]]

    def __setitem__(self, index: int, value: Any) -> None:
        self._state[self._numbers[index]] = value


def _rebuild_operation(operation: Any, inputs: list[Any], state: dict[int, Any]) -> Iterable[Any]:
    kind = operation.type
    if kind in CALLS:
        (body,) = called_graphs(operation)
        return rebuild(body, _bind_inputs(body, inputs), state)
    handles = [value for value in inputs if isinstance(value, VariableHandle)]
    if not handles:
        return _copy(operation, inputs)
    if kind in IDENTITIES:
        return inputs
    if kind in BRANCHES:
        return _branch(operation, inputs, state)
    if kind in LOOPS:
        return _loop(operation, inputs, state)
    update = UPDATES.get(kind) or READS.get(kind)
    numbers = [handle.variable for handle in handles if handle.variable is not None]
    if update is None or len(numbers) < len(handles):
        raise ImpureOperation(operation)
    values = [value for value in inputs if not isinstance(value, VariableHandle)]
    result = update(operation, _OperationVariables(numbers, state), values)
    return [] if result is None else [result]


def _bind_inputs(body: Any, values: Sequence[Any]) -> dict[str, Any]:
    return {tensor.name: value for tensor, value in zip(body.inputs, values, strict=True)}


def _copy(operation: Any, inputs: list[Any]) -> list[Any]:
    graph = ops.get_default_graph()
    attributes = {}
    for name, attribute in operation.node_def.attr.items():
        if name not in OMITTED_ATTRIBUTES:
            attributes[name] = attribute
        called = [attribute.func] if attribute.HasField("func") else attribute.list.func
        for function in called:
            graph._add_function_recursive(operation.graph._get_function(function.name))
    kinds = [output.dtype for output in operation.outputs]
    created = graph._create_op_internal(
        operation.type, inputs, kinds, name=operation.name, attrs=attributes
    )
    return list(created.outputs)


class _PureBody:
    """A body with the values of its variables as additional arguments.

    The arguments are the original values, then those of the variables in `numbers`.
    """

    def __init__(self, inputs: list[Any], state: dict[int, Any]) -> None:
        self.inputs = inputs
        variables = {value.variable: None for value in inputs if isinstance(value, VariableHandle)}
        self.numbers = [number for number in variables if number is not None]
        is_value = [not isinstance(value, VariableHandle) for value in inputs]
        self.positions = [position for position, flag in enumerate(is_value) if flag]
        self.values = [inputs[position] for position in self.positions]
        self.values += [state[number] for number in self.numbers]

    def bind(self, body: Any, values: Sequence[Any]) -> tuple[dict[str, Any], dict[int, Any]]:
        """The bindings of the body's inputs, and its variables' values, for these arguments."""
        bindings = list(self.inputs)
        for position, value in zip(self.positions, values, strict=False):
            handle_data_util.copy_handle_data(body.inputs[position], value)
            bindings[position] = value
        state = dict(zip(self.numbers, values[len(self.positions) :], strict=True))
        return _bind_inputs(body, bindings), state

    def trace(self, body: Any, results: Any) -> Any:
        """A graph that computes `results(outputs, state)` of the pure body."""

        def function(*values: Any) -> list[Any]:
            bindings, state = self.bind(body, values)
            return list(results(rebuild(body, bindings, state), state))

        specs = [
            tf.TensorSpec(body.inputs[position].shape, body.inputs[position].dtype)
            for position in self.positions
        ]
        variables = self.values[len(self.positions) :]
        specs += [tf.TensorSpec(value.shape, value.dtype) for value in variables]
        return func_graph.func_graph_from_py_func(
            f"{body.name}_{ops.uid()}", function, specs, {}, add_control_dependencies=True
        )


def _branch(operation: Any, inputs: list[Any], state: dict[int, Any]) -> list[Any]:
    condition, pure_body, graphs = inputs[0], _PureBody(inputs[1:], state), called_graphs(operation)
    bindings = [_bind_inputs(body, pure_body.inputs) for body in graphs]
    updated = sorted(set().union(*map(updated_variables, graphs, bindings)))
    if any(out.dtype == tf.resource for out in operation.outputs):
        raise ImpureOperation(operation)

    def results(outputs: list[Any], values: dict[int, Any]) -> list[Any]:
        return [*outputs, *(values[number] for number in updated)]

    traced = [pure_body.trace(body, results) for body in graphs]
    functions = _functions(traced)
    captures = [capture for graph in traced for capture in graph.external_captures]
    assert not captures, captures
    kinds = [out.dtype for out in traced[0].outputs]
    shapes = [out.shape for out in operation.outputs]
    shapes += [state[number].shape for number in updated]
    if operation.type in ("Case", "StatelessCase"):
        result = gen_functional_ops.case(
            condition, pure_body.values, kinds, functions, output_shapes=shapes
        )
    else:
        first, second = functions
        result = gen_functional_ops._if(
            condition, pure_body.values, kinds, first, second, output_shapes=shapes
        )
    return _split_outputs(result, updated, state)


def _loop(operation: Any, inputs: list[Any], state: dict[int, Any]) -> list[Any]:
    pure_body, (condition, body) = _PureBody(inputs, state), called_graphs(operation)

    def results(outputs: list[Any], values: dict[int, Any]) -> list[Any]:
        for position, output in enumerate(outputs):
            if isinstance(output, VariableHandle) and output != inputs[position]:
                raise ImpureOperation(operation)  # the loop swaps variables
        plain = [outputs[position] for position in pure_body.positions]
        return [*plain, *(values[number] for number in pure_body.numbers)]

    traced = [
        pure_body.trace(condition, lambda outputs, _: outputs),
        pure_body.trace(body, results),
    ]
    condition_function, body_function = _functions(traced)
    shapes = [operation.outputs[position].shape for position in pure_body.positions]
    shapes += [state[number].shape for number in pure_body.numbers]
    result = gen_functional_ops._while(
        pure_body.values,
        condition_function,
        body_function,
        output_shapes=shapes,
        parallel_iterations=operation.get_attr("parallel_iterations"),
    )
    values = _split_outputs(result, pure_body.numbers, state)
    results_by_position = dict(zip(pure_body.positions, values, strict=True))
    return [results_by_position.get(position, value) for position, value in enumerate(inputs)]


def _functions(graphs: list[Any]) -> list[Any]:
    return [control_flow_util_v2.create_new_tf_function(graph) for graph in graphs]


def _split_outputs(outputs: Any, numbers: list[int], state: dict[int, Any]) -> list[Any]:
    """Update `state` with the variables' values, the last outputs; return the other outputs."""
    tensors = [outputs] if tf.is_tensor(outputs) else list(outputs)
    first = tensors[0].op if tensors else None
    if first is not None:
        # As when tracing for a TPU: sizes that are known outside stay known inside.
        first._set_attr("_xla_propagate_compile_time_consts", tf.compat.v1.AttrValue(b=True))
    split = len(tensors) - len(numbers)
    state.update(zip(numbers, tensors[split:], strict=True))
    return tensors[:split]
