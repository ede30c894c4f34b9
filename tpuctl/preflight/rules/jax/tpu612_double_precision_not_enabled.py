"""TPU612 double-precision-not-enabled."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

RULE = Rule(
    code="TPU612",
    name="double-precision-not-enabled",
    severity=Severity.risk,
    summary="JAX uses 32 bits where 64 are requested, unless they are enabled",
    rationale=(
        "Without `jax_enable_x64`, JAX truncates each request for float64 to float32, and only "
        "warns. The results have 32 bits of precision, whatever the code says. A TPU has no "
        "64-bit arithmetic: with the option, XLA emulates it."
    ),
    bad="""\
import jax.numpy as jnp

total = jnp.zeros(8, dtype=jnp.float64)
""",
    good="""\
import jax.numpy as jnp

total = jnp.zeros(8, dtype=jnp.float32)
""",
)

SWITCHES = re.compile(r"(?:jax_)?enable_x64|JAX_ENABLE_X64|jax\.experimental\.x64.*")
LIBRARIES = ("jax.numpy.", "jax.random.", "jax.nn.", "jax.lax.")
TYPES = ("jax.numpy.float64", "jax.numpy.complex128")
NUMPY_TYPES = ("numpy.float64", "numpy.double", "numpy.complex128")


def find(project: Project, target: Target) -> Iterator[Finding]:
    if project.uses_name(SWITCHES) or any(map(SWITCHES.fullmatch, project.texts)):
        return
    for module in project:
        for call in module.calls:
            if _requests_64_bits(module, call):
                message = f"{quoted(module, call)} has 32 bits, because jax_enable_x64 is not set"
                hint = "Use jnp.float32, which TPUs compute, or compute it with NumPy on the host."
                yield finding_at(RULE, module, call, message, hint)


def _requests_64_bits(module: Module, call: ast.Call) -> bool:
    name = module.names.of(call.func)
    if name in TYPES:
        return True
    dtype = next((keyword.value for keyword in call.keywords if keyword.arg == "dtype"), None)
    if name is None and isinstance(call.func, ast.Attribute) and call.func.attr == "astype":
        dtype = call.args[0] if call.args else dtype
        return dtype is not None and module.names.of(dtype) in TYPES
    if dtype is None or not (name or "").startswith(LIBRARIES):
        return False
    is_text = isinstance(dtype, ast.Constant) and dtype.value in ("float64", "complex128")
    return is_text or module.names.of(dtype) in (*TYPES, *NUMPY_TYPES)
