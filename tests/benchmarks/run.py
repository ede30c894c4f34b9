"""What is measured, printed as ratios of one run on one machine: `make bench [ONLY=name]`.

Goals are printed beside the figures; nothing here fails because a machine is slow.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

from bundle import second_bundle
from check_speed import check_speed
from check_truth import check_truth
from commands import help_time
from fanout import fanout
from figures import Figure
from gs import gs_speed
from jobs import first_line, tokens
from logs import logs
from preparation import preparation
from pretraining import pretraining
from rich.console import Console
from rich.table import Table
from scale import scale_time
from scripts import gcloud_time, scripts_time
from testbench_speed import storage_speed
from tpu_memory import memory
from ups import up_real_time, up_time

SECTIONS: dict[str, Callable[[], Iterator[Figure]]] = {
    "help": help_time,
    "check": check_speed,
    "check-truth": check_truth,
    "up": up_time,
    "gcloud": gcloud_time,
    "scripts": scripts_time,
    "scale": scale_time,
    "storage": storage_speed,
    "gs": gs_speed,
    "first-line": first_line,
    "bundle": second_bundle,
    "fanout": fanout,
    "logs": logs,
    "tokens": tokens,
}
# Only when they are named, for what they take.
LONG: dict[str, Callable[[], Iterator[Figure]]] = {
    "memory": memory,
    "preparation": preparation,
    "pretraining": pretraining,
    "up-real": up_real_time,
}


def main(wanted: list[str]) -> int:
    known = SECTIONS | LONG
    unknown = set(wanted) - set(known)
    if unknown:
        print(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(known)}")
        return 2
    table = Table("what", "measured", "ratio", "goal", title="Benchmarks", title_justify="left")
    for name in wanted or SECTIONS:
        print(f"measuring {name} …", file=sys.stderr, flush=True)
        for figure in known[name]():
            table.add_row(figure.what, figure.value, figure.beside, figure.goal)
            print(f"  {figure.what}: {figure.value} {figure.beside}", file=sys.stderr, flush=True)
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
