"""Abstract interpretation of every traced function, recording the value of each expression."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial

from tpuctl.preflight.analysis.program.callers import calls_of
from tpuctl.preflight.analysis.program.functions import class_of
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import (
    FUNCTIONS,
    Function,
    default_of,
    identifiers_in,
    own_nodes,
)
from tpuctl.preflight.analysis.tracing.traced import Traced, find_traced, root_of
from tpuctl.preflight.analysis.values.abstract_values import (
    OBJECT,
    STATIC,
    TENSOR,
    UNKNOWN,
    Closure,
    Kind,
    Owner,
    Scope,
    Value,
    constant,
    container,
    join,
)
from tpuctl.preflight.analysis.values.evaluator import Evaluator, loop_carried
from tpuctl.preflight.analysis.values.host_code import HostCode
from tpuctl.preflight.analysis.values.library import array_function, is_boolean_name
from tpuctl.preflight.findings import Target

MAX_CONTEXTS = 6  # combinations of arguments for which a function is analyzed
MAX_DEPTH = 25
PLAIN_TYPES = {"int", "bool", "str", "float", "Callable", "Optional[int]", "list[int]"}
CONTAINERS = {"list", "tuple", "dict", "Mapping", "Sequence"}
NUMBERS = {"int", "float", "bool", "str"}
PLAIN_NAMES = {"training", "is_training", "mode", "name", "axis", "config", "deterministic"}
OBJECTS = {"model", "optimizer", "network", "strategy", "tape", "net", "generator", "discriminator",
           "loss_fn", "loss_object", "criterion", "metrics", "metric", "student", "teacher",
           "encoder", "decoder", "args", "params", "hparams", "flags"}  # fmt: skip

# Optional parameters that are tensors if passed.
OPTIONAL = re.compile(r"mask|weight|label|target|ids|inputs?$|lengths|^x$|^y$")


def infer(project: Project, target: Target) -> Inference:
    """The inference of a project's traced functions, cached per target."""
    key = ("inference", target)
    if key not in project.cache:
        project.cache[key] = Inference(project, find_traced(project, target))
    inference: Inference = project.cache[key]
    return inference


