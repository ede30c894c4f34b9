"""Sources of text: Wikipedia's dumps, Hugging Face datasets, JSON lines and plain text.

`read` yields the documents of a source; `extract` turns documents into sentences, in any process.
"""

import bz2
import gzip
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import vocabulary
from files import JobError, file_errors, gfile, join, names
from sentences import sentences

DATASET, WIKIPEDIA = "hf:", "wikimedia/wikipedia"
KINDS = {".xml": "dump", ".txt": "text", ".jsonl": "json", ".ndjson": "json"}
# A part of a dump is called …-multistream1.xml-p1p82407.bz2.
FILE_NAME = re.compile(r".*(\.xml|\.txt|\.jsonl|\.ndjson)(?:-p\d+p\d+)?(?:\.bz2|\.gz)?")

HIDDEN = {"category", "file", "image", "media", "그림", "분류", "이미지", "파일"}
LANGUAGE = re.compile(r"[a-z]{2,3}(-[a-z-]+)?|simple")  # [[en:…]] is a link beside the article
FORMULA, ITEM = "\ue0ff", "\ue0fe"  # mark the place of a formula, and the start of a list item
# Not running text, besides those whose content is no wiki text: program listings, galleries.
DROPPED = {"indicator", "mapframe", "maplink", "ref", "table"}
LINES = re.compile("blockquote|br|center|dd|div|dl|dt|h[1-6]|hr|li|ol|p|poem|ul")
# Templates that show arguments: text in another language, a number with its unit.
SHOWN = {"lang": "2", "llang": "2", "nowrap": "1", "convert": "12", "cvt": "12", "변환": "12"}
COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
LIST_MARK = re.compile(r"^[ \t]*[*#:;]+[ \t]*(\{\|)?", re.MULTILINE)
TAG = re.compile(r"</?[A-Za-z][^<>]*>")
QUOTES = re.compile("'{2,}")
LEFTOVER = re.compile(r"\{{2,}|\}{2,}|\[{2,}|\]{2,}|\{\||\|\}|__[A-Z가-힣]+__")
BLOCK_END = re.compile(r"\n\s*\n|\n(?=[|!])|\n----+")
SENTENCE_END = re.compile(r"[.!?。！？][\"'”’」』)\]]*\s*$")
LETTER = re.compile(r"[^\W\d_]")
HOLE = re.compile(f"[{FORMULA}\ufffd\ud800-\udfff]")
# Templates and footnotes leave empty brackets, commas and spaces behind.
EMPTY = (re.compile(r"(?:\s?[(（\[][)）\]])+"), "")
TIDYING = (
    (re.compile(r"(?<=[(（\[])[\s,;:·、/]+|(?<![\s,;:·、])[\s,;:·、]+(?=[)）\]])"), ""),
    *(EMPTY, EMPTY),  # the second removes brackets that held only empty ones
    (re.compile(r"([,;])(?:\s?[,;])+"), r"\1"),
    (re.compile(r"\s([,.;!?](?:\s|$))"), r"\1"),
)

# A function that returns the paragraphs of a text, and the text.
Document = tuple[Callable[[str], Iterable[str]], str]


def find(arguments: Iterable[str]) -> list[tuple[str, str]]:
    """Return path and kind of each source, in order; a folder stands for the files in it."""
    sources = []
    for argument in arguments:
        if argument.startswith(DATASET):
            sources.append((argument, "rows"))
            continue
        if not gfile().exists(argument):
            raise JobError(f"no such file: {argument}", 2)
        paths = [argument, *(join(argument, name) for name in names(argument))]
        # A dump's index lists titles.
        matches = [FILE_NAME.fullmatch(path) for path in paths if "-index" not in path]
        within = [(match[0], KINDS[match[1]]) for match in matches if match]
        if not within:
            problem = f"a source is .xml, .txt or .jsonl (or .gz, .bz2), or {DATASET}owner/name"
            raise JobError(f"no text in {argument}: {problem}", 2)
        sources += within
    return sources


def read(path: str, kind: str, options: Any, skipped: Counter[str]) -> Iterator[Document]:
    """Yield the documents of a source, of a damaged file those before the damage."""
    if kind == "rows":
        paragraphs_of = sentence_lines if WIKIPEDIA in path else str.splitlines
        for text in rows(path.removeprefix(DATASET), options.field, options.split):
            yield paragraphs_of, text
        return
    with file_errors(path), gfile().GFile(path, "rb") as file:
        opener = {"bz2": bz2.open, "gz": gzip.open}.get(path.rpartition(".")[2])
        stream = opener(file) if opener else file
        if kind == "dump":
            yield from until_damage(articles(stream, skipped), path, skipped)
            return
        content = until_damage(stream, path, skipped)
        lines = (line.decode("utf-8", "replace") for line in content)
        if kind == "text":
            texts = map("\n".join, vocabulary.documents(lines, skipped))
        else:
            texts = json_texts(lines, options.field, skipped)
        for text in texts:
            yield str.splitlines, text


def until_damage(items: Iterable[Any], path: str, skipped: Counter[str]) -> Iterator[Any]:
    """Yield the items of a file up to the place where it is damaged or cut short."""
    import tensorflow as tf

    try:
        yield from items
    except tf.errors.OpError:
        raise  # the file cannot be read
    except Exception:  # of bz2, gzip, expat and mwxml, which share no base class
        skipped[f"damaged or cut short: {path}"] += 1


