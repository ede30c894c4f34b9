"""`dashboard`: in Chromium, over HTTP, and its calls."""

from __future__ import annotations

import json
import os
import re
import socket
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import open_page
from tests.support.fake_clock import FakeClock
from tests.support.job_spec import change_job_spec
from tests.support.polling import until
from tests.support.projects import Bench, Project
from tests.support.terminal import Terminal
from tpuctl.api import Tpuctl
from tpuctl.flows.reports.dashboard import Dashboard
from tpuctl.local_cloud import remote_control
from tpuctl.local_cloud.server_process import LocalCloud

URL = re.compile(r"http://127\.0\.0\.1:(\d+)/#token=[\w-]+")
MARKUP = "<script>window.injected = 1</script><img src=x onerror='window.injected = 1'>"
SCRIPT = f"""
import json, time
print({MARKUP!r}, flush=True)
for step in range(1, 100_000):
    print(json.dumps({{"step": step, "loss": 8 / step}}), flush=True)
    time.sleep(0.05)
"""
STEPS = (
    "[...document.querySelectorAll('#log div')]"
    ".flatMap(line => line.textContent.match(/step\\D+(\\d+)/)?.[1] ?? [])"
)
POINTS = "(document.querySelector('polyline')?.getAttribute('points') ?? '').split(' ').length"

COUNT_REQUESTS = """
var requestCount = 0, send = fetch;
fetch = (...request) => { requestCount++; return send(...request); };
"""


@contextmanager
def serving(folder: Path, *options: str, **environment: str) -> Iterator[Terminal]:
    """The command in a terminal, once it has printed its URL, until Ctrl-C."""
    arguments = ("dashboard", "--interval", "1", *options)
    with Terminal(folder, *arguments, environment=os.environ | environment) as terminal:
        terminal.wait_for("Press Ctrl-C to stop.")
        yield terminal
        terminal.press_ctrl_c()
        assert terminal.end() == 0


def address(terminal: Terminal) -> tuple[str, str]:
    """The URL without the token, and the token."""
    match = URL.search(terminal.output)
    assert match is not None, terminal.output
    url, _, token = match[0].partition("#token=")
    return url, token


