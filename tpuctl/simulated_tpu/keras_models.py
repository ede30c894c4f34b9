"""Lets Keras train under the strategy that stands in for a TPU's."""

from __future__ import annotations

import functools
import importlib
import inspect
from typing import Any

from .script_calls import call_script
from .tensorflow_stubs import exclude_stubs, is_stub


def exclude_from_checks(keras: Any) -> None:
    """Let Keras 2 or 3 not do under a stub what only works on a TPU."""
    for path in ("src.backend", "backend"):
        try:
            module = importlib.import_module(f"{keras.__name__}.{path}")
            exclude_stubs(module, "is_tpu_strategy")
        except (ImportError, AttributeError):
            continue


def install(keras: Any, tensorflow: Any) -> None:
    """Compile no model with XLA under a stub: mirrored models cannot be."""
    backend = getattr(getattr(keras, "backend", None), "backend", None)
    if callable(backend) and backend() != "tensorflow":
        return
    exclude_from_checks(keras)
    original = keras.Model.compile
    signature = inspect.signature(original)

    @functools.wraps(original)
    def compile_model(*arguments: Any, **keywords: Any) -> Any:
        if is_stub(tensorflow.distribute.get_strategy()) and "jit_compile" in signature.parameters:
            try:
                bound = signature.bind(*arguments, **keywords)
            except TypeError:
                pass  # the call raises the proper error
            else:
                bound.arguments["jit_compile"] = False
                arguments, keywords = bound.args, bound.kwargs
        return call_script(original, *arguments, **keywords)

    keras.Model.compile = compile_model
