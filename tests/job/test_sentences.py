"""Boundaries of Korean sentences. A bar marks each expected boundary."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import strategies as st

from tests.support.properties import given

PARTED = [
    "하늘이 맑다.|바람이 분다.|별이 뜬다.",
    "정말인가요?|그렇습니다!|좋아요.",
    "정말?!|그럼.",
    "마지막에 점이 없는 문장|",
    "문장이다.|마지막에 점이 없는 문장",
    # quotes and brackets
    "그는 “간다. 곧 온다.”라고 말했다.|그리고 갔다.",
    '그는 "간다. 곧 온다." 라고 말했다.|그리고 갔다.',
    "그는 ‘왜 그럴까?’ 하고 생각했다.|답은 없었다.",
    "그가 말했다.|“간다.”|그리고 갔다.",
    "책 《간다. 온다》를 읽었다.|재미있었다.",
    "서울(옛 이름은 한양. 조선의 도읍이다.)은 크다.|부산은 멀다.",
    "끝났다(정말이다.)|다음이다.",
    # an unclosed bracket
    "값은 ( 모른다.|다음 문장이다.",
    '그는 5" 화면을 샀다.|작았다.',
    # numbers
    "원주율은 3.14이다.|무리수다.",
    "2019. 3. 1. 행사가 열렸다.|성대했다.",
    "그는 1990. 5. 3. 태어났다.|서울에서다.",
    "1. 서론은 짧다.|본론은 길다.",
    "인구는 1000.|면적은 모른다.",
    # abbreviations and initials
    "J. R. R. 톨킨이 썼다.|길다.",
    "U.S. 정부가 알렸다.|끝.",
    "Dr. Kim이 왔다.|갔다.",
    "It is e.g. small.|Next one.",
    "google.com 은 누리집이다.|끝.",
    # ellipses
    "글쎄... 모르겠다.|그렇다.",
    "글쎄… 모르겠다.|그렇다.",
    # wide marks
    "これは本です。|あれも本です。",
    "끝났다!|iPhone은 전화다.|3월이다.",
]


NOT_SPACED = [
    "밥을 먹었다.|그리고 잤다.",
    "밥을 먹었어요.|그리고 잤죠!|정말일까?|그렇다.",
    "これは本です。|あれも本です。",
]


@pytest.mark.parametrize("parted", PARTED)
def test_sentence_boundaries(wiki: SimpleNamespace, parted: str) -> None:
    expected = [sentence for sentence in parted.split("|") if sentence]
    assert list(wiki.sentences.sentences(" ".join(expected))) == expected


@pytest.mark.parametrize("parted", NOT_SPACED)
def test_missing_space_is_tolerated(wiki: SimpleNamespace, parted: str) -> None:
    assert list(wiki.sentences.sentences(parted.replace("|", ""))) == parted.split("|")


@given(st.text(alphabet="가다요까 .!?…\"'()“”‘’《》[]「」12aB。\t", max_size=120))
def test_splitting_keeps_all_characters(wiki: SimpleNamespace, paragraph: str) -> None:
    found = list(wiki.sentences.sentences(paragraph))
    assert "".join("".join(found).split()) == "".join(paragraph.split())
    assert all(sentence and sentence == sentence.strip() for sentence in found)


@pytest.mark.parametrize(
    "token", ["(", ")", '"', "“ ", "가. ", "1. ", "a. ", "…", "다.", "(가. ", "A."]
)
@pytest.mark.timeout(60)  # a second if linear, many minutes if quadratic
def test_time_is_linear(wiki: SimpleNamespace, token: str) -> None:
    text = token * 100_000
    assert "".join("".join(wiki.sentences.sentences(text)).split()) == "".join(text.split())
