"""Converts wiki markup to paragraphs of plain text.

Running text is kept: prose, link labels, list items that are whole sentences. Everything else is
removed: templates, tables, footnotes, pictures with their captions, categories, headings,
galleries, program listings. As in MediaWiki, markup that is never closed is literal text. Every
step takes linear time.

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

FORMULA = "\ue0ff"  # placeholder of a removed formula; its sentence is incomplete

COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
# Elements removed with their content.
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
# Templates replaced by some of their arguments, with the arguments' positions; others are removed.
TEMPLATE_ARGUMENTS = {
    **dict.fromkeys(("lang", "llang"), (2,)),
    **dict.fromkeys(("nobr", "nowrap"), (1,)),
    **dict.fromkeys(("convert", "cvt", "변환"), (1, 2)),  # a number and its unit
}
MAX_TEMPLATE_CHARACTERS = 2000
PIPE = re.compile(r"\|(?![^\[\]]*\]\])")
NAMED_ARGUMENT = re.compile(r"\s*[\w-]+\s*=")
MAX_DEPTH = 6  # of nested templates, and of links within captions

EXTERNAL_LINK = re.compile(
    r"(?<!\[)\[(?:(?:[a-z]+:)?//|mailto:)[^\s\[\]]+[ \t]*([^\[\]\n]*)\]", re.IGNORECASE
)
INTERNAL_LINK = re.compile(r"\[\[([^\[\]]*)\]\]")
# A link with one of these prefixes leads to the article in another language.
LANGUAGE_CODES = (
    "ar arz ast az be bg bn ca ce ceb cs cy da de el en eo es et eu fa fi fr gl he hi hr hu hy id"
    " is it ja ka kk ko la lt lv mk ms nl nn no pl pt ro ru sh simple sk sl sr sv ta te th tr uk"
    " ur uz vi war zh zh-classical zh-min-nan zh-yue"
)
LANGUAGES = frozenset(LANGUAGE_CODES.split())

HEADING = re.compile(r"(={1,6})[^\n]+\1")
LIST_MARK = "*#:;"
SENTENCE_END = re.compile(r"[.!?。！？][\"'”’」』)\]]*$")
SWITCH = re.compile(r"__[A-Z가-힣]+__")
QUOTES = re.compile(r"'{2,}")
LEFTOVER = re.compile(r"\{{2,}|\}{2,}|\[{2,}|\]{2,}")  # formed where other markup was removed

# Leftover punctuation of removed templates and references: one pattern finds all of it first, as
# most paragraphs have none.
LEFT_BEHIND = re.compile(r"[(（\[]\s?[,;:·、/\s)）\]]|[,;:·、\s][)）]|[,;]\s?[,;]|\s[,.;!?]")
EMPTY_BRACKETS = re.compile(r"(?:\s?[(（\[]\s?(?:[,;:·、/]\s?)*[)）\]])+")
BRACKET_START = re.compile(r"([(（])\s?(?:[,;:·、]\s?)+")
BRACKET_INSIDE = re.compile(r"([(（])\s|\s([)）])")
BRACKET_END = re.compile(r"(?<![,;:·、\s])(?:\s?[,;:·、])+\s?([)）])")
REPEATED_COMMA = re.compile(r"([,;])(?:\s?[,;])+")
SPACE_BEFORE_MARK = re.compile(r"\s([,.;!?](?:\s|$))")

# Markup characters within <nowiki> are escaped while the markup is parsed.
MARKUP = "[]{}'<>|=*#:;_"
ESCAPES = {ord(mark): 0xE000 + n for n, mark in enumerate(MARKUP)}
UNESCAPES = {aside: chr(mark) for mark, aside in ESCAPES.items()}
ESCAPED = re.compile(f"[{chr(min(UNESCAPES))}-{chr(max(UNESCAPES))}]")
RESERVED = re.compile(f"[{chr(min(UNESCAPES))}-{chr(max(UNESCAPES))}{FORMULA}]")


@dataclass(frozen=True)
class Namespaces:
    """The lowercase prefixes of links to pictures and categories."""

    files: frozenset[str] = frozenset(("file", "image", "그림", "이미지", "파일"))
    categories: frozenset[str] = frozenset(("category", "분류"))

    def with_names(self, files: str, categories: str) -> Namespaces:
        """Return a copy with the names used by a wiki added."""
        return Namespaces(self.files | {files.lower()}, self.categories | {categories.lower()})


def paragraphs(text: str, namespaces: Namespaces | None = None) -> list[str]:
    """Return the paragraphs of a page's prose, with spaces collapsed.

    Each formula is replaced by the character FORMULA.
    """
    names = namespaces or Namespaces()
    text = COMMENT.sub("", RESERVED.sub("", text))
    text = replace_elements(text, NOWIKI, lambda name, inner: inner.translate(ESCAPES))
    text = replace_elements(text, ELEMENT, lambda name, _: FORMULA if name in FORMULAS else "")
    text = drop_templates(text)
    text = drop_spans(text, outermost(text, TABLE))
    text = plain_links(text, names)
    text = TAG.sub("", LINE_TAG.sub("\n\n", text))
    text = LEFTOVER.sub(" ", QUOTES.sub("", SWITCH.sub("", text)))
    tidied = (tidy(html.unescape(block)) for block in blocks(text))
    return [ESCAPED.sub(lambda mark: UNESCAPES[ord(mark[0])], block) for block in tidied if block]


def replace_elements(
    text: str, tags: re.Pattern[str], replacement: Callable[[str, str], str]
) -> str:
    """Replace each element; remove tags without a counterpart."""
    matches = list(tags.finditer(text))
    closing: dict[str, list[int]] = defaultdict(list)
    for number, tag in enumerate(matches):
        if tag[1]:
            closing[tag[2].lower()].append(number)
    pieces, done = [], 0
    for number, tag in enumerate(matches):
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
            closer = matches[closing[name][later]]
            inner, end = text[tag.end() : closer.start()], closer.end()
        pieces += [text[done : tag.start()], "" if tag[1] else replacement(name, inner)]
        done = end
    return "".join([*pieces, text[done:]])


def outermost(text: str, tokens: re.Pattern[str]) -> list[tuple[int, int]]:
    """Return the spans of the outermost bracket pairs.

    The pattern finds both brackets; its group 1 matches the opening one.
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
    text: str, spans: list[tuple[int, int]], replacement: Callable[[str], str] = lambda _: ""
) -> str:
    pieces, done = [], 0
    for start, end in spans:
        pieces += [text[done:start], replacement(text[start:end])]
        done = end
    return "".join([*pieces, text[done:]])


