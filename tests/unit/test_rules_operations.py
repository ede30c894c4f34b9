"""Operations that XLA lacks, tensor values read in Python, and checks that are dropped."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.support.rule_checker import RuleChecker
from tpuctl.preflight.findings import Target
from tpuctl.preflight.rules.tensorflow_steps.tpu004_operation_without_kernel import (
    DATA as DATA_FILE,
)

CODES = ("TPU004", "TPU005", "TPU006")
NEW = Target("vm", "2.18.0", 8)
HEAD = """import logging
import math

import numpy as np
import tensorflow as tf

table = tf.lookup.StaticHashTable(initializer, 0)
"""
DATA = json.loads(DATA_FILE.read_text("utf-8"))


def check(folder: Path, body: str, head: str = HEAD, decorator: str = "@tf.function") -> None:
    source = f"{head}\n\n{decorator}\ndef step(x: tf.Tensor, training=False):\n    {body}\n"
    RuleChecker(folder, *CODES).assert_marked(source + "    return x\n", NEW)


@pytest.mark.parametrize(
    "body",
    [
        "tf.print(x)  # TPU004 error",
        "print(x)",
        "logging.info('traced %s', x)",
        "x = tf.py_function(abs, [x], tf.float32)  # TPU004 error",
        "x = tf.math.segment_sum(x, x)  # TPU004 error",
        "x = tf.math.unsorted_segment_sum(x, x, 4)",
        "x = table.lookup(x)  # TPU004 error",
        "x = tf.image.resize(x, (8, 8))",
        "x = tf.image.resize(x, (8, 8), method='bicubic')  # TPU004 error",
        "x = tf.image.resize(x, (8, 8), antialias=True)  # TPU004 error",
        "x = tf.raw_ops.SegmentSum(data=x, segment_ids=x)  # TPU004 error",
        "x = tf.raw_ops.Abs(x=x)",
        "x = tf.io.parse_single_example(x, {})  # TPU004 error",
        "x = x.numpy()  # TPU005 error",
        "x = np.mean(x)  # TPU005 error",
        "x = x * np.sqrt(x.shape[0])",
        "x = x * math.sqrt(float(x.shape[-1]))",
        "x = x * math.sqrt(tf.reduce_sum(x))  # TPU005 error",
        "x = max(tf.reduce_sum(x), 3)  # TPU005 error",
        "x = sum(tf.unstack(x))",
        "x = sum(tf.abs(x))  # TPU005 error",
        "x = bool(tf.reduce_any(x > 0))  # TPU005 error",
        "x = x * float(tf.reduce_sum(x)) + int(tf.reduce_sum(x)) + len(tf.abs(x))",
        "tf.debugging.assert_positive(x)  # TPU006 risk",
        "x = tf.debugging.check_numerics(x, 'x')  # TPU006 risk",
        "tf.debugging.assert_rank(x, 2)",
        "tf.debugging.assert_equal(tf.shape(x)[0], 4)",
        "f'{x}'",
        "tf.summary.scalar('x', x)",
    ],
)
def test_operations_in_a_step(body: str, tmp_path: Path) -> None:
    check(tmp_path, body)


@pytest.mark.parametrize(
    "body",
    [
        "x = x * float(tf.reduce_sum(x))  # TPU005 error",
        "x = x * int(tf.reduce_sum(x))  # TPU005 error",
        "x = x * len(tf.abs(x))  # TPU005 error",
        "x = x * float(x.shape[0])",
    ],
)
def test_values_read_without_autograph(body: str, tmp_path: Path) -> None:
    check(tmp_path, body, decorator="@tf.function(autograph=False)")


def test_summaries_are_reported_with_writer(tmp_path: Path) -> None:
    head = HEAD + "writer = tf.summary.create_file_writer('logs')\n"
    check(tmp_path, "tf.summary.scalar('x', x)  # TPU004 error", head)


SOFT = HEAD + "writer = tf.summary.create_file_writer('logs')\n"


@pytest.mark.parametrize(
    ("enabled", "severity"), [("True", "cost"), ("enabled=True", "cost"), ("False", "error")]
)
def test_soft_placement_runs_operations_on_the_host(
    enabled: str, severity: str, tmp_path: Path
) -> None:
    """TensorFlow's documentation of tf.config.set_soft_device_placement."""
    head = f"{SOFT}tf.config.set_soft_device_placement({enabled})\n"
    check(tmp_path, f"x = tf.math.segment_sum(x, x)  # TPU004 {severity}", head)
    marker = "" if severity == "cost" else "  # TPU004 error"
    check(tmp_path, f"tf.print(x){marker}\n    tf.summary.scalar('x', x){marker}", head)


def test_pipeline_and_plain_python_are_allowed(tmp_path: Path) -> None:
    source = (
        HEAD
        + """
def decode(record):
    tf.print(record)
    tf.debugging.assert_positive(record)
    return table.lookup(tf.io.decode_raw(record, tf.uint8))

def train(step, data):
    for x in data.map(decode):
        loss = step(x)
        tf.print(loss.numpy(), float(loss), np.mean(loss), max(loss, 3))
"""
    )
    RuleChecker(tmp_path, *CODES).assert_marked(source, NEW)


def test_helper_in_other_file_names_caller(tmp_path: Path) -> None:
    files = {"helper.py": "import tensorflow as tf\n\n\ndef show(x):\n    tf.print(x)\n"}
    head = "import tensorflow as tf\nimport helper\n\n\n"
    source = f"{head}@tf.function\ndef step(x):\n    helper.show(x)\n"
    (finding,) = RuleChecker(tmp_path, *CODES).findings(source, NEW, files)
    assert (finding.path.name, finding.line, finding.code) == ("helper.py", 5, "TPU004")
    assert "`step` calls `show`, and `step` is a tf.function" in finding.message


def test_supported_operations_are_not_reported() -> None:
    has = set(DATA["has"])
    assert len(has) > 500
    assert {
        name for name, operations in DATA["refused"].items() if not set(operations) - has
    } == set()


@pytest.mark.soak
@pytest.mark.tensorflow
def test_reported_functions_exist_in_tensorflow() -> None:
    from tests.support.job_environment import job_python

    program = (
        "import functools, json, sys\nimport tensorflow as tf\nnames = json.load(sys.stdin)\n"
        "def there(name):\n    try:\n        functools.reduce(getattr, name.split('.'), tf)\n"
        "    except AttributeError:\n        return False\n    return True\n"
        "print(json.dumps([one for one in names if not there(one)]))\n"
    )
    done = subprocess.run(
        [job_python(), "-c", program],
        input=json.dumps(list(DATA["refused"])),
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == []
