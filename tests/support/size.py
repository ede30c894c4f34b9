"""`make size`: lines by feature, of the program and of its tests.

A line belongs to the first feature with a prefix of its path.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = ("tpuctl/", "templates/")
FEATURES = {
    "the local cloud": (
        *("tpuctl/emulator/", "tpuctl/local_cloud/", "tpuctl/simulated_tpu/"),
        *("tpuctl/cli/local/", "tests/emulator/", "tests/gcloud/", "tests/clients/"),
        "tests/live/",
    ),
    "check": (
        *("tpuctl/preflight/analysis/", "tpuctl/preflight/rules/", "tests/corpus/"),
        *("tests/unit/checks/", "tests/unit/test_rule", "tests/cases/rules"),
    ),
    "rehearse and compile": (
        *("tpuctl/preflight/rehearsal/", "tpuctl/preflight/shim/", "tpuctl/preflight/compile/"),
        *("tpuctl/flows/preflight/", "tests/rehearsal/", "tests/oracle/"),
    ),
    "programs on machines": ("tpuctl/jobs/shipped/", "tests/shipped/"),
    "jobs": ("tpuctl/jobs/", "tpuctl/flows/jobs/", "tpuctl/model/jobs/", "tpuctl/model/logs/"),
    "stacks": (
        *("tpuctl/resources/", "tpuctl/flows/stack/", "tpuctl/engine/", "tpuctl/model/stack/"),
        *("tpuctl/model/cost/", "tpuctl/model/capacity/", "tests/cases/", "tests/crash/"),
    ),
    "machines": ("tpuctl/remote/", "tpuctl/flows/machines/", "tpuctl/model/workers/"),
    "pipelines": ("tpuctl/flows/ci/", "tpuctl/cli/ci/", "tpuctl/view/ci/", "tests/ci/"),
    "catalog": ("tpuctl/catalog/", "tpuctl/cli/catalog/"),
    "clients of Google": ("tpuctl/cloud/",),
    "what is typed and shown": ("tpuctl/cli/", "tpuctl/view/", "tpuctl/api/", "tests/processes/"),
    "templates": ("templates/", "tests/job/"),
    "pages": ("tests/docs/",),
    "benchmarks": ("tests/benchmarks/",),
    "flows' tests": ("tests/flows/",),
    "unit tests": ("tests/unit/",),
    "the rest": ("tpuctl/", "tests/"),
}


def lines_by_feature() -> dict[str, tuple[int, int]]:
    """Lines of Python of the program, and of the tests, by feature."""
    program: Counter[str] = Counter()
    tests: Counter[str] = Counter()
    listed = subprocess.run(
        ["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for path in listed.stdout.splitlines():
        features = (name for name, prefixes in FEATURES.items() if path.startswith(prefixes))
        feature = next(features, None)
        if feature is not None and (ROOT / path).exists():
            counted = program if path.startswith(PROGRAM) else tests
            counted[feature] += (ROOT / path).read_bytes().count(b"\n")
    return {feature: (program[feature], tests[feature]) for feature in FEATURES}


def main() -> None:
    sizes = lines_by_feature()
    print(f"{'':24}{'program':>10}{'tests':>10}")
    for feature, (program, tests) in sizes.items():
        print(f"{feature:24}{program:>10,}{tests:>10,}")
    totals = [sum(size[column] for size in sizes.values()) for column in (0, 1)]
    print(f"{'all':24}{totals[0]:>10,}{totals[1]:>10,}")


if __name__ == "__main__":
    main()
