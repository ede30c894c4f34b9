"""Texts that were set aside: no signature was written or changed for them.

They were found after the signatures, by searches of their own, and judged before they were first
explained. Two lots before these (76 texts) were explained 42 % rightly and 3 % wrongly; both were
learned from then, and are in `seen_texts.toml` and `foreign_texts.toml` since. Of these 19, 11 were
explained rightly and none wrongly, of 15 whose condition is in the table; cut short, one was taken
for another code of IAP, which is mended.
"""

from __future__ import annotations

from tests.unit.test_seen_texts import cut, explained, texts

HELD_OUT = texts("held_out_texts.toml")
IN_THE_TABLE = [row for row in HELD_OUT if row["means"]]


def test_none_of_them_is_explained_wrongly() -> None:
    wrong = [
        (row["source"], name)
        for row in HELD_OUT
        if (name := explained(row["text"])) is not None and name not in row["means"]
    ]
    assert not wrong


def test_most_whose_condition_is_in_the_table_are_explained() -> None:
    rightly = [row for row in IN_THE_TABLE if explained(row["text"]) in row["means"]]
    assert len(rightly) >= 0.6 * len(IN_THE_TABLE)


def test_what_is_cut_off_them_is_not_explained_wrongly() -> None:
    for row in HELD_OUT:
        for part in cut(row["text"]):
            assert explained(part) in (None, *row["means"], *row.get("cut", ())), part
