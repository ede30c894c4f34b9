"""The model card: valid front matter, and the contents a reader expects."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import yaml

RECORDS = {
    "counts": {"documents": 24, "sentences": 360, "sequences": 799, "tokens": 32843},
    "sequence_length": 48,
    "predictions": 8,
    "duplication": 5,
    "vocabulary_size": 3000,
    "whole_words": True,
    "masking": "static",
    "pairs": "nsp",
}
KOREAN = ["[PAD]", "나는", "##에", "학교", "the"]


def card(job: SimpleNamespace, **changes: Any) -> tuple[dict[str, Any], str]:
    given: dict[str, Any] = {
        "source": {},
        "training": {"size": "tiny", "steps": 150, "learning_rate": 2e-3},
        "records": RECORDS,
        "evaluation": {"held_out_mlm_loss": 3.21},
        "examples": ["나는 ____ 간다 | hidden: 학교에 | guesses: 집에 12%"],
        "vocabulary": KOREAN,
        **changes,
    }
    text = job.card.model_card(**given)
    assert text.startswith("---\n")
    head, body = text.removeprefix("---\n").split("---\n", 1)
    return yaml.safe_load(head), body


def test_front_matter_is_valid_for_the_hub(job: SimpleNamespace) -> None:
    head, _ = card(job, source={"license": "cc-by-sa-4.0"})
    assert head["license"] == "cc-by-sa-4.0"
    assert "license_name" not in head
    assert head["language"] == ["ko"]
    assert (head["library_name"], head["pipeline_tag"]) == ("transformers", "fill-mask")
    assert head["mask_token"] == "[MASK]"
    head, _ = card(job, vocabulary=["the", "##s", "go", "be", "a", "한"])
    assert "language" not in head
    assert "korean" not in head["tags"]


def test_unknown_license_is_stated(job: SimpleNamespace) -> None:
    head, body = card(job)
    assert (head["license"], head["license_name"]) == ("other", "that-of-the-text")
    assert "license of the text is unknown" in body


def test_card_has_sizes_figures_and_examples(job: SimpleNamespace) -> None:
    _, body = card(job, source={"name": "kowiki 20260101: pages-articles"})
    rows = dict(
        (cell.strip() for cell in line.strip("|").split("|"))
        for line in body.splitlines()
        if line.startswith("| ") and line.count("|") == 3
    )
    assert rows["source"] == "kowiki 20260101: pages-articles"
    assert (rows["documents"], rows["tokens in them"]) == ("24", "32,843")
    assert rows["masked"].startswith("at most 8 tokens per sequence, whole words, 5 maskings")
    assert rows["second task"] == "whether two segments follow each other"
    assert (rows["steps"], rows["held out mlm loss"]) == ("150", "3.21")
    assert "    나는 ____ 간다 | hidden: 학교에" in body
    assert "48 tokens" in body
    _, body = card(job, evaluation={}, examples=[])
    assert "No text was held out." in body
