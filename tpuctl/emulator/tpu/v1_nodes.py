"""What the operations of API v1 do: nodes in the store, and TensorFlow servers behind them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tpuctl import catalog
from tpuctl.emulator.state.errors import ApiError
from tpuctl.emulator.state.operations import Arguments
from tpuctl.emulator.tpu.nodes import Nodes, NodeState
from tpuctl.emulator.tpu.v1_view import KIND, NodeV1, as_v2

__all__ = ["NodesV1"]


class NodesV1(Nodes):
    """Like v2's, but for what stands behind them and that they can be given another version."""

    kind = KIND
    message = NodeV1
    effect = "tpu_v1.nodes"
    step = "tpu.v1"
    machines = "v1nodes"
    version = "v1"

    def _verbs(self) -> dict[str, tuple[Any, Any, Any]]:
        verbs = super()._verbs()
        del verbs["update"]
        return {**verbs, "reimage": (self._reimaged, self._exchange, self._stays)}

    def _machine(self, node: Any, project_id: str) -> dict[str, Any]:
        known = catalog.node_version(node.tensorflow_version)
        return {
            "runtime_version": node.tensorflow_version,
            "service_account": node.service_account,
            "access_token": self._world.access.token_for(node.service_account),
            "kind": "node",
            "tensorflow": known.tensorflow if known is not None else None,
        }

    async def _exchange(self, arguments: Arguments, tell: Callable[[str], None]) -> None:
        """Boot the machines anew, from the image of the version that they are to have."""
        await self._shut(arguments, tell)
        await self._boot(arguments, tell)

    def _must(self, arguments: Arguments) -> Any:
        node = super()._must(arguments)
        if node.state == NodeState.REIMAGING:
            node.tensorflow_version = arguments.get("version", node.tensorflow_version)
        return node

    def told(self, node: Any, arguments: Arguments) -> Any:
        """The node in the shape of the version that the operation was begun by."""
        return node if arguments.get("api", "v1") == "v1" else as_v2(node)

    def _deleted(self, arguments: Arguments) -> Any:
        """By v1 the node that was, by v2 nothing, as their clients have it."""
        node = self.find(arguments["target"])
        super()._deleted(arguments)
        return node if arguments.get("api", "v1") == "v1" else None

    def _reimaged(self, arguments: Arguments) -> Any:
        return self._ready(arguments)

    def _stays(self, arguments: Arguments, error: ApiError) -> None:
        """A version that could not be had leaves the node without a server."""
        node = self.find(arguments["target"])
        if node is not None and node.state == NodeState.REIMAGING:
            node.state = NodeState.UNKNOWN
            node.health_description = error.message
            self.save(node)
