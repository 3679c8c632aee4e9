"""The API server, for the whole operator: the one module that imports the Kubernetes client.

What it adds to the client (rule 28): a deadline on every call, no hidden retries, raw JSON in and out (typed models drop
unknown fields, and a read-modify-write would lose them), the status code checked, strict field validation, a bound on
calls in flight. A write that got no answer is `UnknownOutcomeError`: its effect is not known, so the caller stops and the next
reconcile reads again (rule 16). `guard` runs right before every write: a replica that is no leader any more writes nothing
(rule 27).
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
from kubernetes.aio import client as _client
from kubernetes.aio import config as _config

from durable_base.errors import UsageError

Json = dict[str, Any]
client: Any = _client  # it is not typed
config: Any = _config
IN_FLIGHT_MAX = 50
TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object and where the API serves it. `group` is empty for the core."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None, name: str | None = None, sub: str | None = None) -> str:
        """The URL path; a namespaced kind without a namespace means all of them."""
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if self.namespaced and namespace is not None:
            parts += ["namespaces", namespace]
        parts += [part for part in (self.plural, name, sub) if part is not None]
        return "/" + "/".join(quote(part, safe="") for part in parts)


GROUP = "durablesessions.dev"
SESSIONS = Resource(GROUP, "v1alpha1", "durablesessions", "DurableSession")
SPACES = Resource(GROUP, "v1alpha1", "durablespaces", "DurableSpace")
PODS = Resource("", "v1", "pods", "Pod")
SECRETS = Resource("", "v1", "secrets", "Secret")
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
EVENTS = Resource("", "v1", "events", "Event")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
TOKEN_REVIEWS = Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False)


class ApiError(Exception):
    """The API server refused. `reason` is its word (NotFound, Conflict, AlreadyExists, Invalid, Forbidden...)."""

    def __init__(self, status: int, reason: str, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after


class UnknownOutcomeError(Exception):
    """No answer came in time: a read may be repeated, a write may have happened or may still happen."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A body and when the server made it, by its own clock."""

    body: Json
    date: datetime


@dataclass(frozen=True, slots=True)
class Connection:
    """How to reach the API server, for the library that watches."""

    server: str
    ca_path: str | None
    certificate_path: str | None
    private_key_path: str | None
    token: str | None
    verify: bool


