"""Wiki markup becomes paragraphs of plain text.

What a reader sees as running text stays: prose, the labels of links, list items that are whole
sentences. What is not prose goes: templates, tables, footnotes, pictures with their captions,
categories, headings, galleries, program listings. Broken markup is taken as MediaWiki takes it:
what is never closed is literal text. Every step takes time in proportion to the text.

Rules: https://www.mediawiki.org/wiki/Help:Formatting and the pages on links, tables and templates.
"""

from __future__ import annotations

import html
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["FORMULA", "Namespaces", "paragraphs"]

FORMULA = "\ue0ff"  # stands where a formula was; the sentence around it has a hole

COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
# Elements that are no prose, with everything in them.
FORMULAS = ("ce", "chem", "math")
DROPPED = (
    *FORMULAS,
    *("categorytree", "gallery", "graph", "hiero", "imagemap", "indicator", "inputbox"),
    *("mapframe", "maplink", "pre", "ref", "references", "score", "script", "section", "source"),
    *("style", "syntaxhighlight", "table", "templatedata", "templatestyles", "timeline"),
)
ELEMENT = re.compile(rf"<(/?)({'|'.join(DROPPED)})(?=[\s/>])[^<>]*?(/?)>", re.IGNORECASE)
NOWIKI = re.compile(r"<(/?)(nowiki)(?=[\s/>])[^<>]*?(/?)>", re.IGNORECASE)
LINE_TAG = re.compile(
    r"</?(?:blockquote|br|center|dd|div|dl|dt|h[1-6]|hr|li|ol|p|ul)\b[^<>]*>", re.I
)
TAG = re.compile(r"</?[A-Za-z][^<>]*>")

BRACES = re.compile(r"(\{\{)|\}\}")
TABLE = re.compile(r"^[ \t:*#;]*(\{\|)|^[ \t]*\|\}", re.MULTILINE)
# Templates that show some of their arguments, and which; all others are dropped.
SHOWN = {
    **dict.fromkeys(("lang", "llang"), (2,)),
    **dict.fromkeys(("nobr", "nowrap"), (1,)),
    **dict.fromkeys(("convert", "cvt", "변환"), (1, 2)),  # a number and its unit
}
LONGEST_SHOWN = 2000  # characters
PIPE = re.compile(r"\|(?![^\[\]]*\]\])")
NAMED_ARGUMENT = re.compile(r"\s*[\w-]+\s*=")
DEEPEST = 6  # templates that show templates, and links within captions

EXTERNAL_LINK = re.compile(
    r"(?<!\[)\[(?:(?:[a-z]+:)?//|mailto:)[^\s\[\]]+[ \t]*([^\[\]\n]*)\]", re.IGNORECASE
)
INTERNAL_LINK = re.compile(r"\[\[([^\[\]]*)\]\]")
# A link with one of these before its colon leads to the article in another language.
CODES = (
    "ar arz ast az be bg bn ca ce ceb cs cy da de el en eo es et eu fa fi fr gl he hi hr hu hy id"
    " is it ja ka kk ko la lt lv mk ms nl nn no pl pt ro ru sh simple sk sl sr sv ta te th tr uk"
    " ur uz vi war zh zh-classical zh-min-nan zh-yue"
)
LANGUAGES = frozenset(CODES.split())

HEADING = re.compile(r"(={1,6})[^\n]+\1")
LIST_MARK = "*#:;"
SENTENCE_END = re.compile(r"[.!?。！？][\"'”’」』)\]]*$")
SWITCH = re.compile(r"__[A-Z가-힣]+__")
QUOTES = re.compile(r"'{2,}")

# What the removal of a template or a reference leaves behind in brackets and before marks: first
# all of it in one pattern, as most paragraphs have none.
LEFT_BEHIND = re.compile(r"[(（\[]\s?[,;:·、/\s)）\]]|[,;:·、\s][)）]|[,;]\s?[,;]|\s[,.;!?]")
EMPTY_BRACKETS = re.compile(r"\s?[(（\[]\s?(?:[,;:·、/]\s?)*[)）\]]")
BRACKET_START = re.compile(r"([(（])\s?(?:[,;:·、]\s?)+")
BRACKET_INSIDE = re.compile(r"([(（])\s|\s([)）])")
BRACKET_END = re.compile(r"(?<![,;:·、\s])(?:\s?[,;:·、])+\s?([)）])")
REPEATED_COMMA = re.compile(r"([,;])(?:\s?[,;])+")
SPACE_BEFORE_MARK = re.compile(r"\s([,.;!?](?:\s|$))")

# Markup characters within <nowiki> are set aside while the markup is read.
MARKUP = "[]{}'<>|=*#:;_"
ASIDE = {ord(mark): 0xE000 + n for n, mark in enumerate(MARKUP)}
BACK = {aside: chr(mark) for mark, aside in ASIDE.items()}
SET_ASIDE = re.compile(f"[{chr(min(BACK))}-{chr(max(BACK))}]")
UNEXPECTED = re.compile(f"[{chr(min(BACK))}-{chr(max(BACK))}{FORMULA}]")


@dataclass(frozen=True)
class Namespaces:
    """The words, in small letters, that make a link a picture or a category."""

    files: frozenset[str] = frozenset(("file", "image", "그림", "이미지", "파일"))
    categories: frozenset[str] = frozenset(("category", "분류"))

    def with_names(self, files: str, categories: str) -> Namespaces:
        """Add the names that a wiki says it uses."""
        return Namespaces(self.files | {files.lower()}, self.categories | {categories.lower()})


