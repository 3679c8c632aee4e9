"""The report stream: who is let in, what a driver tells, and how it is asked to stop. Tokens are the API server's own."""

import base64
import queue
import urllib.request

import grpc
import pytest
from kubernetes import client
from operator_bed import SYSTEM, spec, wait

from durable_protocol.durable.session.v1 import coordinator_pb2 as pb
from durable_protocol.durable.session.v1 import coordinator_pb2_grpc as pb_grpc

NAME = "durable-sessions-reports.durable-system.svc"


def token(api, namespace, pod=None, audience="durable"):
    """As the kubelet projects it: bound to a pod."""
    bound = None
    if pod is not None:
        uid = api.core.read_namespaced_pod(pod, namespace).metadata.uid
        bound = client.V1BoundObjectReference(api_version="v1", kind="Pod", name=pod, uid=uid)
    request = client.AuthenticationV1TokenRequest(
        spec=client.V1TokenRequestSpec(audiences=[audience], bound_object_ref=bound, expiration_seconds=600)
    )
    return api.core.create_namespaced_service_account_token("default", namespace, request).status.token


class Driver:
    """A driver's end of the stream."""

    def __init__(self, api, install, port, bearer):
        ca = base64.b64decode(api.core.read_namespaced_secret(f"{install}-install", SYSTEM).data["ca.crt"])
        options = (("grpc.ssl_target_name_override", NAME),)
        self._channel = grpc.secure_channel(f"127.0.0.1:{port}", grpc.ssl_channel_credentials(ca), options)
        self._out = queue.Queue()
        metadata = (("authorization", f"Bearer {bearer}"),)
        stub = pb_grpc.SessionCoordinatorStub(self._channel)
        self._call = stub.Report(iter(self._out.get, None), metadata=metadata, timeout=30)

    def tell(self, **event):
        self._out.put(pb.ReportRequest(**event))

    def hear(self):
        """The next order; raises grpc.RpcError if the stream was refused."""
        return next(self._call)

    def close(self):
        self._out.put(None)
        self._channel.close()


@pytest.fixture
def connect(api, shared):
    namespace, _, process = shared
    made = []

    def connected(bearer, port=None):
        made.append(Driver(api, namespace, port or process.stream_port, bearer))
        return made[-1]

    yield connected
    for driver in made:
        driver.close()


def refused(driver):
    with pytest.raises(grpc.RpcError) as caught:
        driver.hear()
    return caught.value.code()


def driving(api, shared, name):
    namespace, kubelet, _ = shared
    api.make(namespace, "durablesessions", name, spec())
    wait(f"{name}-e1 runs", lambda: kubelet.runs(f"{name}-e1"), 30)
    wait("its uid is recorded", lambda: api.status(namespace, name).get("driver", {}).get("uid"))


def metric(process, name):
    with urllib.request.urlopen(f"http://{process.http}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return next((float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name)), None)


def test_a_beat_shows_in_condition_and_metric(api, shared, connect):
    namespace, kubelet, process = shared
    driving(api, shared, "beats")
    wait("no beat is known", lambda: api.condition(namespace, "beats", "Stalled") == ("Unknown", "NoReportStream"))
    driver = connect(token(api, namespace, "beats-e1"))
    driver.tell(heartbeat=pb.Heartbeat(epoch=1, unix_ms=1))
    driver.tell(recovery=pb.Recovery(kind="reattached", mode="transactional", reason="StillRunning"))
    series = f'durable_session_heartbeat_age_seconds{{namespace="{namespace}",session="beats"}}'
    age = wait("its age is told", lambda: metric(process, series) is not None and metric(process, series) + 0.001)
    assert age < 10
    assert metric(process, 'durable_recoveries_total{event="reattached",mode="transactional"}') == 1
    api.patch(namespace, "durablesessions", "beats", {"spec": {"retryToken": "look"}})  # any change wakes it
    wait("the beat is seen", lambda: api.condition(namespace, "beats", "Stalled") == ("False", "Heartbeating"))
    kubelet.settle("beats-e1")


def test_a_suspended_session_asks_its_driver_to_stop_and_goes_on_when_resumed(api, shared, connect):
    namespace, kubelet, _ = shared
    driving(api, shared, "paused")
    driver = connect(token(api, namespace, "paused-e1"))
    driver.tell(heartbeat=pb.Heartbeat(epoch=1, unix_ms=1))
    api.patch(namespace, "durablesessions", "paused", {"spec": {"operatingMode": "Suspended"}})
    assert driver.hear().stop.reason == "Suspended"
    kubelet.end("paused-e1", 143, report={"epoch": 1, "outcome": "stopped"})
    wait("it rests", lambda: api.condition(namespace, "paused", "Suspended") == ("True", "Suspended"))
    status = api.status(namespace, "paused")
    assert (status["lastExit"]["reason"], status.get("countedAttempts", 0)) == ("Stopped", 0)
    api.patch(namespace, "durablesessions", "paused", {"spec": {"operatingMode": "Running"}})
    wait("the next driver runs", lambda: kubelet.runs("paused-e2"))
    kubelet.settle("paused-e2")


def test_only_the_driver_of_the_newest_epoch_is_let_in(api, shared, connect):
    namespace, kubelet, _ = shared
    driving(api, shared, "strict")
    first = token(api, namespace, "strict-e1")
    assert refused(connect("made up")) == grpc.StatusCode.UNAUTHENTICATED
    assert refused(connect(token(api, namespace))) == grpc.StatusCode.PERMISSION_DENIED, "bound to no pod"
    other = token(api, namespace, "strict-e1", audience="https://kubernetes.default.svc.cluster.local")
    assert refused(connect(other)) == grpc.StatusCode.UNAUTHENTICATED, "of another audience"
    assert refused(connect(token(api, namespace, "strict-g1"))) == grpc.StatusCode.PERMISSION_DENIED, "a Space's pod"
    kubelet.end("strict-e1", 1)
    wait("the next driver runs", lambda: kubelet.runs("strict-e2"))
    assert refused(connect(first)) == grpc.StatusCode.PERMISSION_DENIED, "of an older epoch"
    kubelet.settle("strict-e2")


def test_a_standby_sends_drivers_to_the_next_address(api, namespace, start_operator):
    leader = start_operator()
    wait("it leads", lambda: "leading" in leader.text(), 30)
    standby = start_operator()
    wait("it stands by", lambda: "serving" in standby.text(), 30)

    def code():
        try:
            driver = Driver(api, namespace, standby.stream_port, "any")
        except client.exceptions.ApiException:
            return None
        try:
            return refused(driver)
        finally:
            driver.close()

    assert wait("it answers", code, 10) == grpc.StatusCode.UNAVAILABLE