def answer_to(
    url: str, headers: Mapping[str, str] | None = None, method: str = "GET"
) -> tuple[int, bytes, Mapping[str, str]]:
    request = urllib.request.Request(url, headers=dict(headers or {}), method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.read(), dict(response.headers)
    except urllib.error.HTTPError as error:
        return error.code, error.read(), dict(error.headers)


async def test_page_shows_running_job_until_stack_is_gone(
    make_stack: Callable[..., Tpuctl], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_job_spec(monkeypatch, sync_seconds=0.2)
    stack = make_stack()
    job = tmp_path / "job"
    job.mkdir()
    (job / "train.py").write_text(SCRIPT)
    await stack.up()
    record = await stack.submit(job / "train.py")
    arguments = ("dashboard", "--interval", "1", "--no-browser")
    with Terminal(stack.stack_file.parent, *arguments) as terminal:
        terminal.wait_for("Press Ctrl-C to stop.")
        url, token = address(terminal)
        async with open_page(f"{url}#token={token}") as page:
            await page.resize(360, 740)  # a phone
            await page.wait_for(f"{STEPS}.length > 5 && {POINTS} > 5")
            assert await page.evaluate("document.querySelector('h1').textContent") == (
                f"{stack.stack.name} in project local-project"
            )
            assert record.id in await page.evaluate("document.querySelector('#job h2').textContent")
            tree = await page.evaluate("document.querySelector('#resources .tree').innerText")
            assert re.search(r"node \S+ READY(?s:.*)worker 0 running(?s:.*)bucket", tree)
            assert "running" in await page.evaluate("document.querySelector('.jobs').innerText")
            assert await page.evaluate("document.documentElement.scrollWidth") <= 360
            assert token not in await page.evaluate("location.href")

            lines, points = await page.evaluate(f"[{STEPS}.length, {POINTS}]")
            await page.evaluate("window.isSamePage = true")
            await page.wait_for(f"{STEPS}.length > {lines} && {POINTS} > {points}")
            assert await page.evaluate("window.isSamePage")
            steps = [int(step) for step in await page.evaluate(STEPS)]
            assert steps == list(range(1, len(steps) + 1))
            first_line = await page.evaluate("document.querySelector('#log div').textContent")
            assert first_line == MARKUP
            assert await page.evaluate("window.injected") is None

            await stack.down()
            await page.wait_for("document.querySelector('#costs').innerText.includes('none')")
            await page.wait_for("document.querySelector('#job').innerText.includes('lost')")
            assert await page.evaluate(f"{STEPS}.length >= {len(steps)} && {POINTS} > {points}")
            resources = await page.evaluate("document.querySelector('#resources').innerText")
            assert "The stack is not running" in resources
            events = await page.evaluate("document.querySelector('#timeline').innerText")
            assert re.search(r"node \S+: deleted(?s:.*)submitted(?s:.*)node \S+: created", events)
            problem = "document.querySelector('#problem').innerText"
            assert await page.evaluate(problem) == ""
            assert page.complaints == []

            terminal.press_ctrl_c()
            assert terminal.end() == 0
            await page.wait_for(problem)
            assert "does not respond" in await page.evaluate(problem)
            assert await page.evaluate(f"{STEPS}.length >= {len(steps)}")


@pytest.fixture
async def bench(project: Project) -> Bench:
    bench = project.stack()
    await bench.provision()
    return bench


def test_requests_without_token_or_of_foreign_hosts_are_refused(bench: Bench) -> None:
    with serving(bench.folder, "--no-browser") as terminal:
        url, token = address(terminal)
        signed = {"Authorization": f"Bearer {token}"}
        status, body, headers = answer_to(f"{url}state", signed)
        assert (status, json.loads(body)["stack"]) == (200, bench.stack.stack.name)
        assert headers["Cache-Control"] == "no-store"
        status, body, headers = answer_to(url)
        assert status == 200 and bench.stack.stack.name.encode() not in body
        assert "default-src 'self';" in headers["Content-Security-Policy"]

        assert answer_to(f"{url}state")[0] == 403
        for wrong in ("Bearer x", "Bearer \xff", f"Basic {token}", token):
            assert answer_to(f"{url}state", {"Authorization": wrong})[0] == 403
        assert answer_to(f"{url}state?token={token}")[0] == 403
        for host in ("evil.example", "evil.example:8780", "127.0.0.1.evil.example", ""):
            for path in ("", "state"):
                assert answer_to(f"{url}{path}", {**signed, "Host": host})[0] == 403, host
        forwarded = {**signed, "Host": "localhost:9999"}  # by ssh -L 9999:127.0.0.1:8780
        assert answer_to(f"{url}state", forwarded)[0] == 200
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "HEAD"):
            assert answer_to(f"{url}state", signed, method)[0] == 405
        assert answer_to(f"{url}../tpuctl.yaml", signed)[0] == 404


async def test_page_without_token_says_what_to_do(bench: Bench) -> None:
    with serving(bench.folder, "--no-browser") as terminal:
        async with open_page(address(terminal)[0]) as page:
            problem = "document.querySelector('#problem').textContent"
            await page.wait_for(problem)
            assert "Open the URL that tpuctl dashboard printed" in await page.evaluate(problem)


async def test_hidden_page_sends_no_requests(bench: Bench) -> None:
    with serving(bench.folder, "--no-browser") as terminal:
        url, token = address(terminal)
        async with open_page(f"{url}#token={token}") as page:
            await page.wait_for("document.querySelector('.tree')")
            await page.evaluate(
                "Object.defineProperty(document, 'hidden', {value: true, configurable: true})"
            )
            await page.evaluate(COUNT_REQUESTS)
            await page.evaluate("refresh()")
            assert await page.evaluate("requestCount") == 0
            await page.evaluate("delete document.hidden")
            await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
            await page.wait_for("requestCount > 0")


def test_url_is_opened_in_browser(bench: Bench, tmp_path: Path) -> None:
    browser = tmp_path / "browser"
    opened = tmp_path / "opened"
    opened.touch()
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}\n')
    browser.chmod(0o755)
    with serving(bench.folder, BROWSER=str(browser)) as terminal:
        url, token = address(terminal)
        assert until(opened.read_text, "the URL") == f"{url}#token={token}\n"
    silent = {"BROWSER": "", "DISPLAY": "", "WAYLAND_DISPLAY": ""}
    with serving(bench.folder, **silent) as terminal:
        assert "No browser was found" in terminal.output
        assert URL.search(terminal.output)


