"""TPU406 name-not-in-version."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.source_findings import finding_at
from tpuctl.preflight.analysis.tensorflow.versioned_names import (
    OLD_STRATEGY,
    STRATEGIES,
    Use,
    VersionedName,
    find_uses,
    missing_message,
    table_entry,
)
from tpuctl.preflight.analysis.tracing.reachability import reachability_of
from tpuctl.preflight.analysis.tracing.traced import find_traced
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

RULE = Rule(
    code="TPU406",
    name="name-not-in-version",
    severity=Severity.error,
    summary="Name missing from the runtime's version of TensorFlow",
    rationale=(
        "The runtime determines the version of TensorFlow. Names are added and removed between "
        "versions, and a script that uses a missing one fails with an AttributeError or "
        "ImportError. A file written for TensorFlow 1 is reported once. Uses guarded by `hasattr`, "
        "a version comparison or `except AttributeError` are ignored."
    ),
    bad="""\
import tensorflow as tf

optimizer = tf.keras.optimizers.experimental.AdamW()
""",
    good="""\
import tensorflow as tf

optimizer = tf.keras.optimizers.AdamW()
""",
    target=Target(tensorflow="2.18.0"),
)


TENSORFLOW_2 = (2, 0)
MIGRATION = (
    "Convert it, and replace by hand what was in tf.contrib:\n"
    "    tf_upgrade_v2 --intree FOLDER --outtree CONVERTED --reportfile report.txt"
)
FEW = 2  # lines that are reported one by one


def find(project: Project, target: Target) -> Iterator[Finding]:
    missing: dict[Module, list[tuple[Use, VersionedName, str]]] = defaultdict(list)
    for use in find_uses(project):
        entry = table_entry(use, target)
        if entry and entry.name not in STRATEGIES and use.name != OLD_STRATEGY:
            message = missing_message(project, use, entry, target)
            if message:
                missing[use.module].append((use, entry, message))
    for module, uses in missing.items():
        old_lines = {use.node.lineno for use, entry, _ in uses if entry.until == TENSORFLOW_2}
        if len(old_lines) > FEW:
            yield _written_for_first(project, target, module, [use for use, *_ in uses])
            continue
        for use, entry, message in uses:
            hint = f"Use {entry.replacement}." if entry.replacement else ""
            yield finding_at(RULE, module, use.node, message, hint)


def _written_for_first(
    project: Project, target: Target, module: Module, uses: list[Use]
) -> Finding:
    """One finding for a file written for TensorFlow 1, where it imports TensorFlow."""
    find_traced(project, target)  # may treat the script as a library
    reachability = reachability_of(project)
    is_reached = any(reachability.of(module, use.node) for use in uses)
    uses = sorted(uses, key=lambda use: use.node.lineno)
    names = list(dict.fromkeys(use.text for use in uses))
    others = f"{len(names) - 1} other name{'s' * (len(names) > 2)}" if len(names) > 1 else ""
    message = (
        f"written for TensorFlow 1: TensorFlow {target.tensorflow} lacks `{names[0]}`"
        f"{' and ' * bool(others)}{others}, used in lines {uses[0].node.lineno} to "
        f"{uses[-1].node.lineno}"
    )
    severity = Severity.error
    if not is_reached:
        severity = Severity.risk
        message += "; no call of a function with them was found"
    imports = module.of_types(ast.Import, ast.ImportFrom)
    where = next((node for node in imports if _is_of_tensorflow(node)), uses[0].node)
    return finding_at(RULE, module, where, message, MIGRATION, severity=severity)


def _is_of_tensorflow(node: ast.Import | ast.ImportFrom) -> bool:
    names = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
    return any(name.partition(".")[0] == "tensorflow" for name in names)
