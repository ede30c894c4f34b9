"""Hooks for Keras models: compile them with XLA in that mode, and limit their steps."""

from __future__ import annotations

import functools
import importlib
import inspect
import math
from collections.abc import Callable
from typing import Any

from ....simulated_tpu.keras_models import exclude_from_checks
from ....simulated_tpu.script_calls import call_script
from ....simulated_tpu.tensorflow_stubs import is_stub
from ..observation import checkpoints
from ..observation.context import Rehearsal
from .tensors import number


def install(rehearsal: Rehearsal, keras: Any) -> None:
    """Hook into the models of Keras 2 or 3."""
    backend = getattr(getattr(keras, "backend", None), "backend", None)
    if callable(backend) and backend() != "tensorflow":
        return
    attempt = rehearsal.writer.attempt
    attempt("Keras' checkpoints", checkpoints.install_keras, rehearsal, keras)
    exclude_from_checks(keras)
    hooks = KerasHooks(rehearsal, keras)
    model = keras.Model
    methods: dict[str, Callable[..., Any]] = {
        "compile": hooks.compile,
        "fit": hooks.fit,
        "evaluate": hooks.evaluate,
        "predict": hooks.predict,
    }
    for name, function in methods.items():
        attempt(f"Keras' {name}", _replace, rehearsal, model, name, function)


def _replace(rehearsal: Rehearsal, model: Any, name: str, function: Callable[..., Any]) -> None:
    original = getattr(model, name)
    signature = inspect.signature(original)

    @functools.wraps(original)
    def call(*arguments: Any, **keywords: Any) -> Any:
        try:
            bound = signature.bind(*arguments, **keywords)
        except TypeError:
            return call_script(original, *arguments, **keywords)  # raises the proper error
        if rehearsal.writer.is_forked():
            return call_script(original, *arguments, **keywords)
        return function(original, bound)

    setattr(model, name, call)


class KerasHooks:
    """Wrappers of a model's methods."""

    def __init__(self, rehearsal: Rehearsal, keras: Any) -> None:
        self.rehearsal, self.keras = rehearsal, keras

    def compile(self, original: Callable[..., Any], bound: inspect.BoundArguments) -> Any:
        """Turn XLA on or off as the mode requires, unless the script runs eagerly."""
        rehearsal, values = self.rehearsal, bound.arguments
        jit_compile: bool | None = None
        if rehearsal.is_xla:
            jit_compile = True
        elif rehearsal.is_compile or is_stub(self._strategy()):
            jit_compile = False
        if values.get("run_eagerly"):
            rehearsal.record_eager()
        elif jit_compile is not None and "jit_compile" in inspect.signature(original).parameters:
            values["jit_compile"] = jit_compile
        return call_script(original, *bound.args, **bound.kwargs)

    def fit(self, original: Callable[..., Any], bound: inspect.BoundArguments) -> Any:
        """Train for the remaining steps; after that the script continues."""
        rehearsal, steps = self.rehearsal, self.rehearsal.steps
        if rehearsal.fit_depth:
            return call_script(original, *bound.args, **bound.kwargs)
        where = rehearsal.user_lines.current()
        if not steps.remaining:
            rehearsal.script_exit.request_exit()
        rehearsal.writer.attempt("the plan of fit", self._limit_fit, bound, where)
        rehearsal.fit_depth += 1
        steps.discard()
        steps.is_buffering = True
        try:
            return call_script(original, *bound.args, **bound.kwargs)
        finally:
            rehearsal.fit_depth -= 1
            steps.is_buffering = False
            steps.pending.clear()
            steps.discard()

    def evaluate(self, original: Callable[..., Any], bound: inspect.BoundArguments) -> Any:
        self.rehearsal.writer.attempt("the plan of evaluate", self._limit_steps, bound, "steps")
        return call_script(original, *bound.args, **bound.kwargs)

    def predict(self, original: Callable[..., Any], bound: inspect.BoundArguments) -> Any:
        """Run a few steps; the result is resized to the expected number of rows, if known."""
        values = bound.arguments
        rows = self._rows(values.get("x"))
        is_limited = self.rehearsal.writer.attempt(
            "the plan of predict", self._limit_steps, bound, "steps"
        )
        result = call_script(original, *bound.args, **bound.kwargs)
        if not is_limited or rows is None:
            return result
        resized = self.rehearsal.writer.attempt("the rows of predict", self._resize, result, rows)
        return result if resized is None else resized

    def _resize(self, result: Any, rows: int) -> Any:
        numpy: Any = importlib.import_module("numpy")

        def repeat(array: Any) -> Any:
            return numpy.resize(array, (rows, *array.shape[1:]))

        return self.rehearsal.tensorflow.nest.map_structure(repeat, result)

    def _limit_fit(self, bound: inspect.BoundArguments, where: Any) -> None:
        values, steps = bound.arguments, self.rehearsal.steps
        x, steps_per_epoch = values.get("x"), values.get("steps_per_epoch")
        batch = values.get("batch_size")
        length = steps_per_epoch or self._length(x, batch, values.get("validation_split") or 0.0)
        epochs = max(0, int(values.get("epochs", 1)) - int(values.get("initial_epoch", 0) or 0))
        self.rehearsal.writer.write(
            "planned",
            steps=None if length is None else length * epochs,
            epochs=epochs,
            where=where,
        )
        remaining = max(1, steps.remaining)
        if length is None or length > remaining:
            values["steps_per_epoch"] = remaining
            if batch is None and self._rows(x) is not None:
                values["batch_size"] = 32  # otherwise Keras 2 creates as many batches as steps
        if values.get("validation_data") is not None:
            self._limit_steps(bound, "validation_steps", "validation_data")
        callbacks = values.get("callbacks")
        callback = make_callback(self.keras.callbacks.Callback, self.rehearsal, callbacks)
        if callbacks is not None and hasattr(callbacks, "append") and hasattr(callbacks, "params"):
            callbacks.append(callback)  # a CallbackList
        elif isinstance(callbacks, (list, tuple)):
            values["callbacks"] = [*callbacks, callback]
        else:
            values["callbacks"] = [callback] if callbacks is None else [callbacks, callback]

    def _limit_steps(self, bound: inspect.BoundArguments, name: str, data: str = "x") -> bool:
        """Limit the number of batches to the rehearsal's steps; return whether that was needed."""
        values, limit = bound.arguments, self.rehearsal.steps.limit
        requested, x = values.get(name), values.get(data)
        if isinstance(x, (list, tuple)) and data == "validation_data":
            x = x[0] if x else None
        batch = values.get("validation_batch_size") if data != "x" else None
        batch = batch or values.get("batch_size")
        length = requested or self._length(x, batch, 0.0)
        if length is not None and length <= limit:
            return False
        values[name] = limit
        if data == "x" and values.get("batch_size") is None and self._rows(x) is not None:
            values["batch_size"] = 32
        return True

    def _rows(self, x: Any) -> int | None:
        """The number of examples in arrays; None for other data."""
        tensorflow = self.rehearsal.tensorflow
        if isinstance(x, tensorflow.data.Dataset) or callable(getattr(x, "__next__", None)):
            return None
        for leaf in tensorflow.nest.flatten(x):
            shape = getattr(leaf, "shape", None)
            if shape is not None and len(shape) > 0 and shape[0] is not None:
                return int(shape[0])
            return None
        return None

    def _length(self, x: Any, batch: int | None, split: float) -> int | None:
        """The number of batches per epoch; None if unknown or infinite."""
        if isinstance(x, self.rehearsal.tensorflow.data.Dataset):
            count = int(x.cardinality())
            return count if count >= 0 else None
        rows = self._rows(x)
        if rows is not None:
            return math.ceil(rows * (1 - split) / (batch or 32))
        if hasattr(x, "__len__") and hasattr(x, "__getitem__") and not isinstance(x, (list, dict)):
            return len(x)  # a Sequence, a PyDataset
        return None

    def _strategy(self) -> Any:
        return self.rehearsal.tensorflow.distribute.get_strategy()


