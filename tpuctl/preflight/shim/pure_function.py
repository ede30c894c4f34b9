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

from .variable_updates import READING, UPDATES

__all__ = ["CALLS", "FunctionOfValues", "NotOfValues", "bodies", "needed"]

CALLS = ("PartitionedCall", "StatefulPartitionedCall")
BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")
LOOPS = ("While", "StatelessWhile")
IDENTITIES = ("Identity", "IdentityN")
OMITTED_ATTRIBUTES = ("_class", "_output_shapes", "_XlaMustCompile")


class NotOfValues(Exception):
    """An operation uses a variable, or another thing that lives on a machine, as no value can."""

    def __init__(self, operation: Any) -> None:
        super().__init__(f"{operation.type} {operation.name}")
        self.operation = operation


@dataclass(frozen=True)
class Place:
    """Stands for a handle: the number of its variable, or None for something else."""

    variable: int | None


class FunctionOfValues:
    """`concrete`, a concrete function, with the values of its variables handed in and out.

    To be traced, it takes first a value for each of `variables` (their shapes and types), then the
    `inputs`. It returns the function's own results, `results` of them, then the last values of the
    variables whose numbers are in `changed`. Raises NotOfValues when traced.
    """

    def __init__(self, concrete: Any) -> None:
        self.graph = concrete.graph
        held = list(concrete.captured_inputs)
        places = self.graph.inputs
        split = len(places) - len(held)
        self.inputs = places[:split]
        self.variables: list[Any] = []
        self._captured: list[tuple[Any, Any]] = []
        numbers: dict[int, int] = {}  # the same handle may be captured more than once
        for handle, place in zip(held, places[split:], strict=True):
            if place.dtype != tf.resource:
                self._captured.append((place, handle))
                continue
            spec = variable_spec(handle)
            if spec is None:
                self._captured.append((place, Place(None)))
                continue
            if id(handle) not in numbers:
                numbers[id(handle)] = len(self.variables)
                self.variables.append(spec)
            self._captured.append((place, Place(numbers[id(handle)])))
        self.results = sum(output.dtype != tf.resource for output in self.graph.outputs)
        bound = self._bound(
            [Place(None) if tensor.dtype == tf.resource else tensor for tensor in self.inputs]
        )
        self.changed = sorted(written(self.graph, bound))

    def _bound(self, values: Sequence[Any]) -> dict[str, Any]:
        pairs = [*zip(self.inputs, values, strict=True), *self._captured]
        return {place.name: value for place, value in pairs}

    def __call__(self, *values: Any) -> list[Any]:
        count = len(self.variables)
        state = dict(enumerate(values[:count]))
        outputs = run(self.graph, self._bound(values[count:]), state)
        value_outputs = [output for output in outputs if not isinstance(output, Place)]
        return [*value_outputs, *(state[number] for number in self.changed)]


def variable_spec(handle: Any) -> Any:
    """The type and shape of what a handle is of; None where it is no variable's."""
    handle_data = getattr(handle, "_handle_data", None)
    if handle_data is None or not handle_data.is_set or not handle_data.shape_and_type:
        return None
    first = handle_data.shape_and_type[0]
    return tf.TensorSpec(tf.TensorShape(first.shape), tf.dtypes.as_dtype(first.dtype))


def bodies(operation: Any) -> list[Any]:
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


def needed(graph: Any) -> list[Any]:
    """The operations that results and effects depend on, each after what it depends on.

    The order they were made in will not do: gradients add inputs to loops that were there before.
    """
    order: dict[str, Any] = {}
    begun: set[str] = set()
    ends = [tensor.op for tensor in graph.outputs] + list(graph.control_outputs)
    waiting = [(operation, False) for operation in reversed(ends)]
    while waiting:
        operation, is_ready = waiting.pop()
        if is_ready:
            order[operation.name] = operation
        elif operation.name not in begun:
            begun.add(operation.name)
            waiting.append((operation, True))
            before = [*(tensor.op for tensor in operation.inputs), *operation.control_inputs]
            waiting += [
                (operation_before, False)
                for operation_before in before
                if operation_before.name not in begun
            ]
    return list(order.values())


