"""An error in a branch that may not be taken is a risk."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.rule_checker import RuleChecker
from tpuctl.preflight.findings import Target

HEAD = """import argparse
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--summaries", action="store_true")
args = parser.parse_args()
OFF, ON, MODE = False, True, "train"
"""
STEP = """
@tf.function
def step(x: tf.Tensor):
{body}
    return x

step(tf.ones([8]))
"""
MODEL = """
class Net(tf.keras.Model):
    def call(self, x, training=False):
        if not training:
            tf.print(x)  # TPU004 risk
        if training:
            tf.print(x)  # TPU004 {severity}
        return x

net = Net()

@tf.function
def step(x: tf.Tensor):
    return net(x{arguments})

step(tf.ones([8]))
"""
BODIES = {
    "constant that is false": ["if OFF:", "    tf.print(x)  # TPU004 risk"],
    "constant that is true": ["if ON:", "    tf.print(x)  # TPU004 error"],
    "other branch": ["if OFF:", "    pass", "else:", "    tf.print(x)  # TPU004 error"],
    "option": ["if args.summaries:", "    tf.print(x)  # TPU004 risk"],
    "text": ["if MODE == 'train':", "    tf.print(x)  # TPU004 error"],
    "other text": ["if MODE != 'train':", "    tf.print(x)  # TPU004 risk"],
    "both": ["if ON and not OFF:", "    tf.print(x)  # TPU004 error"],
    "not both": ["if ON and OFF:", "    tf.print(x)  # TPU004 risk"],
    "expressions": [
        "tf.print(x) if OFF else None  # TPU004 risk",
        "OFF and tf.print(x)  # TPU004 risk",
        "ON or tf.print(x)  # TPU004 risk",
        "ON and tf.print(x)  # TPU004 error",
        "args.summaries and tf.print(x)  # TPU004 risk",
    ],
    "tensor": ["if tf.reduce_sum(x) > 0:", "    tf.print(x)  # TPU004 error"],
    "after a return": [
        "if args.summaries:",
        "    return x * 2",
        "tf.print(x)  # TPU004 risk",
    ],
    "after a return that is not reached": [
        "if OFF:",
        "    return x * 2",
        "tf.print(x)  # TPU004 error",
    ],
    "after a return that is always reached": [
        "if ON:",
        "    return x * 2",
        "tf.print(x)  # TPU004 risk",
    ],
    "after the check of an argument": [
        "if args.summaries:",
        "    raise ValueError",
        "tf.print(x)  # TPU004 error",
    ],
    "exception that is caught": [
        "try:",
        "    print(x.numpy())  # TPU005 risk",
        "except AttributeError:",
        "    pass",
    ],
    "exception that is not caught": [
        "try:",
        "    print(x.numpy())  # TPU005 error",
        "finally:",
        "    pass",
    ],
    "cases": ["match args.mode:", "    case 'a':", "        tf.print(x)  # TPU004 risk"],
    "loop without a known end": ["while args.summaries:", "    tf.print(x)  # TPU004 risk"],
    "loop over numbers": ["for _ in range(3):", "    tf.print(x)  # TPU004 error"],
}


def check(folder: Path, source: str, version: str = "2.18.0") -> None:
    target = Target("vm", version, 8)
    RuleChecker(folder, "TPU001", "TPU002", "TPU004", "TPU005").assert_marked(HEAD + source, target)


@pytest.mark.parametrize("lines", BODIES.values(), ids=BODIES)
def test_branch_decides_severity(lines: list[str], tmp_path: Path) -> None:
    check(tmp_path, STEP.format(body="\n".join(f"    {line}" for line in lines)))


@pytest.mark.parametrize(
    ("arguments", "severity"),
    [(", training=True", "error"), (", True", "error"), ("", "risk"), (", training=OFF", "risk")],
)
@pytest.mark.parametrize("version", ["2.15.1", "2.18.0"])
def test_model_is_called_for_training(
    arguments: str, severity: str, version: str, tmp_path: Path
) -> None:
    source = MODEL.format(arguments=arguments, severity=severity)
    if "OFF" in arguments:
        source = source.replace("risk", "error", 1)
    check(tmp_path, source, version)


@pytest.mark.parametrize(
    ("call", "severity"),
    [
        ("helper(x, log=True)", "error"),
        ("helper(x, log=False)", "risk"),
        ("helper(x)", "risk"),
        ("helper(x, mode='train')", "error"),
        ("helper(x, mode='eval')", "risk"),
        ("(helper(x), helper(x, log=True))", "error"),
        ("helper(x, log=True) if args.summaries else x", "risk"),
        ("helper(x, log=args.summaries)", "risk"),
    ],
)
def test_arguments_decide_in_helpers(call: str, severity: str, tmp_path: Path) -> None:
    helper = (
        "def inner(x, log, mode):\n    if log or mode == 'train':\n"
        f"        tf.print(x)  # TPU004 {severity}\n    return x\n\n"
        "def helper(x, log=False, mode=None):\n    if mode != 'other':\n"
        "        return inner(x, log, mode)\n"
    )
    check(tmp_path, helper + STEP.format(body=f"    {call}"))


CONVERSION = """
def convert(value):
    if isinstance(value, tf.Tensor):
        return tf.cast(value, tf.float32)
    if isinstance(value, (list, tuple)):
        return [convert(part) for part in value]
    return value

@tf.function(autograph=False)
def step(x: tf.Tensor, data):
    first, second = convert(make(x))
    for part in first:
        x = x + part
    for part in convert(x):  # TPU002 error
        x = x + part
    return [part for part in second], len(convert(data)), len(convert([x, x]))

class Heads(tf.keras.layers.Layer):
    def call(self, x):
        return [x, x], [x, x]

make = Heads()
step(tf.ones([8]), [tf.ones([8])])
"""


def test_conversion_of_structures_returns_structures(tmp_path: Path) -> None:
    check(tmp_path, CONVERSION)
