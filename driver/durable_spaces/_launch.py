"""From what a tool asks for to the command that the Space is asked for: the same in every drive, since recovery compares it."""

from __future__ import annotations

import posixpath
from collections.abc import Awaitable, Callable, Mapping, Sequence

from durable_harness.env import ExecError
from durable_harness.env_paths import check_launch, is_text
from durable_spaces._commands import CommandSpec
from durable_spaces._parts import Space

_SHELLS = ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash", "/bin/sh")


class Launches:
    """`env` is added to the Space's environment; `shell` takes `-c`, None for the first that the Space has."""

    def __init__(self, space: Space, env: Mapping[str, str], shell: str | None) -> None:
        self._space = space
        self._env = env
        self._configured = shell

    async def spec(
        self,
        command: str | Sequence[str],
        folder: Callable[[], Awaitable[str]],
        env: Mapping[str, str],
        inherit_env: bool,
        timeout: float | None,
    ) -> CommandSpec:
        """Checked in this order: shell, the command itself, `folder()`. Raise ExecError: nothing was started."""
        argv = await self._argv(command)
        check_launch(argv, env)
        if not all(map(is_text, [*argv, *env, *env.values()])):
            raise ExecError("spawn_error", "a command and its variables are text, in UTF-8")
        cwd = await folder()
        if inherit_env:
            env = {**self._env, **env}
        else:
            argv, env = await self._bare(argv, env, cwd), {}
        timeout_ns = None if timeout is None else max(1, round(timeout * 1e9))
        return CommandSpec(argv[0], tuple(argv[1:]), env, cwd, timeout_ns)

    async def _bare(self, argv: list[str], env: Mapping[str, str], folder: str) -> list[str]:
        """The same command with nothing but `env`. That it can't be started env(1) would tell by a status: looked for here."""
        program = argv[0]
        if "=" in program:
            raise ExecError("spawn_error", f"{program}: a program with '=' in its name needs the inherited environment")
        if "/" in program and not (await self._space.files.mode(posixpath.join(folder, program)) or 0) & 0o111:
            raise ExecError("spawn_error", f"{program}: there is no such program")
        return ["/usr/bin/env", "-i", *(f"{name}={value}" for name, value in env.items()), *argv]

    async def _argv(self, command: str | Sequence[str]) -> list[str]:
        if isinstance(command, str):
            return [await self._shell(), "-c", command]
        return list(command)

    async def _shell(self) -> str:
        """The same one in the same Space, for every drive: it is part of the command's hash."""
        if (configured := self._configured) is not None:
            if not (await self._space.files.mode(configured) or 0) & 0o111:
                raise ExecError("shell_unavailable", f"no shell: {configured} can't be executed")
            return configured
        if self._space.shell is not None:
            return self._space.shell
        for candidate in _SHELLS:
            if (await self._space.files.mode(candidate) or 0) & 0o111:
                self._space.shell = candidate
                return candidate
        raise ExecError("shell_unavailable", f"no shell in the Space: none of {', '.join(_SHELLS)} can be executed")
