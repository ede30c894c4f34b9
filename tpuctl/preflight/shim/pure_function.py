"""A TensorFlow function that changes variables, as one of values alone.

Lowering for a TPU that is not there takes no variables. What is compiled is the same: variables
become arguments, and their last values further results. The traced operations are made once more,
one by one; where a function, a branch or a loop uses variables, their values go in and come out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf  # type: ignore[import-untyped, import-not-found, unused-ignore]
from tensorflow.python.framework import func_graph, ops  # type: ignore[import-untyped, import-not-found, unused-ignore]
from tensorflow.python.ops import control_flow_util_v2, gen_functional_ops, handle_data_util  # type: ignore[import-untyped, import-not-found, unused-ignore]

from .variable_updates import READS, UPDATES

__all__ = ["CALLS", "ImpureOperation", "PureFunction", "called_graphs", "required_operations"]

CALLS = ("PartitionedCall", "StatefulPartitionedCall")
BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")
LOOPS = ("While", "StatelessWhile")
IDENTITIES = ("Identity", "IdentityN")
OMITTED_ATTRIBUTES = ("_class", "_output_shapes", "_XlaMustCompile")


class ImpureOperation(Exception):
    """An operation uses a variable, or another thing that lives on a machine, as no value can."""

    def __init__(self, operation: Any) -> None:
        super().__init__(f"{operation.type} {operation.name}")
        self.operation = operation


@dataclass(frozen=True)
class VariableHandle:
    """Stands for a handle: the number of its variable, or None for something else."""

    variable: int | None


class PureFunction:
    """`concrete`, a concrete function, with the values of its variables handed in and out.

    To be traced, it takes first a value for each of `variables` (their shapes and types), then the
    `inputs`. It returns the function's own results, `results` of them, then the last values of the
    variables whose numbers are in `changed`. Raises NotOfValues when traced.
    """

    def __init__(self, concrete: Any) -> None:
        self.graph = concrete.graph
        captured = list(concrete.captured_inputs)
        graph_inputs = self.graph.inputs
        split = len(graph_inputs) - len(captured)
        self.inputs = graph_inputs[:split]
        self.variables: list[Any] = []
        self._captured: list[tuple[Any, Any]] = []
        numbers: dict[int, int] = {}  # the same handle may be captured more than once
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
        bindings = self._bindings(
            [
                VariableHandle(None) if tensor.dtype == tf.resource else tensor
                for tensor in self.inputs
            ]
        )
        self.updated_variables = sorted(updated_variables(self.graph, bindings))

    def _bindings(self, values: Sequence[Any]) -> dict[str, Any]:
        pairs = [*zip(self.inputs, values, strict=True), *self._captured]
        return {place.name: value for place, value in pairs}

    def __call__(self, *values: Any) -> list[Any]:
        count = len(self.variables)
        state = dict(enumerate(values[:count]))
        outputs = rebuild(self.graph, self._bindings(values[count:]), state)
        value_outputs = [output for output in outputs if not isinstance(output, VariableHandle)]
        return [*value_outputs, *(state[number] for number in self.updated_variables)]


def variable_spec(handle: Any) -> Any:
    """The type and shape of what a handle is of; None where it is no variable's."""
    handle_data = getattr(handle, "_handle_data", None)
    if handle_data is None or not handle_data.is_set or not handle_data.shape_and_type:
        return None
    first = handle_data.shape_and_type[0]
    return tf.TensorSpec(tf.TensorShape(first.shape), tf.dtypes.as_dtype(first.dtype))


def called_graphs(operation: Any) -> list[Any]:
    """The graphs that an operation runs: what it calls, its branches, a loop's condition and body.

    Where TensorFlow remembers how they were traced, their operations know their lines.
    """
    names: list[str] = []
    # Backwards by name: `then_branch` comes before `else_branch`; the attributes have no order.
    for _, attribute in sorted(operation.node_def.attr.items(), reverse=True):
        if attribute.HasField("func"):
            names.append(attribute.func.name)
        names += [function.name for function in attribute.list.func]
    return [operation.graph._get_function(name).graph for name in names]


def required_operations(graph: Any) -> list[Any]:
    """The operations that results and effects depend on, each after what it depends on.

    The order they were made in will not do: gradients add inputs to loops that were there before.
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
                (operation_before, False)
                for operation_before in dependencies
                if operation_before.name not in visited
            ]
    return list(order.values())


def updated_variables(graph: Any, inputs: dict[str, Any]) -> set[int]:
    """The numbers of the variables that a graph may change; `bound` has its inputs' places."""
    bindings, changed = dict(inputs), set()
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
                inner = zip(body.inputs, body_values, strict=True)
                changed |= updated_variables(body, {tensor.name: place for tensor, place in inner})
            if kind in LOOPS:
                bindings.update(
                    (out.name, binding)
                    for out, binding in zip(operation.outputs, input_values, strict=True)
                )
        elif kind not in READS:
            changed |= numbers
    return changed


def _numbers(values: Sequence[Any]) -> set[int]:
    variables = {place.variable for place in values if isinstance(place, VariableHandle)}
    return {variable for variable in variables if variable is not None}


