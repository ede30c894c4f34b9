"""Compiles a captured JAX step with the TPU compiler of the job's libtpu, which needs no TPU.

`jax.export` lowers the step for TPUs with its shardings, as traced on CPU devices; the program is
then compiled for the slice's topology, in this process, with the versions that the job installs.
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ..observation.host_connection import LoweringFailed, serve
from ..observation.user_lines import UserLines, Where
from .call_signature import CallSignature
from .looped_arguments import is_looped

if TYPE_CHECKING:
    from .compiled_functions import JaxFunction, JaxFunctions

MISSING_RULE = re.compile(r"rule for primitive '(?P<name>[\w-]+)' not found for platform")
SOURCE = re.compile(r'source_file="(?P<file>[^"]+)" source_line=(?P<line>\d+)')
OVERSIZED = 1 << 34  # numbers: more than any device's memory; the error contains the limit
COLLECTIVE = re.compile(
    r"= (?P<type>\S.*?) (?P<name>all-reduce|all-gather|reduce-scatter|all-to-all|"
    r"collective-permute|ragged-all-to-all|send)(?:-start)?\("  # send: to other slices
)
ARRAY = re.compile(r"\b(?P<kind>pred|[a-z]+?(?P<bits>\d+)\w*)\[(?P<dims>[\d,]*)\]")


def lower_step(functions: JaxFunctions, function: JaxFunction, call: tuple[Any, Any]) -> NoReturn:
    """Compile the step for the host, for each batch that it requests, then exit the process."""
    rehearsal = functions.rehearsal
    functions.depth += 1
    lines = rehearsal.user_lines
    where = lines.definition(function) or lines.current()
    rehearsal.writer.write("captured", function=_name(function), where=where)
    serve(rehearsal.settings, lambda: Step(functions, function, call, lines, where))


class Step:
    """A captured step, whose batch can be replaced."""

    def __init__(
        self,
        functions: JaxFunctions,
        function: JaxFunction,
        call: tuple[Any, Any],
        lines: UserLines,
        where: Where | None,
    ) -> None:
        self.jax = jax = functions.jax
        self.function, self.lines, self.where = function, lines, where
        self.callbacks = functions.callbacks
        compile_settings = functions.rehearsal.settings.compile
        assert compile_settings is not None
        self.topology = _topology(compile_settings["topology"])
        try:
            result = function.eval_shape(*call[0], **call[1])
        except Exception as error:
            raise LoweringFailed(_text(error), "script", lines.of_exception(error)) from error
        signature = CallSignature(jax, function, *call)
        signature.find_state(jax, result)
        leaves = [leaf for argument in signature.arguments for leaf in argument]
        inputs = set(map(id, signature.inputs))
        values, self.tree = jax.tree_util.tree_flatten(call)
        donated = function.donated(call)
        self.values = [self._spec(value) for value in values]
        self.arrays = [number for number, value in enumerate(self.values) if self._is_spec(value)]
        self.donated = [place for place, number in enumerate(self.arrays) if donated[number]]
        self.inputs = [number for number in self.arrays if id(leaves[number]) in inputs]
        batched = [number for number in self.inputs if leaves[number].is_batched]
        self.looped: str | None = None  # the argument that may have the batch, in a loop
        if batched and self._is_looped(batched[0]):
            self.looped = leaves[batched[0]].name
            batched = []
        self.batch = self.values[batched[0]].shape[0] if batched else None
        self.batched = [number for number in batched if self.values[number].shape[0] == self.batch]
        shardings = [self.values[number].sharding for number in self.arrays]
        self.devices = max(
            (len(sharding.device_set) for sharding in shardings if sharding is not None), default=1
        )
        self.order = self._device_order(shardings)
        self.limit = ""

    def describe(self) -> dict[str, Any]:
        divides = self.batch is not None and self.batch % self.devices == 0
        self.replicas = self.devices if divides else 1
        return {
            "function": _name(self.function),
            "where": self.where,
            "replicas": self.replicas,
            "devices": self.devices,
            "batch": None if self.batch is None else self.batch // self.replicas,
            "has_batch": bool(self.batched),
            "looped": self.looped,
            "inputs": [
                [str(self.values[number].dtype), list(self.values[number].shape)]
                for number in self.inputs
            ],
            "jax": self.jax.__version__,
            "libtpu": _version("libtpu"),
        }

    def lower(self, batch: int | None, folder: Path) -> dict[str, Any]:
        del folder
        specs = self._with_batch(batch)
        jax, lines = self.jax, self.lines
        try:
            jitted = jax.jit(self._call_flat)
            jitted.eval_shape(*specs)
        except Exception as error:
            raise LoweringFailed(_text(error), "script", lines.of_exception(error)) from error
        try:
            exporting = importlib.import_module("jax.export")
            exported = exporting.export(jitted, platforms=["tpu"])(*specs)
        except Exception as error:
            raise self._refusal(error) from error
        if self.devices != exported.nr_devices:
            raise LoweringFailed(
                f"the step runs on {exported.nr_devices} devices, its arguments are on "
                f"{self.devices}: place them before the first call",
                "tpuctl",
                self.where,
            )
        shardings = [self._on_tpu(spec.sharding) for spec in specs]
        unplaced = [jax.ShapeDtypeStruct(spec.shape, spec.dtype) for spec in specs]
        compiling = jax.jit(
            exported.call, in_shardings=tuple(shardings), donate_argnums=tuple(self.donated)
        )
        details = {
            "kind": "compiled",
            "limit": self._limit_message(),
            "variable_bytes": self._state_bytes(specs),
            "has_bfloat16": "bf16>" in exported.mlir_module(),
            "is_donated": bool(self.donated),
        }
        try:
            compiled = compiling.lower(*unplaced).compile()
        except Exception as error:
            if "RESOURCE_EXHAUSTED" in str(error):
                return {**details, "refused": str(error)}
            raise LoweringFailed(_text(error), "compiler", self._line_in(str(error))) from error
        sizes = compiled.memory_analysis()
        return {
            **details,
            "arguments": sizes.argument_size_in_bytes,
            "results": sizes.output_size_in_bytes,
            "shared": sizes.alias_size_in_bytes,
            "temporary": sizes.temp_size_in_bytes,
            "code": sizes.generated_code_size_in_bytes,
            "collectives": _collectives(compiled.as_text()),
        }

    # the arguments

    def _is_looped(self, number: int) -> bool:
        """Whether the step takes this array element by element: its first dimension is no batch."""
        specs = [self.values[number] for number in self.arrays]
        try:
            program = self.jax.make_jaxpr(self._call_flat)(*specs).jaxpr
        except Exception:
            return False  # reported when it is lowered
        return is_looped(program, program.invars[self.arrays.index(number)])

    def _spec(self, value: Any) -> Any:
        """An array's shape, type and sharding; other values are constants of the program."""
        if not (hasattr(value, "shape") and hasattr(value, "dtype")):
            return value
        is_placed = isinstance(value, self.jax.Array) and getattr(
            value, "committed", getattr(value, "_committed", True)
        )
        sharding = value.sharding if is_placed else None
        return self.jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=sharding)

    def _is_spec(self, value: Any) -> bool:
        return isinstance(value, self.jax.ShapeDtypeStruct)

    def _with_batch(self, batch: int | None) -> list[Any]:
        """The specs of the arrays with another batch, per device as far as it is divided."""
        specs = []
        for number in self.arrays:
            spec = self.values[number]
            if number in self.batched and batch is not None:
                shape = (batch * self.replicas, *spec.shape[1:])
                spec = self.jax.ShapeDtypeStruct(shape, spec.dtype, sharding=spec.sharding)
            specs.append(spec)
        return specs

    def _call_flat(self, *arrays: Any) -> Any:
        """The step with its arrays as arguments, and its results as a list."""
        values = list(self.values)
        for number, array in zip(self.arrays, arrays, strict=True):
            values[number] = array
        arguments, keywords = self.jax.tree_util.tree_unflatten(self.tree, values)
        return self.jax.tree_util.tree_leaves(self.function(*arguments, **keywords))

    def _on_tpu(self, sharding: Any) -> Any:
        """The same sharding on the topology; without one, every device has the whole array."""
        jax, numpy = self.jax, importlib.import_module("numpy")
        devices = numpy.array([self.topology.devices[number] for number in self.order])
        if self.devices == 1:
            return jax.sharding.SingleDeviceSharding(devices[0])
        if isinstance(sharding, jax.sharding.NamedSharding):
            mesh = sharding.mesh
            options = {"axis_types": mesh.axis_types} if hasattr(mesh, "axis_types") else {}
            grid = devices.reshape(mesh.devices.shape)
            mesh = jax.sharding.Mesh(grid, mesh.axis_names, **options)
            return jax.sharding.NamedSharding(mesh, sharding.spec)
        mesh = jax.sharding.Mesh(devices, ("devices",))
        return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())

    def _device_order(self, shardings: list[Any]) -> list[int]:
        """The devices in the order of the step's mesh, which decides what is split over slices.

        The CPU devices have the same numbers as the places in the topology.
        """
        for sharding in shardings:
            if isinstance(sharding, self.jax.sharding.NamedSharding):
                devices = [int(device.id) for device in sharding.mesh.devices.flat]
                if len(devices) == self.devices:
                    return devices
        return list(range(self.devices))

    def _state_bytes(self, specs: list[Any]) -> int:
        """The memory of a device for arguments that the step returns with new values."""
        total = 0
        for number, spec in zip(self.arrays, specs, strict=True):
            if number not in self.inputs:
                shape = (
                    spec.shape if spec.sharding is None else spec.sharding.shard_shape(spec.shape)
                )
                total += math.prod(shape) * getattr(spec.dtype, "itemsize", 4)
        return total

    # what the compiler says

    def _limit_message(self) -> str:
        """The compiler's message for a program that is too large for every device."""
        if not self.limit:
            jax = self.jax
            array = jax.ShapeDtypeStruct((OVERSIZED,), "float32")
            device = jax.sharding.SingleDeviceSharding(self.topology.devices[0])
            adding = jax.jit(lambda left, right: left + right, in_shardings=device)
            try:
                adding.lower(array, array).compile()
            except Exception as error:
                self.limit = str(error)
        return self.limit

    def _refusal(self, error: Exception) -> LoweringFailed:
        text = _text(error)
        missing = MISSING_RULE.search(str(error))
        if missing is None:
            for (name, _), where in self.callbacks.items():
                if not name.startswith("jax.debug."):  # those are left out
                    message = f"{name} calls this machine, and cannot be compiled for another"
                    return LoweringFailed(message, "tpuctl", where)
            return LoweringFailed(text, "compiler", self.lines.of_exception(error))
        name = missing["name"]
        message = f"A TPU has no operation {name}"
        places = self._lines_of(name)
        operations = [{"operation": name, "where": where} for where in places]
        where = places[0] if places else self.lines.of_exception(error)
        return LoweringFailed(message, "compiler", where, operations)

    def _lines_of(self, primitive: str) -> list[Where | None]:
        """The user's lines that create a primitive."""
        arguments, keywords = self.jax.tree_util.tree_unflatten(self.tree, self.values)
        program = self.function.trace(*arguments, **keywords).jaxpr
        places = self._places(program.jaxpr, primitive, None)
        return list({repr(where): where for where in places}.values())

    def _places(self, program: Any, primitive: str, caller: Where | None) -> Iterator[Where | None]:
        """The user's line of each use of a primitive, or its caller's if that is a library's."""
        for equation in program.eqns:
            frames = getattr(equation.source_info.traceback, "frames", ())
            lines = (self.lines.at(frame.file_name, frame.line_num) for frame in frames)
            where = next((line for line in lines if line is not None), caller)
            if equation.primitive.name == primitive:
                yield where
            for value in equation.params.values():
                for part in value if isinstance(value, (list, tuple)) else [value]:
                    inner = getattr(part, "jaxpr", part)
                    if hasattr(inner, "eqns"):
                        yield from self._places(inner, primitive, where)

    def _line_in(self, message: str) -> Where | None:
        """The user's line that a message of the compiler names."""
        matches = SOURCE.finditer(message)
        lines = (self.lines.at(match["file"], int(match["line"])) for match in matches)
        return next((line for line in lines if line is not None), None)


