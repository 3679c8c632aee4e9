"""What stands before every call: token, the Space it is meant for, and refusals turned into statuses.

The token is compared before the message is read. GetInfo needs no `durable-instance`; every other call is checked.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from durable_space.refusal import Code, Reason, Refused, of_os_error
from durable_space.rpc.caller import check_space, text_metadata
from durable_space.rpc.errors import details, status_code

log = logging.getLogger("durable.space")

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
        handler = await continuation(call)
        if handler is None:
            return None
        metadata = text_metadata(call.invocation_metadata)
        refusal: Refused | None = None
        try:
            self._authenticate(metadata.get("authorization", ""))
            if call.method not in _FREE_OF_IDENTITY:
                check_space(metadata, self._instance_id, self._boot_id)
        except Refused as error:
            refusal = error
        return self._wrap(handler, refusal)

    def _authenticate(self, header: str) -> None:
        token = self._token()
        if token is not None and not hmac.compare_digest(header.encode(), f"Bearer {token}".encode()):
            raise Refused(Code.UNAUTHENTICATED, Reason.UNAUTHENTICATED, "missing or invalid bearer token")

    def _wrap(self, handler: Any, refusal: Refused | None) -> grpc.RpcMethodHandler[Any, Any]:
        """The same kind of method; a refused one neither reads the message nor calls the service."""
        deserialize = handler.request_deserializer if refusal is None else None
        inner = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream

        async def answer(request: Any, context: Context) -> Any:
            try:
                if refusal is not None:
                    raise refusal
                return await inner(request, context)
            except BaseException as error:
                return await self._fail(error, context)

        async def answers(request: Any, context: Context) -> AsyncIterator[Any]:
            try:
                if refusal is not None:
                    raise refusal
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
        made: grpc.RpcMethodHandler[Any, Any] = make(behaviour, deserialize, handler.response_serializer)
        return made

    async def _fail(self, error: BaseException, context: Context) -> Any:
        if isinstance(error, (asyncio.CancelledError, GeneratorExit, grpc.aio.AbortError)):
            raise error
        if isinstance(error, OSError) and error.filename:
            error = of_os_error(error, str(error.filename))
        elif not isinstance(error, Refused):
            log.error("call.failed", exc_info=error, extra={"fields": {"error": type(error).__name__}})
            error = Refused(Code.INTERNAL, Reason.INTERNAL, f"the daemon failed: {type(error).__name__}")
        name = error.metadata.get("condition", error.code.name)
        self.refusals[name] = self.refusals.get(name, 0) + 1
        await context.abort(status_code(error), error.message, trailing_metadata=(details(error),))
