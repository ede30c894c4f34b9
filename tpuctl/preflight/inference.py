"""Looks through every traced function as tracing would, and notes what each expression is."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace

from tpuctl.preflight.expressions import Expressions
from tpuctl.preflight.findings import Target
from tpuctl.preflight.functions import own_nodes
from tpuctl.preflight.kinds import (
    OBJECT,
    STATIC,
    TENSOR,
    UNKNOWN,
    Closure,
    Kind,
    Owner,
    Scope,
    Value,
    container,
    joined,
)
from tpuctl.preflight.library import is_boolean_name
from tpuctl.preflight.source import Function, Project
from tpuctl.preflight.traced import Traced, find_traced

__all__ = ["Inference", "inferred"]

CONTEXTS = 6  # kinds of arguments for which a function is looked through
DEPTH = 25
PLAIN_TYPES = {"int", "bool", "str", "float", "Callable", "Optional[int]", "list[int]"}
CONTAINERS = {"list", "tuple", "dict", "Mapping", "Sequence"}
NUMBERS = {"int", "float", "bool", "str"}
PLAIN_NAMES = {"training", "is_training", "mode", "name", "axis", "config", "deterministic"}
OBJECTS = {"model", "optimizer", "network", "strategy", "tape", "net", "generator", "discriminator",
           "loss_fn", "loss_object", "criterion", "metrics", "metric", "student", "teacher",
           "encoder", "decoder", "args", "params", "hparams", "flags"}  # fmt: skip

# Parameters that may be left out, and are tensors where they are not.
OPTIONAL = re.compile(r"mask|weight|label|target|ids|inputs?$|lengths|^x$|^y$")


def inferred(project: Project, target: Target) -> Inference:
    """What is known of a project's traced functions; found out once."""
    key = ("inference", target)
    if key not in project.known:
        project.known[key] = Inference(project, target)
    found: Inference = project.known[key]
    return found


