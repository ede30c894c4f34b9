"""Hooks for JAX's compiled functions: counts steps and compilations, or captures the step.

A step is a call, in the main thread and outside of other compiled functions, of a function compiled
by `jax.jit` or `jax.pmap` that computes gradients. In a script that computes none, it is a call of
the function that was called most often.
"""

from __future__ import annotations

import functools
import importlib
import re
import time
import types
from collections.abc import Callable, Mapping
from typing import Any

from ....simulated_tpu.script_calls import call_script
from ..observation.context import Rehearsal
from ..observation.xla_dumps import XlaDumps
from .call_signature import (
    CallSignature,
    batch_size,
    device_count,
    is_key,
    loss_of,
    parameter_names,
)
from .device_copies import DeviceCopies
from .traced_program import TracedProgram

COMPILED = ("jit", "pmap")
DIRECT_GRADIENTS = ("vjp", "linearize")  # compute, instead of returning a function
GRADIENTS = ("grad", "value_and_grad", *DIRECT_GRADIENTS)
COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"
# Functions that run on the host, by their module.
CALLBACKS = {
    "jax": ("pure_callback",),
    "jax.debug": ("print", "callback"),
    "jax.experimental": ("io_callback",),
}
# Functions that all processes must call in the same order.
OF_ALL_PROCESSES = (
    *("sync_global_devices", "broadcast_one_to_all", "process_allgather", "assert_equal"),
    *("host_local_array_to_global_array", "global_array_to_host_local_array"),
)
# Settings that slow every step down, with the value that does.
SLOW_SETTINGS = {
    "jax_debug_nans": True,
    "jax_debug_infs": True,
    "jax_disable_jit": True,
    "jax_enable_x64": True,
    "jax_platforms": "cpu",
    "jax_platform_name": "cpu",
}
MAX_CHANGES = 6  # of arguments, in an explanation
MIN_CALLS = 3  # with the same random key, to conclude that all have it
COMPARED_CALL = 3  # after which the copies of the results are compared between devices
CALLS_PER_STEP = 10  # after so many times the steps, a script without gradients is stopped


class FunctionState:
    """The state of one function of the script, however often it is passed to `jax.jit`."""

    def __init__(self) -> None:
        self.trains = False
        self.calls = 0
        self.signatures: list[CallSignature] = []  # of its compilations
        self.seconds: list[float] = []  # of the first calls
        self.capture: Callable[[], Any] | None = None  # lowers its last call
        self.draws_by_key_alone = False
        self.keys: set[bytes] = set()  # random keys that it was passed
        self.copies: DeviceCopies | None = None

    @property
    def has_same_key(self) -> bool:
        """Whether all calls drew the same random numbers."""
        is_same = len(self.keys) == 1 and self.keys != {b""}
        return self.draws_by_key_alone and is_same and self.calls >= MIN_CALLS


class JaxFunction:
    """Stands in for a compiled function; everything but calls is passed on to it."""

    def __init__(
        self,
        functions: JaxFunctions,
        compiled: Any,
        options: Mapping[str, Any],
        is_pmap: bool = False,
    ) -> None:
        functools.update_wrapper(self, compiled)
        self._functions, self._compiled, self._options = functions, compiled, options
        self.is_pmap = is_pmap

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._functions.call(self, self._compiled, arguments, keywords)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        return call_script(getattr, vars(self)["_compiled"], name)

    # Since Python 3.12, isinstance of a protocol, here JAX's of what jit returns, overlooks what
    # __getattr__ returns.
    def trace(self, *arguments: Any, **keywords: Any) -> Any:
        return call_script(self._compiled.trace, *arguments, **keywords)

    def lower(self, *arguments: Any, **keywords: Any) -> Any:
        return call_script(self._compiled.lower, *arguments, **keywords)

    def eval_shape(self, *arguments: Any, **keywords: Any) -> Any:
        return call_script(self._compiled.eval_shape, *arguments, **keywords)

    def __copy__(self) -> JaxFunction:
        return self

    def __deepcopy__(self, memo: Any) -> JaxFunction:
        return self

    def __repr__(self) -> str:
        return repr(self._compiled)

    def donated(self, call: tuple[Any, Any]) -> list[bool]:
        """Which arrays of a call's arguments the function may overwrite."""
        numbers = _as_tuple(self._options.get("donate_argnums"))
        names = {*_as_tuple(self._options.get("donate_argnames"))}
        parameters = parameter_names(self)
        names |= {parameters[number] for number in numbers if number < len(parameters)}
        flags = []
        for number, argument in enumerate(call[0]):
            name = parameters[number] if number < len(parameters) else None
            is_donated = number in numbers or name in names
            flags += [is_donated] * len(self._functions.leaves(argument))
        for name, argument in sorted(call[1].items()):
            flags += [name in names] * len(self._functions.leaves(argument))
        return flags


