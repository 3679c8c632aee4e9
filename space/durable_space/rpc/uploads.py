"""The four calls of an upload in parts, for `rpc.filesystem`: each admits its caller before it looks at the upload."""

from __future__ import annotations

from durable_protocol.cua.env.v1 import filesystem_pb2 as cua
from durable_space.files import Files, Info, WriteMode, sha256_of
from durable_space.gate import Caller
from durable_space.refusal import Code, Reason, Refused
from durable_space.rpc.messages import timestamp
from durable_space.runtime import Runtime
from durable_space.uploads import Target, Upload


class UploadCalls:
    def __init__(self, runtime: Runtime, files: Files, chunk_bytes_max: int) -> None:
        self._runtime = runtime
        self._files = files
        self._chunk_bytes_max = chunk_bytes_max
        self._uploads = runtime.uploads

    async def begin(self, caller: Caller, upload_id: str, target: Target, seconds: float) -> cua.BeginUploadResponse:
        def begin() -> Upload:
            self._files.check_target(target.path, WriteMode(target.mode), parents=target.parents)
            return self._uploads.begin(upload_id, target, caller.floor, seconds)

        upload = await self._runtime.run(begin)
        return cua.BeginUploadResponse(
            upload_id=upload.id,
            received_bytes=upload.received,
            max_chunk_bytes=self._chunk_bytes_max,
            expires_at=timestamp(upload.expires_ns),
        )

    async def add(self, caller: Caller, request: cua.UploadChunkRequest) -> cua.UploadChunkResponse:
        if len(request.data) > self._chunk_bytes_max:
            text = f"a chunk has at most {self._chunk_bytes_max} bytes"
            raise Refused(Code.INVALID_ARGUMENT, Reason.LIMIT_EXCEEDED, text)
        upload, duplicate = await self._runtime.run_long(
            self._uploads.add, request.upload_id, caller.floor, request.offset, request.data
        )
        return cua.UploadChunkResponse(
            received_bytes=upload.received, duplicate=duplicate, expires_at=timestamp(upload.expires_ns)
        )

    async def commit(self, caller: Caller, request: cua.CommitUploadRequest) -> tuple[Info, str]:
        """(entry, sha256). Whatever comes of it, the upload is over: what can't be put in place is sent anew."""

        def commit() -> tuple[Info, str]:
            upload = self._uploads.take(request.upload_id, caller.floor)
            with upload.content as content:
                target = upload.target
                sha256 = sha256_of(content)
                for expected in (target.sha256, request.sha256):
                    check_content(target.path, target.size, expected, upload.received, sha256)
                info = self._files.write(
                    caller, target.path, content, WriteMode(target.mode), target.permissions, parents=target.parents
                )
                return info, sha256

        return await self._runtime.run_long(commit)

    async def abort(self, caller: Caller, upload_id: str) -> None:
        def abort() -> None:
            self._uploads.take(upload_id, caller.floor).content.close()

        await self._runtime.run(abort)


def check_content(path: str, expected_size: int, expected_sha256: str, size: int, sha256: str) -> None:
    """Raise Refused: what arrived is not what was announced. 0 and an empty text announce nothing."""
    problem = ""
    if expected_size and expected_size != size:
        problem = f"expected {expected_size} bytes, received {size}"
    elif expected_sha256 and expected_sha256.lower() != sha256:
        problem = f"sha256 mismatch: expected {expected_sha256}, got {sha256}"
    if problem:
        raise Refused(Code.FAILED_PRECONDITION, Reason.CHECKSUM_MISMATCH, problem, metadata={"path": path})
