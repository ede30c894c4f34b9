"""Hooks for `strategy.run`: runs its function as a graph, as on a TPU, with XLA in that mode."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from ....simulated_tpu.script_calls import call_script
from ....simulated_tpu.tensorflow_stubs import is_stub
from ..observation.context import Rehearsal
from .compile_failures import Refusals
from .graphs import Graphs
from .step_capture import capture_step
from .tensors import batch_of, loss_of, number
from .tf_functions import Functions, is_keras

SINGLE_DEVICE = ("OneDeviceStrategy", "_DefaultDistributionStrategy")


class StrategyRuns:
    """Wraps `run` of all strategies."""

    def __init__(
        self, rehearsal: Rehearsal, graphs: Graphs, refusals: Refusals, functions: Functions
    ) -> None:
        self.rehearsal, self.graphs, self.refusals = rehearsal, graphs, refusals
        self.functions, self.tensorflow = functions, graphs.tensorflow
        self.loss_functions: dict[Any, Any] = {}  # wrapped functions by the original
        self.wrapped: dict[Any, Any] = {}
        self.training_functions: set[Any] = set()

    def install(self) -> None:
        base = importlib.import_module("tensorflow.python.distribute.distribute_lib").StrategyBase
        original = base.run
        rehearsal = self.rehearsal

        @functools.wraps(original)
        def run(
            strategy: Any, fn: Any, args: Any = (), kwargs: Any = None, options: Any = None
        ) -> Any:
            def execute(function: Any, arguments: Any = args, keywords: Any = kwargs) -> Any:
                return call_script(original, strategy, function, arguments, keywords, options)

            is_inner = self.functions.run_depth or self.graphs.is_compiled()
            if is_inner or rehearsal.writer.is_forked():
                return execute(fn)
            return self._run(strategy, fn, args, kwargs or {}, execute)

        base.run = run

    def _run(
        self, strategy: Any, fn: Any, args: Any, kwargs: Any, execute: Callable[..., Any]
    ) -> Any:
        rehearsal, writer = self.rehearsal, self.rehearsal.writer
        writer.attempt("a function's definition", self.functions.record_definition, fn)
        key = fn if _is_hashable(fn) else id(fn)
        before, is_eager = rehearsal.gradient_count, self.graphs.is_eager()
        loss_function = None
        if not rehearsal.is_compile and not is_keras(fn):
            loss_function = writer.attempt("a step's loss", self._loss_function, key, fn)
        function = loss_function or fn
        self.functions.run_depth += 1
        try:
            if is_eager:
                result = self._run_eagerly(strategy, key, function, args, kwargs, execute)
            else:
                result = execute(self._function_to_run(strategy, key, function))
        except Exception:
            self.wrapped.pop(key, None)  # a call after a failed trace may return None
            raise
        finally:
            self.functions.run_depth -= 1
        # A call of a tf.function of which the first trace failed returns None.
        is_pair = loss_function is not None and result is not None
        result, target = result if is_pair else (result, None)
        if rehearsal.gradient_count > before:
            self.training_functions.add(key)
        if key in self.training_functions:
            if rehearsal.is_compile:
                capture_step(rehearsal, fn, args, kwargs, strategy.num_replicas_in_sync)
            end_step = self._end_step if is_eager else self.functions.mark_step
            writer.attempt("a step", end_step, strategy, result, (args, kwargs), target)
        elif is_eager:
            rehearsal.steps.discard()
        return result

    def _function_to_run(self, strategy: Any, key: Any, fn: Any) -> Any:
        """The function for the strategy to run, compiled by XLA if the mode requires it.

        Only for strategies with a single device, which do not split the function. Keras compiles
        its own functions, but not (2.12) for what looks like a TPU, nor if it runs eagerly.
        """
        is_single_device = is_stub(strategy) or type(strategy).__name__ in SINGLE_DEVICE
        keras_decides = isinstance(fn, self.functions.kind) or self.graphs.is_eager()
        if is_single_device and self.rehearsal.is_xla and not (is_keras(fn) and keras_decides):
            return self.rehearsal.writer.attempt("XLA", self._compile, key, fn) or fn
        return fn

    def _run_eagerly(
        self, strategy: Any, key: Any, fn: Any, args: Any, kwargs: Any, execute: Callable[..., Any]
    ) -> Any:
        """Run a function as a graph, as a TPU does, although it was called eagerly."""
        rehearsal, attempt = self.rehearsal, self.rehearsal.writer.attempt
        function = self._function_to_run(strategy, key, fn)
        call = functools.partial(execute, function)
        if is_stub(strategy) and function is fn and not is_keras(fn):
            wrapper = attempt("strategy.run", self._wrap, key, fn, execute)
            if wrapper is not None:
                call = functools.partial(self.functions.call, wrapper, args, kwargs)
        try:
            if rehearsal.is_compile:
                before = rehearsal.gradient_count
                self._trace(key, fn, execute, args, kwargs)
                if rehearsal.gradient_count > before:
                    capture_step(rehearsal, fn, args, kwargs, strategy.num_replicas_in_sync)
            rehearsal.steps.begin()
            return call_script(call)
        except Exception as error:
            attempt("a refusal", self.refusals.record, error, fn)
            rehearsal.steps.discard()
            raise

    def _end_step(self, strategy: Any, result: Any, arguments: Any, target: Any) -> None:
        loss = loss_of(self.tensorflow, strategy, result)
        if loss is None:
            loss = loss_of(self.tensorflow, strategy, target)
        value = number(loss)
        examples = number(batch_of(self.tensorflow, strategy, arguments))
        self.rehearsal.steps.end(None if value is None else float(value), examples)

    def _loss_function(self, key: Any, fn: Any) -> Any:
        """Wrap a function to also return the target of its gradient if that is a scalar, or None.

        Many steps return nothing and keep their loss in a metric.
        """
        if key in self.loss_functions:
            return self.loss_functions[key]
        losses = self.functions.losses
        graph = importlib.import_module("tensorflow.python.framework.ops").get_default_graph

        def with_loss(*args: Any, **kwargs: Any) -> Any:
            losses.last = None
            result = call_script(fn, *args, **kwargs)
            target = losses.last
            is_in_graph = getattr(target, "graph", None) is graph()
            if not is_in_graph or target.shape.rank != 0 or not target.dtype.is_floating:
                target = None
            return result, target

        with_loss.__name__ = getattr(getattr(fn, "python_function", fn), "__name__", "step_fn")
        self.loss_functions[key] = with_loss
        return with_loss

    def _compile(self, key: Any, fn: Any) -> Any:
        if key not in self.wrapped:
            control = importlib.import_module("tensorflow.python.autograph.core.ag_ctx")
            is_on = self.graphs.is_eager() or (
                control.control_status_ctx().status != control.Status.DISABLED
            )
            function = self.tensorflow.function
            self.wrapped[key] = function(fn, jit_compile=True, autograph=is_on)
        return self.wrapped[key]

    def _wrap(self, key: Any, fn: Any, execute: Callable[..., Any]) -> Any:
        if key not in self.wrapped:

            def run(args: Any, kwargs: Any) -> Any:
                return execute(fn, args, kwargs)

            self.wrapped[key] = self.tensorflow.function(run)
        return self.wrapped[key]

    def _trace(self, key: Any, fn: Any, execute: Any, args: Any, kwargs: Any) -> None:
        wrapper = self._wrap(key, fn, execute)
        call_script(wrapper.get_concrete_function, args, kwargs)


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True