def drop_templates(text: str, depth: int = 0) -> str:
    def expand(template: str) -> str:
        name = template[2:50].partition("|")[0].strip().lower()
        which = (1,) if name.startswith("lang-") else TEMPLATE_ARGUMENTS.get(name)
        if which is None or len(template) > MAX_TEMPLATE_CHARACTERS or depth == MAX_DEPTH:
            return ""
        parts = PIPE.split(drop_templates(template[2:-2], depth + 1))
        values = [part for part in parts if not NAMED_ARGUMENT.match(part)]
        return " ".join(values[n].strip() for n in which if n < len(values))

    text = drop_spans(text, outermost(text, BRACES), expand)
    return text.replace("{{", "").replace("}}", "")


def plain_links(text: str, names: Namespaces) -> str:
    """Replace each link by its label; remove links to pictures and categories."""

    def label(link: re.Match[str]) -> str:
        target, _, text_part = link[1].partition("|")
        prefix = target.partition(":")[0].strip().lower() if ":" in target else ""
        if prefix in names.files or prefix in names.categories or prefix in LANGUAGES:
            return ""
        return (text_part or target.strip().removeprefix(":")).strip()

    text = EXTERNAL_LINK.sub(r"\1", text)
    for _ in range(MAX_DEPTH):  # from the inside outwards
        text, count = INTERNAL_LINK.subn(label, text)
        if not count:
            break
    return text.replace("[[", "").replace("]]", "")


def blocks(text: str) -> list[str]:
    """Join the lines of each paragraph; headings, rules and leftovers of tables end one."""
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


def gap(removed: re.Match[str]) -> str:
    """Return a space if the marks on both sides would otherwise form a leftover, or nothing."""
    text, (start, end) = removed.string, removed.span()
    return " " if LEFTOVER.fullmatch(text[max(start - 1, 0) : start] + text[end : end + 1]) else ""


def tidy(text: str) -> str:
    """Collapse spaces and remove leftover punctuation of removed markup."""
    text = " ".join(text.split())
    if not LEFT_BEHIND.search(text):
        return text
    for _ in range(2):  # the second time, those that held only empty ones
        text = EMPTY_BRACKETS.sub(gap, text)
    text = BRACKET_END.sub(r"\1", BRACKET_START.sub(r"\1", text))
    text = BRACKET_INSIDE.sub(r"\1\2", text)
    text = SPACE_BEFORE_MARK.sub(r"\1", REPEATED_COMMA.sub(r"\1", text))
    return text.strip()
