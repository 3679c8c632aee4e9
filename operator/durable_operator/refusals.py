"""What the API server's refusal of a pod means for who wants it (rule 35). Pure."""

from __future__ import annotations

from durable_coordinator.facts import Obstacle
from durable_operator.kube import ApiError

REJECTED_SECONDS = 300.0
QUOTA_SECONDS = 30.0


def is_terminating(error: ApiError) -> bool:
    """The namespace is being deleted: nothing can be made there any more, and nothing has to be said about it."""
    return error.status == 403 and "being terminated" in error.message


def obstacle(error: ApiError) -> Obstacle | None:
    """None: not about this pod; the reconcile failed and is made again."""
    if error.status == 403 and "exceeded quota" in error.message:
        return Obstacle(reason="QuotaExceeded", message=error.message[:1024], retry_seconds=QUOTA_SECONDS)
    if error.status in (403, 422) or (error.status == 400 and error.reason in ("BadRequest", "Invalid")):
        return Obstacle(reason="PodRejected", message=error.message[:1024], retry_seconds=REJECTED_SECONDS)
    return None
