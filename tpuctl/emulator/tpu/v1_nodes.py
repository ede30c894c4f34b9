"""The effects of API v1's operations: nodes in the store, and TensorFlow servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tpuctl import catalog
from tpuctl.emulator.state.errors import ApiError
from tpuctl.emulator.state.operations import Arguments
from tpuctl.emulator.tpu.nodes import Nodes, NodeState
from tpuctl.emulator.tpu.v1_view import KIND, NodeV1, as_v2


class NodesV1(Nodes):
    """Like v2's nodes, except for the machines; they can also be reimaged."""

    kind = KIND
    message = NodeV1
    effect = "tpu_v1.nodes"
    step = "tpu.v1"
    machines = "v1nodes"
    version = "v1"

    def _verbs(self) -> dict[str, tuple[Any, Any, Any]]:
        verbs = super()._verbs()
        del verbs["update"]
        return {**verbs, "reimage": (self._finish_start, self._reimage, self._fail_reimage)}

    def _machine(self, node: Any, project_id: str) -> dict[str, Any]:
        version = catalog.node_version(node.tensorflow_version)
        return {
            "runtime_version": node.tensorflow_version,
            "service_account": node.service_account,
            "access_token": self._registry.access.token_for(node.service_account),
            "kind": "node",
            "tensorflow": version.tensorflow if version is not None else None,
        }

    async def _reimage(self, arguments: Arguments, report: Callable[[str], None]) -> None:
        """Reboot the machines with the image of the requested version."""
        await self._stop_machines(arguments, report)
        await self._boot_machines(arguments, report)

    def _require(self, arguments: Arguments) -> Any:
        node = super()._require(arguments)
        if node.state == NodeState.REIMAGING:
            node.tensorflow_version = arguments.get("version", node.tensorflow_version)
        return node

    def as_response(self, node: Any, arguments: Arguments) -> Any:
        """The node in the API version that began the operation."""
        return node if arguments.get("api", "v1") == "v1" else as_v2(node)

    def _finish_deletion(self, arguments: Arguments) -> Any:
        """v1 returns the deleted node, v2 nothing, as their clients expect."""
        node = self.find(arguments["target"])
        super()._finish_deletion(arguments)
        return node if arguments.get("api", "v1") == "v1" else None

    def _fail_reimage(self, arguments: Arguments, error: ApiError) -> None:
        """A failed reimage leaves the node without a server."""
        node = self.find(arguments["target"])
        if node is not None and node.state == NodeState.REIMAGING:
            node.state = NodeState.UNKNOWN
            node.health_description = error.message
            self.save(node)
