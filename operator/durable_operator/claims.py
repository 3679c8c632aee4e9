"""Why a pod's volume claims keep it from being placed, in the words of whoever binds them.

The scheduler only says that claims are unbound; the cause is in an event of the claim.
"""

from __future__ import annotations

from durable_operator.kube import CLAIMS, EVENTS, ApiError, Json, Kube

# The binder's and the provisioners' reasons for what does not pass by itself.
_STUCK = frozenset({"FailedBinding", "ProvisioningFailed", "VolumeMismatch"})


async def unbound_claim(kube: Kube, pod: Json, scheduler: str) -> tuple[str, bool]:
    """(what is wrong, whether somebody must act) for a pod that was not placed because of its claims.

    `scheduler`: its words, for when the claims have nothing to add.
    """
    namespace = pod["metadata"]["namespace"]
    for name in _claims(pod):
        claim = await kube.get(CLAIMS, namespace, name)
        if claim is None:
            return f"there is no PersistentVolumeClaim {name} in namespace {namespace}: create it", True
        if (claim.get("status") or {}).get("phase") == "Bound":
            continue
        event = await _newest_event(kube, claim)
        if event is None or not event.get("message"):
            return f"PersistentVolumeClaim {name} is not bound to a volume: {scheduler}", False
        stuck = event.get("reason") in _STUCK
        mend = "" if claim["spec"].get("storageClassName") or not stuck else f"; {_NO_CLASS}"
        return f"PersistentVolumeClaim {name}: {event['message']}{mend}", stuck
    return scheduler, False


_NO_CLASS = "make a storage class the cluster's default, or name one in the claim (spec.log.claim) of a new session"


def _claims(pod: Json) -> list[str]:
    volumes = pod["spec"].get("volumes") or ()
    return [volume["persistentVolumeClaim"]["claimName"] for volume in volumes if "persistentVolumeClaim" in volume]


async def _newest_event(kube: Kube, claim: Json) -> Json | None:
    """None as well where events may not be read: roles that were made for an older version."""
    meta = claim["metadata"]
    try:
        found = await kube.list(EVENTS, meta["namespace"], fields=f"involvedObject.uid={meta['uid']}")
    except ApiError as error:
        if error.status != 403:
            raise
        return None
    return max(found, key=_when, default=None)


def _when(event: Json) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"])
