"""Whose code raised the exception that ended a rehearsed script: the script's or tpuctl's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tpuctl.preflight.shim.observation.user_lines import TPUCTL, UserLines
from tpuctl.simulated_tpu.script_calls import call_script

HOOK = Path(TPUCTL, "preflight", "shim", "tensorflow", "strategy_run.py")
CALLS = Path(TPUCTL, "simulated_tpu", "script_calls.py")
SCRIPT = Path("/job/train.py")
CONVERTED = """in user code:

    File "{}", line 44, in execute  *
        return call_script(original, strategy, function)
    File "{}", line 17

    TypeError: no
"""


def function_in(file: Path, body: str) -> Any:
    """A function with a parameter, as if it stood in this file."""
    names = {"call_script": call_script}
    return eval(compile(f"lambda function: {body}", str(file), "eval"), names)


def error_of(function: Any, argument: Any) -> BaseException:
    try:
        function(argument)
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize(
    ("hook", "script", "is_tpuctls"),
    [
        ("function(0).missing", "0", True),
        ("function()", "0", True),  # with wrong arguments
        ("call_script(function)", "0", False),  # the script's arguments
        ("call_script(function, 0)", "{}['missing']", False),
        ("function(0)", "{}['missing']", False),
    ],
)
def test_exception_belongs_to_code_that_raised_it(hook: str, script: str, is_tpuctls: bool) -> None:
    error = error_of(function_in(HOOK, hook), function_in(SCRIPT, script))
    assert UserLines("/job").is_tpuctls(error) is is_tpuctls


@pytest.mark.parametrize(
    ("last", "is_tpuctls"),
    [
        (SCRIPT, False),
        (CALLS, False),  # of TensorFlow, whose frames are left out
        ("/usr/lib/python3/site-packages/keras/src/layers/layer.py", False),
        (HOOK, True),
    ],
)
def test_converted_exception_belongs_to_last_frame_of_message(last: Any, is_tpuctls: bool) -> None:
    def raise_again(message: str) -> None:
        raise TypeError(message)

    # TensorFlow removes its own frames: the hook's is the last one in the traceback.
    error = error_of(
        function_in(HOOK, "function()"), lambda: raise_again(CONVERTED.format(HOOK, last))
    )
    assert error.__traceback__ is not None and error.__traceback__.tb_next is not None
    error.__traceback__.tb_next.tb_next = None
    assert UserLines("/job").is_tpuctls(error) is is_tpuctls
