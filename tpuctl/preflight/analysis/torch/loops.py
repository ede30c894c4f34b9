"""Training loops of scripts for PyTorch on a TPU, and what certainly runs in each step."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from tpuctl.preflight.analysis.program.callers import calls_of, mentions_of
from tpuctl.preflight.analysis.program.control_flow import Loop, is_in_branch, loop_around
from tpuctl.preflight.analysis.program.functions import function_of, library_bases
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import Function, identifiers_in, words_of
from tpuctl.preflight.analysis.torch.processes import is_first
from tpuctl.preflight.analysis.values.host_code import HostCode

MAX_CALLERS = 4  # functions between a statement and the script's top level
STEP_METHODS = {"training_step", "compute_loss"}  # of Lightning's modules and of trainers
OPTIMIZER = re.compile(r"opt$|optim")  # words of an optimizer's name
MODULES = ("torch.nn.Module", "LightningModule", "PreTrainedModel")
OWNERS = (*MODULES, "Trainer")


@dataclass(frozen=True)
class TrainingLoop:
    """A loop that computes gradients in each iteration."""

    module: Module
    loop: Loop
    loss: str  # the name of the loss; "" if it has none

    @property
    def nodes(self) -> Iterator[ast.AST]:
        """The nodes that run in each iteration, of this loop alone."""
        return nodes_in(self.module, self.loop)

    @property
    def calls(self) -> Iterator[ast.Call]:
        """The calls in each iteration, of this loop alone."""
        return (node for node in self.nodes if isinstance(node, ast.Call))


def nodes_in(
    module: Module, scope: Loop | Function, host: HostCode | None = None
) -> Iterator[ast.AST]:
    """The nodes that run in each iteration of a loop, or in each call of a function.

    With `host`, it is enough that they run in the first process.
    """
    loop = None if isinstance(scope, ast.FunctionDef) else scope
    for node in ast.walk(scope):
        is_own = loop is not None or module.enclosing_function(node) is scope
        is_own = is_own and loop_around(module, node) is loop
        if is_own and _always_runs(module, node, scope, host):
            yield node


def _always_runs(module: Module, node: ast.AST, scope: ast.AST, host: HostCode | None) -> bool:
    if not is_in_branch(module, node, scope):
        return True
    if host is None:
        return False
    below = node
    for ancestor in module.ancestors(node):
        if ancestor is scope:
            break
        if isinstance(ancestor, ast.If):
            is_one = below in ancestor.body and is_first(host, module, ancestor.test, always=True)
            is_one = is_one and not is_in_branch(module, node, ancestor)
            return is_one and _always_runs(module, ancestor, scope, host)
        below = ancestor
    return False


def training_loops(project: Project) -> list[TrainingLoop]:
    """The training loops of a project, cached."""
    if TrainingLoop not in project.cache:
        project.cache[TrainingLoop] = list(_loops(project))
    loops: list[TrainingLoop] = project.cache[TrainingLoop]
    return loops


def _loops(project: Project) -> Iterator[TrainingLoop]:
    seen: set[Loop] = set()
    for module in project:
        for call in module.calls:
            if not isinstance(call.func, ast.Attribute) or call.func.attr != "backward":
                continue
            for where, node in (module, call), *_callers(project, module, call):
                loop = loop_around(where, node)
                if loop is not None and loop not in seen and not is_in_branch(where, node, loop):
                    seen.add(loop)
                    yield TrainingLoop(where, loop, _loss(call) if node is call else "")


def _callers(project: Project, module: Module, call: ast.Call) -> list[tuple[Module, ast.Call]]:
    """The calls of a function that computes gradients whenever it is called."""
    function = module.enclosing_function(call)
    if not isinstance(function, ast.FunctionDef) or loop_around(module, call) is not None:
        return []
    if is_in_branch(module, call, function):
        return []
    return calls_of(project, module, function)[0]


def _loss(call: ast.Call) -> str:
    """The name of the loss of `loss.backward()` or `accelerator.backward(loss)`."""
    node = call.args[0] if call.args else getattr(call.func, "value", None)
    if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "scale" and node.args:
        node = node.args[0]  # scaler.scale(loss)
    return getattr(node, "id", "")


def is_optimizer(node: ast.expr) -> bool:
    """Whether an expression, or a method of it, seems to be an optimizer, by its name."""
    return any(map(OPTIMIZER.match, words_of(identifiers_in(node))))


def step_scopes(project: Project) -> list[tuple[Module, Loop | Function]]:
    """Training loops and the functions that run in each of their steps, cached.

    The functions are those that a step certainly calls, `forward` of modules, and the steps of
    Lightning and Transformers.
    """
    key = "step scopes"
    if key not in project.cache:
        scopes: dict[ast.AST, tuple[Module, Loop | Function]] = {
            loop.loop: (loop.module, loop.loop) for loop in training_loops(project)
        }
        for module in project:
            for function in module.of_types(ast.FunctionDef):
                is_step = function.name in STEP_METHODS and _is_method(
                    project, module, function, OWNERS
                )
                if is_step:
                    scopes[function] = (module, function)
        if scopes:
            scopes |= {
                function: (module, function)
                for module in project
                for function in module.of_types(ast.FunctionDef)
                if function.name == "forward" and _is_method(project, module, function, MODULES)
            }
        pending = list(scopes.values())
        for where, scope in pending:  # grows during iteration
            for node in nodes_in(where, scope):
                called = (
                    function_of(project, where, node.func) if isinstance(node, ast.Call) else None
                )
                if called is None or called[1] in scopes:
                    continue
                if isinstance(called[1], ast.FunctionDef):
                    scopes[called[1]] = called
                    pending.append(called)
        project.cache[key] = list(scopes.values())
    listed: list[tuple[Module, Loop | Function]] = project.cache[key]
    return listed


def _is_method(
    project: Project, module: Module, function: ast.FunctionDef, bases: tuple[str, ...]
) -> bool:
    owner = module.parents.get(function)
    return isinstance(owner, ast.ClassDef) and any(
        name.endswith(bases) for name in library_bases(project, module, owner)
    )


def is_unconditional(
    project: Project, module: Module, node: ast.AST, depth: int = MAX_CALLERS
) -> bool:
    """Whether the script runs a node whatever its options and its machine are."""
    if is_in_branch(module, node, None):
        return False
    function: Function | None = module.enclosing_function(node)
    if function is None:
        return True
    name = getattr(function, "name", "")
    if not depth or not name:
        return False
    return any(
        is_unconditional(project, where, mention, depth - 1)
        for where, mention in mentions_of(project, name)
        if where.enclosing_function(mention) is not function
    )
