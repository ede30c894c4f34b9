"""Conditionals and loops that autograph converts, and XLA's form of which has no such freedom."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.syntax import own_nodes
from tpuctl.preflight.analysis.traced import Traced
from tpuctl.preflight.findings import Finding, Severity
from tpuctl.preflight.rules.places import at, shown

__all__ = ["growing", "uneven"]

JOINS = {"concat", "concatenate", "append", "vstack", "hstack"}


def uneven(one: Traced, node: ast.If) -> Iterator[Finding]:
    """A conditional whose branches do not both give what is used afterwards."""
    if isinstance(one.node, ast.Lambda):
        return
    is_last = one.node.body[-1] is node
    if is_last and _returns(node.body) != _returns(node.orelse):
        message = f"only one branch of `if` on the tensor {shown(one.module, node.test)} returns"
        hint = "Return from both: a program of XLA's has one kind of result."
        yield at(one, node, "TPU001", Severity.error, message, hint)
        return
    if _leaves(node.body) or _leaves(node.orelse):
        return
    branches = [_stored(node.body), _stored(node.orelse)]
    only = branches[0] ^ branches[1]
    for name in sorted(only):
        if _is_set_before(one, node, name) or not _is_read_after(one, node, name):
            continue
        message = (
            f"`{name}` is set in one branch only of `if` on the tensor "
            f"{shown(one.module, node.test)}, and used after it"
        )
        hint = f"Set `{name}` before the conditional, or in both branches."
        yield at(one, node, "TPU001", Severity.error, message, hint)


def _returns(body: list[ast.stmt]) -> bool:
    """Whether a branch ends with a result that is not None."""
    if not body:
        return False
    last = body[-1]
    if isinstance(last, ast.If):
        return _returns(last.body) and _returns(last.orelse)
    is_none = isinstance(last, ast.Return) and (
        last.value is None or (isinstance(last.value, ast.Constant) and last.value.value is None)
    )
    return isinstance(last, (ast.Return, ast.Raise)) and not is_none


def _leaves(body: list[ast.stmt]) -> bool:
    kinds = (ast.Return, ast.Raise, ast.Break, ast.Continue)
    return any(isinstance(part, kinds) for one in body for part in ast.walk(one))


def _stored(body: list[ast.stmt]) -> set[str]:
    """The names that statements surely set, whatever else they do."""
    found: set[str] = set()
    for one in body:
        if isinstance(one, (ast.Assign, ast.AnnAssign)):
            found |= {
                part.id
                for part in ast.walk(one)
                if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
            }
    return found


def _is_set_before(one: Traced, node: ast.If, name: str) -> bool:
    arguments = one.node.args
    parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    if name in {part.arg for part in parameters}:
        return True
    others = (
        part
        for part in own_nodes(one.node)
        if isinstance(part, ast.Name)
        and part.id == name
        and isinstance(part.ctx, (ast.Store, ast.Del))
    )
    end = node.end_lineno or node.lineno
    return any(not node.lineno <= part.lineno <= end for part in others)


def _is_read_after(one: Traced, node: ast.If, name: str) -> bool:
    end = node.end_lineno or node.lineno
    return any(
        isinstance(part, ast.Name)
        and part.id == name
        and isinstance(part.ctx, ast.Load)
        and part.lineno > end
        for part in own_nodes(one.node)
    )


def growing(one: Traced, node: ast.For | ast.While) -> Iterator[Finding]:
    """What a loop makes longer from round to round."""
    for part in ast.walk(node):
        if isinstance(part, ast.keyword) and part.arg == "shape_invariants":
            return
    for part in ast.walk(node):
        if not isinstance(part, ast.Assign) or not isinstance(part.value, ast.Call):
            continue
        target, call = part.targets[0], part.value
        last = getattr(call.func, "attr", "")
        if not isinstance(target, ast.Name) or last not in JOINS or not call.args:
            continue
        joined = call.args[0].elts if isinstance(call.args[0], (ast.List, ast.Tuple)) else []
        if any(isinstance(item, ast.Name) and item.id == target.id for item in joined):
            message = f"`{target.id}` grows in a loop over tensors, and its shape has to stay"
            hint = "Write the rounds' results into a tf.TensorArray, and stack it after the loop."
            yield at(one, part, "TPU002", Severity.error, message, hint)
