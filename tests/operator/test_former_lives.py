"""Names come back with other sessions behind them, and drivers report what no status can hold."""

import time

from operator_bed import GROUP, VERSION, spec, wait


def test_a_session_made_again_is_not_answered_by_the_former_ones_driver(api, namespace, kubelet, start_operator):
    start_operator()
    api.make(namespace, "durablesessions", "job", spec(input="first"))
    wait("runs", lambda: kubelet.runs("job-e1"), 30)
    kubelet.settle("job-e1", answer="the old answer")
    wait("ok", lambda: api.condition(namespace, "job", "Succeeded")[0] == "True")
    wait("space gone", lambda: api.get(namespace, "durablespaces", "job") is None)
    api.delete(namespace, "durablesessions", "job")
    wait("gone", lambda: api.get(namespace, "durablesessions", "job") is None)
    api.make(namespace, "durablesessions", "job", spec(input="second, another task"))
    # Its driver runs (a second pod of that name, or one of a later epoch), or it is answered by nobody's.
    wait(
        "its own driver, or an answer",
        lambda: (
            len(kubelet.seen.get("job-e1", ())) > 1
            or kubelet.runs("job-e2")
            or api.status(namespace, "job").get("answer")
        ),
        60,
    )
    assert not api.status(namespace, "job").get("answer")


def test_a_waiter_that_was_made_again_does_not_wait_for_its_former_self(api, namespace, kubelet, start_operator):
    start_operator()
    api.make(namespace, "durablespaces", "shop", {})
    shared = spec(spaceRef={"name": "shop"})
    del shared["space"]
    api.make(namespace, "durablesessions", "a", shared)
    wait("a runs", lambda: kubelet.runs("a-e1"), 30)
    api.make(namespace, "durablesessions", "b", shared)
    wait("b waits", lambda: api.condition(namespace, "b", "Ready")[1] == "WaitingForLease")
    api.delete(namespace, "durablesessions", "b")  # as `kubectl replace --force` does
    api.make(namespace, "durablesessions", "b", shared)
    kubelet.settle("a-e1")
    wait("a ok", lambda: api.condition(namespace, "a", "Succeeded")[0] == "True")
    wait("b runs", lambda: any(name.startswith("b-e") for name in kubelet.seen), 30)


def test_a_report_with_more_kinds_than_a_status_holds_is_taken(api, namespace, kubelet, start_operator):
    start_operator()
    api.make(namespace, "durablesessions", "kinds", spec())
    wait("runs", lambda: kubelet.runs("kinds-e1"), 30)
    wait("uid", lambda: api.status(namespace, "kinds").get("driver", {}).get("uid"))
    recoveries = {f"k{number}": 1 for number in range(17)}
    report = {"epoch": 1, "outcome": "settled", "entries": 3, "recoveries": recoveries}
    kubelet.end("kinds-e1", 0, report=report, answer="42")
    wait("finished", lambda: api.condition(namespace, "kinds", "Finished")[0] == "True")
    assert len(api.status(namespace, "kinds")["recoveries"]) == 16


def test_a_number_that_no_status_holds_burns_no_epochs(api, namespace, kubelet, start_operator):
    start_operator()
    api.make(namespace, "durablesessions", "burn", spec())
    wait("runs", lambda: kubelet.runs("burn-e1"), 30)
    wait("uid", lambda: api.status(namespace, "burn").get("driver", {}).get("uid"))
    report = {"epoch": 1, "outcome": "fenced", "lastEntry": 2**63, "floor": {"epoch": 1}}
    kubelet.end("burn-e1", 75, report=report)
    wait("counted", lambda: api.status(namespace, "burn").get("lastExit", {}).get("epoch") == 1)
    assert api.status(namespace, "burn", "durablespaces")["epoch"] <= 2


def test_a_space_that_another_controller_made_stands_alone(api, namespace, kubelet, start_operator):
    """It is nobody's inline Space, so nobody's end takes it along."""
    start_operator()
    owner = api.core.create_namespaced_config_map(namespace, {"metadata": {"name": "platform"}})
    reference = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": "platform",
        "uid": owner.metadata.uid,
        "controller": True,
    }
    metadata = {"name": "theirs", "ownerReferences": [reference]}
    body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "DurableSpace", "spec": {}, "metadata": metadata}
    api.custom.create_namespaced_custom_object(GROUP, VERSION, namespace, "durablespaces", body)
    shared = spec(spaceRef={"name": "theirs"})
    del shared["space"]
    api.make(namespace, "durablesessions", "job", shared)
    wait("a session works in it", lambda: kubelet.runs("job-e1"), 30)
    time.sleep(1)
    assert api.get(namespace, "durablespaces", "theirs") is not None
