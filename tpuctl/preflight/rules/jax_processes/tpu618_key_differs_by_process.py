"""TPU618 key-differs-by-process."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.jax.processes import DISTRIBUTES, SEEDS, resolved
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import dotted
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

RULE = Rule(
    code="TPU618",
    name="key-differs-by-process",
    severity=Severity.risk,
    summary="Random key comes from a clock or the system, so each process has another",
    rationale=(
        "Every worker of a slice runs the script. Processes that make their key of the time or "
        "of the system's random numbers initialize different parameters, and go on as if they "
        "were the same. Python's `hash` of a text differs by process, too. After a restart, the "
        "job has other numbers."
    ),
    bad="""\
import time

import jax

jax.distributed.initialize()
weights = jax.random.normal(jax.random.key(int(time.time())), (8,))
""",
    good="""\
import jax

jax.distributed.initialize()
weights = jax.random.normal(jax.random.key(42), (8,))
""",
    target=Target(workers=2),
)

MAKERS = ("jax.random.key", "jax.random.PRNGKey", "jax.random.fold_in", "flax.nnx.Rngs")
SOURCES = ("time.", "os.urandom", "os.getpid", "secrets.", "uuid.", "datetime.")
TEXTS = ("name", "path", "text", "filename", "__name__")  # whatever has these names is a text
DRAWN = ("random.", "numpy.random.")  # unless seeded


def find(project: Project, target: Target) -> Iterator[Finding]:
    is_alone = target.workers is None and not project.uses_name(DISTRIBUTES)
    if target.workers == 1 or is_alone:
        return
    sources = SOURCES if project.uses_name(SEEDS) else SOURCES + DRAWN
    for module in project:
        for call in module.calls:
            name = module.names.of(call.func)
            if name not in MAKERS:
                continue
            # Not the key that `fold_in` receives: its own call is reported.
            for value in (
                *call.args[name.endswith("fold_in") :],
                *(keyword.value for keyword in call.keywords),
            ):
                source = _source(project, module, value, sources)
                if source:
                    message = f"{quoted(module, call)} differs by process: {source}() does"
                    hint = "Pass the same number on all workers, from an option or a constant."
                    yield finding_at(RULE, module, call, message, hint)


def _source(project: Project, module: Module, node: ast.expr, sources: tuple[str, ...]) -> str:
    """The function that a number certainly comes from, if it differs by process."""
    module, node = resolved(project, module, node)
    for part in ast.walk(node):
        if _hashes_text(project, module, part):
            return "hash"
        name = module.names.called(part) or ""
        if name.startswith(sources) and not name.endswith("default_rng"):
            return name
        if isinstance(part, ast.Name) and part is not node and isinstance(part.ctx, ast.Load):
            where, value = resolved(project, module, part)
            if value is not part and (inner := _source(project, where, value, sources)):
                return inner
    return ""


def _hashes_text(project: Project, module: Module, node: ast.AST) -> bool:
    """Whether an expression is the built-in hash of a text, without a seed for all processes."""
    if not isinstance(node, ast.Call) or len(node.args) != 1 or "PYTHONHASHSEED" in project.texts:
        return False
    if getattr(node.func, "id", "") != "hash" or "PYTHONHASHSEED" in project.environment:
        return False
    value = node.args[0]
    text = value.value if isinstance(value, ast.Constant) else None
    name = dotted(value) or ""
    is_text = isinstance(value, ast.JoinedStr) or isinstance(text, str)
    return is_text or name.rpartition(".")[2] in TEXTS
