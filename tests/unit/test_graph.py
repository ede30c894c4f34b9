"""The walk: any order it takes is legal, and one failure is told once."""

from __future__ import annotations

import asyncio
import random
from graphlib import CycleError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpuctl.engine.graph import order, reverse, walk
from tpuctl.model.events import Outcome
from tpuctl.model.plan import Result

# Threads that other tests left, as gRPC's are, may draw random numbers meanwhile: hypothesis takes
# them for draws of the strategy and warns.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*random.*:hypothesis.errors.HypothesisDeprecationWarning"
)

Graph = dict[str, frozenset[str]]


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Random graphs without cycles: each node follows some of those before it."""
    size = draw(st.integers(1, 12))
    names = [f"n{index}" for index in range(size)]
    return {
        name: frozenset(draw(st.sets(st.sampled_from(names[:index])))) if index else frozenset()
        for index, name in enumerate(names)
    }


def ancestors(graph: Graph, node: str) -> set[str]:
    found: set[str] = set()
    waiting = list(graph[node])
    while waiting:
        ancestor = waiting.pop()
        if ancestor not in found:
            found.add(ancestor)
            waiting += graph[ancestor]
    return found


@given(graphs(), st.integers(0, 2**32), st.sets(st.integers(0, 11), max_size=3))
def test_every_walk_is_legal(graph: Graph, seed: int, failing: set[int]) -> None:
    choice = random.Random(seed)
    ended: set[str] = set()
    bad = {f"n{index}" for index in failing} & set(graph)

    async def visit(node: str) -> Result:
        assert graph[node] <= ended, "visited before what it follows"
        for _ in range(choice.randrange(4)):
            await asyncio.sleep(0)
        ended.add(node)
        return Result(node, Outcome.FAILED if node in bad else Outcome.DONE)

    results = asyncio.run(walk(graph, visit))
    assert set(results) == set(graph)
    for node, result in results.items():
        blocked_by = ancestors(graph, node) & bad
        if blocked_by:
            assert result.outcome is Outcome.SKIPPED
            assert result.because in blocked_by, "the root of the failure is named"
        else:
            assert result.outcome is (Outcome.FAILED if node in bad else Outcome.DONE)


@given(graphs())
def test_reversed_twice_is_the_same(graph: Graph) -> None:
    assert reverse(reverse(graph)) == graph


@given(graphs())
def test_order_has_all_before_what_follows_them(graph: Graph) -> None:
    place = {node: index for index, node in enumerate(order(graph))}
    assert all(place[before] < place[node] for node in graph for before in graph[node])


def test_what_does_not_depend_on_each_other_overlaps() -> None:
    running = 0
    most = 0

    async def visit(node: str) -> Result:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return Result(node, Outcome.DONE)

    asyncio.run(walk({"a": frozenset(), "b": frozenset(), "c": frozenset({"a", "b"})}, visit))
    assert most == 2


def test_a_cycle_is_named() -> None:
    with pytest.raises(CycleError) as caught:
        order({"a": frozenset({"b"}), "b": frozenset({"a"})})
    assert {"a", "b"} <= set(caught.value.args[1])


def test_a_bug_in_a_visit_comes_out_as_it_is() -> None:
    async def visit(node: str) -> Result:
        if node == "a":
            raise KeyError("mistake")
        await asyncio.sleep(60)
        return Result(node, Outcome.DONE)

    with pytest.raises(KeyError, match="mistake"):
        asyncio.run(walk({"a": frozenset(), "b": frozenset(), "c": frozenset({"a"})}, visit))
