"""Ask a Space's daemon who it is. The one gRPC call of this coordinator; no gRPC type or error leaves the module."""

from __future__ import annotations

import grpc

from durable_coordinator.facts import DaemonFacts
from durable_protocol.durable.space.v1 import space_pb2, space_pb2_grpc

_SECONDS = 1.0


def get_info(address: str, token: str) -> DaemonFacts | None:
    """Floor, instance and boot; None if the daemon does not answer within a second."""
    try:
        with grpc.insecure_channel(address) as channel:
            answer = space_pb2_grpc.SpaceServiceStub(channel).GetInfo(
                space_pb2.GetInfoRequest(), timeout=_SECONDS, metadata=(("authorization", f"Bearer {token}"),)
            )
    except grpc.RpcError:
        return None
    return DaemonFacts(floor_epoch=answer.floor.epoch, instance_id=answer.instance_id, boot_id=answer.boot_id)
