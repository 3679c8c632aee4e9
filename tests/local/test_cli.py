"""The command line: a mistake is one line that says what to do and exit code 2; a listing needs no extra."""

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

EXAMPLE = Path(__file__).parents[2] / "examples/fix-bug"
HEAD = {"apiVersion": "durablesessions.dev/v1alpha1", "kind": "DurableSession", "metadata": {"name": "s"}}


def durable(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "durable_cli", *words]
    clean = {name: value for name, value in os.environ.items() if name not in ("MODEL_KEY", "OPENAI_API_KEY")}
    return subprocess.run(command, cwd=folder, env={**clean, **env}, capture_output=True, text=True, timeout=60)


def refusal(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    return line


def spec(**fields: Any) -> dict[str, Any]:
    model = {"model": {"provider": "openai-compatible", "name": "m", "baseUrl": "http://127.0.0.1:9/v1"}}
    return {**HEAD, "spec": {"input": "x", "agent": model, "space": {}, **fields}}


KEY = {"env": [{"name": "MODEL_KEY", "valueFrom": {"secretKeyRef": {"name": "models", "key": "key"}}}]}
SCRIPT = {"model": {"provider": "scripted"}, "scriptFrom": {"configMapKeyRef": {"name": "none", "key": "script.yaml"}}}
WRONG: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "unknown-mode": (spec(mode="maybe"), ("spec.mode", "maybe")),
    "unknown-field": (spec(colour="red"), ("colour",)),
    "no-input": ({**HEAD, "spec": {"space": {}}}, ("input",)),
    "missing-variable": (spec(driver=KEY), ("MODEL_KEY",)),
    "missing-config-map": (spec(agent=SCRIPT), ("none",)),
    "missing-shared-space": (
        {**HEAD, "spec": {"input": "x", "agent": SCRIPT, "spaceRef": {"name": "w"}}},
        ("spaceRef", "w"),
    ),
    "not-on-one-machine": (spec(space={"kind": "gvisor", "runtimeClassName": "g"}), ("gvisor", "cluster")),
    "stall-too-short": (spec(stallSeconds=1), ("stallSeconds",)),
}


def agent(**fields: Any) -> dict[str, Any]:
    """A session whose agent is right but for these fields."""
    model = {"provider": "openai-compatible", "name": "m", "baseUrl": "http://127.0.0.1:9/v1"}
    return spec(agent={"model": {**model, **fields.pop("model", {})}, **fields})


OWN_SCRIPT = {**SCRIPT, "scriptFrom": {"configMapKeyRef": {"name": "script", "key": "script.yaml"}}}
WRONG |= {
    "unknown-tool": (agent(tools=["read", "fly"]), ("spec.agent.tools", "fly", "bash")),
    "unknown-provider": (agent(model={"provider": "oracle"}), ("spec.agent.model.provider", "oracle", "anthropic")),
    "no-address": (agent(model={"baseUrl": None}), ("spec.agent.model.baseUrl",)),
    "no-model-name": (agent(model={"name": None}), ("spec.agent.model.name",)),
    "unknown-thinking": (agent(model={"thinking": "deep"}), ("spec.agent.model.thinking", "deep")),
    "no-key": (agent(model={"provider": "openai"}), ("spec.agent.model", "OPENAI_API_KEY")),
    "mode-to-come": (spec(mode="checkpoint"), ("spec.mode", "transactional")),
    "no-script": (spec(agent={"model": {"provider": "scripted"}}), ("spec.agent.scriptFrom",)),
    "outside-the-workspace": (spec(transactional={"exclude": ["../x"]}), ("spec.transactional.exclude", "../x")),
}


WRONG |= {
    "git-on-one-machine": (
        spec(space={"source": {"git": {"url": "https://git.example/p", "ref": "main"}}}),
        (": spec.space.source.git is not", "give spec.space.source.configMapRef"),
    ),
    "missing-files": (spec(space={"source": {"configMapRef": {"name": "f"}}}), (": spec.space.source.configMapRef: ",)),
    "words-for-a-number": (spec(stallSeconds="lots"), ("got 'lots'; expected a whole number, got a string",)),
    "no-session": (
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}},
        ("s.yaml: no DurableSession",),
    ),
    "key-on-a-laptop": (agent(model={"provider": "anthropic"}), ("`export ANTHROPIC_API_KEY=...`",)),
}