class Inference(Expressions):
    """Every traced function, and what the expressions in them are."""

    def __init__(self, project: Project, target: Target) -> None:
        super().__init__(project)
        self.traced: dict[ast.AST, Traced] = dict(find_traced(project, target))
        self.results: dict[tuple[ast.AST, tuple[Value, ...]], Value] = {}
        self.contexts: dict[ast.AST, int] = {}
        self.active: list[ast.AST] = []
        self.current: list[Traced] = []
        self.returned: list[list[Value]] = []
        self._sites: list[tuple[Traced, ast.AST]] | None = None
        self.certain: set[ast.AST] = set()  # of which all arguments are known
        roots = [one for one in self.traced.values() if one.is_root]
        # What is reached first: so are all that it calls. Of those, steps before layers, and those
        # before what they are made of: what calls says most.
        layers = sorted(filter(_is_layer, roots), key=lambda one: one.node.lineno)
        ordered = [one for one in roots if not _is_layer(one)] + layers[::-1]
        for one in sorted(ordered, key=lambda one: not one.is_reached):
            if one.node not in self.certain:
                self._root(one)
        for one in sorted(self.traced.values(), key=lambda one: not one.is_reached):
            if one.node not in self.contexts:
                self._root(one)

    def functions(self) -> Iterator[Traced]:
        """All that is compiled, what is defined within others and called there too."""
        for node, one in self.traced.items():
            if node in self.contexts:
                yield one

    def sites(self) -> list[tuple[Traced, ast.AST]]:
        """Every part of what is compiled, with the function that it belongs to."""
        if self._sites is None:
            self._sites = [(one, node) for one in self.functions() for node in own_nodes(one.node)]
        return self._sites

    def of(self, node: ast.AST | None) -> Value:
        """What an expression of a traced function is."""
        return UNKNOWN if node is None else self.values.get(node, UNKNOWN)

    # Functions --------------------------------------------------------------------------------

    def _root(self, one: Traced) -> None:
        module, node = one.module, one.node
        owner = module.class_around(node)
        is_method = isinstance(module.parents.get(node), ast.ClassDef)
        scope = self.host_scope(module, node)
        parameters = _parameters(node)
        given: dict[str, Value] = {}
        for place, parameter in enumerate(parameters):
            if place == 0 and is_method and parameter.arg in ("self", "cls"):
                given[parameter.arg] = OBJECT
            else:
                given[parameter.arg] = self._guess(one, parameter, place - is_method)
        owners: list[Owner | None] = []
        if owner is not None:
            owners += [(module, owner), *self.derived(owner)]
        for who in owners[:CONTEXTS] or [None]:
            self._run(Closure(module, node, scope, who), one, given)

    def _guess(self, one: Traced, parameter: ast.arg, place: int) -> Value:
        """What a parameter is of a function with which tracing begins."""
        default = _default(one.node, parameter.arg)
        if default is not None and not (
            isinstance(default, ast.Constant) and default.value is None
        ):
            return STATIC
        annotation = "" if parameter.annotation is None else ast.unparse(parameter.annotation)
        name = parameter.arg
        if annotation.removesuffix(" | None") in PLAIN_TYPES or name in PLAIN_NAMES:
            return STATIC
        if default is not None and not OPTIONAL.search(name):
            return UNKNOWN
        if name in OBJECTS or annotation.endswith(("Model", "Optimizer", "Layer")):
            return OBJECT
        if not one.is_root:
            return UNKNOWN
        told = self._given_by_callers(one, name, place)
        if told is not None:
            return told
        is_one = annotation in ("tf.Tensor", "tensorflow.Tensor") or name in ("y_true", "y_pred")
        return replace(TENSOR, is_structure=not is_one, is_boolean=is_boolean_name(name))

    def _given_by_callers(self, one: Traced, name: str, place: int) -> Value | None:
        """What plain Python hands to a function, where all who call it say so."""
        told: list[Value] = []
        for module, call in self.callers(one.node):
            given = next((key.value for key in call.keywords if key.arg == name), None)
            if given is None and len(call.args) > place >= 0:
                given = call.args[place]
            if given is None or isinstance(given, ast.Starred):
                return None
            told.append(self.host_value(module, given))
        for module, call in one.calls:
            everything = next((key.value for key in call.keywords if key.arg == "args"), None)
            everything = everything or (call.args[1] if len(call.args) > 1 else None)
            if not isinstance(everything, ast.Tuple) or len(everything.elts) <= place:
                return None
            told.append(self.host_value(module, everything.elts[place]))
        if not told or any(value.kind is Kind.UNKNOWN for value in told):
            return None
        made = joined(*told)
        if not made.is_symbolic:
            return made
        return replace(made, kind=Kind.TENSOR, is_boolean=made.is_boolean or is_boolean_name(name))

    def call(self, closure: Closure, given: list[Value], named: dict[str, Value]) -> Value:
        """What a function of the project's own returns for these arguments."""
        node = closure.node
        if self.hosting or not self.current:
            return self.host_result(closure)
        if node in self.active or len(self.active) > DEPTH:
            return UNKNOWN
        caller = self.current[-1]
        traced = self.traced.get(node)
        if traced is None:
            traced = replace(caller, module=closure.module, node=node, is_root=False, calls=())
            traced = self.callee(caller, traced)
        self.traced[node] = traced = replace(
            traced, is_reached=traced.is_reached or caller.is_reached
        )
        given = [*closure.bound, *given]
        bound: dict[str, Value] = {}
        for place, parameter in enumerate(_parameters(node)):
            if parameter.arg in named:
                bound[parameter.arg] = named[parameter.arg]
            elif place < len(given):
                bound[parameter.arg] = given[place]
            else:
                default = _default(node, parameter.arg)
                bound[parameter.arg] = STATIC if default is not None else UNKNOWN
        key = (node, tuple(bound.values()))
        if key in self.results:
            return self.results[key]
        if self.contexts.get(node, 0) >= CONTEXTS:
            return joined(*(value for (one, _), value in self.results.items() if one is node))
        if all(value.kind is not Kind.UNKNOWN for value in bound.values()):
            self.certain.add(node)
        result = self._run(closure, traced, bound)
        self.results[key] = result
        return result

    def _run(self, closure: Closure, one: Traced, given: dict[str, Value]) -> Value:
        node = closure.node
        self.contexts[node] = self.contexts.get(node, 0) + 1
        scope = Scope(closure.module, node, dict(given), closure.scope, closure.owner)
        arguments = node.args
        if arguments.vararg is not None:
            extra = TENSOR if one.is_root else UNKNOWN
            scope.names[arguments.vararg.arg] = container([replace(extra, is_structure=True)])
        if arguments.kwarg is not None:
            scope.names[arguments.kwarg.arg] = container([UNKNOWN])
        self.active.append(node)
        self.current.append(one)
        self.is_converted = one.autograph
        self.returned.append([])
        try:
            if isinstance(node, ast.Lambda):
                return self.value(node.body, scope)
            self.run_body(node.body, scope)
            results = self.returned[-1]
            return joined(*results) if results else STATIC
        finally:
            self.active.pop()
            self.current.pop()
            self.returned.pop()
            self.is_converted = not self.current or self.current[-1].autograph

    # Statements -------------------------------------------------------------------------------

    def run_body(self, body: list[ast.stmt], scope: Scope) -> bool:
        """Go through statements; whether what follows them is reached."""
        return all(self._statement(one, scope) for one in body)

    def _statement(self, one: ast.stmt, scope: Scope) -> bool:
        method = getattr(self, f"_on_{type(one).__name__.lower()}", None)
        if method is None:
            self._expressions(one, scope)
            return True
        is_reached: bool = method(one, scope)
        return is_reached

    def _on_assign(self, one: ast.Assign, scope: Scope) -> bool:
        value = self.value(one.value, scope)
        for target in one.targets:
            self.assign(target, value, scope)
        return True

    def _on_annassign(self, one: ast.AnnAssign, scope: Scope) -> bool:
        if one.value is not None:
            self.assign(one.target, self.value(one.value, scope), scope)
        return True

    def _on_augassign(self, one: ast.AugAssign, scope: Scope) -> bool:
        value = self.combined(self.value(one.target, scope), self.value(one.value, scope))
        self.assign(one.target, value, scope)
        return True

    def _on_return(self, one: ast.Return, scope: Scope) -> bool:
        if one.value is not None:
            self.returned[-1].append(self.value(one.value, scope))
        return False

    def _on_raise(self, one: ast.Raise, scope: Scope) -> bool:
        self._expressions(one, scope)
        return False

    def _on_continue(self, _: ast.stmt, __: Scope) -> bool:
        return False

    _on_break = _on_continue

    def _on_with(self, one: ast.With | ast.AsyncWith, scope: Scope) -> bool:
        for item in one.items:
            value = self.value(item.context_expr, scope)
            if item.optional_vars is not None:
                self.assign(item.optional_vars, value, scope)
        return self.run_body(one.body, scope)

    _on_asyncwith = _on_with

    def _on_functiondef(self, one: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope) -> bool:
        made = Closure(scope.module, one, scope, scope.owner)
        scope.names[one.name] = Value(Kind.OBJECT, closure=made)
        return True

    _on_asyncfunctiondef = _on_functiondef

    def _on_try(self, one: ast.Try | ast.TryStar, scope: Scope) -> bool:
        self.run_body(one.body, scope)
        for handler in one.handlers:
            self.run_body(handler.body, scope)
        self.run_body(one.orelse, scope)
        self.run_body(one.finalbody, scope)
        return True

    _on_trystar = _on_try

    def _on_match(self, one: ast.Match, scope: Scope) -> bool:
        self.value(one.subject, scope)
        for case in one.cases:
            self.run_body(case.body, scope)
        return True

    def _expressions(self, one: ast.stmt, scope: Scope) -> None:
        for part in ast.iter_child_nodes(one):
            if isinstance(part, ast.expr):
                self.value(part, scope)

    def _on_if(self, one: ast.If, scope: Scope) -> bool:
        self.value(one.test, scope)
        before = dict(scope.names)
        self._narrow(one.test, scope)
        is_reached = self.run_body(one.body, scope)
        after = scope.names
        scope.names = dict(before)
        is_other_reached = self.run_body(one.orelse, scope)
        if is_reached and is_other_reached:
            for name, value in after.items():
                known = scope.names.get(name)
                scope.names[name] = value if known is None else joined(known, value)
        elif is_reached:
            scope.names = after
        return is_reached or is_other_reached

    def _narrow(self, test: ast.expr, scope: Scope) -> None:
        """What a name is where `isinstance` says that it is a list or dictionary."""
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            for part in test.values:
                self._narrow(part, scope)
        if not isinstance(test, ast.Call) or not isinstance(test.func, ast.Name):
            return
        if test.func.id != "isinstance" or len(test.args) != 2:
            return
        name, kinds = test.args
        plain = kinds.elts if isinstance(kinds, ast.Tuple) else [kinds]
        if isinstance(name, ast.Name) and name.id in scope.names:
            value = scope.names[name.id]
            words = {getattr(one, "id", getattr(one, "attr", "")) for one in plain}
            if words & CONTAINERS and not value.is_container:
                scope.names[name.id] = container([value])
            elif words <= NUMBERS:
                scope.names[name.id] = STATIC

    def _on_for(self, one: ast.For | ast.AsyncFor | ast.While, scope: Scope) -> bool:
        before = dict(scope.names)
        for _ in range(2):  # what the first round changes, the second one sees
            if isinstance(one, ast.While):
                is_symbolic = self.value(one.test, scope).is_tensor
            else:
                over = self.value(one.iter, scope)
                is_symbolic = over.is_tensor
                self.assign(one.target, over.inner, scope)
            self.run_body(one.body, scope)
            for name, value in before.items():
                after = scope.names.get(name, value)
                if is_symbolic and after is not value and not after.is_container:
                    after = _carried(after)
                scope.names[name] = joined(value, after)
            if is_symbolic:
                self._carry_counters(one, scope)
        self.run_body(one.orelse, scope)
        return True

    _on_asyncfor = _on_for
    _on_while = _on_for

    def _carry_counters(self, one: ast.AST, scope: Scope) -> None:
        """What a loop of XLA's counts is no Python number any more."""
        for part in ast.walk(one):
            if isinstance(part, ast.AugAssign) and isinstance(part.target, ast.Name):
                known = scope.names.get(part.target.id)
                if known is not None and not known.is_container:
                    scope.names[part.target.id] = _carried(known)


def _is_layer(one: Traced) -> bool:
    return getattr(one.node, "name", "") in ("call", "__call__")


def _carried(value: Value) -> Value:
    return TENSOR if value.kind in (Kind.STATIC, Kind.KNOWN) else value


def _parameters(node: Function) -> list[ast.arg]:
    one = node.args
    return [*one.posonlyargs, *one.args, *one.kwonlyargs]


def _default(node: Function, name: str) -> ast.expr | None:
    plain = [*node.args.posonlyargs, *node.args.args]
    for parameter, default in zip(reversed(plain), reversed(node.args.defaults), strict=False):
        if parameter.arg == name:
            return default
    for parameter, given in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
        if parameter.arg == name:
            return given
    return None