class JaxFunctions:
    """Observes calls of compiled functions, and what happens between them."""

    def __init__(self, rehearsal: Rehearsal, jax: Any, dumps: XlaDumps | None) -> None:
        self.rehearsal, self.jax, self.dumps = rehearsal, jax, dumps
        self.tracer = getattr(jax.core, "Tracer", ())
        self.states: dict[Any, FunctionState] = {}  # by the code of the function
        self.depth = 0  # nesting of calls, in the main thread
        self.compilations: list[tuple[str, float]] = []  # of the current call
        self.eager = FunctionState()
        self.step_function: FunctionState | None = None
        self.is_reading = False  # the shim itself reads a value
        self._numpy = importlib.import_module("numpy")
        self.callbacks: dict[tuple[str, str], Any] = {}  # lines by function and text

    def install(self) -> None:
        jax, attempt = self.jax, self.rehearsal.writer.attempt
        for name in COMPILED:
            attempt(f"jax.{name}", self._watch_compiler, name)
        for name in GRADIENTS:
            attempt(f"jax.{name}", self._watch_gradient, name)
        attempt("settings", self._watch_settings)
        attempt("compilations", self._watch_compilations)
        attempt("reads of values", self._watch_reads)
        attempt("callbacks", self.watch_callbacks, jax)
        attempt("callbacks", self.watch_callbacks, jax.debug)
        self.rehearsal.script_exit.callbacks.insert(0, self._finish)

    def watch_callbacks(self, module: Any) -> None:
        """Observe functions that call back to the host, when a compiled function is traced."""
        for name in CALLBACKS[module.__name__]:
            self._watch_callback(module, name)

    def _watch_callback(self, module: Any, name: str) -> None:
        original, rehearsal = getattr(module, name), self.rehearsal

        @functools.wraps(original)
        def call(*arguments: Any, **keywords: Any) -> Any:
            if self.depth and self.rehearsal.is_observed:
                rehearsal.writer.attempt("callbacks", self._record_callback, module, name)
                if rehearsal.is_compile and module.__name__ == "jax.debug":
                    return None
            return call_script(original, *arguments, **keywords)

        setattr(module, name, call)

    def _record_callback(self, module: Any, name: str) -> None:
        where = self.rehearsal.user_lines.current()
        label = f"{module.__name__}.{name}"
        if (label, repr(where)) not in self.callbacks:  # a function may be traced several times
            self.callbacks[label, repr(where)] = where
            self.rehearsal.writer.write("callback", function=label, where=where)

    def watch_processes(self, module: Any) -> None:
        """Observe functions that wait for the other processes."""
        for name in OF_ALL_PROCESSES:
            if hasattr(module, name):
                self._watch_joint_call(module, name)

    def _watch_joint_call(self, module: Any, name: str) -> None:
        original, rehearsal = getattr(module, name), self.rehearsal

        @functools.wraps(original)
        def call(*arguments: Any, **keywords: Any) -> Any:
            if self.depth or not rehearsal.is_observed:
                return call_script(original, *arguments, **keywords)
            rehearsal.writer.write("joint", function=name, where=rehearsal.user_lines.current())
            self.depth += 1
            try:
                return call_script(original, *arguments, **keywords)
            finally:
                self.depth -= 1

        setattr(module, name, call)

    def _spans_processes(self, values: Any) -> bool:
        """Whether arrays are on devices of several processes, which run the program together."""
        return any(
            isinstance(leaf, self.jax.Array) and not leaf.is_fully_addressable
            for leaf in self.leaves(values)
        )

    def _keys(self, values: Any) -> bytes:
        """The data of all random keys among the arguments of a call; empty without any."""
        self.is_reading = True
        try:
            return b"".join(
                self._numpy.asarray(self._key_data(leaf)).tobytes()
                for leaf in self.leaves(values)
                if is_key(leaf) and self._is_readable(leaf)
            )
        finally:
            self.is_reading = False

    def _is_readable(self, leaf: Any) -> bool:
        if not isinstance(leaf, self.jax.Array):
            return True
        return bool(leaf.is_fully_addressable and not leaf.is_deleted())

    def _key_data(self, key: Any) -> Any:
        return key if str(key.dtype) == "uint32" else self.jax.random.key_data(key)

    def _copies(self, call: Any, is_pmap: bool) -> DeviceCopies:
        self.is_reading = True
        try:
            return DeviceCopies(self.jax, self._numpy, call, is_pmap)
        finally:
            self.is_reading = False

    def _compare_copies(self, state: FunctionState, compiled: Any, result: Any) -> None:
        self.is_reading = True
        try:
            if state.copies is not None and state.copies.have_diverged(result):
                lines = self.rehearsal.user_lines
                where = lines.definition(compiled) or lines.current()
                self.rehearsal.writer.write("diverged", function=_name(compiled), where=where)
        finally:
            self.is_reading = False

    def leaves(self, value: Any) -> list[Any]:
        return list(self.jax.tree_util.tree_leaves(value))

    def call(self, function: JaxFunction, compiled: Any, arguments: Any, keywords: Any) -> Any:
        if self.depth or not self.rehearsal.is_observed or self._is_traced((arguments, keywords)):
            return call_script(compiled, *arguments, **keywords)
        rehearsal, attempt = self.rehearsal, self.rehearsal.writer.attempt
        state = attempt("a function", self._state, compiled) or FunctionState()
        if rehearsal.is_compile:
            call = (arguments, keywords)
            attempt("capturing the training step", self._capture, state, function, call)
        signature = attempt("arguments", CallSignature, self.jax, compiled, arguments, keywords)
        keys = attempt("random keys", self._keys, (arguments, keywords))
        if not state.calls:
            state.copies = attempt("copies", self._copies, (arguments, keywords), function.is_pmap)
        if rehearsal.settings.processes > 1 and self._spans_processes((arguments, keywords)):
            name = _name(compiled)
            rehearsal.writer.write("joint", function=name, where=rehearsal.user_lines.current())
        steps, before = rehearsal.steps, rehearsal.gradient_count
        self.compilations = []
        self._begin_step()
        began = time.monotonic()
        self.depth += 1
        try:
            result = call_script(compiled, *arguments, **keywords)
            call_script(self.jax.block_until_ready, result)
        finally:
            self.depth -= 1
        state.trains = state.trains or rehearsal.gradient_count > before
        state.keys.add(keys or b"")
        if len(state.seconds) <= steps.limit * CALLS_PER_STEP:
            state.seconds.append(time.monotonic() - began)
        if signature is not None:
            program = None
            if self.compilations and hasattr(compiled, "trace"):
                program = attempt("the program", TracedProgram, compiled, arguments, keywords)
            attempt("a call", self._after_call, state, compiled, signature, result, program)
        if state.trains and state.calls + 1 == COMPARED_CALL:
            attempt("copies", self._compare_copies, state, compiled, result)
        self._end_step(state, signature, result)
        return result

    # what happened in a call

    def _after_call(
        self,
        state: FunctionState,
        compiled: Any,
        signature: CallSignature,
        result: Any,
        traced: TracedProgram | None,
    ) -> None:
        if not self.compilations:
            return
        state.draws_by_key_alone = traced is not None and traced.draws_by_key_alone
        signature.find_state(self.jax, result)
        changes = state.signatures[-1].changes(signature) if state.signatures else []
        state.signatures.append(signature)
        name = _name(compiled)
        program = self.dumps.program_of(name) if self.dumps is not None else {}
        lines = self.rehearsal.user_lines
        inputs = signature.inputs
        self.rehearsal.writer.write(
            "compiled",
            function=name,
            where=lines.definition(compiled) or lines.current(),
            seconds=round(sum(seconds for _, seconds in self.compilations), 3),
            shapes=[[leaf.dtype, leaf.dims] for leaf in inputs],
            names=[leaf.name for leaf in inputs],
            changes=changes[:MAX_CHANGES],
            trains=state.trains,
            devices=device_count(self.jax, result),
            constants=0 if traced is None else traced.constant_bytes,
            **program,
        )

    def _begin_step(self) -> None:
        steps = self.rehearsal.steps
        if self.step_function is None:
            steps.discard()  # calls before the first step are none
        steps.end_wait()
        steps.begin()

    def _end_step(self, state: FunctionState, signature: CallSignature | None, result: Any) -> None:
        """Record a step if this is the function whose calls are the steps."""
        steps, attempt = self.rehearsal.steps, self.rehearsal.writer.attempt
        state.calls += 1
        if state.trains and (self.step_function is None or state.calls > self.step_function.calls):
            if self.step_function is None:
                self.rehearsal.report_jax()
            self.step_function = state
        if state is self.step_function:
            if state is self.eager and state.calls > 1:
                self.rehearsal.record_eager()
            self.is_reading = True
            loss = attempt("the loss", loss_of, self.jax, result)
            self.is_reading = False
            examples = attempt("the batch", batch_size, self.jax, signature, result)
            steps.end(loss, examples)
        elif self.step_function is None and state.calls >= steps.limit * CALLS_PER_STEP:
            self.rehearsal.script_exit.request_exit()
        if self.step_function is not None:
            steps.begin_wait()

    def _finish(self) -> None:
        """At exit, without a function that computes gradients: the calls of another are steps."""
        self.rehearsal.steps.discard()
        step = self.step_function
        if step is not None and step.has_same_key:
            self.rehearsal.writer.write("samekey")
        if step is not None or not self.states:
            return
        state = max(self.states.values(), key=lambda state: state.calls)
        if self.rehearsal.is_compile:
            if state.capture is not None and state.calls > 1:
                state.capture()
        elif state.calls > 1:
            self.rehearsal.report_jax()
            for seconds in state.seconds[: self.rehearsal.steps.limit]:
                self.rehearsal.steps.add(seconds)

    # hooks

    def _watch_compiler(self, name: str) -> None:
        original = getattr(self.jax, name)

        @functools.wraps(original)
        def compile_function(*arguments: Any, **keywords: Any) -> Any:
            compiled = call_script(original, *arguments, **keywords)
            if hasattr(compiled, "lower"):
                return JaxFunction(self, compiled, keywords, name == "pmap")

            def decorate(function: Any) -> Any:  # without a function, `jax.jit` is a decorator
                return JaxFunction(self, call_script(compiled, function), keywords, name == "pmap")

            return decorate

        setattr(self.jax, name, compile_function)

    def _watch_gradient(self, name: str) -> None:
        original = getattr(self.jax, name)

        @functools.wraps(original)
        def gradient(*arguments: Any, **keywords: Any) -> Any:
            result = call_script(original, *arguments, **keywords)
            if name in DIRECT_GRADIENTS:
                self.rehearsal.gradient_count += 1
                return result

            @functools.wraps(result)
            def call(*inputs: Any, **options: Any) -> Any:
                self.rehearsal.gradient_count += 1
                if (
                    self.depth
                    or not self.rehearsal.is_observed
                    or self._is_traced((inputs, options))
                ):
                    return call_script(result, *inputs, **options)
                return self._run_eager_step(functools.partial(result, *inputs, **options))

            return call

        setattr(self.jax, name, gradient)

    def _run_eager_step(self, compute: Callable[[], Any]) -> Any:
        """Compute gradients outside of a compiled function, which is a step, too."""
        self._begin_step()
        result = call_script(self.jax.block_until_ready, call_script(compute))
        self.eager.trains = True
        self._end_step(self.eager, None, result)
        return result

    def _watch_settings(self) -> None:
        config, rehearsal = self.jax.config, self.rehearsal
        original = config.update

        @functools.wraps(original)
        def update(name: str, value: Any) -> None:
            call_script(original, name, value)
            if rehearsal.is_observed and name in SLOW_SETTINGS and value == SLOW_SETTINGS[name]:
                where = rehearsal.user_lines.current()
                rehearsal.writer.write("configured", setting=name, where=where)

        config.update = update

    def _watch_compilations(self) -> None:
        monitoring = importlib.import_module("jax.monitoring")

        def listen(event: str, seconds: float, **details: Any) -> None:
            if event == COMPILE_EVENT and self.rehearsal.is_observed:
                name = _function_name(str(details.get("fun_name", "?")))
                if self.depth:
                    self.compilations.append((name, seconds))
                elif self.step_function is not None:
                    self._record_eager_compilation(name, seconds)

        monitoring.register_event_duration_secs_listener(listen)

    def _record_eager_compilation(self, name: str, seconds: float) -> None:
        rehearsal = self.rehearsal
        rehearsal.writer.write(
            "compiled",
            function=name,
            where=rehearsal.user_lines.current(),
            seconds=round(seconds, 3),
            trains=False,
            after_step=rehearsal.steps.count,
        )

    def _watch_reads(self) -> None:
        """Observe conversions of arrays to values on the host (`_value` is private: jax 0.4-0.10).

        NumPy reads arrays in the memory of this machine directly, which is not observed.
        """
        array = importlib.import_module("jax._src.array").ArrayImpl
        value, item = array._value, array.item

        def read_value(array: Any) -> Any:
            self.rehearsal.writer.attempt("reads of values", self._record_read)
            return call_script(value.fget, array)

        @functools.wraps(item)
        def read_item(array: Any, *arguments: Any) -> Any:
            self.rehearsal.writer.attempt("reads of values", self._record_read)
            return call_script(item, array, *arguments)

        array._value = property(read_value)
        array.item = read_item
        for owner in (array, self.jax):
            self.rehearsal.writer.attempt("reads of values", self._watch_wait, owner)

    def _watch_wait(self, owner: Any) -> None:
        original = owner.block_until_ready

        def block_until_ready(value: Any) -> Any:
            self.rehearsal.writer.attempt("reads of values", self._record_read)
            return call_script(original, value)

        owner.block_until_ready = block_until_ready

    def _record_read(self) -> None:
        rehearsal = self.rehearsal
        if rehearsal.steps.count and rehearsal.is_observed and not (self.depth or self.is_reading):
            rehearsal.record_read(rehearsal.user_lines.current())

    def _state(self, compiled: Any) -> FunctionState:
        function = compiled
        while hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        key = getattr(function, "__code__", None) or id(function)
        return self.states.setdefault(key, FunctionState())

    def _is_traced(self, values: Any) -> bool:
        """Whether a call is part of a function that is being traced or differentiated."""
        return any(isinstance(leaf, self.tracer) for leaf in self.leaves(values))

    def _capture(self, state: FunctionState, function: JaxFunction, call: Any) -> None:
        """Lower the step for the host, instead of running it, if the function trains."""
        lowering = importlib.import_module(f"{__package__}.lowering")
        state.capture = functools.partial(lowering.lower_step, self, function, call)
        before = self.rehearsal.gradient_count
        self.depth += 1
        try:
            function.eval_shape(*call[0], **call[1])
        except Exception:
            return  # the call fails, too
        finally:
            self.depth -= 1
        if self.rehearsal.gradient_count > before or state.trains:
            state.capture()


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", "?"))


def _as_tuple(value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, (int, str)) else tuple(value)


def _function_name(name: str) -> str:
    """The name of a compiled function: `step` for `jit(step)` and `jit_step`."""
    match = re.fullmatch(r"\w+\((.*)\)|jit_(.*)", name)
    return name if match is None else match[1] or match[2]
