"""Observes checkpoints, weights and models that a script saves or restores."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

from ....simulated_tpu.script_calls import call_script
from .context import Rehearsal

CHECKPOINT_ACTIONS = {"save": "saved", "write": "saved", "restore": "restored", "read": "restored"}
MODEL_ACTIONS = {
    "save": "saved",
    "save_weights": "saved",
    "load_weights": "restored",
    "save_pretrained": "saved",
}
FUNCTION_ACTIONS = {"load_model": "restored", "save_model": "saved"}
# The modules that implement these functions in all versions of Keras.
KERAS_MODULES = (
    "src.saving.saving_lib",
    "src.saving.legacy.save",
    "src.saving.legacy.saved_model.load",
    "src.legacy.saving.legacy_h5_format",
    "saving.saving_lib",
    "saving.legacy.save",
)
# Functions by module, and the position of the path or the file.
TORCH_FUNCTIONS = {
    "torch": {"save": ("saved", 1), "load": ("restored", 0)},
    "torch.distributed.checkpoint": {
        "save": ("saved", 1),
        "async_save": ("saved", 1),
        "load": ("restored", 1),
    },
    "safetensors.torch": {"save_file": ("saved", 1), "load_file": ("restored", 0)},
}
ORBAX_CHECKPOINTERS = ("Checkpointer", "AsyncCheckpointer", "StandardCheckpointer")
_nesting = threading.local()  # only the outermost call is recorded


def install(rehearsal: Rehearsal, tensorflow: Any) -> None:
    """Observe TensorFlow's checkpoints, including those of managers."""
    for name, action in CHECKPOINT_ACTIONS.items():
        for kind in {tensorflow.train.Checkpoint, tensorflow.compat.v1.train.Checkpoint}:
            if name in vars(kind):
                setattr(kind, name, _watch(rehearsal, getattr(kind, name), action))
    manager = tensorflow.train.CheckpointManager
    manager.save = _watch(rehearsal, manager.save, "saved")


def install_keras(rehearsal: Rehearsal, keras: Any) -> None:
    """Observe models and weights, including those saved by callbacks."""
    model = keras.Model
    for name, action in MODEL_ACTIONS.items():
        if hasattr(model, name):
            setattr(model, name, _watch(rehearsal, getattr(model, name), action))
    for library in KERAS_MODULES:
        try:
            module = importlib.import_module(f"{keras.__name__}.{library}")
        except ImportError:
            continue
        for name, action in FUNCTION_ACTIONS.items():
            function = getattr(module, name, None)
            if callable(function):
                is_loader = action == "restored"
                wrapper = _watch(rehearsal, function, action, 0 if is_loader else 1)
                setattr(module, name, wrapper)


def install_orbax(rehearsal: Rehearsal, orbax: Any) -> None:
    """Observe Orbax's checkpoints, including those of managers."""
    kinds = [getattr(orbax, name, None) for name in ORBAX_CHECKPOINTERS]
    for name, action in (("save", "saved"), ("restore", "restored")):
        for kind in kinds:
            if name in vars(kind or object):
                setattr(kind, name, _watch(rehearsal, getattr(kind, name), action))
        manager = orbax.CheckpointManager
        setattr(manager, name, _watch_manager(rehearsal, getattr(manager, name), action))


def install_torch(rehearsal: Rehearsal, module: Any) -> None:
    """Observe what is saved and loaded by one of the modules in TORCH_FUNCTIONS."""
    for name, (action, position) in TORCH_FUNCTIONS[module.__name__].items():
        if hasattr(module, name):
            setattr(module, name, _watch(rehearsal, getattr(module, name), action, position))


def _watch_manager(
    rehearsal: Rehearsal, original: Callable[..., Any], action: str
) -> Callable[..., Any]:
    """Observe a manager's method: it takes the step, and does not save at every call."""

    @functools.wraps(original)
    def call(manager: Any, *arguments: Any, **keywords: Any) -> Any:
        where = rehearsal.user_lines.current()
        with _nested(rehearsal):
            result = call_script(original, manager, *arguments, **keywords)
        if result is False:
            rehearsal.writer.write("postponed", where=where)
        else:
            step = arguments[0] if arguments else keywords.get("step")
            path = os.path.join(str(manager.directory), "" if step is None else str(step))
            rehearsal.writer.attempt("a checkpoint", _record, rehearsal, action, path, None, where)
        return result

    return call


@contextlib.contextmanager
def _nested(rehearsal: Rehearsal) -> Iterator[None]:
    """Within a call that is recorded itself; a step does not wait for data meanwhile."""
    depth = getattr(_nesting, "depth", 0)
    _nesting.depth = depth + 1
    was_waiting = rehearsal.steps.end_wait()
    try:
        yield
    finally:
        _nesting.depth = depth
        if was_waiting:
            rehearsal.steps.begin_wait()


def _watch(
    rehearsal: Rehearsal, original: Callable[..., Any], action: str, position: int = 1
) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*arguments: Any, **keywords: Any) -> Any:
        depth = getattr(_nesting, "depth", 0)
        where = None if depth else rehearsal.user_lines.current()
        with _nested(rehearsal):
            result = call_script(original, *arguments, **keywords)
        if not depth:
            path = arguments[position] if len(arguments) > position else None
            path = next(iter(keywords.values()), None) if path is None else path
            details = (rehearsal, action, path, result, where)
            rehearsal.writer.attempt("a checkpoint", _record, *details)
        return result

    return call


def _record(rehearsal: Rehearsal, action: str, path: Any, result: Any, where: Any) -> None:
    """Write the observation, unless there is no path: `restore(None)` does nothing."""
    path = _path_of(path)
    if action == "saved" and isinstance(result, (str, bytes)):
        path = result  # includes the checkpoint's number
    if isinstance(path, bytes):
        path = path.decode()
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
        return
    step = rehearsal.steps.count if action == "saved" else None
    rehearsal.writer.write(
        "checkpoint", action=action, path=os.fspath(path), step=step, where=where
    )


def _path_of(target: Any) -> Any:
    """The path of a checkpoint, or of a file or a store to write it to."""
    if isinstance(target, (str, bytes, os.PathLike)):
        return target
    files: Any = getattr(target, "fs", None)
    path = getattr(target, "path", None)
    if hasattr(files, "unstrip_protocol") and isinstance(path, str):  # of fsspec
        return files.unstrip_protocol(path).removeprefix("file://")
    for name in ("filepath", "path", "name"):
        value = getattr(target, name, None)
        if isinstance(value, (str, os.PathLike)):
            return value
    return target
