"""Prints and summaries in compiled steps, which soft placement moves to a TPU's host.

XLA on this machine has no such mode, and refuses them. Soft placement must be enabled by the
script: it is on by default only for eager code.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

from ....simulated_tpu.script_calls import call_script
from ....simulated_tpu.tensorflow_stubs import replace
from ..observation.context import Rehearsal
from .graphs import Graphs


def install(rehearsal: Rehearsal, graphs: Graphs) -> None:
    """Leave prints and summaries out of compiled steps once soft placement is enabled."""
    tensorflow = rehearsal.tensorflow
    summaries: Any = importlib.import_module("tensorflow.python.ops.summary_ops_v2")
    place, write = tensorflow.config.set_soft_device_placement, tensorflow.print
    should_record = summaries.should_record_summaries
    operations: Any = importlib.import_module("tensorflow.python.ops.gen_summary_ops")
    flush = operations.flush_summary_writer

    @functools.wraps(place)
    def set_soft_device_placement(enabled: Any) -> Any:
        rehearsal.is_placed_softly = bool(enabled)
        return call_script(place, enabled)

    def is_left_out() -> bool:
        return rehearsal.is_placed_softly and not graphs.is_eager() and graphs.is_compiled()

    @functools.wraps(write)
    def print_tensors(*arguments: Any, **keywords: Any) -> Any:
        if is_left_out():
            return tensorflow.no_op()
        return call_script(write, *arguments, **keywords)

    @functools.wraps(flush)
    def flush_summary_writer(*arguments: Any, **keywords: Any) -> Any:
        if is_left_out():
            return tensorflow.no_op()
        return call_script(flush, *arguments, **keywords)

    @functools.wraps(should_record)
    def should_record_summaries() -> Any:
        return tensorflow.constant(False) if is_left_out() else call_script(should_record)

    replace(tensorflow, "config.set_soft_device_placement", set_soft_device_placement)
    replace(tensorflow, "print", print_tensors)
    operations.flush_summary_writer = flush_summary_writer
    summaries.should_record_summaries = should_record_summaries
