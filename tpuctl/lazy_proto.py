"""Loads a module of proto-plus messages whose classes are created on first access.

Compute Engine's types are two thousand classes in one module, of which a command uses a tenth;
creating them takes longer than anything else that a command imports. Here the module's code runs
with class creation deferred: a class is created on first access, together with those that its
fields refer to. proto-plus puts classes created together into one file descriptor, on which later
ones depend.
"""

from __future__ import annotations

import builtins
import importlib.util
import threading
import types
from collections.abc import Callable
from typing import Any


def lazy_messages(name: str) -> types.ModuleType:
    """Load the module with deferred messages, for registration in `sys.modules`.

    Raises ImportError if it is not installed, or not as Python code.
    """
    spec = importlib.util.find_spec(name)
    code = getattr(spec.loader, "get_code", lambda _: None)(name) if spec is not None else None
    if spec is None or code is None:
        raise ImportError(f"{name} is not installed", name=name)
    module = importlib.util.module_from_spec(spec)
    messages = _Messages(module)
    module.__dict__["__builtins__"] = vars(builtins) | {"__build_class__": messages.defer}
    module.__dict__["__getattr__"] = messages.get
    exec(code, module.__dict__)
    messages.remove_placeholders()
    return module


class _Messages:
    """The deferred classes of one module."""

    def __init__(self, module: types.ModuleType) -> None:
        self._module = module
        self._bodies: dict[str, types.CodeType] = {}
        self._lock = threading.RLock()

    def defer(self, body: types.FunctionType, name: str, *bases: Any, **more: Any) -> Any:
        """Replaces `__build_class__`: defers the module's messages, creates all other classes."""
        import proto

        if bases != (proto.Message,) or body.__qualname__ != name:
            build: Callable[..., Any] = vars(builtins)["__build_class__"]
            return build(body, name, *bases, **more)
        self._bodies[name] = body.__code__
        return None

    def remove_placeholders(self) -> None:
        """Remove the names of deferred classes, so that access to them goes to `get`.

        The manifest is emptied too: proto-plus would wait until everything that it names exists.
        """
        names = vars(self._module)
        for name in self._bodies:
            del names[name]
        names["__protobuf__"] = names["__protobuf__"]._replace(manifest=frozenset())

    def get(self, name: str) -> Any:
        """The module's `__getattr__`."""
        with self._lock:
            if name in self._bodies and name not in vars(self._module):
                self._create(name)
        if name not in vars(self._module):
            raise AttributeError(f"module {self._module.__name__!r} has no attribute {name!r}")
        return vars(self._module)[name]

    def _create(self, name: str) -> None:
        """Create a message and all that its fields refer to; proto-plus needs them together, and
        other threads must not see it earlier."""
        classes: dict[str, Any] = {}
        pending = [name]
        while pending:
            message = pending.pop()
            if message not in classes:
                classes[message], references = self._build(message)
                pending += references
        vars(self._module).update(classes)

    def _build(self, name: str) -> tuple[Any, list[str]]:
        """Create one class; also returns the messages that must be created with it.

        References to existing messages are replaced by their classes: proto-plus would look up
        names only among those created together.
        """
        import proto

        body: dict[str, Any] = {}
        exec(self._bodies[name], vars(self._module), body)
        references = []
        for field in body.values():
            if isinstance(field, proto.Field) and isinstance(field.message, str):
                existing = vars(self._module).get(field.message)
                if existing is None:
                    references.append(field.message)
                else:
                    field.message = existing
        return type(proto.Message)(name, (proto.Message,), body), references