class Kube:
    """One connection pool to one API server."""

    def __init__(self, configuration: Any) -> None:
        configuration.retries = None
        configuration.connection_pool_maxsize = 100
        # The environment's proxy is for the outside; the API server is named by the configuration alone.
        configuration.client_session_kwargs = {"trust_env": False}
        self._configuration = configuration
        self._api: Any = client.ApiClient(configuration)
        self._in_flight = asyncio.Semaphore(IN_FLIGHT_MAX)
        self.guard: Callable[[], None] = lambda: None
        self.schema_problem = ""  # what a refused write told of CRDs that are older than this operator (rule 30)

    @classmethod
    async def connect(cls, kubeconfig: str | None) -> Kube:
        """From a kubeconfig file, else from the pod's service account."""
        configuration = client.Configuration()
        try:
            if kubeconfig or "KUBERNETES_SERVICE_HOST" not in os.environ:
                await config.load_kube_config(
                    config_file=kubeconfig, client_configuration=configuration, persist_config=False
                )
            else:
                config.load_incluster_config(client_configuration=configuration)
        except config.ConfigException as error:
            raise UsageError(f"no way to an API server: {error}; name a kubeconfig with --kubeconfig") from error
        return cls(configuration)

    async def close(self) -> None:
        await self._api.close()

    async def connection(self) -> Connection:
        """Read anew, since a pod's token changes."""
        made = self._configuration
        key = await made.get_api_key_with_prefix("BearerToken", alias="authorization")
        return Connection(
            server=made.host,
            ca_path=made.ssl_ca_cert,
            certificate_path=made.cert_file,
            private_key_path=made.key_file,
            token=key.split(" ", 1)[-1].strip() if key else None,
            verify=made.verify_ssl,
        )

    async def read(self, resource: Resource, namespace: str | None, name: str) -> Answer | None:
        """A quorum read: no resourceVersion. None if there is no such object."""
        try:
            return await self._call("GET", resource.path(namespace, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Json | None:
        answer = await self.read(resource, namespace, name)
        return answer.body if answer else None

    async def list(
        self,
        resource: Resource,
        namespace: str | None,
        *,
        labels: str = "",
        fields: str = "",
        cached: bool = False,
        meta_only: bool = False,
    ) -> list[Json]:
        """`cached`: what the server's cache has, cheap and maybe old. `meta_only`: metadata without spec and status."""
        query = {"labelSelector": labels} if labels else {}
        if fields:
            query["fieldSelector"] = fields
        if cached:
            query["resourceVersion"] = "0"
        accept = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io" if meta_only else "application/json"
        answer = await self._call("GET", resource.path(namespace), query=query, accept=accept)
        return list(answer.body.get("items") or [])  # an empty metadata list has `items: null`

    async def create(self, resource: Resource, namespace: str | None, body: Json) -> Json:
        """ApiError with reason AlreadyExists if the name is taken: read it and judge whose it is (rule 14)."""
        self.guard()
        typed = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
        return (await self._call("POST", resource.path(namespace), query=_STRICT, body=typed)).body

    async def replace_status(self, resource: Resource, body: Json) -> Json:
        """Compare-and-swap by the resourceVersion in `body`: ApiError with reason Conflict if someone wrote between."""
        self.guard()
        meta = body["metadata"]
        path = resource.path(meta.get("namespace"), meta["name"], "status")
        return (await self._call("PUT", path, query=_STRICT, body=body)).body

    async def replace(self, resource: Resource, body: Json) -> Json:
        """The same for an object without its status."""
        self.guard()
        meta = body["metadata"]
        return (
            await self._call("PUT", resource.path(meta.get("namespace"), meta["name"]), query=_STRICT, body=body)
        ).body

    async def delete(
        self, resource: Resource, namespace: str | None, name: str, *, uid: str, grace: int | None = None
    ) -> bool:
        """Delete the object of this uid; False if it is not there any more. Never by name alone: it may be another's."""
        self.guard()
        body: Json = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        if grace is not None:
            body["gracePeriodSeconds"] = grace
        try:
            await self._call("DELETE", resource.path(namespace, name), body=body)
        except ApiError as error:
            if error.status == 404 or error.reason == "Conflict":
                return False
            raise
        return True

    async def get_path(self, path: str) -> Json:
        """Any path, such as a discovery document."""
        return (await self._call("GET", path)).body

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Json | None = None,
        accept: str = "application/json",
    ) -> Answer:
        url = self._configuration.host + path + (f"?{urlencode(query)}" if query else "")
        headers = {"Accept": accept, "User-Agent": "durable-sessions"}
        key = await self._configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        if key:
            headers["Authorization"] = key
        async with self._in_flight:
            try:
                response = await self._api.rest_client.request(
                    method, url, headers=headers, body=body, _request_timeout=TIMEOUT_SECONDS
                )
                async with asyncio.timeout(TIMEOUT_SECONDS):
                    data = await response.read()
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise UnknownOutcomeError(f"{method} {path}: {type(error).__name__}") from error
        if not 200 <= response.status < 300:
            refusal = _refusal(response.status, data, response.headers)
            if refusal.status == 400 and "strict decoding error" in refusal.message and f"/{GROUP}/" in path:
                self.schema_problem = f"CRDTooOld: {refusal.message[:200]}"
            raise refusal
        return Answer(json.loads(data), _date(response.headers))


_STRICT = {"fieldValidation": "Strict"}


def _refusal(status: int, data: bytes, headers: Mapping[str, str]) -> ApiError:
    try:
        body = json.loads(data)
    except ValueError:
        body = {}
    if not isinstance(body, dict):
        body = {}
    wait = headers.get("Retry-After", "")
    return ApiError(
        status,
        body.get("reason") or "Unknown",
        body.get("message") or data[:200].decode(errors="replace"),
        retry_after=float(wait) if wait.isdigit() else None,
    )


def _date(headers: Mapping[str, str]) -> datetime:
    try:
        return parsedate_to_datetime(headers["Date"])
    except (KeyError, ValueError):
        return datetime.now(UTC)