def make_callback(base: Any, rehearsal: Rehearsal, others: Any) -> Any:
    """Create a callback that records steps and stops training after the last one."""
    steps = rehearsal.steps
    callback_list = others if isinstance(others, (list, tuple)) else [others]
    callback_list = getattr(others, "callbacks", callback_list)
    resumes = any(type(callback).__name__ == "BackupAndRestore" for callback in callback_list)

    class StepCallback(base):  # type: ignore[misc]
        """Runs after the script's callbacks."""

        def on_train_begin(self, logs: Any = None) -> None:
            self.before = (0.0, 0.0)

        def on_train_batch_begin(self, batch: Any, logs: Any = None) -> None:
            steps.discard()  # started by preparing the data
            steps.begin()

        def on_train_batch_end(self, batch: Any, logs: Any = None) -> None:
            rehearsal.writer.attempt("a step of fit", self.flush, logs)

        def on_epoch_begin(self, epoch: Any, logs: Any = None) -> None:
            self.before = (0.0, 0.0)

        def on_epoch_end(self, epoch: Any, logs: Any = None) -> None:
            steps.discard()
            if steps.remaining:
                return
            self.model.stop_training = True
            if resumes:
                # It deletes its backup when training completes, but not after a preemption.
                rehearsal.script_exit.request_exit()

        def flush(self, logs: Any) -> None:
            steps.flush(self.loss(logs))

        def loss(self, logs: Any) -> float | None:
            """The mean over the steps since the end of the last batch.

            Keras reports the mean since the start of the epoch if the model has a metric of that
            name; otherwise the value comes from the model's own train_step.
            """
            for metric in self.model.metrics:
                if metric.name == "loss" and hasattr(metric, "total") and hasattr(metric, "count"):
                    total, count = number(metric.total), number(metric.count)
                    before, self.before = self.before, (total, count)
                    if count > before[1]:
                        return float((total - before[0]) / (count - before[1]))
            value = (logs or {}).get("loss")
            return None if value is None else float(number(value))

    return StepCallback()