def rebuild(graph: Any, bindings: dict[str, Any], state: dict[int, Any]) -> list[Any]:
    """Make a graph's operations once more in the one being traced; its outputs, of values.

    `bound` has a value or a Place for each of its inputs, `state` the variables' values, which
    are brought up to date.
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
    """The variables among an operation's inputs, to be read and changed."""

    def __init__(self, numbers: list[int], state: dict[int, Any]) -> None:
        self._numbers, self._state = numbers, state

    def __getitem__(self, place: int) -> Any:
        return self._state[self._numbers[place]]

    def __setitem__(self, place: int, value: Any) -> None:
        self._state[self._numbers[place]] = value


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
    numbers = [place.variable for place in handles if place.variable is not None]
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
    """A body with the values of its variables among its arguments.

    Arguments are the values given, in their order, then the variables' in the order of `numbers`.
    """

    def __init__(self, inputs: list[Any], state: dict[int, Any]) -> None:
        self.inputs = inputs
        places = {value.variable: None for value in inputs if isinstance(value, VariableHandle)}
        self.numbers = [number for number in places if number is not None]
        self.value_positions = [
            place for place, value in enumerate(inputs) if not isinstance(value, VariableHandle)
        ]
        self.values = [inputs[place] for place in self.value_positions]
        self.values += [state[number] for number in self.numbers]

    def bind(self, body: Any, values: Sequence[Any]) -> tuple[dict[str, Any], dict[int, Any]]:
        """What its inputs are, and its variables, where it is traced with these arguments."""
        mixed = list(self.inputs)
        for place, value in zip(self.value_positions, values, strict=False):
            handle_data_util.copy_handle_data(body.inputs[place], value)
            mixed[place] = value
        return _bind_inputs(body, mixed), dict(
            zip(self.numbers, values[len(self.value_positions) :], strict=True)
        )

    def trace(self, body: Any, results: Any) -> Any:
        """A graph that computes `results(outputs, state)` of the body, made of values."""

        def function(*values: Any) -> list[Any]:
            bound, inner = self.bind(body, values)
            return list(results(rebuild(body, bound, inner), inner))

        specs = [
            tf.TensorSpec(body.inputs[place].shape, body.inputs[place].dtype)
            for place in self.value_positions
        ]
        specs += [
            tf.TensorSpec(value.shape, value.dtype)
            for value in self.values[len(self.value_positions) :]
        ]
        return func_graph.func_graph_from_py_func(
            f"{body.name}_{ops.uid()}", function, specs, {}, add_control_dependencies=True
        )


def _branch(operation: Any, inputs: list[Any], state: dict[int, Any]) -> list[Any]:
    condition, inner, graphs = inputs[0], _PureBody(inputs[1:], state), called_graphs(operation)
    updated = sorted(
        set().union(*(updated_variables(body, _bind_inputs(body, inner.inputs)) for body in graphs))
    )
    if any(out.dtype == tf.resource for out in operation.outputs):
        raise ImpureOperation(operation)

    def results(outputs: list[Any], last: dict[int, Any]) -> list[Any]:
        return [*outputs, *(last[number] for number in updated)]

    traced = [inner.trace(body, results) for body in graphs]
    functions = _functions(traced)
    captures = [capture for graph in traced for capture in graph.external_captures]
    assert not captures, captures
    kinds = [out.dtype for out in traced[0].outputs]
    shapes = [out.shape for out in operation.outputs]
    shapes += [state[number].shape for number in updated]
    if operation.type in ("Case", "StatelessCase"):
        result = gen_functional_ops.case(
            condition, inner.values, kinds, functions, output_shapes=shapes
        )
    else:
        first, second = functions
        result = gen_functional_ops._if(
            condition, inner.values, kinds, first, second, output_shapes=shapes
        )
    return _split_outputs(result, updated, state, operation)


def _loop(operation: Any, inputs: list[Any], state: dict[int, Any]) -> list[Any]:
    inner, (condition, body) = _PureBody(inputs, state), called_graphs(operation)

    def results(outputs: list[Any], last: dict[int, Any]) -> list[Any]:
        for place, output in enumerate(outputs):
            if isinstance(output, VariableHandle) and output != inputs[place]:
                raise ImpureOperation(operation)  # one variable takes another's place
        plain = [outputs[place] for place in inner.value_positions]
        return [*plain, *(last[number] for number in inner.numbers)]

    traced = [
        inner.trace(condition, lambda outputs, _: outputs),
        inner.trace(body, results),
    ]
    condition_function, body_function = _functions(traced)
    shapes = [operation.outputs[place].shape for place in inner.value_positions]
    shapes += [state[number].shape for number in inner.numbers]
    result = gen_functional_ops._while(
        inner.values,
        condition_function,
        body_function,
        output_shapes=shapes,
        parallel_iterations=operation.get_attr("parallel_iterations"),
    )
    values = _split_outputs(result, inner.numbers, state, operation)
    back = dict(zip(inner.value_positions, values, strict=True))
    return [back.get(place, value) for place, value in enumerate(inputs)]


def _functions(graphs: list[Any]) -> list[Any]:
    return [control_flow_util_v2.create_new_tf_function(graph) for graph in graphs]


def _split_outputs(
    outputs: Any, numbers: list[int], state: dict[int, Any], operation: Any
) -> list[Any]:
    """Take the variables' values from the end of what came out; the rest."""
    tensors = [outputs] if tf.is_tensor(outputs) else list(outputs)
    first = tensors[0].op if tensors else None
    if first is not None:
        # As a TPU's own tracing has it: sizes that are known before stay so within.
        first._set_attr("_xla_propagate_compile_time_consts", tf.compat.v1.AttrValue(b=True))
    split = len(tensors) - len(numbers)
    state.update(zip(numbers, tensors[split:], strict=True))
    return tensors[:split]
