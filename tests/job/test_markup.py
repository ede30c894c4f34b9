"""Converting wiki markup to prose; the expectations follow MediaWiki's rules."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import example
from hypothesis import strategies as st

from tests.support.properties import given

CASES = {
    # Help:Formatting
    "bold and italic": (
        "'''굵은''' 글과 ''기운'' 글과 '''''둘 다'''''.",
        ["굵은 글과 기운 글과 둘 다."],
    ),
    "an apostrophe stays": ("It's Bob's.", ["It's Bob's."]),
    "single line breaks are spaces": ("한 줄\n두 줄", ["한 줄 두 줄"]),
    "an empty line parts paragraphs": ("하나.\n\n둘.", ["하나.", "둘."]),
    "br breaks the line": ("하나.<br />둘.<BR>셋.", ["하나.", "둘.", "셋."]),
    "headings go": ("앞.\n== 제목 ==\n뒤.\n===작은 제목===\n끝.", ["앞.", "뒤.", "끝."]),
    "a rule goes": ("앞.\n----\n뒤.", ["앞.", "뒤."]),
    "list items that are sentences stay": (
        "* 서울\n* 부산은 항구다.\n** '깊은' 항목이다.\n# 첫째다!\n: 들여 쓴 글이다.\n; 용어 : 뜻",
        ["부산은 항구다.", "'깊은' 항목이다.", "첫째다!", "들여 쓴 글이다."],
    ),
    "comments go": ("앞<!-- 숨은\n\n글 -->뒤", ["앞뒤"]),
    "an open comment hides the rest": ("앞 <!-- 끝이 없다", ["앞"]),
    "of nowiki the words stay": ("<nowiki>[[링크]] {{틀}} ''</nowiki> 그대로", ["링크 틀 그대로"]),
    "a single bracket of nowiki stays": ("<nowiki>[a]</nowiki> 글", ["[a] 글"]),
    "entities": ("A&nbsp;&amp;&#32;B &lt;b&gt; &#x41;", ["A & B <b> A"]),
    "an entity makes no markup": ("&#91;글&#93; &lt;ref&gt;", ["[글] <ref>"]),
    "switches go": ("__목차없음__글이다.\n__NOTOC__", ["글이다."]),
    # Help:Links
    "links": ("[[서울]]과 [[부산광역시|부산]]과 [[대구#역사|그 역사]]", ["서울과 부산과 그 역사"]),
    "letters behind a link": ("[[사과]]나무", ["사과나무"]),
    "a link to a category": ("[[:분류:음악]]을 보라.", ["분류:음악을 보라."]),
    "categories go": ("글.\n[[분류:음악]]\n[[Category:Music|*]]", ["글."]),
    "other languages go": ("글.\n[[en:Text]] [[zh-min-nan:Bûn]]", ["글."]),
    "a title that only looks like one": ("[[CSI: 과학수사대]]", ["CSI: 과학수사대"]),
    "web links": (
        "[https://example.org/a?b=c 이름]과 [//example.org 다른 이름]과 [http://example.org] 끝",
        ["이름과 다른 이름과 끝"],
    ),
    "brackets that are no link": ("각주[1]와 [가/나]", ["각주[1]와 [가/나]"]),
    # Help:Images
    "pictures go with their captions": (
        "앞 [[파일:가.jpg|섬네일|200px|[[서울]]의 [https://example.org 강], {{틀}} [[나|다]]]] 뒤",
        ["앞 뒤"],
    ),
    "the English name of the namespace": ("[[File:A.png|thumb|caption]]글", ["글"]),
    "galleries go": ("앞.\n<gallery mode=packed>\n파일:가.jpg|글\n</gallery>\n뒤.", ["앞.", "뒤."]),
    # Help:Templates
    "templates go": ("앞{{틀|가=나|{{안|{{더 안}}}}}} 뒤", ["앞 뒤"]),
    "templates over lines": ("{{정보상자\n| 이름 = 가\n| 그림 = [[파일:가.jpg]]\n}}\n글.", ["글."]),
    "templates that show text": (
        "{{lang|en|Seoul}} {{llang|la|Seulum}} {{lang-en|Soul}} {{nowrap|한 줄}}",
        ["Seoul Seulum Soul 한 줄"],
    ),
    "a number and its unit": (
        "면적은 {{convert|605.2|km2|abbr=on}}이다.",
        ["면적은 605.2 km2이다."],
    ),
    "a named argument is not shown": ("{{lang|en|Seoul|nocat=1}}", ["Seoul"]),
    "a template never closed is literal": ("앞 {{열림 뒤", ["앞 열림 뒤"]),
    "and hides no later one": ("{{열림 글 {{틀}} 끝", ["열림 글 끝"]),
    "what is left in brackets goes": (
        "서울({{lang|en}}, {{한자|x}}, 1990년 ~ {{현재}})은 ( {{틀}} ) 도시{{틀}} .",
        ["서울(1990년 ~)은 도시."],
    ),
    # Help:Tables
    "tables go": ("앞.\n{| class=x\n! 가 !! 나\n|-\n| 1 || 2\n|}\n뒤.", ["앞.", "뒤."]),
    "tables in tables": ("{|\n|\n{|\n| 안\n|}\n| 밖\n|}\n뒤.", ["뒤."]),
    "an indented table": ("앞.\n:{|\n| 가\n|}\n뒤.", ["앞.", "뒤."]),
    # Extensions' tags
    "footnotes go": (
        '글<ref>책 3쪽.</ref>이다.<ref name="a" /> 또 <ref name=b group="c">{{인용}}</ref>글.',
        ["글이다. 또 글."],
    ),
    "a tag without its pair goes alone": ("글 <ref>뒤", ["글 뒤"]),
    "a closing tag alone": ("글</ref> 뒤", ["글 뒤"]),
    "program listings go": ('앞 <syntaxhighlight lang="c">int a;</syntaxhighlight>뒤', ["앞 뒤"]),
    "other tags leave their content": (
        '<span style="x">글</span>과 <small>작은</small> 글',
        ["글과 작은 글"],
    ),
    "less than is no tag": ("3 < 5 이고 5 > 3 이다", ["3 < 5 이고 5 > 3 이다"]),
}


@pytest.mark.parametrize(("markup", "prose"), CASES.values(), ids=list(CASES))
def test_markup_is_converted_to_running_text(
    wiki: SimpleNamespace, markup: str, prose: list[str]
) -> None:
    assert wiki.wikipedia.paragraphs(markup) == prose


def test_formula_is_replaced_by_marker(wiki: SimpleNamespace) -> None:
    text = "힘은 <math>F=ma</math>이다. 물은 <chem>H2O</chem>이다."
    mark = wiki.wikipedia.FORMULA
    assert wiki.wikipedia.paragraphs(text) == [f"힘은 {mark}이다. 물은 {mark}이다."]
    assert wiki.wikipedia.paragraphs(f"가{mark}나") == [
        "가나"
    ]  # the marker in the input is removed


def test_link_prefixes_of_other_languages_are_hidden(wiki: SimpleNamespace) -> None:
    text = "[[Datei:a.jpg|mini|Bild]][[kategorie:Musik]]Text [[Datei]]"
    assert wiki.wikipedia.paragraphs(text, {"datei", "kategorie"}) == ["Text Datei"]


TOKENS = [
    *("{{", "}}", "{|", "|}", "|-", "[[", "]]", "[", "]", "[http://a.b ", "|", "파일:", "분류:"),
    *("<ref>", "</ref>", "<ref name=a/>", "<!--", "-->", "<nowiki>", "</nowiki>", "<math>"),
    *("</math>", "==", "\n", "* ", "<br>", "&lt;", "&#91;", "(", ")", ", ", "글", " ", "다. "),
    *("<", ">", "{", "}", "'''"),
]


@given(st.lists(st.sampled_from(TOKENS), max_size=60).map("".join))
@example("{}}{")
@example("{[[{")
@example("{<b>{")
@example("{(()())()<ref name=a/>{")
def test_arbitrary_markup_is_handled(wiki: SimpleNamespace, markup: str) -> None:
    for paragraph in wiki.wikipedia.paragraphs(markup):
        assert paragraph == " ".join(paragraph.split()) != ""
        if "<nowiki>" not in markup and "&" not in markup:
            assert not any(mark in paragraph for mark in ("{{", "}}", "[[", "]]", "'''", "<ref>"))


@given(st.text(alphabet="가나다 .,!?abc0123456789", max_size=200))
def test_plain_text_is_unchanged(wiki: SimpleNamespace, text: str) -> None:
    def letters(words: str) -> str:
        return "".join(mark for mark in words if mark.isalnum())

    assert letters(" ".join(wiki.wikipedia.paragraphs(text))) == letters(text)


@pytest.mark.parametrize("token", [*TOKENS, "[[파일:a|", "{{lang|en|", ",) ", "''", "::", "<b "])
@pytest.mark.timeout(60)  # a second; hours for a long page if the parser gets what it cannot handle
def test_markup_that_takes_hours_to_parse_is_skipped(wiki: SimpleNamespace, token: str) -> None:
    markup = token * 10_000
    wiki.wikipedia.paragraphs(markup)
    assert wiki.wikipedia.is_broken(markup) == (token in UNCLOSED)


UNCLOSED = ["{", "{{", "[[", "[", "[http://a.b ", "<ref>", "<nowiki>", "<math>", "<!--", "<"]
UNCLOSED += ["[[파일:a|", "{{lang|en|", "<b "]