class Inference(Evaluator):
    """The traced functions of a project and the values of their expressions.

    The recorded value of an expression covers all contexts in which it was evaluated. Code whose
    execution Python decides, by a conditional whose outcome is not known, is interpreted in doubt;
    `runs` tells which code is not.
    """

    carries_loops = True  # whether variables of loops over tensors become tensors

    def __init__(self, project: Project, traced: Mapping[ast.AST, Traced]) -> None:
        super().__init__(project)
        self.host = HostCode.of(project)
        self.values: dict[ast.AST, Value] = {}
        self.traced = dict(traced)
        self.results: dict[tuple[ast.AST, tuple[Value, ...]], Value] = {}
        self.contexts: dict[ast.AST, int] = {}
        self.active: list[ast.AST] = []
        self.current: list[Traced] = []
        self.returned: list[list[Value]] = []
        self.certain: set[ast.AST] = set()  # functions whose arguments are all known
        self.doubts = 0  # conditionals around what is interpreted
        self.evaluated: set[ast.AST] = set()  # expressions and statements without doubt
        self.statements: set[ast.AST] = set()  # that were interpreted
        self.called: set[ast.AST] = set()  # functions that others call without doubt
        self._conditions: dict[Function, frozenset[str]] = {}
        roots = [traced for traced in self.traced.values() if traced.is_root]
        # Reached functions first, then steps before layers and outer layers before inner ones:
        # callers provide the most precise arguments.
        layers = sorted(filter(_is_layer, roots), key=lambda traced: traced.node.lineno)
        ordered = [traced for traced in roots if not _is_layer(traced)] + layers[::-1]
        for function in sorted(ordered, key=lambda function: not function.is_reached):
            if function.node not in self.certain:
                is_doubtful = function.node in self.contexts and function.node not in self.called
                with self.doubting(is_doubtful):
                    self._root(function)
        for function in sorted(self.traced.values(), key=lambda function: not function.is_reached):
            if function.node not in self.contexts:
                self._root(function)

    def functions(self) -> Iterator[Traced]:
        """All compiled functions, including nested functions that are called."""
        for node, traced in self.traced.items():
            if node in self.contexts:
                yield replace(traced, runs=partial(self.runs, traced.module))

    @cached_property
    def sites(self) -> list[tuple[Traced, ast.AST]]:
        """All nodes of compiled functions, each with its function."""
        return [
            (traced, node)
            for traced in self.functions()
            for node in traced.module.own_nodes(traced.node)
        ]

    @cached_property
    def array_calls(self) -> list[tuple[Traced, ast.Call, str]]:
        """Calls of TensorFlow and Keras operations in compiled code, with the operation's name,
        such as "boolean_mask"."""
        calls = []
        for traced, node in self.sites:
            if isinstance(node, ast.Call):
                function = array_function(traced.module.names.of(node.func))
                if function is not None:
                    calls.append((traced, node, function))
        return calls

    def mask_of(self, node: ast.Subscript) -> ast.expr | None:
        """The boolean tensor in the index of a tensor, if there is one."""
        owner = self.of(node.value)
        if owner.kind < Kind.UNKNOWN or owner.is_container:
            return None
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        for part in parts:
            value = self.of(part)
            if isinstance(part, ast.Slice) or value.kind is not Kind.TENSOR or not value.is_boolean:
                continue
            if not value.is_structure or (isinstance(part, ast.Name) and is_boolean_name(part.id)):
                return part
        return None

    def of(self, node: ast.AST | None) -> Value:
        """The value of an expression in a traced function; UNKNOWN if not evaluated."""
        return UNKNOWN if node is None else self.values.get(node, UNKNOWN)

    def runs(self, module: Module, node: ast.AST) -> bool:
        """Whether a node is evaluated whenever a step that reaches its function is traced."""
        for part in (node, *module.ancestors(node)):
            if part in self.values or part in self.statements:
                return part in self.evaluated
            if isinstance(part, FUNCTIONS):
                return False  # below a statement that ends the function
        return True

    @contextmanager
    def doubting(self, is_doubtful: bool = True) -> Iterator[None]:
        """Interpret code that may not run."""
        self.doubts += is_doubtful
        try:
            yield
        finally:
            self.doubts -= is_doubtful

    def record(self, node: ast.expr, value: Value) -> Value:
        if not self.doubts:
            self.evaluated.add(node)
        previous = self.values.get(node)
        self.values[node] = value if previous is None else join(previous, value)
        return value

    def joined(self, *values: Value) -> Value:
        """The value of a name or a result that has one of several values."""
        return join(*values)

    @property
    def circumstances(self) -> tuple[Value, ...]:
        """What a function's analysis depends on, in addition to its arguments; empty without
        doubt."""
        return (STATIC,) * bool(self.doubts)

    # Names ------------------------------------------------------------------------------------

    def global_value(self, module: Module, name: str) -> Value:
        return self.host.global_value(module, name)

    def imported(self, name: str) -> Value:
        return self.host.imported(name)

    def member(self, module: Module, owner: ast.ClassDef, name: str) -> Value:
        return self.host.member(module, owner, name)

    def assign(self, target: ast.expr, value: Value, scope: Scope) -> None:
        """Bind the names of an assignment target, without constants: loops may change them."""
        super().assign(target, value.opaque, scope)

    # Functions --------------------------------------------------------------------------------

    def _root(self, traced: Traced) -> None:
        module, node = traced.module, traced.node
        owner = module.enclosing_class(node)
        is_method = isinstance(module.parents.get(node), ast.ClassDef)
        scope = self.host.outer_scope(module, node)
        parameters = _parameters(node)
        arguments: dict[str, Value] = {}
        for index, parameter in enumerate(parameters):
            if index == 0 and is_method and parameter.arg in ("self", "cls"):
                arguments[parameter.arg] = OBJECT
            else:
                arguments[parameter.arg] = self.parameter_value(
                    traced, parameter, index - is_method
                )
        owners: list[Owner | None] = []
        if owner is not None:
            owners += [(module, owner), *self._subclasses_of((module, owner))]
        for class_owner in owners[:MAX_CONTEXTS] or [None]:
            self.run(Closure(module, node, scope, class_owner), traced, arguments)

    def parameter_value(self, traced: Traced, parameter: ast.arg, index: int) -> Value:
        """The value of a root function's parameter."""
        default = default_of(traced.node, parameter.arg)
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
        if not traced.is_root:
            return UNKNOWN
        value = self._passed_by_callers(traced, name, index)
        if value is not None:
            return value
        is_single = annotation in ("tf.Tensor", "tensorflow.Tensor") or name in ("y_true", "y_pred")
        return replace(TENSOR, is_structure=not is_single, is_boolean=is_boolean_name(name))

    def _subclasses_of(self, owner: Owner) -> list[Owner]:
        """The project's direct and indirect subclasses of a class."""
        subclasses: list[Owner] = []
        pending = list(self._subclasses.get(owner[1], ()))
        while pending:
            subclass = pending.pop()
            if subclass not in subclasses and subclass != owner:
                subclasses.append(subclass)
                pending += self._subclasses.get(subclass[1], ())
        return subclasses

    @cached_property
    def _subclasses(self) -> dict[ast.AST, list[Owner]]:
        subclasses: dict[ast.AST, list[Owner]] = defaultdict(list)
        for module in self.project:
            for owner in module.classes.values():
                for base in owner.bases:
                    definition = class_of(self.project, module, base)
                    if definition is not None and definition[1] is not owner:
                        subclasses[definition[1]].append((module, owner))
        return subclasses

    def _passed_by_callers(self, traced: Traced, name: str, index: int) -> Value | None:
        """The value that host code passes for a parameter; None unless all calls are clear."""
        values: list[Value] = []
        for module, call in calls_of(self.project, traced.module, traced.node)[0]:
            passed = next((key.value for key in call.keywords if key.arg == name), None)
            if passed is None and len(call.args) > index >= 0:
                passed = call.args[index]
            if passed is None or isinstance(passed, ast.Starred):
                return None
            values.append(self.host.evaluate(module, passed))
        for module, call in traced.calls:
            argument_tuple = next((key.value for key in call.keywords if key.arg == "args"), None)
            argument_tuple = argument_tuple or (call.args[1] if len(call.args) > 1 else None)
            if not isinstance(argument_tuple, ast.Tuple) or len(argument_tuple.elts) <= index:
                return None
            values.append(self.host.evaluate(module, argument_tuple.elts[index]))
        if not values or any(value.kind is Kind.UNKNOWN for value in values):
            return None
        merged = join(*values)
        if not merged.is_symbolic:
            return merged
        return replace(
            merged, kind=Kind.TENSOR, is_boolean=merged.is_boolean or is_boolean_name(name)
        )

    def call(self, closure: Closure, arguments: list[Value], keywords: dict[str, Value]) -> Value:
        """The result of calling a project's function with these arguments."""
        node = closure.node
        if node in self.active or len(self.active) > MAX_DEPTH:
            return UNKNOWN
        caller = self.current[-1]
        traced = self.traced.get(node)
        if traced is None:
            traced = replace(caller, module=closure.module, node=node, is_root=False, calls=())
            program = root_of(closure.module, node)
            if program is not None:
                traced = replace(program, is_root=False, is_reached=caller.is_reached)
        self.traced[node] = traced = replace(
            traced, is_reached=traced.is_reached or caller.is_reached
        )
        arguments = [*closure.bound, *arguments]
        bound: dict[str, Value] = {}
        for index, parameter in enumerate(_parameters(node)):
            name = parameter.arg
            if name in keywords:
                bound[name] = self._passed(node, name, keywords[name])
            elif index < len(arguments):
                bound[name] = self._passed(node, name, arguments[index])
            else:
                bound[name] = self._default(node, name)
        if not self.doubts:
            self.called.add(node)
        key = (node, (*bound.values(), *self.circumstances))
        for context in ((node, (*bound.values(),)), key):
            if context in self.results:
                return self.results[context]
        if self.contexts.get(node, 0) >= MAX_CONTEXTS:
            values = (value for (other, _), value in self.results.items() if other is node)
            return self.joined(*values)
        if all(value.kind is not Kind.UNKNOWN for value in bound.values()):
            self.certain.add(node)
        result = self.run(closure, traced, bound)
        self.results[key] = result
        return result

    def _passed(self, function: Function, name: str, value: Value) -> Value:
        """The value of a parameter, with its constant if it may decide a conditional."""
        values = [part.value for part in value.constants]
        is_flag = all(isinstance(part, bool) for part in values)
        return value if is_flag or name in self._deciding(function) else value.opaque

    def _default(self, function: Function, name: str) -> Value:
        default = default_of(function, name)
        if default is None:
            return UNKNOWN
        is_from_keras = name == "training" and _is_call(function)  # it passes on whether it trains
        value = default.value if isinstance(default, ast.Constant) else ...
        if is_from_keras or not isinstance(value, (str, int, float, type(None))):
            return STATIC
        return self._passed(function, name, constant(value))

    def _deciding(self, function: Function) -> frozenset[str]:
        """The names in the conditions of a function."""
        if function not in self._conditions:
            self._conditions[function] = frozenset(
                name
                for node in own_nodes(function)
                if isinstance(node, (ast.If, ast.IfExp))
                for name in identifiers_in(node.test)
            )
        return self._conditions[function]

    def run(self, closure: Closure, traced: Traced, bound: dict[str, Value]) -> Value:
        """Interpret a function with these arguments, and return its result."""
        node = closure.node
        self.contexts[node] = self.contexts.get(node, 0) + 1
        scope = Scope(closure.module, node, dict(bound), closure.scope, closure.owner)
        arguments = node.args
        if arguments.vararg is not None:
            extra = TENSOR if traced.is_root else UNKNOWN
            scope.names[arguments.vararg.arg] = container([replace(extra, is_structure=True)])
        if arguments.kwarg is not None:
            scope.names[arguments.kwarg.arg] = container([UNKNOWN])
        doubts = self.doubts
        self.active.append(node)
        self.current.append(traced)
        self.is_converted = traced.autograph
        self.returned.append([])
        try:
            if isinstance(node, ast.Lambda):
                return self.value(node.body, scope)
            self.run_body(node.body, scope)
            results = self.returned[-1]
            return self.joined(*results) if results else STATIC
        finally:
            self.doubts = doubts
            self.active.pop()
            self.current.pop()
            self.returned.pop()
            self.is_converted = not self.current or self.current[-1].autograph

    # Statements -------------------------------------------------------------------------------

    def run_body(self, body: list[ast.stmt], scope: Scope) -> bool:
        """Interpret statements; return whether the code after them is reachable."""
        return all(self._statement(statement, scope) for statement in body)

    def _statement(self, statement: ast.stmt, scope: Scope) -> bool:
        self.statements.add(statement)
        if not self.doubts:
            self.evaluated.add(statement)
        method = getattr(self, f"_on_{type(statement).__name__.lower()}", None)
        if method is None:
            self.parts(statement, scope)
            return True
        is_reached: bool = method(statement, scope)
        return is_reached

    def _on_assign(self, statement: ast.Assign, scope: Scope) -> bool:
        value = self.value(statement.value, scope)
        for target in statement.targets:
            self.assign(target, value, scope)
        return True

    def _on_annassign(self, statement: ast.AnnAssign, scope: Scope) -> bool:
        if statement.value is not None:
            self.assign(statement.target, self.value(statement.value, scope), scope)
        return True

    def _on_augassign(self, statement: ast.AugAssign, scope: Scope) -> bool:
        value = self.combined(
            self.value(statement.target, scope), self.value(statement.value, scope)
        )
        self.assign(statement.target, value, scope)
        return True

    def _on_return(self, statement: ast.Return, scope: Scope) -> bool:
        if statement.value is not None:
            self.returned[-1].append(self.value(statement.value, scope))
        return False

    def _on_raise(self, statement: ast.Raise, scope: Scope) -> bool:
        self.parts(statement, scope)
        return False

    def _on_continue(self, _: ast.stmt, __: Scope) -> bool:
        return False

    _on_break = _on_continue

    def _on_with(self, statement: ast.With | ast.AsyncWith, scope: Scope) -> bool:
        for item in statement.items:
            value = self.value(item.context_expr, scope)
            if item.optional_vars is not None:
                self.assign(item.optional_vars, value, scope)
        return self.run_body(statement.body, scope)

    _on_asyncwith = _on_with

    def _on_functiondef(
        self, statement: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope
    ) -> bool:
        closure = Closure(scope.module, statement, scope, scope.owner)
        scope.names[statement.name] = Value(Kind.OBJECT, closure=closure)
        return True

    _on_asyncfunctiondef = _on_functiondef

    def _on_try(self, statement: ast.Try | ast.TryStar, scope: Scope) -> bool:
        with self.doubting(bool(statement.handlers)):
            self.run_body(statement.body, scope)
            for handler in statement.handlers:
                self.run_body(handler.body, scope)
            self.run_body(statement.orelse, scope)
        self.run_body(statement.finalbody, scope)
        return True

    _on_trystar = _on_try

    def _on_match(self, statement: ast.Match, scope: Scope) -> bool:
        self.value(statement.subject, scope)
        with self.doubting():
            for case in statement.cases:
                self.run_body(case.body, scope)
        return True

    def _on_if(self, statement: ast.If, scope: Scope) -> bool:
        self.value(statement.test, scope)
        return self.branches(statement, scope)

    def branches(self, statement: ast.If, scope: Scope) -> bool:
        """Interpret both branches of a conditional; of a decided one, only one goes on."""
        decision = self.decision(statement.test, scope)
        # A tensor decides in the compiled program, which has both branches.
        is_open = decision is None and not self.of(statement.test).is_symbolic
        before = dict(scope.names)
        self._narrow(statement.test, scope)
        is_reached = self._branch(statement.body, scope, is_open, decision is False)
        after = scope.names
        scope.names = dict(before)
        is_other_reached = self._branch(statement.orelse, scope, is_open, decision is True)
        if decision is not None:
            scope.names = after if decision else scope.names
            return is_reached if decision else is_other_reached
        if is_open and (leaves(statement.body) or leaves(statement.orelse)):
            self.doubts += 1  # until the function ends
        if is_reached and is_other_reached:
            for name, value in after.items():
                previous = scope.names.get(name)
                scope.names[name] = value if previous is None else self.joined(previous, value)
        elif is_reached:
            scope.names = after
        return is_reached or is_other_reached

    def _branch(self, body: list[ast.stmt], scope: Scope, is_open: bool, is_dead: bool) -> bool:
        returned = len(self.returned[-1])
        with self.doubting(is_open or is_dead):
            is_reached = self.run_body(body, scope)
        if is_dead:
            del self.returned[-1][returned:]
        return is_reached

    def decision(self, test: ast.expr, scope: Scope) -> bool | None:
        """How Python decides a condition during tracing; None if that is not known."""
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                inner = self.decision(operand, scope)
                return None if inner is None else not inner
            case ast.BoolOp(op=operation, values=parts):
                decisions = [self.decision(part, scope) for part in parts]
                is_and = isinstance(operation, ast.And)
                if (not is_and) in decisions:
                    return not is_and
                return None if None in decisions else is_and
            case ast.Compare(left=left, ops=[operation], comparators=[right]):
                pair = self.value(left, scope), self.value(right, scope)
                return _compared(operation, *pair)
            case ast.Call(func=func, args=[tested, *_]):
                name = scope.module.names.of(func) or getattr(func, "id", "")
                tests_tensor = name == "tensorflow.is_tensor" or (
                    name == "isinstance"
                    and scope.module.names.of(test.args[-1]) == "tensorflow.Tensor"
                )
                value = self.value(tested, scope)
                is_dense = value.is_tensor and value.kind in (Kind.KNOWN, Kind.TENSOR)
                return True if tests_tensor and is_dense else None
        constants = self.value(test, scope).constants
        outcomes = {bool(part.value) for part in constants}
        is_known = all(part.is_certain and part.is_complete for part in constants)
        return outcomes.pop() if is_known and len(outcomes) == 1 else None

    def _of_ifexp(self, node: ast.IfExp, scope: Scope) -> Value:
        is_symbolic = self.value(node.test, scope).is_symbolic
        decision = self.decision(node.test, scope)
        is_open = decision is None and not is_symbolic
        with self.doubting(is_open or decision is False):
            body = self.value(node.body, scope)
        with self.doubting(is_open or decision is True):
            other = self.value(node.orelse, scope)
        if decision is None:
            return self.joined(body, other)
        return body if decision else other

    def _of_boolop(self, node: ast.BoolOp, scope: Scope) -> Value:
        first = node.values[0]
        is_symbolic = self.value(first, scope).is_symbolic
        goes_on = self.decision(first, scope) is isinstance(node.op, ast.And)
        with self.doubting(not is_symbolic and not goes_on):
            return super()._of_boolop(node, scope)

    def _narrow(self, test: ast.expr, scope: Scope) -> None:
        """Narrow the value of a name after an `isinstance` test."""
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            for part in test.values:
                self._narrow(part, scope)
        if not isinstance(test, ast.Call) or not isinstance(test.func, ast.Name):
            return
        if test.func.id != "isinstance" or len(test.args) != 2:
            return
        name, kinds = test.args
        type_nodes = kinds.elts if isinstance(kinds, ast.Tuple) else [kinds]
        if isinstance(name, ast.Name) and name.id in scope.names:
            value = scope.names[name.id]
            words = {
                getattr(type_name, "id", getattr(type_name, "attr", "")) for type_name in type_nodes
            }
            if words & CONTAINERS and not value.is_container:
                scope.names[name.id] = container([value])
            elif words <= NUMBERS:
                scope.names[name.id] = STATIC

    def _on_for(self, loop: ast.For | ast.AsyncFor | ast.While, scope: Scope) -> bool:
        before = dict(scope.names)
        for _ in range(2):  # the second iteration sees the changes of the first
            is_open = False
            if isinstance(loop, ast.While):
                value = self.value(loop.test, scope)
                is_symbolic = value.is_tensor
                is_open = not value.is_symbolic and not self.decision(loop.test, scope)
            else:
                iterable = self.value(loop.iter, scope)
                is_symbolic = iterable.is_tensor
                self.assign(loop.target, iterable.inner, scope)
            with self.doubting(is_open):
                self.run_body(loop.body, scope)
            for name, value in before.items():
                after = scope.names.get(name, value)
                is_carried = is_symbolic and self.carries_loops
                if is_carried and after is not value and not after.is_container:
                    after = loop_carried(after)
                scope.names[name] = self.joined(value, after)
            if is_symbolic and self.carries_loops:
                self._carry_counters(loop, scope)
        self.run_body(loop.orelse, scope)
        return True

    _on_asyncfor = _on_for
    _on_while = _on_for

    def _carry_counters(self, loop: ast.AST, scope: Scope) -> None:
        """Counters of a loop in the XLA program are tensors, not Python numbers."""
        for part in ast.walk(loop):
            if isinstance(part, ast.AugAssign) and isinstance(part.target, ast.Name):
                value = scope.names.get(part.target.id)
                if value is not None and not value.is_container:
                    scope.names[part.target.id] = loop_carried(value)


def leaves(body: list[ast.stmt]) -> bool:
    """Whether a branch may end the function or the iteration, other than by an exception."""
    kinds = (ast.Return, ast.Continue, ast.Break)
    return any(isinstance(part, kinds) for statement in body for part in ast.walk(statement))


def _compared(operation: ast.cmpop, left: Value, right: Value) -> bool | None:
    """The result of a comparison of values that are known; None for others."""
    is_none = [part.value is None for part in right.constants] == [True]
    is_negated = isinstance(operation, (ast.IsNot, ast.NotEq))
    if is_none and (left.is_container or (left.is_tensor and not left.constants)):
        return is_negated
    sides = (left.constants, right.constants)
    is_known = all(len(side) == 1 and side[0].is_certain and side[0].is_complete for side in sides)
    if not is_known or not isinstance(operation, (ast.Is, ast.IsNot, ast.Eq, ast.NotEq)):
        return None
    return (left.constants[0].value == right.constants[0].value) is not is_negated


def _is_layer(traced: Traced) -> bool:
    return _is_call(traced.node)


def _is_call(function: Function) -> bool:
    return getattr(function, "name", "") in ("call", "__call__")


def _parameters(node: Function) -> list[ast.arg]:
    arguments = node.args
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
