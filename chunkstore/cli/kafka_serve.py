"""``kafka serve``: an owner that brokers tier into, through their plug-in.

It listens before it claims: an address that is in use fences no owner. It ends as ``serve`` does, and with exit code 1 as soon as a call of
a broker meets another owner."""

from __future__ import annotations

from logging import NullHandler, getLogger, lastResort
from typing import Annotated, Any

import chunkstore
from chunkstore.cli import access, options
from chunkstore.cli.options import flag, option
from chunkstore.cli.serve import _POLL_S, _Serving, _told_to_end
from chunkstore.cli.streams import opened_input
from chunkstore.config import OptimiserPolicy
from chunkstore.errors import ContainerNotFound

__all__ = ["serve"]


def serve(
    root: options.Root,
    *,
    socket: Annotated[str | None, option("PATH", "Unix socket for brokers of this machine.")] = None,
    listen: Annotated[str | None, option("HOST:PORT", "Address for brokers of other machines; not encrypted.")] = None,
    token_file: Annotated[str | None, option("F", "Secret of 16 bytes or more that brokers must know.")] = None,
    create: Annotated[bool, flag("Create the container if it does not exist.")] = False,
    here: access.Owning,
) -> None:
    """Own a container and let Kafka's brokers tier into it, until stopped."""
    with access.needs("kafka", "Kafka's tiers"):
        from chunkstore.kafka.server import listening

    getLogger("chunkstore.kafka").addHandler(lastResort or NullHandler())  # warnings of the server go to standard error
    token = None
    if token_file is not None:
        with opened_input(token_file) as file:
            token = file.read(4096).rstrip(b"\r\n")
    server = _KafkaServing(
        root, here.container, here.settings, OptimiserPolicy(retention=True), None,
        accept_rollback=here.accept_rollback, quiet=here.as_json,
    )  # fmt: skip
    server.create = create
    with listening(socket, listen, token) as listener, _told_to_end(server):
        server.listener = listener
        reason = server.claim_and_serve(stand_by=False, take_over=here.take_over)
    server.say("ended", f"ended: {reason}", reason=reason)


class _KafkaServing(_Serving):
    create: bool
    """The container, where there is none."""
    listener: Any
    """Of ``KafkaServer``."""

    def _open(self, *, take_over: bool) -> chunkstore.ChunkedSegmentStorage:
        try:
            return super()._open(take_over=take_over)
        except ContainerNotFound:
            if not self.create:
                raise
            chunkstore.open(self.root, container=self.container, settings=self.settings).close()
            return super()._open(take_over=take_over)

    def _serve(self, store: chunkstore.ChunkedSegmentStorage) -> str:
        from chunkstore.kafka.server import KafkaServer

        with KafkaServer(store, self.listener) as self._server:
            address = self.listener.address
            self.say("listening", f"brokers connect to {address}", address=address)
            return super()._serve(store)

    def _pause(self) -> None:
        self._server.wait(_POLL_S)
