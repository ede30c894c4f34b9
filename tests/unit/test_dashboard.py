"""The dashboard's page, and its timeline."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser

from tests.support.job_records import job_record
from tpuctl.errors import Diagnostic
from tpuctl.model.jobs.attempt import Attempt, Placement, Verdict
from tpuctl.model.jobs.explanation import Explanation
from tpuctl.model.jobs.failures import Failure
from tpuctl.model.jobs.job import JobRecord, JobStatus, WorkerRecord
from tpuctl.model.jobs.report import AttemptReport, RunReport
from tpuctl.model.logs.curves import Curve
from tpuctl.model.logs.log_tail import LogTail
from tpuctl.model.logs.progress import Progress
from tpuctl.model.stack.stack import minimal_stack
from tpuctl.model.status.dashboard import DashboardState
from tpuctl.model.status.inventory import InventoryItem
from tpuctl.model.status.snapshot import JobSnapshot, Snapshot, StackStatus
from tpuctl.model.status.timeline import Timeline
from tpuctl.resources.tpu.tpu_node import TpuNode
from tpuctl.view.dashboard.page import document
from tpuctl.view.jobs.report import render_facts

NOW = datetime(2026, 11, 21, 6, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
ID = "20261121-060000-hazel"
MARKUP = "<img src=x onerror=alert(1)>"
TYPED = "tpuctl {}".format


def record(**more: object) -> JobRecord:
    return job_record(id=ID, submitted=NOW, **more)


def job(status: JobStatus, **more: object) -> JobSnapshot:
    return JobSnapshot(record(**more), status, {}, Progress(), None)


def node(state: str) -> InventoryItem:
    return InventoryItem(
        TpuNode, "bert-tpu", "bert", "us-central1-b", state, "v2-8", created=NOW - HOUR
    )


def snapshot(at: datetime, *items: InventoryItem, jobs: tuple[JobSnapshot, ...] = ()) -> Snapshot:
    stack = minimal_stack("bert", "my-project")
    return Snapshot(at, StackStatus(stack, (), None, (), items), jobs)


def texts(timeline: Timeline) -> list[str]:
    return [f"{entry.subject}: {entry.text}" for entry in reversed(timeline.entries)]


def test_timeline_has_recorded_events_and_changes() -> None:
    timeline = Timeline()
    timeline.observe(snapshot(NOW, node("CREATING")))
    assert texts(timeline) == ["node bert-tpu: created"]
    running = job(JobStatus("running"))
    timeline.observe(snapshot(NOW + HOUR, node("READY"), jobs=(running,)))
    timeline.observe(snapshot(NOW + 2 * HOUR, node("READY"), jobs=(running,)))
    failed = job(JobStatus("failed", 3, finished=NOW + 2.5 * HOUR))
    timeline.observe(snapshot(NOW + 3 * HOUR, node("PREEMPTED"), jobs=(failed,)))
    timeline.observe(snapshot(NOW + 4 * HOUR, jobs=(failed,)))
    assert texts(timeline) == [
        "node bert-tpu: created",
        f"job {ID}: submitted",
        f"job {ID}: running",
        "node bert-tpu: CREATING → READY",
        f"job {ID}: failed with exit code 3",
        "node bert-tpu: READY → PREEMPTED",
        "node bert-tpu: deleted",
    ]


def test_timeline_has_attempts_with_their_causes() -> None:
    timeline = Timeline()
    timeline.observe_attempts(run_report())
    assert texts(timeline) == [
        f"job {ID}: attempt 1 ended: {MARKUP}",
        f"job {ID}: attempt 2 started in us-west1-c",
    ]


def run_report() -> RunReport:
    placement = Placement(zone="us-west1-c", node="bert-tpu")
    verdict = Verdict(kind="preemption", name="preempted", cause=MARKUP, at=NOW + HOUR)
    restart = Attempt(number=2, placement=placement, verdict=verdict, started=NOW + 1.5 * HOUR)
    first, second = record(script=MARKUP), record(script=MARKUP).of(restart)
    loss = Curve(MARKUP)
    loss.add(1, 2.0)
    failure = Failure("script", MARKUP, MARKUP, hint=MARKUP, detail=MARKUP)
    return RunReport(
        Explanation(second, JobStatus("failed", 1, detail=MARKUP), failure, attempts=(restart,)),
        "v2-8",
        "tf",
        (
            AttemptReport(first, {}, None, NOW, NOW + HOUR, 2.0),
            AttemptReport(second, {}, restart, NOW + 1.5 * HOUR, None, 2.0),
        ),
        (loss,),
        NOW,
    )


class Tags(HTMLParser):
    """The tags, attributes and text of HTML."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def test_cost_of_a_job_is_an_amount_with_a_title_that_says_whose() -> None:
    running = replace(run_report(), explanation=Explanation(record(), JobStatus("running"), None))
    running = replace(running, attempts=running.attempts[:1])
    for is_free, title in ((False, "Cost"), (True, "Cost on Google")):
        facts = "".join(render_facts(replace(running, is_free=is_free)))
        assert f"<dt>{title}</dt><dd>about $2.00 so far</dd>" in facts


def test_foreign_text_is_never_markup() -> None:
    report = run_report()
    submitted = job(JobStatus("failed", 1), script=MARKUP, submitted_by=MARKUP)
    preempted = replace(node("READY"), name=MARKUP, state=MARKUP, detail=MARKUP)
    moment = snapshot(NOW, preempted, jobs=(submitted,))
    timeline = Timeline()
    timeline.observe(moment)
    timeline.observe_attempts(report)
    tail = LogTail(5)
    tail.feed(MARKUP.encode() + b"\n")
    problem = Diagnostic("Unreachable", MARKUP)
    state = DashboardState(moment, report, tail, timeline.entries, problem)
    page = document(state, TYPED, is_free=False)
    tags = Tags("".join(page["sections"].values()))
    assert "img" not in tags.names and "onerror" not in tags.attributes
    assert tags.text.count(MARKUP) >= 10
    assert page["log"]["lines"] == [MARKUP]  # as text: the page's script makes no HTML of it
    assert page["problem"] == f"Unreachable: {MARKUP}. Retrying; the last known state is shown."


def test_running_job_has_state_of_its_workers_and_its_cost_so_far() -> None:
    worker = WorkerRecord(job=ID, attempt=1, worker=0, state="running", started=NOW)
    running = replace(
        job(JobStatus("running")), workers={0: worker}, progress=Progress(step=1200, loss=2.5)
    )
    attempt = AttemptReport(record(), {0: worker}, None, NOW, None, 2.0, NOW + 1.5 * HOUR)
    report = RunReport(
        Explanation(record(), JobStatus("running")), "v2-8", "tf", (attempt,), (), NOW + 1.5 * HOUR
    )
    state = DashboardState(
        snapshot(NOW + 1.5 * HOUR, node("READY"), jobs=(running,)), report, LogTail(5), (), None
    )
    sections = document(state, TYPED, is_free=False)["sections"]
    assert "step 1,200, loss 2.5" in Tags(sections["jobs"]).text
    assert "about $3.00 so far" in Tags(sections["job"]).text
    assert "1 h 30 min" in Tags(sections["job"]).text