def _topology(options: dict[str, Any]) -> Any:
    """The slices without their chips."""
    topologies = importlib.import_module("jax.experimental.topologies")
    try:
        return topologies.get_topology_desc(platform="tpu", **options)
    except Exception as error:
        unsupported = f"libtpu {_version('libtpu')} does not know {options['topology_name']}"
        raise LoweringFailed(f"{unsupported}: {_text(error)}", "compiler") from error


def _collectives(text: str) -> dict[str, list[int]]:
    """The number of each collective operation in a program, and the bytes of its results."""
    collectives: dict[str, list[int]] = {}
    for match in COLLECTIVE.finditer(text):
        entry = collectives.setdefault(match["name"], [0, 0])
        entry[0] += 1
        entry[1] += sum(map(_array_bytes, ARRAY.finditer(match["type"])))
    return collectives


def _array_bytes(match: re.Match[str]) -> int:
    size = math.prod(int(dim) for dim in match["dims"].split(",") if dim)
    return size * max(1, int(match["bits"] or 8) // 8)


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", "step"))


def _text(error: Exception) -> str:
    """An error's message without JAX's notes on its tracebacks."""
    return f"{type(error).__name__}: {str(error).partition('--------------------')[0].strip()}"


def _version(name: str) -> str:
    return str(importlib.import_module("importlib.metadata").version(name))
