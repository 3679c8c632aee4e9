"""The workspace as a path table (`scan`), its bytes by hash (`blobs`), and made equal to a table (`apply`)."""

from durable_space.workspace.workspace import Workspace as Workspace
