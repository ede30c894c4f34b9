"""Compiles lowered steps with the TPU's own compiler, which needs no TPU.

Runs by itself in an environment with jax[tpu], never imported by tpuctl. A question is a line of
JSON: {"generation": "v3", "program": FILE, "results": 2, "changed": [0, 3]} asks what a program
takes of a core, {"generation": "v3"} how much there is. So is each answer: sizes in bytes;
`refused` with the compiler's words where the memory does not suffice; `failed` with them where it
will not compile for another reason. Private parts of JAX are used: its version is pinned.
"""

from __future__ import annotations

import json
import os
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["TPU_SKIP_MDS_QUERY"] = "1"  # no metadata server is to be asked for a TPU
os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"  # there is no TPU for two programs to dispute

import jax  # type: ignore[import-not-found, unused-ignore]
import numpy  # type: ignore[import-not-found, unused-ignore]
from jax._src import compiler  # type: ignore[import-not-found, unused-ignore]
from jax._src.interpreters import mlir  # type: ignore[import-not-found, unused-ignore]
from jax._src.lib import _jax, xla_client  # type: ignore[import-not-found, unused-ignore]
from jax.experimental import topologies  # type: ignore[import-not-found, unused-ignore]
from jaxlib.mlir import ir  # type: ignore[import-not-found, unused-ignore]

__all__: list[str] = []

# The least slice of each generation. Both TensorCores of a v4 work as one, as TensorFlow has it.
TOPOLOGIES = {
    "v2": {"topology_name": "v2:2x2"},
    "v3": {"topology_name": "v3:2x2"},
    "v4": {"topology_name": "v4:2x2x1", "chip_config_name": "megacore"},
    "v5e": {"topology_name": "v5e:2x2"},
    "v5p": {"topology_name": "v5p:2x2x1"},
    "v6e": {"topology_name": "v6e:2x2"},
}
# More than any core has, in parts that each can be addressed; its refusal tells how much there is.
PART = "tensor<17179869184xf32>"
OVERSIZED_PROGRAM = f"""
module @room {{
  func.func @main(%one: {PART}, %two: {PART}, %three: {PART}, %four: {PART}) -> {PART} {{
    %five = stablehlo.add %one, %two : {PART}
    %six = stablehlo.add %three, %four : {PART}
    %seven = stablehlo.add %five, %six : {PART}
    return %seven : {PART}
  }}
}}
"""


def compile_for(generation: str, text: bytes | str, results: int, changed: list[int]) -> Any:
    """Compile for one core, which keeps the variables' memory for their new values."""
    device = topologies.get_topology_desc(platform="tpu", **TOPOLOGIES[generation]).devices[0]
    with mlir.make_ir_context():
        module = ir.Module.parse(text)
        main = next(
            statement
            for statement in module.body
            if statement.attributes["sym_name"].value == "main"
        )
        share(main, dict(zip(changed, count(results), strict=False)))
        options = xla_client.CompileOptions()
        options.num_replicas = options.num_partitions = 1
        options.device_assignment = xla_client.DeviceAssignment.create(
            numpy.array([[device.id]], "int32")
        )
        devices = xla_client.DeviceList((device,))
        return compiler.backend_compile_and_load(device.client, module, devices, options, [])


def share(main: Any, results: dict[int, int]) -> None:
    """Let results take the place of arguments, as the new values of variables do on a TPU."""
    number = ir.IntegerType.get_signless(32)
    attributes: list[dict[str, Any]] = [{} for _ in ir.FunctionType(main.type).inputs]
    if "arg_attrs" in main.attributes:
        attributes = [
            {attribute.name: attribute.attr for attribute in ir.DictAttr(each)}
            for each in main.attributes["arg_attrs"]
        ]
    for argument, result in results.items():
        attributes[argument]["tf.aliasing_output"] = ir.IntegerAttr.get(number, result)
    main.attributes["arg_attrs"] = ir.ArrayAttr.get(
        [ir.DictAttr.get(attribute) for attribute in attributes]
    )


def answer(question: dict[str, Any]) -> dict[str, Any]:
    generation, program = question["generation"], question.get("program")
    try:
        if program is None:
            executable = compile_for(generation, OVERSIZED_PROGRAM, 1, [])
        else:
            text = _jax.mlir.hlo_to_stablehlo(Path(program).read_bytes())
            executable = compile_for(generation, text, question["results"], question["changed"])
    except jax.errors.JaxRuntimeError as error:
        kind = "refused" if "RESOURCE_EXHAUSTED" in str(error) else "failed"
        return {kind: str(error)}
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}"}
    sizes = executable.get_compiled_memory_stats()
    return {
        "arguments": sizes.argument_size_in_bytes,
        "results": sizes.output_size_in_bytes,
        "shared": sizes.alias_size_in_bytes,
        "temporary": sizes.temp_size_in_bytes,
        "code": sizes.generated_code_size_in_bytes,
    }


def main() -> None:
    # What libtpu prints must not come between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        began = time.monotonic()
        result = answer(json.loads(line))
        seconds = round(time.monotonic() - began, 3)
        print(json.dumps({**result, "seconds": seconds}), file=answers, flush=True)


if __name__ == "__main__":
    main()