def test_port_that_is_in_use(bench: Bench) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        code, _, errors = bench.type("dashboard", "--no-browser", "--port", str(port))
        assert code == 2 and f"port {port} of this machine is in use" in errors
    with (
        serving(bench.folder, "--no-browser") as first,
        serving(bench.folder, "--no-browser") as second,
    ):
        assert address(first)[0] != address(second)[0]


def test_stack_that_does_not_exist(project: Project, tmp_path: Path) -> None:
    bench = project.stack()
    with serving(bench.folder, "--no-browser", "--json", "--events") as terminal:
        event = json.loads(terminal.output.splitlines()[0])
        assert event["event"] == "PageServed"
        url, token = address(terminal)
        page = json.loads(answer_to(f"{url}state", {"Authorization": f"Bearer {token}"})[1])
        assert "Nothing of the stack was found" in page["sections"]["resources"]
        assert "No job was submitted yet" in page["sections"]["jobs"]
        assert page["log"] is None
    envelope = json.loads(terminal.output.splitlines()[-1])
    assert (envelope["exit_code"], envelope["data"]) == (0, {"url": event["url"]})
    code, _, errors = bench.type("dashboard", "--no-browser", folder=tmp_path)
    assert code == 2 and "Stack file not found" in errors


async def test_cloud_is_queried_once_per_interval_and_ended_job_once(
    make_stack: Callable[..., Tpuctl], tmp_path: Path, local_cloud: LocalCloud
) -> None:
    stack = make_stack()
    (tmp_path / "job").mkdir()
    script = tmp_path / "job" / "train.py"
    script.write_text('import sys\nprint(\'{"step": 1, "loss": %s}\' % sys.argv[1])\n')
    await stack.up()
    assert await stack.run(script, ["3"]) == 0
    earlier = (await stack.job()).id
    assert await stack.run(script, ["2"]) == 0
    clock = FakeClock()
    stack.cloud.clock = clock
    dashboard = Dashboard(stack.context, 5.0)

    def calls_since(number: int) -> list[dict[str, Any]]:
        """Those of this program: machines, also of other tests, still report the ends of jobs."""
        calls = remote_control.calls(local_cloud, number)
        return [call for call in calls if not call["caller"].endswith(".gserviceaccount.com")]

    first = await dashboard.state()
    assert first.report is not None and first.report.curves[0].all_points == [(1, 2.0)]
    before = remote_control.calls(local_cloud)[-1]["number"]
    clock.time += 4.9
    assert (await dashboard.state(first.report.record.id)).report is first.report
    assert calls_since(before) == []
    clock.time += 0.2
    assert (await dashboard.state()).report is first.report
    calls = Counter(call["method"] for call in calls_since(before))
    assert calls and max(calls.values()) <= 10
    log = first.report.record.log_name(0)
    assert not [call for call in calls_since(before) if log in json.dumps(call)]

    other = await dashboard.state(earlier)  # selected on the page
    assert other.report is not None and other.report.curves[0].all_points == [(1, 3.0)]
    assert (await dashboard.state("no-such-job")).report is first.report
    await stack.down(delete_bucket=True)
