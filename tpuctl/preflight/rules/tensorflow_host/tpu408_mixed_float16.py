"""TPU408 mixed-float16."""

from __future__ import annotations

from collections.abc import Iterator

from tpuctl.preflight.analysis.program.qualified_names import keras_name
from tpuctl.preflight.analysis.program.source import Project
from tpuctl.preflight.analysis.source_findings import finding_at, is_conditional_on, quoted
from tpuctl.preflight.analysis.tensorflow.strategy_scopes import tpu_strategies
from tpuctl.preflight.analysis.values.host_code import HostCode
from tpuctl.preflight.findings import Finding, Rule, Severity, Target
from tpuctl.preflight.rules._common import CONNECT

RULE = Rule(
    code="TPU408",
    name="mixed-float16",
    severity=Severity.risk,
    summary="Mixed precision with float16 instead of bfloat16",
    rationale=(
        "The matrix units of a TPU multiply bfloat16, which has the range of float32 and needs no "
        "loss scaling. float16 is the type of GPUs: on a TPU it is not faster, may be refused, and "
        "overflows without scaling."
    ),
    bad=CONNECT
    + """
tf.keras.mixed_precision.set_global_policy("mixed_float16")
""",
    good=CONNECT
    + """
tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
""",
)

POLICIES = {
    "mixed_precision.set_global_policy",
    "mixed_precision.set_dtype_policy",
    "mixed_precision.Policy",
    "mixed_precision.DTypePolicy",
    "mixed_precision.experimental.set_policy",
    "mixed_precision.experimental.Policy",
    "config.set_dtype_policy",
    "DTypePolicy",
    "dtype_policies.DTypePolicy",
}
DEVICES = ("tpu", "gpu", "cuda", "accelerator", "device")


def find(project: Project, target: Target) -> Iterator[Finding]:
    if not tpu_strategies(project):
        return
    host = HostCode.of(project)
    for module in project:
        for call in module.calls:
            if keras_name(module.names.of(call.func)) not in POLICIES or not call.args:
                continue
            names = {constant.value for constant in host.constants(module, call.args[0])}
            is_chosen = is_conditional_on(module, call, DEVICES)
            if names and names <= {"mixed_float16", "float16"} and not is_chosen:
                text = f"{quoted(module, call)} asks for float16, and TPUs compute with bfloat16"
                yield finding_at(RULE, module, call, text, 'Use "mixed_bfloat16".')
