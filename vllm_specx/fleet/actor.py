"""What the fleet's Ray actor is an instance of."""

from __future__ import annotations


class FleetActor:
    """A FleetServer, whose imports only the actor's own process needs. See there."""

    def __init__(self, settings: bytes) -> None:
        """Start the server."""
        from vllm_specx.fleet.server import FleetServer

        self._server = FleetServer(settings)

    def join(self, message: bytes) -> bytes:
        """See `FleetServer.join`."""
        return self._server.join(message)

    def sync(self, message: bytes) -> bytes:
        """See `FleetServer.sync`."""
        return self._server.sync(message)

    def status(self) -> bytes:
        """See `FleetServer.status`."""
        return self._server.status()
