"""The one question that the operator asks a Space's daemon: who are you, and which epoch have you seen?

The answer raises the next epoch above the Space's own floor. No answer proves nothing (rule 13): only the API server says that a
Space has gone.
"""

from __future__ import annotations

import logging

import grpc

from durable_coordinator.facts import DaemonFacts
from durable_operator.driver_pod import SPACE_PORT
from durable_operator.secrets import Install, space_tls_name
from durable_protocol.durable.space.v1 import space_pb2, space_pb2_grpc

TIMEOUT_SECONDS = 2.0
log = logging.getLogger(__name__)


async def ask_daemon(
    install: Install, *, namespace: str, space: str, space_uid: str, generation: int, address: str
) -> DaemonFacts | None:
    """None if this generation's daemon did not answer in time, or another answered."""
    name = space_tls_name(space, generation, namespace)
    host = f"[{address}]" if ":" in address else address
    options = (("grpc.ssl_target_name_override", name), ("grpc.default_authority", name), ("grpc.enable_http_proxy", 0))
    credentials = grpc.ssl_channel_credentials(root_certificates=install.ca_certificate)
    metadata = (("authorization", f"Bearer {install.space_token(space_uid, generation)}"),)
    async with grpc.aio.secure_channel(f"{host}:{SPACE_PORT}", credentials, options=options) as channel:
        stub = space_pb2_grpc.SpaceServiceStub(channel)
        try:
            info = await stub.GetInfo(space_pb2.GetInfoRequest(), metadata=metadata, timeout=TIMEOUT_SECONDS)
        except grpc.aio.AioRpcError as error:
            log.info("Space does not answer space=%s/%s code=%s", namespace, space, error.code().name)
            return None
    return DaemonFacts(floor_epoch=info.floor.epoch, instance_id=info.instance_id, boot_id=info.boot_id)
