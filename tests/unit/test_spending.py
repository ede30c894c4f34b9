"""What a stack has spent: the ledger's sums, here and on its machines, and what is left."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.locations import US_ZONE
from tests.support.stacks import bert_stack
from tpuctl.errors import InvalidStack, TimedOut
from tpuctl.flows.stack.spending import Ledgers, require_left
from tpuctl.jobs.shipped.watchdog import watchdog
from tpuctl.model.cost.stack_cost import cost_of, hourly_rates
from tpuctl.model.stack.spending import Ledger, Period, Spent
from tpuctl.model.stack.stack import Stack
from tpuctl.resources.machines.instance_metadata import metadata_differs, watch_metadata
from tpuctl.view.stack.stack import show_spending

NOON = datetime(2026, 11, 2, 12, tzinfo=UTC)
NOW = NOON + timedelta(hours=10)
URL = "https://tpu.googleapis.com/v2/projects/p/locations/z/nodes/bert-tpu"
ITEM = {
    "stack": "bert",
    "item": "tpu",
    "zone": US_ZONE,
    "user": "me",
    "per_hour": 4.5,
    "url": URL,
    "is_remote": False,
}


def hour(hours: float) -> datetime:
    return NOON + timedelta(hours=hours)


def period(start: float, end: float | None = None, **fields: Any) -> Period:
    ended = None if end is None else hour(end)
    fields_of_all = {"item": "tpu", "zone": US_ZONE, "stack": "bert", "per_hour": 2.0}
    return Period(**{**fields_of_all, "started": hour(start), "ended": ended, **fields})


def stack_of(folder: Path, limits: str, more: str = "") -> Stack:
    tpu = f"tpu: {{zones: [{US_ZONE}], type: v2-8}}"
    return bert_stack(folder, f"{tpu}\naccess: {{user: me}}\nlimits: {limits}\n{more}")


# Sums: by the model and by the watchdog ------------------------------------------------------

SUMS = [
    ((), None, 0.0, 0.0),
    ((period(0, 3), period(4, 5)), None, 8.0, 4.0),
    ((period(7),), None, 6.0, 3.0),  # its end is unknown, so it counts until now
    ((period(0, last_report=hour(2)),), None, 2 * (2 + 5 / 60), 2 + 5 / 60),  # silent since
    ((period(0, last_report=hour(9.99)),), None, 20.0, 10.0),
    ((period(0, 99),), None, 20.0, 10.0),  # ends in the future by a wrong clock
    ((period(0, 1), period(0, item="disks", per_hour=0.1)), None, 3.0, 1.0),
    ((period(0, 3), period(4)), hour(2), 2 * 7.0, 7.0),
    ((period(0, 3),), hour(4), 0.0, 0.0),
]


@pytest.mark.parametrize(("periods", "since", "cost", "hours"), SUMS)
def test_ledger_sums_up_to_the_same_here_and_on_machines(
    periods: tuple[Period, ...], since: datetime | None, cost: float, hours: float
) -> None:
    ledger = Ledger(since=since, periods=periods)
    assert ledger.spent(NOW) == Spent(pytest.approx(cost), pytest.approx(hours), since)
    contents = json.loads(ledger.model_dump_json())
    on_machine = watchdog.spent(contents, NOW.timestamp(), NOW.timestamp())
    assert on_machine[:2] == (pytest.approx(cost), pytest.approx(hours))


def test_existing_tpu_is_left_out_of_what_its_machines_count() -> None:
    ledger = Ledger(periods=(period(0, 1), period(5, last_report=hour(9.99))))
    assert ledger.spent(NOW, has_tpu=True).hours == 1.0
    assert ledger.spent(NOW).hours == 6.0


def test_new_limits_count_only_what_exists_from_now_on() -> None:
    ledger = Ledger(periods=(period(0, 1), period(5))).restarted(hour(6))
    assert ledger.periods == (period(5),)
    assert ledger.begin == hour(6)
    assert ledger.spent(NOW).hours == 4.0


def test_down_ends_every_period_and_up_opens_disks_once() -> None:
    disks = period(5, item="disks")
    ledger = Ledger(periods=(period(0, 1), period(2))).opened(disks).opened(disks)
    assert ledger.periods.count(disks) == 1
    closed = ledger.closed("bert", hour(6))
    assert [entry.ended for entry in closed.periods] == [hour(1), hour(6), hour(6)]
    assert closed.opened(period(8, item="disks")).spent(NOW).cost == 2 + 8 + 2 + 4


def test_prices_of_items_sum_up_to_that_of_the_stack(tmp_path: Path) -> None:
    disks = "tpu: {zones: [us-central1-b], type: v2-8, data_disks: [{size_gb: 100}]}\n"
    stack = bert_stack(tmp_path, f"{disks}controller: {{}}\n")
    rates = hourly_rates(stack)
    assert [*rates] == ["tpu", "controller", "disks"]
    assert sum(rates.values()) == pytest.approx(cost_of(stack).per_hour)
    assert rates["disks"] == pytest.approx(100 * 0.1 / 730)


# A month of all stacks of a project ----------------------------------------------------------


def test_budget_counts_a_month_by_stack_and_user(tmp_path: Path) -> None:
    periods = (
        period(-100, -40, user="anna"),  # from October on: 36 hours before noon of the 2nd
        period(-2, 3, stack="gpt", user="ben", per_hour=50.0),
        period(9, user="anna"),
        period(-800, -700),
    )
    stack = stack_of(tmp_path, "{budget: $250/month}")
    use = Ledgers(stack, NOW, None, Ledger(periods=periods)).budget
    assert str(use) == "$252.00 of $250.00 in 2026-11: gpt (ben) $250.00, bert (anna) $2.00"
    with pytest.raises(TimedOut, match=r"gpt \(ben\) \$250.00"):
        require_left(stack, None, use)


def test_machine_counts_only_its_month_and_drops_what_was_before() -> None:
    storage, ledger = Storage(), watchdog.Ledger(BUDGET)
    earlier = (period(-800, -700), period(-60, -35, stack="gpt"), period(-1, 0, stack="gpt"))
    storage.text = Ledger(periods=earlier).model_dump_json()
    report(ledger, storage)
    entries = Ledger.model_validate_json(storage.text).periods
    assert [entry.started for entry in entries] == [hour(-60), hour(-1), NOON]
    sums = ledger.sums(storage.time)
    assert sums is not None
    assert sums.cost == pytest.approx(2.0 + 2.0)  # 35 hours before noon of the 2nd: 1 hour counts
    assert "limits.budget" in watchdog.spending_limit_reason({"budget": 4.0}, sums)


def test_ten_machines_at_once_overspend_by_one_check_at_most() -> None:
    storage, rate = Storage(), 45.0
    items = [{**ITEM, "stack": f"stack-{number}", "per_hour": rate / 10} for number in range(10)]
    ledgers = [watchdog.Ledger(BUDGET) for _ in items]
    running, spent = set(range(10)), 0.0
    while running:
        for number in range(10):
            storage.time += watchdog.MAX_TICK / 10  # each checks twice a minute
            spent += len(running) * rate / 10 * watchdog.MAX_TICK / 10 / 3600
            if number not in running:
                continue
            ledger = ledgers[number]
            ledger.report(storage, [(items[number], NOON.timestamp())])  # type: ignore[arg-type]
            sums = ledger.sums(storage.time)
            assert sums is not None
            if watchdog.spending_limit_reason(BUDGET, sums):
                ledger.report(storage, [(items[number], None)])  # type: ignore[arg-type]
                running.remove(number)
    assert 4.0 <= spent <= 4.0 + rate * watchdog.MAX_TICK / 3600


@pytest.mark.parametrize("text", ["300", "300/day", "-3/month", "x/month"])
def test_budget_is_an_amount_per_month(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidStack):
        stack_of(tmp_path, f"{{budget: {text}}}")


# What is left --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "is_left"),
    [
        ("{max_hours: 4.1, max_cost: 8.1}", True),
        ("{max_hours: 4}", False),
        ("{max_cost: 8}", False),
    ],
)
def test_up_is_refused_when_nothing_is_left(tmp_path: Path, limits: str, is_left: bool) -> None:
    stack = stack_of(tmp_path, limits)
    spending = Ledgers(stack, NOW, Ledger(periods=(period(0, 3), period(4, 5))), None).spending
    if is_left:
        require_left(stack, spending, None)
        assert str(spending) == "$8.00 of $8.10, 4 of 4.1 hours, since 2026-11-02 12:00 UTC"
        return
    with pytest.raises(TimedOut) as raised:
        require_left(stack, spending, None)
    assert "tpuctl up --new-limits" in raised.value.diagnostics[0].hint


def test_plan_shows_what_was_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    stack = stack_of(tmp_path, "{max_hours: 4, budget: 300/month}")
    ledger = Ledger(periods=(period(0, 3, user="me"),))
    ledgers = Ledgers(stack, NOW, ledger, ledger)
    show_spending(ledgers.spending, ledgers.budget)
    output = " ".join(capsys.readouterr().out.split())
    assert "Used of the limits: 3 of 4 hours, since 2026-11-02 12:00 UTC." in output
    assert "Used of the project's budget: $6.00 of $300.00 in 2026-11: bert (me) $6.00." in output


def test_new_machine_gets_what_is_left_and_a_running_one_is_not_updated(tmp_path: Path) -> None:
    stack = stack_of(tmp_path, "{max_hours: 4, max_cost: 9, idle: null}")
    before = watch_metadata(stack, on_controller=False)
    later = watch_metadata(replace(stack, spent=Spent(0.0, 3.0)), on_controller=False)
    cost = watch_metadata(replace(stack, spent=Spent(8.0, 0.0)), on_controller=False)
    assert json.loads(before["tpuctl-left"])["max_seconds"] == pytest.approx(9 / 4.505 * 3600)
    assert json.loads(later["tpuctl-left"])["max_seconds"] == 3600.0
    assert json.loads(cost["tpuctl-left"])["max_seconds"] == pytest.approx(1 / 4.505 * 3600)
    assert metadata_differs(before, later) == ()
    reset = replace(stack, spent=Spent(since=NOON))
    assert metadata_differs(before, watch_metadata(reset, on_controller=False)) == ("limits",)


def test_further_tpu_reports_to_the_same_ledger_and_deletes_only_itself(tmp_path: Path) -> None:
    stack = stack_of(tmp_path, "{max_cost: 9, idle: 30m}", "controller: {}")
    further = stack.parallel(2)
    assert further.parallel(3).parallel(2) == further
    orders = json.loads(watch_metadata(further, on_controller=False)["tpuctl-watchdog"])
    (url,) = orders["delete"]
    assert url.endswith("/nodes/bert-2-tpu")
    (ledger,) = orders["spending"]["ledgers"]
    assert (ledger["bucket"], ledger["object"]) == (stack.bucket, "tpuctl/spending/bert.json")
    assert [item["stack"] for item in orders["spending"]["items"]] == ["bert-2"]
    assert (further.bucket, further.service_account, further.tags) == (
        stack.bucket,
        stack.service_account,
        stack.tags,
    )
    assert further.labels["tpuctl-stack"] == "bert-2"


def test_nothing_left_is_not_taken_for_no_limit(tmp_path: Path) -> None:
    stack = replace(stack_of(tmp_path, "{max_hours: 4}"), spent=Spent(0.0, 5.0))
    left = json.loads(watch_metadata(stack, on_controller=False)["tpuctl-left"])
    assert watchdog.age_limit_reason(left, 1.0, 0.0) != ""


# The watchdog's reports ----------------------------------------------------------------------


class Storage:
    """An object of Cloud Storage, and a clock, for a watchdog."""

    def __init__(self) -> None:
        self.text: Any = None
        self.generation = 0
        self.failures: list[int] = []
        self.clock = self
        self.time = NOON.timestamp()

    def now(self) -> float:
        return self.time

    def call(self, method: str, url: str, body: Any = None) -> tuple[int, Any]:
        if self.failures:
            return self.failures.pop(), None
        if method == "POST":
            if f"ifGenerationMatch={self.generation}" not in url:
                return 412, None
            self.text, self.generation = json.dumps(body), self.generation + 1
        elif self.text is None:
            return 404, None
        elif "alt=media" in url:
            return 200, json.loads(self.text)
        return 200, {"generation": str(self.generation)}


SETTINGS = {"bucket": "b", "object": "tpuctl/spending/bert.json", "max_hours": 2, "max_cost": None}


BUDGET = {"bucket": "tpuctl-budget-p", "object": "tpuctl/spending/budget.json", "budget": 4.0}


def report(ledger: watchdog.Ledger, storage: Storage, created: datetime | None = NOON) -> None:
    time = None if created is None else created.timestamp()
    ledger.report(storage, [(ITEM, time)])  # type: ignore[arg-type]


def test_machine_reports_once_a_minute_and_ends_what_it_deletes() -> None:
    storage, ledger = Storage(), watchdog.Ledger(SETTINGS)
    for _ in range(5):
        report(ledger, storage)
        storage.time += 30
    assert storage.generation == 3
    report(ledger, storage, None)
    (entry,) = Ledger.model_validate_json(storage.text).periods
    reported = {"user": "me", "per_hour": 4.5, "last_report": NOON + timedelta(seconds=120)}
    assert entry == period(0, 150 / 3600, **reported)


def test_machine_counts_what_earlier_machines_and_others_spent() -> None:
    storage, ledger = Storage(), watchdog.Ledger(SETTINGS)
    storage.text = Ledger(periods=(period(-9, -8), period(-1))).model_dump_json()
    report(ledger, storage)
    entries = Ledger.model_validate_json(storage.text).periods
    assert [entry.ended for entry in entries] == [hour(-8), NOON, None]  # the former TPU is gone
    sums = ledger.sums(storage.time)
    assert sums is not None
    assert sums == watchdog.Spent(4.0, 2.0, 4.5, 1)
    assert watchdog.spending_limit_reason(SETTINGS, sums).endswith("(limits.max_hours)")


def test_machine_tries_again_after_another_has_written() -> None:
    storage, ledger = Storage(), watchdog.Ledger(SETTINGS)
    report(ledger, storage)
    other = Ledger.model_validate_json(storage.text).with_period(period(-9, -8)).model_dump_json()
    storage.text, storage.generation, storage.time = other, 7, storage.time + 60
    report(ledger, storage)
    assert len(Ledger.model_validate_json(storage.text).periods) == 2


def test_unreadable_ledger_counts_on() -> None:
    storage, ledger = Storage(), watchdog.Ledger(SETTINGS)
    report(ledger, storage)
    storage.time += 3600
    storage.failures = [503]
    with pytest.raises(OSError, match="503"):
        report(ledger, storage)
    sums = ledger.sums(storage.time)
    assert sums is not None
    assert (sums.cost, sums.hours) == (pytest.approx(4.5), pytest.approx(1.0))


@pytest.mark.parametrize(
    "text",
    [
        *("[]", "{}", '{"periods": [1]}', '{"periods": [{"item": "tpu"}]}'),
        Ledger(periods=(period(0),)).model_dump_json().replace("2.0", "NaN"),
        Ledger(periods=(period(0),)).model_dump_json().replace("2.0", "-2.0"),
    ],
)
def test_damaged_ledger_is_neither_counted_nor_overwritten(text: str) -> None:
    storage, ledger = Storage(), watchdog.Ledger(SETTINGS)
    storage.text = text
    with pytest.raises(Exception):  # noqa: B017 - as many kinds as there are of damage
        report(ledger, storage)
    assert ledger.sums(NOON.timestamp()) is None
    assert storage.text == text


def test_next_check_is_when_the_limit_is_reached() -> None:
    assert watchdog.seconds_left(SETTINGS, watchdog.Spent(0.0, 1.999, 4.5, 1)) == pytest.approx(3.6)
    cost = {"max_cost": 9.0}
    assert watchdog.seconds_left(cost, watchdog.Spent(8.999, 9.0, 4.5, 1)) == pytest.approx(0.8)
    assert watchdog.seconds_left(cost, watchdog.Spent(1.0, 1.0, 0.0, 0)) == watchdog.MAX_TICK
