"""Walking the dependency graph: any order is legal, and one failure is reported once."""

from __future__ import annotations

import asyncio
import random
from graphlib import CycleError

import pytest
from hypothesis import strategies as st

from tests.support.properties import given, settings
from tpuctl.engine.graph import order, reverse, walk
from tpuctl.model.events import Outcome
from tpuctl.model.plan import Result

# Threads of earlier tests, such as gRPC's, may use the random generator, which hypothesis
# mistakes for the strategy's.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*random.*:hypothesis.errors.HypothesisDeprecationWarning"
)

Graph = dict[str, frozenset[str]]


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Random acyclic graphs: each node depends on some of the previous ones."""
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


@settings(max_examples=50)
@given(graphs(), st.integers(0, 2**32), st.sets(st.integers(0, 11), max_size=3))
def test_walk_visits_dependencies_first(graph: Graph, seed: int, failing: set[int]) -> None:
    choice = random.Random(seed)
    ended: set[str] = set()
    bad = {f"n{index}" for index in failing} & set(graph)

    async def visit(node: str) -> Result:
        assert graph[node] <= ended, "visited before its dependencies"
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
            assert result.because in blocked_by, "the address that failed first"
        else:
            assert result.outcome is (Outcome.FAILED if node in bad else Outcome.DONE)


@settings(max_examples=50)
@given(graphs())
def test_reverse_is_its_own_inverse(graph: Graph) -> None:
    assert reverse(reverse(graph)) == graph


@settings(max_examples=50)
@given(graphs())
def test_order_is_topological(graph: Graph) -> None:
    place = {node: index for index, node in enumerate(order(graph))}
    assert all(place[before] < place[node] for node in graph for before in graph[node])


def test_independent_nodes_are_visited_in_parallel() -> None:
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


def test_errors_name_nodes_and_propagate() -> None:
    with pytest.raises(CycleError) as caught:
        order({"a": frozenset({"b"}), "b": frozenset({"a"})})
    assert {"a", "b"} <= set(caught.value.args[1])

    async def visit(node: str) -> Result:
        if node == "a":
            raise KeyError("mistake")
        await asyncio.sleep(60)
        return Result(node, Outcome.DONE)

    with pytest.raises(KeyError, match="mistake"):
        asyncio.run(walk({"a": frozenset(), "b": frozenset(), "c": frozenset({"a"})}, visit))
