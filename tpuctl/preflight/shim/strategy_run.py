"""What `strategy.run` is given: as on a TPU a graph, compiled by XLA where that is asked for."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from .compile_failures import Refusals
from .context import Rehearsal
from .graphs import Graphs
from .step_capture import capture_step
from .tensors import batch_of, loss_of, number
from .tf_functions import Functions, is_keras
from .tpu_stubs import is_stand_in

__all__ = ["Runs"]

ONE_DEVICE = ("OneDeviceStrategy", "_DefaultDistributionStrategy")


class Runs:
    """Watches the calls of `strategy.run`, of whatever strategy."""

    def __init__(
        self, rehearsal: Rehearsal, graphs: Graphs, refusals: Refusals, functions: Functions
    ) -> None:
        self.rehearsal, self.graphs, self.refusals = rehearsal, graphs, refusals
        self.functions, self.tensorflow = functions, graphs.tensorflow
        self.reporting_functions: dict[Any, Any] = {}  # functions by what they were made of
        self.wrapped: dict[Any, Any] = {}
        self.training: set[Any] = set()

    def install(self) -> None:
        base = importlib.import_module("tensorflow.python.distribute.distribute_lib").StrategyBase
        original = base.run
        rehearsal = self.rehearsal

        @functools.wraps(original)
        def run(
            strategy: Any, fn: Any, args: Any = (), kwargs: Any = None, options: Any = None
        ) -> Any:
            def execute(function: Any, arguments: Any = args, keywords: Any = kwargs) -> Any:
                return original(strategy, function, arguments, keywords, options)

            is_inner = self.functions.running or self.graphs.is_compiled()
            if is_inner or rehearsal.writer.is_foreign():
                return execute(fn)
            return self._run(strategy, fn, args, kwargs or {}, execute)

        base.run = run

    def _run(
        self, strategy: Any, fn: Any, args: Any, kwargs: Any, execute: Callable[..., Any]
    ) -> Any:
        rehearsal, writer = self.rehearsal, self.rehearsal.writer
        writer.attempt("a function's place", self.functions.define, fn)
        key = fn if _is_hashable(fn) else id(fn)
        before, is_eager = rehearsal.gradients, self.graphs.is_eager()
        telling = None
        if not rehearsal.is_compile and not is_keras(fn):
            telling = writer.attempt("a step's loss", self._reporting_function, key, fn)
        function = telling or fn
        self.functions.running += 1
        try:
            if is_eager:
                result = self._executed(strategy, key, function, args, kwargs, execute)
            else:
                result = execute(self._chosen(strategy, key, function))
        finally:
            self.functions.running -= 1
        result, target = result if telling else (result, None)
        if rehearsal.gradients > before:
            self.training.add(key)
        if key in self.training:
            if rehearsal.is_compile:
                capture_step(rehearsal, fn, args, kwargs, strategy.num_replicas_in_sync)
            note = self._ran if is_eager else self.functions.mark
            writer.attempt("a step", note, strategy, result, (args, kwargs), target)
        elif is_eager:
            rehearsal.steps.abandon()
        return result

    def _chosen(self, strategy: Any, key: Any, fn: Any) -> Any:
        """What the strategy is to run: the function compiled by XLA, where that is asked for.

        Only where a strategy leaves a function as it is, so that XLA can have the whole. Keras
        compiles its own, but (2.12) not for what it takes for a TPU, nor where it runs eagerly.
        """
        is_one = is_stand_in(strategy) or type(strategy).__name__ in ONE_DEVICE
        is_done = isinstance(fn, self.functions.kind) or self.graphs.is_eager()
        if is_one and self.rehearsal.is_xla and not (is_keras(fn) and is_done):
            return self.rehearsal.writer.attempt("XLA", self._compiled, key, fn) or fn
        return fn

    def _executed(
        self, strategy: Any, key: Any, fn: Any, args: Any, kwargs: Any, execute: Callable[..., Any]
    ) -> Any:
        """Run it now, in a graph as a TPU does, where nothing is executed by operations."""
        rehearsal, attempt = self.rehearsal, self.rehearsal.writer.attempt
        function = self._chosen(strategy, key, fn)
        do = functools.partial(execute, function)
        if is_stand_in(strategy) and function is fn and not is_keras(fn):
            wrapper = attempt("strategy.run", self._in_function, key, fn, execute)
            if wrapper is not None:
                do = functools.partial(self.functions.call, wrapper, args, kwargs)
        if rehearsal.is_compile:
            before = rehearsal.gradients
            attempt("strategy.run", self._trace, key, fn, execute, args, kwargs)
            if rehearsal.gradients > before:
                capture_step(rehearsal, fn, args, kwargs, strategy.num_replicas_in_sync)
        rehearsal.steps.begin()
        try:
            return do()
        except Exception as error:
            attempt("a refusal", self.refusals.note, error, fn)
            rehearsal.steps.abandon()
            raise

    def _ran(self, strategy: Any, result: Any, arguments: Any, target: Any) -> None:
        loss = loss_of(self.tensorflow, strategy, result)
        if loss is None:
            loss = loss_of(self.tensorflow, strategy, target)
        value = number(loss)
        examples = number(batch_of(self.tensorflow, strategy, arguments))
        self.rehearsal.steps.end(None if value is None else float(value), examples)

    def _reporting_function(self, key: Any, fn: Any) -> Any:
        """The function with one more result: what its gradient was taken of, where it is told.

        Steps that return nothing, and keep their loss in a metric, are common.
        """
        if key in self.reporting_functions:
            return self.reporting_functions[key]
        losses = self.functions.losses
        graph = importlib.import_module("tensorflow.python.framework.ops").get_default_graph

        def tell(*args: Any, **kwargs: Any) -> Any:
            losses.last = None
            result = fn(*args, **kwargs)
            target = losses.last
            is_here = getattr(target, "graph", None) is graph()
            if not is_here or target.shape.rank != 0 or not target.dtype.is_floating:
                target = None
            return result, target

        tell.__name__ = getattr(getattr(fn, "python_function", fn), "__name__", "step_fn")
        self.reporting_functions[key] = tell
        return tell

    def _compiled(self, key: Any, fn: Any) -> Any:
        if key not in self.wrapped:
            control = importlib.import_module("tensorflow.python.autograph.core.ag_ctx")
            is_on = self.graphs.is_eager() or (
                control.control_status_ctx().status != control.Status.DISABLED
            )
            function = self.tensorflow.function
            self.wrapped[key] = function(fn, jit_compile=True, autograph=is_on)
        return self.wrapped[key]

    def _in_function(self, key: Any, fn: Any, execute: Callable[..., Any]) -> Any:
        if key not in self.wrapped:

            def run(args: Any, kwargs: Any) -> Any:
                return execute(fn, args, kwargs)

            self.wrapped[key] = self.tensorflow.function(run)
        return self.wrapped[key]

    def _trace(self, key: Any, fn: Any, execute: Any, args: Any, kwargs: Any) -> None:
        wrapper = self._in_function(key, fn, execute)
        wrapper.get_concrete_function(args, kwargs)


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True
