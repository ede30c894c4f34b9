"""Constant texts, numbers and paths, complete or known by prefix, and the operations on them.

An expression has a tuple of constants, one for each value that it may have; an empty tuple means
that its value is unknown.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

Scalar = str | int | float | bool | None
MAX_CONSTANTS = 16  # with more possible values, an expression counts as unknown
SCHEME = re.compile(r"[a-zA-Z][\w+.-]*://")
# Environment variables set on the machine, and the prefixes of their values.
ENVIRONMENT = {"TPUCTL_OUTPUT": "gs://", "HOME": "/"}
ENVIRONMENT_READERS = {"os.environ.get", "os.getenv", "os.environ.setdefault"}
# Functions and methods that return their first argument or object, and those that return a value
# which begins like it.
SAME_VALUE = {"str", "next", "os.fspath", "tensorflow.constant", "tensorflow.convert_to_tensor"}
SAME_BEGINNING = {
    *("os.fsencode", "list", "sorted", "tuple", "set", "iter", "repr", "reversed", "random.choice"),
    *("os.path.expanduser", "os.path.expandvars", "os.path.normpath", "os.path.dirname"),
    *("tensorflow.io.gfile.glob", "tensorflow.io.matching_files", "tensorflow.strings.join"),
    *("tensorflow.compat.as_str", "tensorflow.train.latest_checkpoint"),
    "tensorflow.compat.v1.gfile.Glob",
}
SAME_VALUE_METHODS = {"as_posix", "encode"}
SAME_BEGINNING_METHODS = {
    *("resolve", "absolute", "expanduser", "with_suffix", "with_name", "with_stem", "as_uri"),
    *("rstrip", "strip", "lstrip", "format"),
}
LISTING_METHODS = {"glob", "rglob", "iterdir"}
# Functions that always return local paths.
LOCAL_PATHS = {
    **dict.fromkeys(("os.getcwd", "pathlib.Path.cwd", "pathlib.Path.home"), "/"),
    **dict.fromkeys(("os.path.abspath", "os.path.realpath", "glob.glob", "glob.iglob"), "/"),
    **dict.fromkeys(("tempfile.mkdtemp", "tempfile.gettempdir", "tempfile.mkstemp"), "/tmp/"),
    **dict.fromkeys(("tempfile.TemporaryDirectory", "tempfile.NamedTemporaryFile"), "/tmp/"),
    **dict.fromkeys(("tensorflow.keras.utils.get_file", "keras.utils.get_file"), "/"),
    **dict.fromkeys(("os.listdir", "os.scandir", "os.walk"), "/"),
}
JOINS = {"os.path.join", "posixpath.join", "tensorflow.io.gfile.join", "pathlib.Path"}
JOINS |= {"pathlib.PurePath", "pathlib.PosixPath", "pathlib.PurePosixPath"}


@dataclass(frozen=True, slots=True)
class Constant:
    """A possible value of an expression."""

    value: Scalar
    is_complete: bool = True  # False: `value` is only a prefix of the text
    is_certain: bool = True  # False: an option, or code that is not analyzed, may change it
    option: str = ""  # the option that changes it, such as "--data-dir"

    @property
    def text(self) -> str:
        return self.value if isinstance(self.value, str) else ""


Constants = tuple[Constant, ...]
UNKNOWN = Constant(None, is_complete=False)


def alternatives(groups: Iterable[Constants]) -> Constants:
    """The constants of an expression that has one of several values.

    If one of these is unknown, the others are uncertain.
    """
    groups = list(groups)
    constants = [constant for group in groups for constant in group]
    if not all(groups):
        constants = [replace(constant, is_certain=False) for constant in constants]
    return _distinct(constants)


def _distinct(constants: Iterable[Constant]) -> Constants:
    distinct = tuple(dict.fromkeys(constants))
    return distinct if len(distinct) <= MAX_CONSTANTS else ()


def first_true(operands: Sequence[Constants]) -> Constants:
    """The constants of `a or b or …`."""
    results: list[Constant] = []
    for number, constants in enumerate(operands):
        if not constants:
            return alternatives([(), tuple(results), *operands[number + 1 :]])
        is_last = number == len(operands) - 1
        results += [
            constant for constant in constants if constant.value or not constant.is_complete
        ]
        if all(constant.value and constant.is_certain for constant in constants):
            break
        if is_last:
            results += [constant for constant in constants if not constant.value]
    return _distinct(results)


def pairs(
    lefts: Constants,
    rights: Constants,
    combine: Callable[[Constant, Constant], Constant | None],
) -> Constants:
    """Combine all pairs; an unknown right value leaves the left one as a prefix."""
    rights = rights or (UNKNOWN,)
    if len(lefts) * len(rights) > MAX_CONSTANTS:
        return ()
    combined = [combine(left, right) for left in lefts for right in rights]
    return _distinct(constant for constant in combined if constant is not None)


def calculated(operation: ast.operator, lefts: Constants, rights: Constants) -> Constants:
    """The result of a binary operation on numbers, texts or paths."""
    if lefts and all(isinstance(constant.value, str) for constant in lefts):
        if isinstance(operation, ast.Add):
            return pairs(lefts, rights, join_texts)
        if isinstance(operation, ast.Div):
            return pairs(lefts, rights, _join_paths)
        return formatted(lefts, "%") if isinstance(operation, ast.Mod) else ()
    return pairs(lefts, rights, _arithmetic(operation)) if rights else ()


def negated(constants: Constants) -> Constants:
    return tuple(
        replace(constant, value=-constant.value)
        for constant in constants
        if isinstance(constant.value, (int, float))
    )


def function_constants(name: str, arguments: Sequence[Constants]) -> Constants:
    """The result of a builtin or library function, such as "os.path.join"."""
    if name in LOCAL_PATHS:
        return (Constant(LOCAL_PATHS[name], is_complete=False),)
    if name in JOINS:
        return _joined_paths(arguments or [(Constant("."),)])
    if not arguments:
        return ()
    if name in SAME_VALUE:
        return arguments[0]
    if name in SAME_BEGINNING:
        return incomplete(arguments[0])
    if name in ENVIRONMENT_READERS:
        return variable_constants(arguments[0], arguments[1] if len(arguments) > 1 else ())
    if name in ("int", "float"):
        casts = [_cast(constant, int if name == "int" else float) for constant in arguments[0]]
        return tuple(constant for constant in casts if constant is not None)
    return ()


def method_constants(name: str, owner: Constants, arguments: Sequence[Constants]) -> Constants:
    """The result of a method of a text or path."""
    if name == "joinpath":
        return _joined_paths([owner, *arguments])
    if name in SAME_VALUE_METHODS:
        return owner
    if name in LISTING_METHODS:
        return tuple(_path_below(constant) for constant in owner)
    return formatted(owner, "{") if name in SAME_BEGINNING_METHODS else ()


def variable_constants(name: Constants, default: Constants) -> Constants:
    """The value of an environment variable."""
    title = next((constant.text for constant in name), "")
    if title in ENVIRONMENT:
        return (Constant(ENVIRONMENT[title], is_complete=False),)
    return tuple(replace(constant, is_certain=False, option=title) for constant in default)


def incomplete(constants: Constants) -> Constants:
    return tuple(replace(constant, is_complete=False) for constant in constants)


def formatted(constants: Constants, marker: str) -> Constants:
    """The prefixes of format strings before their first placeholder."""
    return tuple(
        replace(constant, value=constant.text.partition(marker)[0], is_complete=False)
        for constant in constants
    )


def is_bucket(constant: Constant) -> bool:
    """Whether a path is in Cloud Storage."""
    return constant.text.startswith("gs://")


def is_local(constant: Constant) -> bool:
    """Whether a path is certainly on the machine that runs the script.

    A prefix counts unless it could continue as `gs://` or another URL.
    """
    if not isinstance(constant.value, str) or not constant.value:
        return False
    if constant.value.startswith("file://"):
        return True
    if SCHEME.match(constant.value):
        return False
    # The prefix "g" could continue as "gs://", "s3" as "s3://".
    return constant.is_complete or "/" in constant.value or not constant.value.isalnum()


def as_text(constant: Constant) -> Constant:
    """The value converted to text, as in an f-string."""
    return (
        constant
        if isinstance(constant.value, str)
        else replace(constant, value=str(constant.value))
    )


def _combined(
    left: Constant, right: Constant, value: Scalar, is_complete_value: bool = True
) -> Constant:
    """A value computed from two others."""
    is_sure = left.is_certain and right.is_certain
    return Constant(value, is_complete_value, is_sure, left.option or right.option)


def join_texts(left: Constant, right: Constant) -> Constant | None:
    """Concatenate two texts; None if the first is not a text."""
    if not left.is_complete:
        return left
    if not isinstance(right.value, str) or not isinstance(left.value, str):
        return replace(left, is_complete=False) if isinstance(left.value, str) else None
    return _combined(left, right, left.text + right.text, right.is_complete)


def _join_paths(left: Constant, right: Constant) -> Constant | None:
    """Join two paths; an absolute second path replaces the first."""
    if not isinstance(left.value, str):
        return None
    if right.text.startswith("/") or SCHEME.match(right.text):
        return right
    if not left.is_complete:
        return left
    if not isinstance(right.value, str):
        return _path_below(left)
    middle = "" if not left.text or left.text.endswith("/") else "/"
    return _combined(left, right, left.text + middle + right.text, right.is_complete)


def _joined_paths(parts: Sequence[Constants]) -> Constants:
    paths = parts[0]
    for part in parts[1:]:
        paths = pairs(paths, part, _join_paths)
    return paths


def _path_below(constant: Constant) -> Constant:
    """The prefix of all paths below a folder."""
    if not constant.is_complete or not constant.text or constant.text.endswith("/"):
        return replace(constant, is_complete=False)
    return replace(constant, value=f"{constant.text}/", is_complete=False)


def _arithmetic(
    operation: ast.operator,
) -> Callable[[Constant, Constant], Constant | None]:
    """A function that applies an operator to two numbers; it returns None for other values."""

    def compute(left: Constant, right: Constant) -> Constant | None:
        kind = NUMBERS.get(type(operation))
        a, b = left.value, right.value
        if kind is None or not isinstance(a, (int, float)) or not isinstance(b, (int, float)):
            return None
        try:
            return _combined(left, right, kind(a, b))
        except (ArithmeticError, ValueError):
            return None

    return compute


def _bounded(number: float) -> float:
    """Return the exponent; raise OverflowError if the result would be huge."""
    if not 0 <= number < 64:
        raise OverflowError
    return number


NUMBERS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.Pow: lambda a, b: operator.pow(a, _bounded(b)),
    ast.LShift: lambda a, b: int(a) << int(_bounded(b)),
}


def _cast(constant: Constant, kind: Callable[[str | int | float], int | float]) -> Constant | None:
    """Convert a value to a number; None if that fails."""
    if constant.value is None or not constant.is_complete:
        return None
    try:
        return replace(constant, value=kind(constant.value))
    except (ValueError, OverflowError):
        return None
