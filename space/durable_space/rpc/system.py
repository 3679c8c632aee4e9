"""cua.env.v1.SystemService."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import time
from contextlib import suppress
from pathlib import Path

from durable_protocol.cua.env.v1 import system_pb2 as cua
from durable_protocol.cua.env.v1.system_pb2_grpc import SystemServiceServicer
from durable_space import procfs
from durable_space.rpc import messages
from durable_space.rpc.guard import Context
from durable_space.runtime import Runtime
from durable_space.version import VERSION

PROTOCOL_VERSION, PROTOCOL_REVISION = 1, 13

# name -> why it is missing (empty: served). One table for GetCapabilities and for the tests.
FEATURES = {
    "process.exec_ledger": "",
    "process.run_as": "",
    "files.multipart": "",
    "durable.space.v1": "",
    "pty": "this daemon serves no terminals",
    "fs_watch": "files are not watched: Scan tells what changed",
    "fs.run_as": "files are touched as the daemon's user",
    "fs.xattr": "extended attributes are neither read nor restored",
}
_ARCHITECTURES = {"x86_64": cua.ARCHITECTURE_X86_64, "aarch64": cua.ARCHITECTURE_ARM64, "arm64": cua.ARCHITECTURE_ARM64}


class SystemService(SystemServiceServicer):
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._cpu = cpu_times()

    async def GetCapabilities(
        self, request: cua.GetCapabilitiesRequest, context: Context
    ) -> cua.GetCapabilitiesResponse:
        release = os_release()
        limits = self._runtime.config.limits
        return cua.GetCapabilitiesResponse(
            version=VERSION,
            protocol_version=PROTOCOL_VERSION,
            protocol_revision=PROTOCOL_REVISION,
            os=cua.OperatingSystem(
                family=cua.OS_FAMILY_LINUX,
                name=release.get("NAME", "Linux"),
                version=release.get("VERSION_ID", ""),
                kernel=platform.release(),
                pretty_name=release.get("PRETTY_NAME", ""),
            ),
            runtime=cua.RUNTIME_CONTAINER if in_container() else cua.RUNTIME_UNKNOWN,
            runtime_detail="durable space",
            arch=_ARCHITECTURES.get(platform.machine(), cua.ARCHITECTURE_UNSPECIFIED),
            features=[
                cua.Feature(name=name, supported=not lacks, limitation=lacks)
                for name, lacks in sorted(FEATURES.items())
            ],
            hostname=socket.gethostname(),
            initialized=True,
            boot_time=messages.timestamp(procfs.boot_time_ns()),
            limits=cua.Limits(
                max_chunk_bytes=chunk_bytes_max(limits.message_bytes),
                max_message_bytes=limits.message_bytes,
                preferred_chunk_bytes=256 << 10,
                default_scrollback_bytes=limits.keep_output_bytes,
            ),
        )

    async def Health(self, request: cua.HealthRequest, context: Context) -> cua.HealthResponse:
        serving = cua.HEALTH_STATUS_SERVING
        response = cua.HealthResponse(
            status=serving,
            components=[cua.ComponentHealth(name=name, status=serving) for name in ("process", "filesystem")],
        )
        response.uptime.FromNanoseconds(time.time_ns() - self._runtime.started_ns)
        return response

    async def Metrics(self, request: cua.MetricsRequest, context: Context) -> cua.MetricsResponse:
        memory = memory_info()
        received, sent = network_bytes()
        busy, total = cpu_times()
        busy_before, total_before = self._cpu
        self._cpu = (busy, total)
        running = [seen for seen in await self._runtime.run(self._runtime.commands.open) if not seen.state.final]
        response = cua.MetricsResponse(
            sampled_at=messages.timestamp(time.time_ns()),
            cpu_count=os.cpu_count() or 1,
            cpu_percent=100 * (busy - busy_before) / max(1, total - total_before),
            load_average_1m=os.getloadavg()[0],
            memory_total_bytes=memory.get("MemTotal", 0),
            memory_used_bytes=memory.get("MemTotal", 0) - memory.get("MemAvailable", 0),
            managed_process_count=len(running),
            network_rx_bytes=received,
            network_tx_bytes=sent,
        )
        with suppress(OSError, ValueError):  # a disk that can't be asked is left out
            disk = shutil.disk_usage(request.disk_path or self._runtime.workspace_root)
            response.disk_total_bytes, response.disk_used_bytes = disk.total, disk.used
        return response


def chunk_bytes_max(message_bytes: int) -> int:
    """Of one piece of a file: a quarter of a message, so that what else is in it never matters; at most 4 MiB."""
    return min(message_bytes // 4, 4 << 20)


def os_release() -> dict[str, str]:
    try:
        lines = Path("/etc/os-release").read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.partition("=") for line in lines)
    return {name: value.strip('"') for name, _, value in pairs}


def in_container() -> bool:
    """A guess that nothing depends on."""
    return any(os.path.exists(path) for path in ("/.dockerenv", "/run/.containerenv")) or bool(
        os.environ.get("KUBERNETES_SERVICE_HOST")
    )


def memory_info() -> dict[str, int]:
    """Bytes by the kernel's names."""
    found = {}
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        found[name] = int(value.split()[0]) * 1024
    return found


def network_bytes() -> tuple[int, int]:
    """(received, sent) since boot, over all interfaces but loopback, as this network namespace sees them."""
    received = sent = 0
    for line in Path("/proc/net/dev").read_text().splitlines()[2:]:
        name, _, counters = line.partition(":")
        if name.strip() != "lo":
            fields = counters.split()
            received, sent = received + int(fields[0]), sent + int(fields[8])
    return received, sent


def cpu_times() -> tuple[int, int]:
    """(busy, all) in clock ticks since boot, over all processors."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle = fields[3] + fields[4]
    return sum(fields) - idle, sum(fields)
