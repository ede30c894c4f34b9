"""The functions that a script trains with: compiled by XLA where asked for, counted, handed over.

A training step is the innermost of these that computes gradients: what `strategy.run` is given;
else a tf.function that a loop within a graph calls; else a tf.function that the script calls.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from .graphs import Graphs
from .handing import hand_over
from .refusals import Refusals
from .rehearsal import Rehearsal
from .strategies import is_stand_in
from .tensors import batch_of, loss_of, number

__all__ = ["Functions"]

KERAS = ("keras.", "tf_keras.")
# Names in the code of a function that trains; enough to try, as what is compiled without need
# computes the same.
TRAINING = {"gradient", "gradients", "minimize", "apply_gradients"}


class State:
    """What is known of one tf.function."""

    def __init__(self) -> None:
        self.trains = False
        self.has_marks = False  # steps are told of from within
        self.twin: Any = None  # the same compiled by XLA


class Functions:
    """Watches the calls of tf.functions and of `strategy.run`."""

    def __init__(self, rehearsal: Rehearsal, graphs: Graphs, refusals: Refusals) -> None:
        self.rehearsal, self.graphs, self.refusals = rehearsal, graphs, refusals
        self.tensorflow = graphs.tensorflow
        self.kind = type(self.tensorflow.function(lambda: None))
        self.call: Any = self.kind.__call__
        self.running = 0  # calls of strategy.run under way, in whatever thread
        self.depth = 0  # of calls from eager code
        self.wrapped: dict[Any, Any] = {}  # what strategy.run is given: the same compiled
        self.training: set[Any] = set()  # what was given to strategy.run and trains

    def install(self) -> None:
        attempt = self.rehearsal.writer.attempt
        attempt("tf.function", self._watch_functions)
        attempt("strategy.run", self._watch_runs)
        attempt("GradientTape", self._watch_gradients)

    def _watch_functions(self) -> None:
        original, writer = self.call, self.rehearsal.writer

        @functools.wraps(original)
        def __call__(function: Any, *arguments: Any, **keywords: Any) -> Any:
            if writer.is_foreign():
                return original(function, *arguments, **keywords)
            if self.graphs.is_eager():
                return self._called(function, arguments, keywords)
            return self._called_in_graph(function, arguments, keywords)

        self.kind.__call__ = __call__

    def _watch_runs(self) -> None:
        base = importlib.import_module("tensorflow.python.distribute.distribute_lib").StrategyBase
        original = base.run

        @functools.wraps(original)
        def run(
            strategy: Any, fn: Any, args: Any = (), kwargs: Any = None, options: Any = None
        ) -> Any:
            def execute(function: Any, arguments: Any = args, keywords: Any = kwargs) -> Any:
                return original(strategy, function, arguments, keywords, options)

            if self.running or self.graphs.is_compiled():
                return execute(fn)
            return self._run(strategy, fn, args, kwargs or {}, execute)

        base.run = run

    def _watch_gradients(self) -> None:
        tape = self.tensorflow.GradientTape
        original = tape.gradient
        rehearsal = self.rehearsal

        @functools.wraps(original)
        def gradient(self_: Any, target: Any, *arguments: Any, **keywords: Any) -> Any:
            rehearsal.gradients += 1
            rehearsal.writer.attempt("a gradient", self.graphs.note_gradient)
            result = original(self_, target, *arguments, **keywords)
            if self.graphs.is_eager():
                rehearsal.writer.attempt("a gradient", self._stepped_eagerly, target)
            return result

        tape.gradient = gradient

    def _stepped_eagerly(self, target: Any) -> None:
        self.rehearsal.note_eager()
        if not self.running and not self.depth and not self.rehearsal.fitting:
            self.rehearsal.steps.end(number(loss_of(self.tensorflow, None, target)))

    # tf.function, called by the script

    def _called(self, function: Any, arguments: Any, keywords: Any) -> Any:
        rehearsal = self.rehearsal
        state = rehearsal.writer.attempt("a tf.function", self._state, function) or State()
        target, before = function, (rehearsal.gradients, self.graphs.marks)
        self.depth += 1
        try:
            if self._is_to_be_traced(function, state):
                trace = (function, state, arguments, keywords)
                target = rehearsal.writer.attempt("a tf.function", self._prepared, *trace)
                target = target or function
            if not state.has_marks:
                rehearsal.steps.begin()
            result = self.call(target, *arguments, **keywords)
        except Exception as error:
            rehearsal.writer.attempt("a refusal", self.refusals.note, error, function)
            rehearsal.steps.abandon()
            raise
        finally:
            self.depth -= 1
        self._learn(state, before)
        if not self.depth and not self.running:
            rehearsal.writer.attempt("a step", self._stepped, state, result, arguments)
        return result

    def _is_to_be_traced(self, function: Any, state: State) -> bool:
        """Whether it is to be known what a function does before it does it."""
        if self.running or self.depth > 1 or state.has_marks:
            return False
        if getattr(function, "_run_functions_eagerly", False):
            return False
        return self.rehearsal.is_compile or (
            self.rehearsal.is_xla and not getattr(function, "_jit_compile", None)
        )

    def _prepared(self, function: Any, state: State, arguments: Any, keywords: Any) -> Any:
        """What to call instead: the function compiled by XLA, where it is a training step."""
        if state.twin is not None:
            return state.twin
        before = (self.rehearsal.gradients, self.graphs.marks)
        self.rehearsal.tried = []
        try:
            graph = function.get_concrete_function(*arguments, **keywords).graph
        except Exception:
            return function  # the call will say it
        finally:
            tried, self.rehearsal.tried = self.rehearsal.tried, None
        self._learn(state, before)
        trains = getattr(graph, "_tpuctl_trains", False) and not state.has_marks
        if not trains or getattr(graph, "_tpuctl_reads", False):
            for trace in tried:
                self.rehearsal.writer.write("traced", **trace)
            return function
        if self.rehearsal.is_compile:
            hand_over(self.rehearsal, function.python_function, arguments, keywords, 1)
        state.twin = self._compiled(function)
        return state.twin

    def _stepped(self, state: State, result: Any, arguments: Any) -> None:
        steps = self.rehearsal.steps
        if state.has_marks or self.rehearsal.fitting:
            return
        if not state.trains:
            steps.abandon()
            return
        examples = number(batch_of(self.tensorflow, None, arguments))
        steps.end(number(loss_of(self.tensorflow, None, result)), examples)

    def _learn(self, state: State, before: tuple[int, int]) -> None:
        state.trains = state.trains or self.rehearsal.gradients > before[0]
        state.has_marks = state.has_marks or self.graphs.marks > before[1]

    # tf.function, called within another one

    def _called_in_graph(self, function: Any, arguments: Any, keywords: Any) -> Any:
        rehearsal = self.rehearsal
        if self.running or self.graphs.is_compiled() or not self.graphs.is_looping():
            return self.call(function, *arguments, **keywords)
        state = rehearsal.writer.attempt("a tf.function", self._state, function) or State()
        target, before = function, (rehearsal.gradients, self.graphs.marks)
        if rehearsal.is_xla and not _is_keras(function) and _names(function) & TRAINING:
            state.twin = state.twin or rehearsal.writer.attempt("XLA", self._compiled, function)
            target = state.twin or function
        result = self.call(target, *arguments, **keywords)
        self._learn(state, before)
        if state.trains and not state.has_marks:
            if rehearsal.is_compile:
                hand_over(rehearsal, function.python_function, arguments, keywords, 1)
            rehearsal.writer.attempt("a step's mark", self._mark, None, result, arguments)
        return result

    # strategy.run

    def _run(
        self, strategy: Any, fn: Any, args: Any, kwargs: Any, execute: Callable[..., Any]
    ) -> Any:
        rehearsal = self.rehearsal
        rehearsal.writer.attempt("a function's place", self._define, fn)
        key = fn if _is_hashable(fn) else id(fn)
        before, is_eager = rehearsal.gradients, self.graphs.is_eager()
        self.running += 1
        try:
            if is_eager:
                result = self._executed(strategy, key, fn, args, kwargs, execute)
            else:
                result = execute(self._chosen(strategy, key, fn))
        finally:
            self.running -= 1
        if rehearsal.gradients > before:
            self.training.add(key)
        if key in self.training:
            if rehearsal.is_compile:
                hand_over(rehearsal, fn, args, kwargs, strategy.num_replicas_in_sync)
            note = self._ran if is_eager else self._mark
            rehearsal.writer.attempt("a step", note, strategy, result, (args, kwargs))
        elif is_eager:
            rehearsal.steps.abandon()
        return result

    def _chosen(self, strategy: Any, key: Any, fn: Any) -> Any:
        """What the strategy is to run: the function compiled by XLA, where that is asked for."""
        if self._is_one(strategy) and self.rehearsal.is_xla and not _is_keras(fn):
            return self.rehearsal.writer.attempt("XLA", self._wrapped, key, fn) or fn
        return fn

    def _executed(
        self, strategy: Any, key: Any, fn: Any, args: Any, kwargs: Any, execute: Callable[..., Any]
    ) -> Any:
        """Run it now, in a graph as a TPU does, where nothing is executed by operations."""
        rehearsal, attempt = self.rehearsal, self.rehearsal.writer.attempt
        function = self._chosen(strategy, key, fn)
        do = functools.partial(execute, function)
        if is_stand_in(strategy) and function is fn and not _is_keras(fn):
            wrapper = attempt("strategy.run", self._in_function, key, fn, execute)
            if wrapper is not None:
                do = functools.partial(self.call, wrapper, args, kwargs)
        if rehearsal.is_compile:
            before = rehearsal.gradients
            attempt("strategy.run", self._trace, key, fn, execute, args, kwargs)
            if rehearsal.gradients > before:
                hand_over(rehearsal, fn, args, kwargs, strategy.num_replicas_in_sync)
        rehearsal.steps.begin()
        try:
            return do()
        except Exception as error:
            attempt("a refusal", self.refusals.note, error, fn)
            rehearsal.steps.abandon()
            raise

    def _is_one(self, strategy: Any) -> bool:
        """Whether a strategy leaves a function as it is, so that XLA can have the whole."""
        names = ("OneDeviceStrategy", "_DefaultDistributionStrategy")
        return is_stand_in(strategy) or type(strategy).__name__ in names

    def _ran(self, strategy: Any, result: Any, arguments: Any) -> None:
        loss = number(loss_of(self.tensorflow, strategy, result))
        self.rehearsal.steps.end(loss, number(batch_of(self.tensorflow, strategy, arguments)))

    def _wrapped(self, key: Any, fn: Any) -> Any:
        if key not in self.wrapped:
            if isinstance(fn, self.kind):
                compiled = fn if getattr(fn, "_jit_compile", None) else self._compiled(fn)
            else:
                control = importlib.import_module("tensorflow.python.autograph.core.ag_ctx")
                is_on = self.graphs.is_eager() or (
                    control.control_status_ctx().status != control.Status.DISABLED
                )
                compiled = self.tensorflow.function(fn, jit_compile=True, autograph=is_on)
            self.wrapped[key] = compiled
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

    def _mark(self, strategy: Any, result: Any, arguments: Any) -> None:
        """Have it told, when the graph runs, that a step was taken."""
        tensorflow, steps = self.tensorflow, self.rehearsal.steps
        nothing = tensorflow.constant(-1)
        loss = loss_of(tensorflow, strategy, result)
        examples = batch_of(tensorflow, strategy, arguments)
        has_loss, has_examples = loss is not None, examples is not None

        def stepped(loss: Any, examples: Any) -> None:
            steps.end(float(loss) if has_loss else None, int(examples) if has_examples else None)

        leaves = tensorflow.nest.flatten(result, expand_composites=True)
        done = [leaf for leaf in leaves if hasattr(leaf, "op")]
        with tensorflow.control_dependencies(done):
            values = (loss if has_loss else nothing, examples if has_examples else nothing)
            self.graphs.mark(stepped, *values)
        self.graphs.marks += 1

    def _state(self, function: Any) -> Any:
        state = function.__dict__.get("_tpuctl_state")
        if state is None:
            state = function._tpuctl_state = State()
            self._define(function)
        return state

    def _define(self, function: Any) -> None:
        """Remember where a function of the user's stands, for when only its name is known."""
        where = self.rehearsal.places.of(function)
        name = getattr(getattr(function, "python_function", function), "__name__", None)
        if where is not None and name is not None:
            self.rehearsal.defined[name] = where

    def _compiled(self, function: Any) -> Any:
        twin = function._clone(None)
        twin._jit_compile = True
        return twin


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _is_keras(function: Any) -> bool:
    """Whether a function is one of Keras' own, which compiles as its model was told."""
    function = getattr(function, "python_function", function)
    module = getattr(function, "__module__", None) or ""
    return module.startswith(KERAS)


def _names(function: Any) -> set[str]:
    """The names that a function's code uses, those of functions within it included."""
    code = getattr(getattr(function, "python_function", function), "__code__", None)
    found: set[str] = set()
    waiting = [code] if code is not None else []
    while waiting:
        one = waiting.pop()
        found.update(one.co_names)
        waiting.extend(constant for constant in one.co_consts if hasattr(constant, "co_names"))
    return found