@pytest.mark.parametrize("words", [("run",), ("run", "--chaos")])
def test_a_slip_in_a_script_is_told_with_its_step(tmp_path: Path, words: tuple[str, ...]) -> None:
    script = "steps:\n- cals: [{bash: {command: ls}}]\n- answer: done\n"
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "script"}, "data": {"script.yaml": script}}
    (tmp_path / "s.yaml").write_text(yaml.safe_dump_all([spec(agent=OWN_SCRIPT), config]))
    line = refusal(durable(tmp_path, *words, "s.yaml"))
    assert all(word in line for word in ("spec.agent.scriptFrom", "step 1", "'cals'")), line
    assert not (tmp_path / ".durable").exists()


@pytest.mark.parametrize(("document", "named"), WRONG.values(), ids=WRONG)
def test_a_wrong_manifest_is_one_line_and_leaves_nothing(
    tmp_path: Path, document: dict[str, Any], named: tuple[str, ...]
) -> None:
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(document))
    line = refusal(durable(tmp_path, "run", "s.yaml"))
    assert all(word in line for word in named), line
    assert "DURABLE_" not in line
    assert not (tmp_path / ".durable").exists()


@pytest.mark.parametrize(
    "words", [("run", "none.yaml"), ("run", "."), ("run", "--seed", "1", "."), ("get", "s"), ("nonsense",)]
)
def test_a_wrong_command_is_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = durable(tmp_path, *words)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (("rum",), "did you mean run?"),
        (("run", "--jobs", "3", "."), "need --chaos"),
        (("run", "--chaos", "--jobs", "3", "."), "give --runs"),
        (("get", "--state", "none"), "none: there is no such folder"),
    ],
)
def test_a_slip_in_a_command_is_told_with_its_remedy(tmp_path: Path, words: tuple[str, ...], remedy: str) -> None:
    assert remedy in refusal(durable(tmp_path, *words))


def without_override() -> None:
    """Between fork and exec: root loses the right to read what modes forbid (a user has no such right, and this no effect)."""
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP


@pytest.mark.parametrize("command", ["get", "describe s", "logs s", "suspend s", "resume s", "retry s", "delete s"])
@pytest.mark.parametrize("bad", ["file", "mode", "session"])
def test_a_state_that_cannot_be_read_is_one_line(tmp_path: Path, command: str, bad: str) -> None:
    state = tmp_path / "state"
    if bad == "file":
        state.write_text("a file, where the folder should be")
    else:
        (state / "s").mkdir(parents=True)
        (state / "s" if bad == "session" else state).chmod(0)
    words = [sys.executable, "-m", "durable_cli", *command.split(), "--state", str(state)]
    done = subprocess.run(words, preexec_fn=without_override, capture_output=True, text=True)
    if (command, bad) == ("get", "session"):
        assert done.returncode == 1, "a listing goes on with the others"
        (line,) = done.stderr.splitlines()
        assert line.startswith(f"error: {state}")
    else:
        assert str(state) in refusal(done)
    assert "--state DIR" in done.stderr


def test_chaos_needs_a_model_that_repeats_itself(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(spec()))
    assert "scripted" in refusal(durable(tmp_path, "run", "--chaos", "s.yaml"))


@pytest.mark.parametrize("command", ["run", "get", "describe", "logs", "suspend", "resume", "retry", "delete"])
def test_help_shows_an_example(tmp_path: Path, command: str) -> None:
    assert f"Example: durable {command}" in durable(tmp_path, command, "--help").stdout


def test_an_empty_folder_lists_nothing(tmp_path: Path) -> None:
    done = durable(tmp_path, "get", "-o", "json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["items"] == []


def test_listing_the_commands_imports_no_part(tmp_path: Path) -> None:
    program = (
        "import sys; from durable_cli.main import durable; durable.main(['--help'], standalone_mode=False);"
        "print([name for name in sys.modules if name.startswith(('grpc', 'kopf', 'durable_'))], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    imported = done.stderr.strip().strip("[]").replace("'", "").split(", ")
    assert {name.split(".")[0] for name in imported} == {"durable_cli", "durable_base"}
    assert "operator" in done.stdout


def test_the_example_has_what_its_readme_lists() -> None:
    readme = (EXAMPLE / "README.md").read_text()
    assert {path.name for path in EXAMPLE.iterdir()} - {"README.md"} == {
        word for word in readme.split("`") if word.endswith(".yaml")
    }


def test_a_failing_disk_is_one_line_and_a_failure(tmp_path: Path) -> None:
    program = (
        "import errno, os; from durable_cli import main; from durable_local import layout\n"
        "def full(*_, **__): raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))\n"
        "layout.Path.mkdir = full; main.main()"
    )
    words = [sys.executable, "-c", program, "run", str(EXAMPLE), "--state", str(tmp_path / "state")]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert "Make room" in line