def paragraphs(text: str, namespaces: Namespaces | None = None) -> list[str]:
    """Return the prose of a page, a string for each paragraph, spaces made single.

    Where a formula was, the paragraph has the character FORMULA.
    """
    names = namespaces or Namespaces()
    text = COMMENT.sub("", UNEXPECTED.sub("", text))
    text = replace_elements(text, NOWIKI, lambda name, inner: inner.translate(ASIDE))
    text = replace_elements(text, ELEMENT, lambda name, _: FORMULA if name in FORMULAS else "")
    text = drop_templates(text)
    text = drop_spans(text, outermost(text, TABLE))
    text = plain_links(text, names)
    text = TAG.sub("", LINE_TAG.sub("\n\n", text))
    text = QUOTES.sub("", SWITCH.sub("", text))
    found = (tidy(html.unescape(block)) for block in blocks(text))
    return [SET_ASIDE.sub(lambda mark: BACK[ord(mark[0])], block) for block in found if block]


def replace_elements(text: str, tags: re.Pattern[str], put: Callable[[str, str], str]) -> str:
    """Put something else in the place of each element; a tag without its pair is dropped."""
    found = list(tags.finditer(text))
    closing: dict[str, list[int]] = defaultdict(list)
    for number, tag in enumerate(found):
        if tag[1]:
            closing[tag[2].lower()].append(number)
    pieces, done = [], 0
    for number, tag in enumerate(found):
        if tag.start() < done:
            continue
        name, end = tag[2].lower(), tag.end()
        inner = ""
        later = bisect_right(closing[name], number)
        if not tag[1] and not tag[3]:
            if later == len(closing[name]):
                pieces.append(text[done : tag.start()])
                done = end
                continue
            closer = found[closing[name][later]]
            inner, end = text[tag.end() : closer.start()], closer.end()
        pieces += [text[done : tag.start()], "" if tag[1] else put(name, inner)]
        done = end
    return "".join([*pieces, text[done:]])


def outermost(text: str, tokens: re.Pattern[str]) -> list[tuple[int, int]]:
    """Return where pairs of brackets begin and end, without those inside another pair.

    The pattern finds both brackets; its group 1 is there for the opening one.
    """
    opened: list[int] = []
    spans: list[tuple[int, int]] = []
    for token in tokens.finditer(text):
        if token[1]:
            opened.append(token.start())
        elif opened:
            start = opened.pop()
            while spans and spans[-1][0] > start:
                spans.pop()
            spans.append((start, token.end()))
    return spans


def drop_spans(
    text: str, spans: list[tuple[int, int]], put: Callable[[str], str] = lambda _: ""
) -> str:
    pieces, done = [], 0
    for start, end in spans:
        pieces += [text[done:start], put(text[start:end])]
        done = end
    return "".join([*pieces, text[done:]])


def drop_templates(text: str, depth: int = 0) -> str:
    def shown(template: str) -> str:
        name = template[2:50].partition("|")[0].strip().lower()
        which = (1,) if name.startswith("lang-") else SHOWN.get(name)
        if which is None or len(template) > LONGEST_SHOWN or depth == DEEPEST:
            return ""
        parts = PIPE.split(drop_templates(template[2:-2], depth + 1))
        values = [part for part in parts if not NAMED_ARGUMENT.match(part)]
        return " ".join(values[n].strip() for n in which if n < len(values))

    text = drop_spans(text, outermost(text, BRACES), shown)
    return text.replace("{{", "").replace("}}", "")


def plain_links(text: str, names: Namespaces) -> str:
    """Put the label of each link in its place; pictures and categories have none."""

    def label(link: re.Match[str]) -> str:
        target, _, shown = link[1].partition("|")
        prefix = target.partition(":")[0].strip().lower() if ":" in target else ""
        if prefix in names.files or prefix in names.categories or prefix in LANGUAGES:
            return ""
        return (shown or target.strip().removeprefix(":")).strip()

    text = EXTERNAL_LINK.sub(r"\1", text)
    for _ in range(DEEPEST):  # from the inside outwards
        text, count = INTERNAL_LINK.subn(label, text)
        if not count:
            break
    return text.replace("[[", "").replace("]]", "")


def blocks(text: str) -> list[str]:
    """Join the lines of each paragraph; headings, rules and remains of tables end one."""
    found: list[str] = []
    lines: list[str] = []
    for whole in [*text.split("\n"), ""]:
        line = whole.strip()
        is_list = line.startswith(tuple(LIST_MARK))
        if line and not is_list and not is_structure(line):
            lines.append(line)
            continue
        if lines:
            found.append(" ".join(lines))
            lines = []
        if is_list:
            item = line.lstrip(LIST_MARK + " ")
            if SENTENCE_END.search(item):
                found.append(item)
    return found


def is_structure(line: str) -> bool:
    return line.startswith(("|", "{|", "----")) or HEADING.fullmatch(line) is not None


def tidy(text: str) -> str:
    """Make spaces single and take away what removed markup left behind."""
    text = " ".join(text.split())
    if not LEFT_BEHIND.search(text):
        return text
    text = EMPTY_BRACKETS.sub("", EMPTY_BRACKETS.sub("", text))
    text = BRACKET_END.sub(r"\1", BRACKET_START.sub(r"\1", text))
    text = BRACKET_INSIDE.sub(r"\1\2", text)
    text = SPACE_BEFORE_MARK.sub(r"\1", REPEATED_COMMA.sub(r"\1", text))
    return text.strip()
