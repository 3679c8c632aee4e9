"""The adapter: makes each tool call's effect on a Space happen exactly once, in order, or not at all.

`durable_spaces(...)` puts it together; `recovery` decides what becomes of an interrupted call; `image` is the log's copy of
the workspace; `client` and `env` speak to the Space.
"""

from durable_spaces.client import Address as Address
from durable_spaces.client import Deadlines as Deadlines
from durable_spaces.client import FencedSpace as FencedSpace
from durable_spaces.client import SpaceClient as SpaceClient
from durable_spaces.client import SpaceInfo as SpaceInfo
from durable_spaces.cua import CuaSpaceClient as CuaSpaceClient
from durable_spaces.cua import client_for as client_for
from durable_spaces.durable import Attached as Attached
from durable_spaces.durable import DurableSpaces as DurableSpaces
from durable_spaces.durable import durable_spaces as durable_spaces
from durable_spaces.env import SpaceExecutionEnv as SpaceExecutionEnv
from durable_spaces.events import RecoveryEvent as RecoveryEvent
from durable_spaces.limits import Limits as Limits
from durable_spaces.limits import parse_limits as parse_limits
from durable_spaces.spaces import LocalSpaces as LocalSpaces
from durable_spaces.spaces import RemoteSpaces as RemoteSpaces
from durable_spaces.spaces import Spaces as Spaces
