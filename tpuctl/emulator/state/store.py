"""The state of the local cloud, in one SQLite file that survives a kill at any time."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_SCHEMA = """
CREATE TABLE IF NOT EXISTS resources (
  kind TEXT NOT NULL, name TEXT NOT NULL, body BLOB NOT NULL,
  PRIMARY KEY (kind, name)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS operations (
  name TEXT PRIMARY KEY, parent TEXT NOT NULL, effect TEXT NOT NULL, arguments TEXT NOT NULL,
  started REAL NOT NULL, due REAL NOT NULL, ended REAL, detail TEXT NOT NULL DEFAULT '',
  response BLOB, error BLOB) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tokens (digest TEXT PRIMARY KEY, email TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS token_scopes (
  digest TEXT PRIMARY KEY, scopes TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS objects (
  bucket TEXT NOT NULL, name TEXT NOT NULL, generation INTEGER NOT NULL,
  metageneration INTEGER NOT NULL, size INTEGER NOT NULL, file TEXT NOT NULL, body TEXT NOT NULL,
  PRIMARY KEY (bucket, name)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS versions (
  bucket TEXT NOT NULL, name TEXT NOT NULL, generation INTEGER NOT NULL,
  metageneration INTEGER NOT NULL, size INTEGER NOT NULL, file TEXT NOT NULL, body TEXT NOT NULL,
  until REAL, PRIMARY KEY (bucket, name, generation)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS versions_until ON versions (until) WHERE until IS NOT NULL;
CREATE TABLE IF NOT EXISTS uploads (
  id TEXT PRIMARY KEY, bucket TEXT NOT NULL, name TEXT NOT NULL, body TEXT NOT NULL,
  file TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
"""

SYNCHRONOUS = "NORMAL"  # SQLite's setting; tests, during which no power fails, wait for no disk
_MAX_CACHED = 2048


class Store:
    """Resources by kind and name, and the tables of operations, tokens and objects.

    Only one process may open it and change resources, by these methods only: reads are cached.

    Every write outside `transaction()` commits by itself. The write-ahead log preserves commits
    when the process is killed; it is not synced on every commit, so a power failure may lose the
    last commits, but never consistency.
    """

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute(f"PRAGMA synchronous={SYNCHRONOUS}")
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.executescript(_SCHEMA)
        self._depth = 0
        self._changes: Counter[str] = Counter()
        self._cache: dict[tuple[str, str], bytes | None] = {}  # resources
        self._watchers: list[tuple[frozenset[str], Callable[[], None]]] = []

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commits all writes inside or none. Do not await inside. Reentrant."""
        if self._depth:
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
            return
        self._connection.execute("BEGIN IMMEDIATE")
        self._depth = 1
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            self._changes.update(dict.fromkeys(self._changes, 1))  # invalidate versions
            self._cache.clear()
            raise
        else:
            self._connection.execute("COMMIT")
        finally:
            self._depth = 0

    def run(self, statement: str, *values: Any) -> sqlite3.Cursor:
        return self._connection.execute(statement, values)

    def row(self, statement: str, *values: Any) -> tuple[Any, ...] | None:
        row: tuple[Any, ...] | None = self._connection.execute(statement, values).fetchone()
        return row

    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._connection.execute(statement, values).fetchall()

    # Resources.

    def get(self, kind: str, name: str) -> bytes | None:
        key = kind, name
        if key not in self._cache:
            if len(self._cache) >= _MAX_CACHED:
                self._cache.clear()
            row = self.row("SELECT body FROM resources WHERE kind=? AND name=?", kind, name)
            self._cache[key] = bytes(row[0]) if row else None
        return self._cache[key]

    def version(self, *kinds: str) -> int:
        """A number that increases with every change of these kinds by this process."""
        return sum(self._changes[kind] for kind in kinds)

    def watch(self, kinds: Iterable[str], on_change: Callable[[], None]) -> None:
        """Call `on_change` at each change of these kinds, which may not be committed yet."""
        self._watchers.append((frozenset(kinds), on_change))

    def _note_change(self, kind: str) -> None:
        self._changes[kind] += 1
        for kinds, on_change in self._watchers:
            if kind in kinds:
                on_change()

    def put(self, kind: str, name: str, body: bytes) -> None:
        self._note_change(kind)
        self.run("INSERT OR REPLACE INTO resources VALUES (?,?,?)", kind, name, body)
        self._cache[kind, name] = body

    def delete(self, kind: str, name: str) -> bool:
        self._note_change(kind)
        self._cache.pop((kind, name), None)
        return self.run("DELETE FROM resources WHERE kind=? AND name=?", kind, name).rowcount > 0

    def items(self, kind: str, prefix: str = "") -> list[tuple[str, bytes]]:
        """Name and body of all resources with the name prefix, sorted by name."""
        rows = self.rows(
            "SELECT name, body FROM resources WHERE kind=? AND name>=? AND name<? ORDER BY name",
            kind,
            prefix,
            prefix + "\U0010ffff",
        )
        return [(name, bytes(body)) for name, body in rows]

    def count(self, kind: str) -> int:
        row = self.row("SELECT count(*) FROM resources WHERE kind=?", kind)
        return int(row[0]) if row else 0

    # Resources stored as JSON.

    def get_json(self, kind: str, name: str) -> dict[str, Any] | None:
        body = self.get(kind, name)
        return None if body is None else json.loads(body)

    def put_json(self, kind: str, name: str, value: dict[str, Any]) -> None:
        self.put(kind, name, json.dumps(value).encode())

    def list_json(self, kind: str, prefix: str = "") -> list[dict[str, Any]]:
        return [json.loads(body) for _, body in self.items(kind, prefix)]

    def next(self, counter: str, at_least: int = 1) -> int:
        """The next value of a counter: increasing, never repeated, and at least `at_least`."""
        row = self.row(
            "INSERT INTO counters VALUES (?,?) ON CONFLICT (name) "
            "DO UPDATE SET value=max(value+1, excluded.value) RETURNING value",
            counter,
            at_least,
        )
        assert row is not None
        return int(row[0])

    def close(self) -> None:
        self._connection.close()