def written(graph: Any, bound: dict[str, Any]) -> set[int]:
    """The numbers of the variables that a graph may change; `bound` has its inputs' places."""
    bindings, changed = dict(bound), set()
    for operation in needed(graph):
        places = [bindings.get(tensor.name) for tensor in operation.inputs]
        numbers = _numbers(places)
        if not numbers:
            continue
        kind = operation.type
        if kind in IDENTITIES:
            bindings.update(
                (out.name, binding) for out, binding in zip(operation.outputs, places, strict=True)
            )
        elif kind in (*CALLS, *BRANCHES, *LOOPS):
            inner_places = places[1:] if kind in BRANCHES else places
            for body in bodies(operation):
                inner = zip(body.inputs, inner_places, strict=True)
                changed |= written(body, {tensor.name: place for tensor, place in inner})
            if kind in LOOPS:
                bindings.update(
                    (out.name, binding)
                    for out, binding in zip(operation.outputs, places, strict=True)
                )
        elif kind not in READING:
            changed |= numbers
    return changed


def _numbers(places: Sequence[Any]) -> set[int]:
    variables = {place.variable for place in places if isinstance(place, Place)}
    return {variable for variable in variables if variable is not None}


def run(graph: Any, bound: dict[str, Any], state: dict[int, Any]) -> list[Any]:
    """Make a graph's operations once more in the one being traced; its outputs, of values.

    `bound` has a value or a Place for each of its inputs, `state` the variables' values, which
    are brought up to date.
    """
    known = dict(bound)
    for operation in needed(graph):
        if operation.outputs and operation.outputs[0].name in known:
            continue  # an input
        inputs = [known[tensor.name] for tensor in operation.inputs]
        outputs = _again(operation, inputs, state)
        known.update(
            (out.name, value) for out, value in zip(operation.outputs, outputs, strict=True)
        )
    return [known[output.name] for output in graph.outputs]


class _Held:
    """The variables among an operation's inputs, to be read and changed."""

    def __init__(self, numbers: list[int], state: dict[int, Any]) -> None:
        self._numbers, self._state = numbers, state

    def __getitem__(self, place: int) -> Any:
        return self._state[self._numbers[place]]

    def __setitem__(self, place: int, value: Any) -> None:
        self._state[self._numbers[place]] = value


def _again(operation: Any, inputs: list[Any], state: dict[int, Any]) -> Iterable[Any]:
    kind = operation.type
    if kind in CALLS:
        (body,) = bodies(operation)
        return run(body, _inputs(body, inputs), state)
    places = [value for value in inputs if isinstance(value, Place)]
    if not places:
        return _copy(operation, inputs)
    if kind in IDENTITIES:
        return inputs
    if kind in BRANCHES:
        return _branch(operation, inputs, state)
    if kind in LOOPS:
        return _loop(operation, inputs, state)
    change = UPDATES.get(kind) or READING.get(kind)
    numbers = [place.variable for place in places if place.variable is not None]
    if change is None or len(numbers) < len(places):
        raise NotOfValues(operation)
    values = [value for value in inputs if not isinstance(value, Place)]
    result = change(operation, _Held(numbers, state), values)
    return [] if result is None else [result]


def _inputs(body: Any, values: Sequence[Any]) -> dict[str, Any]:
    return {place.name: value for place, value in zip(body.inputs, values, strict=True)}


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


