"""Hooks for tf.functions that train: compile them with XLA in that mode, count or capture steps.

The training step is the innermost function that computes gradients: the one passed to
`strategy.run` (strategy_run.py), one called by a loop in a graph, or one called by the script.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

from ....simulated_tpu.script_calls import call_script
from ..observation.context import Rehearsal
from .compile_failures import Refusals
from .graphs import Graphs
from .step_capture import capture_step
from .tensors import batch_of, loss_of, number

KERAS = ("keras.", "tf_keras.")
# Names in the code of training functions. False positives are harmless: XLA keeps the results.
TRAINING_NAMES = {"gradient", "gradients", "minimize", "apply_gradients"}


class FunctionState:
    """The state of one tf.function."""

    def __init__(self) -> None:
        self.trains = False
        self.has_marks = False  # marks in its graph record the steps
        self.compiled: Any = None  # the same function, compiled by XLA


class Functions:
    """Observes calls of tf.functions, and the targets of gradients."""

    def __init__(self, rehearsal: Rehearsal, graphs: Graphs, refusals: Refusals) -> None:
        self.rehearsal, self.graphs, self.refusals = rehearsal, graphs, refusals
        self.tensorflow = graphs.tensorflow
        self.kind = type(self.tensorflow.function(lambda: None))
        self.call: Any = self.kind.__call__
        self.run_depth = 0  # nesting of strategy.run, in all threads
        self.depth = 0  # nesting of calls from eager code
        self.losses = threading.local()  # per thread, the target of the last gradient

    def install(self) -> None:
        attempt = self.rehearsal.writer.attempt
        attempt("tf.function", self._watch_functions)
        attempt("GradientTape", self._watch_gradients)

    def _watch_functions(self) -> None:
        original, writer = self.call, self.rehearsal.writer

        @functools.wraps(original)
        def __call__(function: Any, *arguments: Any, **keywords: Any) -> Any:
            if writer.is_forked():
                return call_script(original, function, *arguments, **keywords)
            if self.graphs.is_eager():
                return self._call_eagerly(function, arguments, keywords)
            return self._call_in_graph(function, arguments, keywords)

        self.kind.__call__ = __call__

    def _watch_gradients(self) -> None:
        tape = self.tensorflow.GradientTape
        original = tape.gradient
        rehearsal = self.rehearsal

        @functools.wraps(original)
        def gradient(self_: Any, target: Any, *arguments: Any, **keywords: Any) -> Any:
            rehearsal.gradient_count += 1
            rehearsal.writer.attempt("a gradient", self.graphs.tag_training)
            result = call_script(original, self_, target, *arguments, **keywords)
            self.losses.last = target
            if self.graphs.is_eager():
                rehearsal.writer.attempt("a gradient", self._end_eager_step, target)
            return result

        tape.gradient = gradient

    def _end_eager_step(self, target: Any) -> None:
        self.rehearsal.record_eager()
        if not self.run_depth and not self.depth and not self.rehearsal.fit_depth:
            self.rehearsal.steps.end(number(loss_of(self.tensorflow, None, target)))

    # tf.function, called by the script

    def _call_eagerly(self, function: Any, arguments: Any, keywords: Any) -> Any:
        rehearsal = self.rehearsal
        state = rehearsal.writer.attempt("a tf.function", self._state, function) or FunctionState()
        target, before = function, (rehearsal.gradient_count, self.graphs.mark_count)
        steps, steps_before = rehearsal.steps, rehearsal.steps.total_count
        self.depth += 1
        try:
            if self._needs_trace(function, state):
                trace = (function, state, arguments, keywords)
                target = rehearsal.writer.attempt("a tf.function", self._choose, *trace)
                target = target or function
                if isinstance(target, Exception):
                    raise target
            steps.begin()
            result = call_script(self.call, target, *arguments, **keywords)
        except Exception as error:
            rehearsal.writer.attempt("a refusal", self.refusals.record, error, function)
            steps.discard()
            raise
        finally:
            self.depth -= 1
        self._update(state, before)
        if self.depth or self.run_depth or rehearsal.fit_depth:
            return result
        if state.trains and not state.has_marks and steps.total_count == steps_before:
            rehearsal.writer.attempt("a step", self._end_step, result, arguments)
        steps.discard()
        return result

    def _needs_trace(self, function: Any, state: FunctionState) -> bool:
        """Whether a function must be traced before it is called."""
        if self.run_depth or self.depth > 1 or state.has_marks:
            return False
        if getattr(function, "_run_functions_eagerly", False):
            return False
        return self.rehearsal.is_compile or (
            self.rehearsal.is_xla and not getattr(function, "_jit_compile", None)
        )

    def _choose(self, function: Any, state: FunctionState, arguments: Any, keywords: Any) -> Any:
        """The function to call: compiled by XLA if it is a training step.

        Or the exception that its code raised. It must not be called then: a tf.function that
        created variables before it failed returns None the next time.
        """
        if state.compiled is not None:
            return state.compiled
        before = (self.rehearsal.gradient_count, self.graphs.mark_count)
        self.rehearsal.pending_traces = []
        try:
            graph = call_script(function.get_concrete_function, *arguments, **keywords).graph
        except Exception as error:
            return error
        finally:
            traces, self.rehearsal.pending_traces = self.rehearsal.pending_traces, None
        self._update(state, before)
        trains = getattr(graph, "_tpuctl_trains", False) and not state.has_marks
        if not trains or getattr(graph, "_tpuctl_reads", False):
            for trace in traces:
                self.rehearsal.writer.write("traced", **trace)
            return function
        if self.rehearsal.is_compile:
            capture_step(self.rehearsal, function.python_function, arguments, keywords, 1)
        state.compiled = self.compile(function)
        return state.compiled

    def _end_step(self, result: Any, arguments: Any) -> None:
        steps = self.rehearsal.steps
        examples = number(batch_of(self.tensorflow, None, arguments))
        steps.end(number(loss_of(self.tensorflow, None, result)), examples)

    def _update(self, state: FunctionState, before: tuple[int, int]) -> None:
        state.trains = state.trains or self.rehearsal.gradient_count > before[0]
        state.has_marks = state.has_marks or self.graphs.mark_count > before[1]

    # tf.function, called within another one

    def _call_in_graph(self, function: Any, arguments: Any, keywords: Any) -> Any:
        rehearsal = self.rehearsal
        if self.run_depth or self.graphs.is_compiled() or not self.graphs.is_looping():
            return call_script(self.call, function, *arguments, **keywords)
        state = rehearsal.writer.attempt("a tf.function", self._state, function) or FunctionState()
        target, before = function, (rehearsal.gradient_count, self.graphs.mark_count)
        if rehearsal.is_xla and not is_keras(function) and _names(function) & TRAINING_NAMES:
            if state.compiled is None:
                state.compiled = rehearsal.writer.attempt("XLA", self.compile, function)
            target = state.compiled or function
        try:
            result = call_script(self.call, target, *arguments, **keywords)
        except Exception:
            state.compiled = None  # a call after a failed trace may return None
            raise
        self._update(state, before)
        if state.trains and not state.has_marks:
            if rehearsal.is_compile:
                capture_step(rehearsal, function.python_function, arguments, keywords, 1)
            rehearsal.writer.attempt("a step's mark", self.mark_step, None, result, arguments)
        return result

    def mark_step(self, strategy: Any, result: Any, arguments: Any, target: Any = None) -> None:
        """Record a step each time that the graph runs.

        Its loss is the result's, otherwise the target of its gradient.
        """
        tensorflow, steps = self.tensorflow, self.rehearsal.steps
        placeholder = tensorflow.constant(-1)
        loss = loss_of(tensorflow, strategy, result)
        if loss is None:
            loss = loss_of(tensorflow, strategy, target)
        examples = batch_of(tensorflow, strategy, arguments)
        has_loss, has_examples = loss is not None, examples is not None

        def end_step(loss: Any, examples: Any) -> None:
            steps.end(float(loss) if has_loss else None, int(examples) if has_examples else None)

        leaves = tensorflow.nest.flatten((result, target), expand_composites=True)
        operations = [leaf for leaf in leaves if hasattr(leaf, "op")]
        with tensorflow.control_dependencies(operations):
            values = (loss if has_loss else placeholder, examples if has_examples else placeholder)
            self.graphs.mark(end_step, *values)
        self.graphs.mark_count += 1

    def _state(self, function: Any) -> Any:
        state = function.__dict__.get("_tpuctl_state")
        if state is None:
            state = function._tpuctl_state = FunctionState()
            self.record_definition(function)
        return state

    def record_definition(self, function: Any) -> None:
        """Remember the line of a user's function, to find it by name."""
        where = self.rehearsal.user_lines.definition(function)
        name = getattr(getattr(function, "python_function", function), "__name__", None)
        if where is not None and name is not None:
            self.rehearsal.definitions[name] = where

    def compile(self, function: Any) -> Any:
        """The same tf.function, compiled by XLA."""
        clone = function._clone(None)
        clone._jit_compile = True
        return clone


def is_keras(function: Any) -> bool:
    """Whether a function is Keras' own, which is compiled as its model specifies."""
    function = getattr(function, "python_function", function)
    module = getattr(function, "__module__", None) or ""
    return module.startswith(KERAS)


def _names(function: Any) -> set[str]:
    """The names used in a function's code, including nested functions."""
    code = getattr(getattr(function, "python_function", function), "__code__", None)
    names: set[str] = set()
    pending = [code] if code is not None else []
    while pending:
        current = pending.pop()
        names.update(current.co_names)
        pending.extend(constant for constant in current.co_consts if hasattr(constant, "co_names"))
    return names