def articles(xml: Any, skipped: Counter[str]) -> Iterator[Document]:
    """Yield the markup of a dump's articles, in their last revision."""
    import mwxml

    dump = mwxml.Dump.from_file(xml)
    listed = dump.site_info.namespaces or ()
    prefixes = {namespace.name.lower() for namespace in listed if namespace.id in (6, 14)}
    paragraphs_of = partial(paragraphs, hidden=HIDDEN | prefixes)  # 6: files, 14: categories
    for page in dump:
        if page.namespace != 0:
            skipped["not an article"] += 1
        elif page.redirect:
            skipped["redirect"] += 1
        else:
            *_, revision = page
            yield paragraphs_of, revision.slots.contents["main"].text or ""


def json_texts(lines: Iterable[str], field: str, skipped: Counter[str]) -> Iterator[str]:
    """Yield a field of JSON objects, one per line."""
    for line in filter(str.strip, lines):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict) and isinstance(row.get(field), str):
            yield row[field]
        else:
            skipped[f"line without a text {field}"] += 1


def rows(name: str, field: str, split: str) -> Iterator[str]:
    """Stream the texts of a Hugging Face dataset, or of a folder; nothing is stored on disk."""
    import datasets

    parts = [name] if name.startswith((".", "/")) else name.split("/", 2)
    how = {"split": split, "streaming": True}
    try:
        for row in datasets.load_dataset("/".join(parts[:2]), *parts[2:], **how):
            if field not in row:
                problem = f"{name} has no column {field}; it has {', '.join(row)}"
                raise JobError(f"{problem}: use --field", 2)
            yield row[field] if isinstance(row[field], str) else ""
    except JobError:
        raise
    except Exception as error:  # the package has no base class for its errors
        message = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise JobError(f"cannot read {DATASET}{name}: {message}") from error


def extract(documents: Iterable[Document]) -> tuple[list[str], int, Counter[str]]:
    """Return the documents as they are written, their number of sentences, and what was skipped."""
    skipped: Counter[str] = Counter()
    texts, count = [], 0
    for paragraphs_of, text in documents:
        lines = []
        for paragraph in map(vocabulary.normalize, paragraphs_of(text)):
            for sentence in sentences(paragraph):
                if hole := HOLE.search(sentence):
                    kind = "a formula" if hole[0] == FORMULA else "unreadable characters"
                    skipped[f"sentence with {kind}"] += 1
                elif LETTER.search(sentence):
                    lines.append(sentence)
        count += len(lines)
        if lines:
            texts.append("\n".join(lines) + "\n\n")
        else:
            skipped["document without a sentence"] += 1
    return texts, count, skipped


def sentence_lines(text: str) -> list[str]:
    """Return the lines that are sentences: Wikipedia's dataset has headings and list items, too."""
    return list(filter(SENTENCE_END.search, text.splitlines()))


def is_broken(markup: str) -> bool:
    """Whether a hundred brackets or tags have no end: parsing could take hours."""
    ends = {"{{": ["}}"], "[": ["]"], "<": ["</", "</", "/>", "-->", "<br>"]}
    counts = ((markup.count(start), sum(map(markup.count, ends[start]))) for start in ends)
    return any(started - ended > 100 for started, ended in counts)


def paragraphs(markup: str, hidden: set[str] = HIDDEN) -> list[str]:
    """Return the paragraphs of running text; formulas become the character FORMULA."""
    import mwparserfromhell

    if is_broken(markup):
        return []
    markup = COMMENT.sub("", re.sub(f"[{FORMULA}{ITEM}]", "", markup))
    markup = LIST_MARK.sub(lambda mark: f"\n{mark[1] or ITEM}", markup)
    # Bold and italic marks are removed here: parsing them takes long if they are unbalanced.
    text = QUOTES.sub("", plain(mwparserfromhell.parse(markup, skip_style_tags=True), hidden))
    blocks = []
    for block in BLOCK_END.split(text):
        prose, *items = block.split(ITEM)
        blocks += [prose, *filter(SENTENCE_END.search, items)]
    return [block for block in map(tidy, blocks) if block and not block.startswith(("|", "----"))]


def plain(code: Any, hidden: set[str]) -> str:
    """Return the text that markup shows; strip_code would keep tables, headings and captions."""
    from mwparserfromhell import nodes
    from mwparserfromhell.definitions import is_parsable

    pieces = []
    for node in code.nodes if code else ():
        if isinstance(node, nodes.Text):
            pieces.append(TAG.sub("", node.value))
        elif isinstance(node, nodes.Wikilink):
            prefix, colon, _ = map(str.strip, str(node.title).partition(":"))
            if not colon or not (prefix.lower() in hidden or LANGUAGE.fullmatch(prefix)):
                label = plain(node.text or node.title, hidden).strip()
                pieces.append(label if node.text else label.removeprefix(":"))
        elif isinstance(node, nodes.Tag):
            name = str(node.tag).strip().lower()
            if name in ("ce", "chem", "math"):
                pieces.append(FORMULA)
            elif LINES.fullmatch(name):
                pieces.append(f"\n\n{plain(node.contents, hidden)}\n\n")
            elif name == "nowiki" or (is_parsable(name) and name not in DROPPED):
                pieces.append(plain(node.contents, hidden))
        elif isinstance(node, nodes.Template):
            name = str(node.name).strip().lower()
            arguments = "1" if name.startswith("lang-") else SHOWN.get(name, "")
            pieces.append(
                " ".join(plain(node.get(n).value, hidden) for n in arguments if node.has(n))
            )
        elif isinstance(node, nodes.ExternalLink):
            pieces.append(plain(node.title, hidden))
        elif isinstance(node, nodes.HTMLEntity):
            pieces.append(node.normalize())
        elif isinstance(node, nodes.Heading):
            pieces.append("\n\n")
    return "".join(pieces)


def tidy(text: str) -> str:
    """Collapse spaces, and remove what removed markup leaves behind."""
    text = " ".join(text.split())
    for pattern, replacement in TIDYING:
        text = pattern.sub(replacement, text)
    return " ".join(LEFTOVER.sub(" ", text).split())
