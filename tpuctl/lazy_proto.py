"""A module of proto-plus messages whose classes are made when they are asked for.

Compute Engine's types are two thousand classes in one module, of which a command uses a tenth;
making them takes longer than anything else that a command imports. Here the module's code runs
with the making put off: a class is made once something asks for it, along with those that its
fields name. proto-plus describes those made together as a file, on which later ones depend.
"""

from __future__ import annotations

import builtins
import importlib.util
import threading
import types
from collections.abc import Callable
from typing import Any

__all__ = ["deferred_messages"]


def deferred_messages(name: str) -> types.ModuleType:
    """The module of that name with its messages put off, for its place in `sys.modules`.

    Errors: ImportError where it is not installed, or not as Python code.
    """
    spec = importlib.util.find_spec(name)
    code = getattr(spec.loader, "get_code", lambda _: None)(name) if spec is not None else None
    if spec is None or code is None:
        raise ImportError(f"{name} is not installed", name=name)
    module = importlib.util.module_from_spec(spec)
    messages = _Messages(module)
    module.__dict__["__builtins__"] = vars(builtins) | {"__build_class__": messages.put_off}
    module.__dict__["__getattr__"] = messages.asked
    exec(code, module.__dict__)
    messages.forget()
    return module


class _Messages:
    """The classes of one module that are not made yet."""

    def __init__(self, module: types.ModuleType) -> None:
        self._module = module
        self._bodies: dict[str, types.CodeType] = {}
        self._turn = threading.RLock()

    def put_off(self, body: types.FunctionType, name: str, *bases: Any, **more: Any) -> Any:
        """For `__build_class__`: keeps the module's own messages, makes whatever else there is."""
        import proto

        if bases != (proto.Message,) or body.__qualname__ != name:
            make: Callable[..., Any] = vars(builtins)["__build_class__"]
            return make(body, name, *bases, **more)
        self._bodies[name] = body.__code__
        return None

    def forget(self) -> None:
        """Takes away the names without a class, so that who asks for one is answered by `asked`.

        The manifest goes too: proto-plus waits until all that it names is there.
        """
        names = vars(self._module)
        for name in self._bodies:
            del names[name]
        names["__protobuf__"] = names["__protobuf__"]._replace(manifest=frozenset())

    def asked(self, name: str) -> Any:
        """For the module's `__getattr__`."""
        with self._turn:
            if name in self._bodies and name not in vars(self._module):
                self._make(name)
        if name not in vars(self._module):
            raise AttributeError(f"module {self._module.__name__!r} has no attribute {name!r}")
        return vars(self._module)[name]

    def _make(self, name: str) -> None:
        """One message and all that its fields name: only then proto-plus can describe it, and
        other threads may see it."""
        made: dict[str, Any] = {}
        waiting = [name]
        while waiting:
            one = waiting.pop()
            if one not in made:
                made[one], named = self._made(one)
                waiting += named
        vars(self._module).update(made)

    def _made(self, name: str) -> tuple[Any, list[str]]:
        """One class, and the messages to be made along with it.

        Messages that are there are named by their classes: as text they would be looked for among
        those made together.
        """
        import proto

        body: dict[str, Any] = {}
        exec(self._bodies[name], vars(self._module), body)
        named = []
        for field in body.values():
            if isinstance(field, proto.Field) and isinstance(field.message, str):
                there = vars(self._module).get(field.message)
                if there is None:
                    named.append(field.message)
                else:
                    field.message = there
        return type(proto.Message)(name, (proto.Message,), body), named
