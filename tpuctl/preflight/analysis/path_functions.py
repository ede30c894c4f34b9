"""What functions do to paths, and what the machine says of some."""

from __future__ import annotations

__all__ = ["BELOW", "ENVIRONMENT", "HERE", "JOINS", "LIKE_ARGUMENT", "LIKE_OBJECT", "WHOLE"]

# Variables that the machine sets, and how their values begin.
ENVIRONMENT = {"TPUCTL_OUTPUT": "gs://", "HOME": "/"}
# Functions that return a path like one of theirs: the first argument, or the object itself.
LIKE_ARGUMENT = {
    *("str", "os.fspath", "os.fsencode", "list", "sorted", "tuple", "set", "iter", "next", "repr"),
    *("os.path.expanduser", "os.path.expandvars", "os.path.normpath", "reversed", "random.choice"),
    *("tensorflow.constant", "tensorflow.convert_to_tensor", "tensorflow.io.gfile.glob"),
    *("tensorflow.compat.as_str", "tensorflow.io.matching_files", "tensorflow.strings.join"),
    *("tensorflow.train.latest_checkpoint", "tensorflow.compat.v1.gfile.Glob"),
}
BELOW = {"glob", "rglob", "iterdir"}
WHOLE = {
    "str",
    "os.fspath",
    "tensorflow.constant",
    "tensorflow.convert_to_tensor",
    "next",
    "as_posix",
    "encode",
}
LIKE_OBJECT = {
    *("as_posix", "resolve", "absolute", "expanduser", "with_suffix", "with_name", "rstrip"),
    *("strip", "lstrip", "format", "glob", "rglob", "iterdir", "encode", "as_uri", "with_stem"),
}
# What only ever names files of this machine.
HERE = {
    **dict.fromkeys(("os.getcwd", "pathlib.Path.cwd", "pathlib.Path.home"), "/"),
    **dict.fromkeys(("os.path.abspath", "os.path.realpath", "glob.glob", "glob.iglob"), "/"),
    **dict.fromkeys(("tempfile.mkdtemp", "tempfile.gettempdir", "tempfile.mkstemp"), "/tmp/"),
    **dict.fromkeys(("tempfile.TemporaryDirectory", "tempfile.NamedTemporaryFile"), "/tmp/"),
    **dict.fromkeys(("tensorflow.keras.utils.get_file", "keras.utils.get_file"), "/"),
    **dict.fromkeys(("os.listdir", "os.scandir", "os.walk"), "/"),
}
JOINS = {"os.path.join", "posixpath.join", "tensorflow.io.gfile.join", "pathlib.Path"}
JOINS |= {"pathlib.PurePath", "pathlib.PosixPath", "pathlib.PurePosixPath"}
