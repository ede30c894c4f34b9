"""Held-out error texts, in batches, each collected, labeled and explained once, in this order.

How many of those whose condition is in the table were explained rightly at that first time, and how
many of all wrongly:

    lot   texts  in the table  rightly     wrongly  what became of it
    1, 2  76                   42 %        3 %      learned from; in seen_texts.toml since
    3     19     15            11 (58 %)   0        cut short, one was; learned from in part
    4     58     41            28 (68 %)   2        what was not explained rightly was learned from
    5     46     30            11 (37 %)   1        the same
    6     37     30            14 (47 %)   0        nothing was learned from it
    7     95     41            14 (34 %)   1        what was not explained rightly was learned from
    8     79     55            45 (82 %)   1        learned from the one explained wrongly, alone

Lot 8 is untouched since, but for that one. No text of lot 6 was learned from; how many of it are
explained was printed once while the table was widened. Of the others there is what is left without
what was learned from: they show that nothing became wrong, and no rate. Lots 4, 5 and 7 are without
texts whose wording had been seen before, lots 5 and 7 the most strictly: the rates of new wordings
alone. Lots 6 and 8 are every text that searches found in threads which no file names, as people
meet them. Twelve more of lot 4, all explained rightly, did not count: the table names their
threads. After the measurement of lot 6 the table was widened with other texts; three rows of the
lots (loom#359, XEE_tutorial#1, cml#1398) were met by entries on the way, which were taken back, and
two (pytorch-lightning#14391, xpk#751) have conditions that the table did not have before.
"""

from __future__ import annotations

import pytest

from tests.unit.test_seen_texts import cut, explained, texts

HELD_OUT = texts("held_out_texts.toml")


def test_no_text_is_explained_wrongly() -> None:
    wrong = [
        (row["source"], name)
        for row in HELD_OUT
        if (name := explained(row["text"])) is not None and name not in row["means"]
    ]
    assert not wrong


@pytest.mark.parametrize(
    ("lot", "size", "in_the_table", "rightly"), [(6, 37, 30, 14), (8, 78, 54, 45)]
)
def test_held_out_texts_are_explained_as_often_as_before(
    lot: int, size: int, in_the_table: int, rightly: int
) -> None:
    rows = [row for row in HELD_OUT if row["lot"] == lot]
    expected = [row for row in rows if row["means"]]
    assert (len(rows), len(expected)) == (size, in_the_table)
    assert sum(explained(row["text"]) in row["means"] for row in expected) >= rightly


def test_truncated_text_is_not_explained_wrongly() -> None:
    for row in HELD_OUT:
        for part in cut(row["text"]):
            assert explained(part) in (None, *row["means"], *row.get("cut", ())), part