class _Inner:
    """A body with the values of its variables among its arguments.

    Arguments are the values given, in their order, then the variables' in the order of `numbers`.
    """

    def __init__(self, inputs: list[Any], state: dict[int, Any]) -> None:
        self.inputs = inputs
        places = {value.variable: None for value in inputs if isinstance(value, Place)}
        self.numbers = [number for number in places if number is not None]
        self.plain = [place for place, value in enumerate(inputs) if not isinstance(value, Place)]
        self.values = [inputs[place] for place in self.plain]
        self.values += [state[number] for number in self.numbers]

    def bound(self, body: Any, values: Sequence[Any]) -> tuple[dict[str, Any], dict[int, Any]]:
        """What its inputs are, and its variables, where it is traced with these arguments."""
        mixed = list(self.inputs)
        for place, value in zip(self.plain, values, strict=False):
            handle_data_util.copy_handle_data(body.inputs[place], value)
            mixed[place] = value
        return _inputs(body, mixed), dict(zip(self.numbers, values[len(self.plain) :], strict=True))

    def traced(self, body: Any, results: Any) -> Any:
        """A graph that computes `results(outputs, state)` of the body, made of values."""

        def function(*values: Any) -> list[Any]:
            bound, inner = self.bound(body, values)
            return list(results(run(body, bound, inner), inner))

        specs = [
            tf.TensorSpec(body.inputs[place].shape, body.inputs[place].dtype)
            for place in self.plain
        ]
        specs += [
            tf.TensorSpec(value.shape, value.dtype) for value in self.values[len(self.plain) :]
        ]
        return func_graph.func_graph_from_py_func(
            f"{body.name}_{ops.uid()}", function, specs, {}, add_control_dependencies=True
        )


def _branch(operation: Any, inputs: list[Any], state: dict[int, Any]) -> list[Any]:
    condition, inner, graphs = inputs[0], _Inner(inputs[1:], state), bodies(operation)
    changed = sorted(set().union(*(written(body, _inputs(body, inner.inputs)) for body in graphs)))
    if any(out.dtype == tf.resource for out in operation.outputs):
        raise NotOfValues(operation)

    def results(outputs: list[Any], last: dict[int, Any]) -> list[Any]:
        return [*outputs, *(last[number] for number in changed)]

    traced = [inner.traced(body, results) for body in graphs]
    functions = _functions(traced)
    captures = [capture for graph in traced for capture in graph.external_captures]
    assert not captures, captures
    kinds = [out.dtype for out in traced[0].outputs]
    shapes = [out.shape for out in operation.outputs]
    shapes += [state[number].shape for number in changed]
    if operation.type in ("Case", "StatelessCase"):
        result = gen_functional_ops.case(
            condition, inner.values, kinds, functions, output_shapes=shapes
        )
    else:
        first, second = functions
        result = gen_functional_ops._if(
            condition, inner.values, kinds, first, second, output_shapes=shapes
        )
    return _outputs(result, changed, state, operation)


def _loop(operation: Any, inputs: list[Any], state: dict[int, Any]) -> list[Any]:
    inner, (condition, body) = _Inner(inputs, state), bodies(operation)

    def results(outputs: list[Any], last: dict[int, Any]) -> list[Any]:
        for place, output in enumerate(outputs):
            if isinstance(output, Place) and output != inputs[place]:
                raise NotOfValues(operation)  # one variable takes another's place
        plain = [outputs[place] for place in inner.plain]
        return [*plain, *(last[number] for number in inner.numbers)]

    traced = [
        inner.traced(condition, lambda outputs, _: outputs),
        inner.traced(body, results),
    ]
    checked, repeated = _functions(traced)
    shapes = [operation.outputs[place].shape for place in inner.plain]
    shapes += [state[number].shape for number in inner.numbers]
    result = gen_functional_ops._while(
        inner.values,
        checked,
        repeated,
        output_shapes=shapes,
        parallel_iterations=operation.get_attr("parallel_iterations"),
    )
    values = _outputs(result, inner.numbers, state, operation)
    back = dict(zip(inner.plain, values, strict=True))
    return [back.get(place, value) for place, value in enumerate(inputs)]


def _functions(graphs: list[Any]) -> list[Any]:
    return [control_flow_util_v2.create_new_tf_function(graph) for graph in graphs]


def _outputs(outputs: Any, numbers: list[int], state: dict[int, Any], operation: Any) -> list[Any]:
    """Take the variables' values from the end of what came out; the rest."""
    tensors = [outputs] if tf.is_tensor(outputs) else list(outputs)
    first = tensors[0].op if tensors else None
    if first is not None:
        # As a TPU's own tracing has it: sizes that are known before stay so within.
        first._set_attr("_xla_propagate_compile_time_consts", tf.compat.v1.AttrValue(b=True))
    split = len(tensors) - len(numbers)
    state.update(zip(numbers, tensors[split:], strict=True))
    return tensors[:split]
