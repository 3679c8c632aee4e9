"""What stands before every call: token, the Space it is meant for, and refusals turned into statuses.

The token is compared before anything of the message is read, and before it is told whether the method exists. GetInfo
needs no `durable-instance`; every other call is checked.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from durable_space.refusal import Code, Reason, Refused, of_unnamed
from durable_space.rpc import errors
from durable_space.rpc.caller import check_space, text_metadata

log = logging.getLogger("durable.space")

_MALFORMED = object()  # stands for a message that could not be read
_FREE_OF_IDENTITY = frozenset({"/durable.space.v1.SpaceService/GetInfo"})
Context = grpc.aio.ServicerContext[Any, Any]


class Guard(grpc.aio.ServerInterceptor):
    def __init__(self, token: Callable[[], str | None], instance_id: str, boot_id: str) -> None:
        """`token()` is asked at each call, so that it can rotate; None: no token is needed."""
        self._token = token
        self._instance_id = instance_id
        self._boot_id = boot_id
        self.refusals: dict[str, int] = {}  # by condition or status, for /metrics

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], call: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        metadata = text_metadata(call.invocation_metadata)
        try:
            self._authenticate(metadata.get("authorization", ""))
            if call.method not in _FREE_OF_IDENTITY:
                check_space(metadata, self._instance_id, self._boot_id)
        except Refused as refusal:
            return self._refuse(refusal)
        handler = await continuation(call)
        return None if handler is None else self._wrap(handler)

    def _authenticate(self, header: str) -> None:
        token = self._token()
        if token is None:
            return
        scheme, _, given = header.partition(" ")
        if not hmac.compare_digest(given.strip().encode(), token.encode()) or scheme.lower() != "bearer":
            raise Refused(Code.UNAUTHENTICATED, Reason.UNAUTHENTICATED, "missing or invalid bearer token")

    def _refuse(self, refusal: Refused) -> grpc.RpcMethodHandler[Any, Any]:
        """For a method of any kind: as a stream of requests that is never read, whatever and however much is sent."""

        async def answers(_requests: Any, context: Context) -> AsyncIterator[bytes]:
            await self._fail(refusal, context)
            yield b""

        handler: grpc.RpcMethodHandler[Any, Any] = grpc.stream_stream_rpc_method_handler(answers)
        return handler

    def _wrap(self, handler: Any) -> grpc.RpcMethodHandler[Any, Any]:
        """The same kind of method, with refusals turned into statuses."""
        inner = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream

        async def answer(request: Any, context: Context) -> Any:
            try:
                if request is _MALFORMED:
                    raise malformed()
                return await inner(request, context)
            except BaseException as error:
                return await self._fail(error, context)

        async def answers(request: Any, context: Context) -> AsyncIterator[Any]:
            try:
                if request is _MALFORMED:
                    raise malformed()
                async for message in inner(request, context):
                    yield message
            except BaseException as error:
                await self._fail(error, context)

        kinds = {
            (False, False): grpc.unary_unary_rpc_method_handler,
            (False, True): grpc.unary_stream_rpc_method_handler,
            (True, False): grpc.stream_unary_rpc_method_handler,
            (True, True): grpc.stream_stream_rpc_method_handler,
        }
        make = kinds[handler.request_streaming, handler.response_streaming]
        behaviour: Any = answers if handler.response_streaming else answer
        deserialize = handler.request_deserializer
        if deserialize is not None and not handler.request_streaming:
            deserialize = _reading(deserialize)
        made: grpc.RpcMethodHandler[Any, Any] = make(behaviour, deserialize, handler.response_serializer)
        return made

    async def _fail(self, error: BaseException, context: Context) -> Any:
        if isinstance(error, (asyncio.CancelledError, GeneratorExit, grpc.aio.AbortError)):
            raise error
        if (refusal := of_unnamed(error)) is not None:
            error = refusal
        elif isinstance(error, DecodeError):
            error = malformed()
        elif not isinstance(error, Refused):
            log.error("call.failed", exc_info=error, extra={"fields": {"error": type(error).__name__}})
            error = Refused(Code.INTERNAL, Reason.INTERNAL, f"the daemon failed: {type(error).__name__}")
        name = error.metadata.get("condition", error.code.name)
        self.refusals[name] = self.refusals.get(name, 0) + 1
        detail = errors.details(error)
        await context.abort(errors.status_code(error), errors.message(error), trailing_metadata=(detail,))


def malformed() -> Refused:
    return Refused(
        Code.INTERNAL, Reason.UNSPECIFIED, "the message is not one of this method's: check client and protocol"
    )


def _reading(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """gRPC would log what a deserializer raises, and answer UNKNOWN."""

    def read(raw: bytes) -> Any:
        try:
            return deserialize(raw)
        except DecodeError:
            return _MALFORMED

    return read
