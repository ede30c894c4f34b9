"""A TensorFlow function that changes variables, as one of values alone.

Lowering for a TPU that is not there takes no variables. What is compiled is the same: variables
become arguments, and their last values further results.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import _run_inline_graph_optimization

__all__ = ["FunctionOfValues"]

UPDATES = {"AssignVariableOp": None, "AssignAddVariableOp": "AddV2", "AssignSubVariableOp": "Sub"}
PASSED_ON = ("Identity", "NoOp")


class FunctionOfValues:
    """`concrete`, a concrete function, with the values of its variables handed in and out.

    `variables` are those it uses, in the order of the arguments; `changed` those whose last
    values come after its own results. Raises ValueError where a variable is used within a branch
    or a loop, which nobody has needed yet.
    """

    def __init__(self, concrete: Any) -> None:
        handles = {id(handle): place.name for handle, place in concrete.graph.captures}
        self.variables = [one for one in concrete.graph.variables if id(one.handle) in handles]
        self.inputs = [tensor.name for tensor in concrete.inputs if tensor.dtype != tf.resource]
        self.outputs = [tensor.name for tensor in concrete.outputs]
        self.places = [handles[id(one.handle)].partition(":")[0] for one in self.variables]
        self.captured = [
            (place.name, handle)
            for handle, place in concrete.graph.captures
            if handle.dtype != tf.resource
        ]
        graph = _run_inline_graph_optimization(concrete, False, aggressive_inlining=True)
        self._rewrite(graph)

    def _rewrite(self, graph: Any) -> None:
        nodes = {node.name: node for node in graph.node}
        current = {place: f"{place}:0" for place in self.places}
        owner = {place: place for place in self.places}
        self.graph = tf.compat.v1.GraphDef(versions=graph.versions, library=graph.library)
        self.changed: list[int] = []
        for name in in_order(nodes):
            node = nodes[name]
            if node.op == "Placeholder":
                continue  # fed when called
            held = [owner[one] for one in map(node_of, node.input) if one in owner]
            if not held:
                self.graph.node.add().CopyFrom(node)
                continue
            place, after = held[0], [one for one in node.input if one.startswith("^")]
            kind = self._type(place)
            if node.op in PASSED_ON and not node.input[0].startswith("^"):
                owner[name] = place
                self._add("NoOp", name, after)
            elif node.op == "ReadVariableOp":
                self._add("Identity", name, [current[place], *after], T=kind)
            elif node.op == "ResourceGather":
                self._gather(node, current[place], kind, after)
            elif node.op in UPDATES:
                value, operation = node.input[1], UPDATES[node.op]
                if operation:
                    self._add(operation, f"{name}/value", [current[place], value], T=kind)
                    value = f"{name}/value"
                current[place] = value
                self._add("NoOp", name, after)
                self._note(place)
            elif all(one.startswith("^") for one in node.input if node_of(one) in owner):
                self.graph.node.add().CopyFrom(node)
            else:
                raise ValueError(f"{node.op} {name} uses a variable")
        self.last = [tensor_name(current[self.places[one]]) for one in self.changed]

    def _add(self, operation: str, name: str, inputs: list[str], **attributes: Any) -> None:
        node = self.graph.node.add(op=operation, name=name, input=inputs)
        for key, kind in attributes.items():
            node.attr[key].type = kind.as_datatype_enum

    def _gather(self, node: Any, value: str, kind: Any, after: list[str]) -> None:
        index = node.attr["Tindices"].type
        self._add("Const", f"{node.name}/axis", [], dtype=tf.int32)
        self.graph.node[-1].attr["value"].tensor.CopyFrom(tf.make_tensor_proto(0))
        inputs = [value, node.input[1], f"{node.name}/axis", *after]
        self._add("GatherV2", node.name, inputs, Tparams=kind, Taxis=tf.int32)
        self.graph.node[-1].attr["Tindices"].type = index
        self.graph.node[-1].attr["batch_dims"].i = node.attr["batch_dims"].i

    def _type(self, place: str) -> Any:
        return self.variables[self.places.index(place)].dtype

    def _note(self, place: str) -> None:
        index = self.places.index(place)
        if index not in self.changed:
            self.changed.append(index)

    def __call__(self, *values: Any) -> list[Any]:
        """Return the results and last values; `values` are the variables', then the inputs."""
        fed = dict(zip([f"{place}:0" for place in self.places], values, strict=False))
        given = values[len(self.places) :]
        free = [name for name in self.inputs if name not in dict(self.captured)]
        fed.update(zip(free, given, strict=True))
        fed.update((name, tf.identity(value)) for name, value in self.captured)
        used = {tensor_name(one) for node in self.graph.node for one in node.input}
        fed = {name: value for name, value in fed.items() if name in used}
        wanted = [*self.outputs, *self.last]
        return list(
            tf.graph_util.import_graph_def(
                self.graph, input_map=fed, return_elements=wanted, name=""
            )
        )


def in_order(nodes: dict[str, Any]) -> list[str]:
    """Return the names so that each comes after what it uses or waits for."""
    order: dict[str, None] = {}
    waiting = [(name, False) for name in reversed(nodes)]
    while waiting:
        name, ready = waiting.pop()
        if ready:
            order[name] = None
        elif name not in order:
            waiting.append((name, True))
            waiting += [(node_of(one), False) for one in nodes[name].input]
    return list(order)


def node_of(name: str) -> str:
    return name.removeprefix("^").partition(":")[0]


def tensor_name(name: str) -> str:
    return name if ":" in name else f"{name}:0"
