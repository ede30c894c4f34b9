"""The handwritten labels agree with the compiler's verdicts."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
LEAST = 120
SEVERITIES = {"TPU000": "error", "TPU006": "risk"} | {f"TPU00{n}": "error" for n in range(1, 6)}


def rows(name: str) -> dict[str, dict[str, Any]]:
    rows = tomllib.loads((HERE / name).read_text("utf-8"))["program"]
    rows_by_file = {row["file"]: row for row in rows}
    assert len(rows_by_file) == len(rows), f"{name} lists a program twice"
    return rows_by_file


LABELS = rows("labels.toml")
VERDICTS = rows("verdicts.toml")
FILES = sorted(path.name for path in PROGRAMS.glob("*.py"))


def usual(label: str) -> str:
    """The severity of a label's rule, as documented."""
    return SEVERITIES.get(label.partition(":")[0], "cost")


def expected(row: dict[str, Any]) -> str:
    """The worst of the row's labels, or the compiler's verdict if the row states one."""
    order = ("error", "cost", "risk")
    usually = min((usual(code) for code in row["codes"]), key=order.index, default="good")
    return str(row.get("compiler", usually))


def test_every_program_has_label_and_verdict() -> None:
    assert sorted(LABELS) == FILES
    assert sorted(VERDICTS) == FILES


def test_enough_good_and_bad_programs() -> None:
    good = [file for file in FILES if VERDICTS[file]["verdict"] == "good"]
    assert len(FILES) >= LEAST
    assert 0.45 <= len(good) / len(FILES) <= 0.6


def test_labels_and_compiler_agree() -> None:
    differ = [row for file, row in LABELS.items() if expected(row) != VERDICTS[file]["verdict"]]
    assert not differ, [(row, VERDICTS[row["file"]]) for row in differ]


def test_labels_that_differ_from_compiler_give_reason() -> None:
    for row in LABELS.values():
        assert ("compiler" in row) == ("because" in row), row
        if "compiler" in row:
            usually = expected({"codes": row["codes"]})
            assert usually != row["compiler"], f"{row}: the label does not differ from the compiler"


def test_labels_are_on_lines_with_code() -> None:
    for file, row in LABELS.items():
        for label in row["codes"]:
            code, *other, line = label.split(":")
            assert code.startswith(("TPU0", "TPU1", "TPU2")), (file, label)
            assert int(line) in starts(PROGRAMS / (other[0] if other else file)), (file, label)


def starts(path: Path) -> set[int]:
    """Lines on which a statement or expression begins."""
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    return {node.lineno for node in nodes if isinstance(node, ast.expr | ast.stmt)}


def test_every_compiler_rule_is_covered() -> None:
    met = {label.partition(":")[0] for row in LABELS.values() for label in row["codes"]}
    rules = [f"TPU00{n}" for n in range(1, 7)] + [f"TPU10{n}" for n in range(1, 7)]
    assert met == {*rules, *(f"TPU20{n}" for n in range(1, 5))}


def test_programs_do_not_mention_rules() -> None:
    for path in PROGRAMS.rglob("*.py"):
        assert not re.search(r"TPU\d|tpuctl", path.read_text("utf-8")), path
