"""The test kit: what a storage must hold to be a log, what an ExecutionEnv must do, and a model that answers what a test says.
Free of pytest.
"""

from durable_harness.testing.env_conformance import CHECKS as ENV_CHECKS
from durable_harness.testing.env_conformance import check_env as check_env
from durable_harness.testing.models import FunctionModel as FunctionModel
from durable_harness.testing.storage_conformance import CHECKS as STORAGE_CHECKS
from durable_harness.testing.storage_conformance import check_storage as check_storage

__all__ = ["ENV_CHECKS", "STORAGE_CHECKS", "FunctionModel", "check_env", "check_storage"]
