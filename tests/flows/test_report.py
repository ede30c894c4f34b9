"""`jobs show` and `report`, after the job's machines are gone."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tpuctl.api import Tpuctl
from tpuctl.cli.main import run

SCRIPT = """
import json
import re
print("warming up <&>")
for step in range(1, 101):
    print(json.dumps({"step": step, "loss": 8 / step, "tokens_per_second": 1000 + step}))
raise SystemExit(3)
"""


class Outline(HTMLParser):
    """The tags, links, text and curves of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.points: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        given = dict(attributes)
        self.links += [value for name, value in attributes if name in ("src", "href") and value]
        if tag == "polyline":
            self.points.append(given["points"] or "")

    def handle_data(self, data: str) -> None:
        self.text += data


async def test_report_after_machines_are_gone(
    make_stack: Callable[..., Tpuctl], tmp_path: Path
) -> None:
    stack = make_stack()
    job = tmp_path / "job"
    job.mkdir()
    (job / "train.py").write_text(SCRIPT)
    await stack.up()
    assert await stack.run(job / "train.py") == 3
    record = await stack.job()
    await stack.down()
    report = await stack.report(record)

    assert [curve.name for curve in report.curves] == ["loss", "tokens_per_second"]
    assert report.curves[0].all_points == [(step, 8 / step) for step in range(1, 101)]
    (attempt,) = report.attempts
    assert attempt.ended is not None and attempt.started <= attempt.ended
    price = stack.stack.price
    assert price is not None and attempt.per_hour is not None
    assert attempt.per_hour >= price.per_hour
    assert report.cost == pytest.approx(
        attempt.per_hour * (attempt.ended - attempt.started).total_seconds() / 3600
    )
    assert report.explanation.failure is not None


def test_report_page_and_jobs_show(
    make_stack: Callable[..., Tpuctl],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stack = make_stack()
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    options = ["--stack-file", str(stack.stack_file)]
    assert run([*options, "--yes", "up"]) == 0
    assert run([*options, "run", "train.py"]) == 3
    capsys.readouterr()

    assert run([*options, "jobs", "show"]) == 0
    output = capsys.readouterr().out
    assert "exit code 3" in output and "loss: 0.08 at the end" in output
    assert re.search(r"^cost +nothing; about <?\$[\d.]+ on Google *$", output, re.MULTILINE)
    assert "⡀" in output or "⠤" in output  # a curve
    assert max(len(line) for line in output.splitlines() if "┤" in line) <= 100

    assert run([*options, "report"]) == 0
    file = Path(capsys.readouterr().out.strip())
    record = json.loads(_answer(capsys, [*options, "--json", "jobs"]))["data"][0]
    assert file == Path(f"{record['id']}.html")
    page = file.read_text("utf-8")
    outline = Outline()
    outline.feed(page)
    assert (
        not outline.links and "script" not in outline.tags
    )  # loads no resources and runs no scripts
    assert record["id"] in outline.text and "warming up <&>" not in page.replace(
        "&lt;&amp;&gt;", ""
    )
    assert len(outline.points) == 2
    assert all(len(points.split()) == 100 for points in outline.points)
    falling = [float(point.partition(",")[2]) for point in outline.points[0].split()]
    assert falling == sorted(falling)  # falling loss: SVG's y axis points down

    assert run([*options, "report", "--output", "-"]) == 0
    assert capsys.readouterr().out.startswith("<!doctype html>")
    answer = json.loads(_answer(capsys, [*options, "--json", "report", "-o", "other.html"]))
    assert answer["data"]["exit_code"] == 3 and Path("other.html").exists()
    assert answer["data"]["curves"]["loss"][0] == [1, 8.0]
    assert run([*options, "--json", "report", "-o", "-"]) == 2
    capsys.readouterr()
    assert run([*options, "--yes", "down", "--delete-bucket"]) == 0


def _answer(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    assert run(arguments) == 0
    return capsys.readouterr().out
