"""Manifests from files: what a user may write, and the one clear error for each thing that is wrong."""

import pytest
import yaml

from durable_base.errors import UsageError
from durable_coordinator.manifest import ConfigMap, SessionManifest, load_manifests
from durable_coordinator.resolve import (
    agent_document,
    resolve_agent,
    resolve_env,
    resolve_input,
    resolve_script,
    resolve_source,
)

HEAD = "apiVersion: durablesessions.dev/v1alpha1\nkind: DurableSession\nmetadata: {name: fix-bug}\n"
FULL = f"""{HEAD}
spec:
  input: |
    The tests fail. Repair the code.
  agent:
    model: {{provider: openai-compatible, name: some-model, baseUrl: https://models.example/v1}}
    instructions: You are careful.
    tools: [read, write, edit, bash]
    maxCost: "2.50"
  driver:
    env: [{{name: KEY, valueFrom: {{secretKeyRef: {{name: models, key: key}}}}}}]
  space:
    source: {{configMapRef: {{name: project}}}}
    egress: None
  transactional: {{exclude: [build]}}
---
apiVersion: v1
kind: ConfigMap
metadata: {{name: project}}
data: {{calc.py: "x = 1\\n"}}
binaryData: {{logo.png: AAEC}}
---
apiVersion: durablesessions.dev/v1alpha1
kind: DurableSpace
metadata: {{name: shared, namespace: team}}
---
apiVersion: v1
kind: Secret
metadata: {{name: models}}
stringData: {{key: x}}
"""


def session(spec: str, more: str = "") -> str:
    """A session with a good beginning and `spec`, an indented block, behind it."""
    return f"{HEAD}spec:\n  input: go\n  space: {{}}\n{spec}{more}"


def load(text: str) -> SessionManifest:
    (manifest,) = load_manifests([("run.yaml", text)]).sessions
    return manifest


def test_a_whole_file_is_read() -> None:
    manifests = load_manifests([("fix.yaml", FULL)])
    (one,) = manifests.sessions
    assert (one.namespace, one.name) == ("default", "fix-bug")
    assert one.spec.input == "The tests fail. Repair the code.\n"
    assert one.spec.agent is not None
    assert one.spec.agent.tools == ("read", "write", "edit", "bash")
    assert one.spec.retry.max_attempts == 10
    assert one.spec.space_name("fix-bug") == "fix-bug"
    (space,) = manifests.spaces
    assert (space.namespace, space.name, space.spec.workspace) == ("team", "shared", "/workspace")
    (files,) = manifests.config_maps
    assert (files.data, files.binary_data) == ({"calc.py": "x = 1\n"}, {"logo.png": b"\x00\x01\x02"})
    assert manifests.ignored == ("fix.yaml, document 4 (Secret models)",)


def test_empty_documents_and_files_are_nothing() -> None:
    assert load_manifests([("a.yaml", ""), ("b.yaml", "---\n---\n# nothing\n")]).sessions == ()


WHERE = "run.yaml, document 1 (DurableSession fix-bug): "
BAD = {
    "not YAML": ("a: [1", "run.yaml, line 1: not YAML: "),
    "not a manifest": (
        "- 1",
        "run.yaml, document 1: got [1]; expected a manifest with apiVersion, kind, metadata and spec",
    ),
    "no kind": ("apiVersion: v1", "run.yaml, document 1: kind: is missing; "),
    "no apiVersion": ("kind: DurableSession", "run.yaml, document 1: apiVersion: is missing; "),
    "misspelt kind": (
        HEAD.replace("kind: DurableSession", "kind: DurableSesion"),
        "kind: unknown value 'DurableSesion'; did you mean DurableSession?",
    ),
    "unknown version": (
        HEAD.replace("v1alpha1", "v1"),
        "apiVersion: unknown value 'durablesessions.dev/v1'; use durablesessions",
    ),
    "group forgotten": (
        HEAD.replace("durablesessions.dev/v1alpha1", "v1"),
        "apiVersion: got 'v1'; a DurableSession has ",
    ),
    "no name": (
        HEAD.replace("{name: fix-bug}", "{}"),
        "(DurableSession): metadata.name: is missing; give the object a name",
    ),
    "a number for a name": (
        HEAD.replace("fix-bug", "7"),
        "(DurableSession): metadata.name: got 7; give the object a name",
    ),
    "bad name": (HEAD.replace("fix-bug", "Fix.Bug"), "metadata.name: got 'Fix.Bug'; use at most 47 lower-case letters"),
    "long name": (HEAD.replace("fix-bug", "a" * 48), "metadata.name: got 'aaaa"),
    "bad namespace": (
        HEAD.replace("}", ", namespace: 3}") + "spec: {}",
        "metadata.namespace: got 3; give a name or leave it out",
    ),
    "no spec": (HEAD, WHERE + "spec: is missing; a session needs at least input, agent and space"),
    "unknown top field": (session("", "spek: 1\n"), WHERE + "spek: unknown field; did you mean spec?"),
    "missing input": (
        f"{HEAD}spec: {{space: {{}}}}",
        WHERE + "spec.input: is missing; say what the agent is to do in input",
    ),
    "empty input": (
        session("").replace("input: go", "input: ''"),
        WHERE + "spec.input: got ''; expected a string of length >= 1",
    ),
    "both inputs": (
        session("  inputFrom: {configMapKeyRef: {name: a, key: b}}\n"),
        WHERE + "spec.inputFrom: stands beside input; keep one",
    ),
    "no Space": (f"{HEAD}spec: {{input: go}}", WHERE + "spec.space: is missing; give the session a Space of its own"),
    "both Spaces": (
        session("  spaceRef: {name: w}\n"),
        WHERE + "spec.spaceRef: stands beside space; keep one of the two",
    ),
    "unknown field": (session("  inputs: x\n"), WHERE + "spec.inputs: unknown field; did you mean input?"),
    "unknown deep field": (
        session("  agent: {model: {provider: x, baseURL: y}}\n"),
        WHERE + "spec.agent.model.baseURL: unknown field; did you mean baseUrl?",
    ),
    "unknown field like none": (
        session("  zzz: 1\n"),
        WHERE + "spec.zzz: unknown field; known are input, inputFrom, agent",
    ),
    "unknown mode": (
        session("  mode: transaction\n"),
        WHERE
        + "spec.mode: unknown value 'transaction'; did you mean transactional? use one of auto, transactional, checkpoint",
    ),
    "mode like none": (
        session("  mode: x\n"),
        WHERE + "spec.mode: unknown value 'x'; use one of auto, transactional, checkpoint",
    ),
    "wrong type": (
        session("  stallSeconds: soon\n"),
        WHERE + "spec.stallSeconds: got 'soon'; expected a whole number, got a string",
    ),
    "too small": (session("  stallSeconds: 1\n"), WHERE + "spec.stallSeconds: got 1; expected a whole number >= 10"),
    "field left empty": (session("  agent:\n"), WHERE + "spec.agent: is empty; give it a value or leave it out"),
    "no provider": (session("  agent: {model: {}}\n"), WHERE + "spec.agent.model.provider: is missing; set it"),
    "list item": (
        session("  driver: {env: [{name: A, value: b}, {name: B, value: 7}]}\n"),
        WHERE + "spec.driver.env[1].value: got 7; expected a string, got a whole number",
    ),
    "scalar for a mapping": (
        session("  driver: fast\n"),
        WHERE + "spec.driver: got 'fast'; expected a mapping of fields",
    ),
    "a variable of ours": (
        session("  driver: {env: [{name: CUA_SESSION, value: b}]}\n"),
        WHERE + "spec.driver.env[0].name: got 'CUA_SESSION'; CUA_ names are the coordinator's: use another",
    ),
    "a variable twice": (
        session("  driver: {env: [{name: A}, {name: A}]}\n"),
        WHERE + "spec.driver.env[1].name: 'A' stands there twice; keep one",
    ),
    "a reference to nothing": (
        session("  driver: {env: [{name: A, valueFrom: {}}]}\n"),
        WHERE + "spec.driver.env[0].valueFrom: needs one reference; set either configMapKeyRef or secretKeyRef",
    ),
    "limits without their mode": (
        session("  mode: checkpoint\n  transactional: {}\n"),
        WHERE + "spec.transactional: has no meaning in mode checkpoint",
    ),
    "exclude outside": (
        session("  transactional: {exclude: [ok, ../x]}\n"),
        WHERE + "spec.transactional.exclude[1]: got '../x'; write it relative",
    ),
    "log in a store without a store": (
        session("  log: {storage: ObjectStore}\n"),
        WHERE + "spec.log.storage: ObjectStore needs a store; name one in checkpoint",
    ),
    "claim of a log in a store": (
        session("  log: {claim: {}}\n"),
        WHERE + "spec.log.claim: goes with a claim only; set log.storage to Persistent",
    ),
    "backoff upside down": (
        session("  retry: {initialSeconds: 400}\n"),
        WHERE + "spec.retry.initialSeconds: got 400; set it to at most maxSeconds (300)",
    ),
    "tool twice": (
        session("  agent: {model: {provider: x}, tools: [read, read]}\n"),
        WHERE + "spec.agent.tools: names a tool twice; name each",
    ),
    "runtime class": (
        session("").replace("{}", "{kind: gvisor}"),
        WHERE + "spec.space.runtimeClassName: is missing for kind gvisor; name",
    ),
    "storage": (
        session("").replace("{}", "{storage: {type: Claim}}"),
        WHERE + "spec.space.storage.claim: goes with type Claim",
    ),
    "two sources": (
        session("").replace("{}", "{source: {configMapRef: {name: a}, git: {url: b}}}"),
        WHERE + "spec.space.source.git: stands beside configMapRef; keep one of the two",
    ),
    "relative workspace": (
        session("").replace("{}", "{workspace: work}"),
        WHERE + "spec.space.workspace: got 'work'; ",
    ),
    "twice": (
        session("", "---\n") + session(""),
        "run.yaml, document 2 (DurableSession fix-bug): metadata.name: the same object stands in run.yaml, document 1",
    ),
    "a number in a ConfigMap": (
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {a: 1}",
        "run.yaml, document 1 (ConfigMap c): data.a: got 1; a ConfigMap holds strings: put it in quotes",
    ),
    "bad base64": (
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\nbinaryData: {a: '$'}",
        "binaryData.a: not base64; encode it",
    ),
    "a list for data": (
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: [a]",
        "data: got ['a']; expected a mapping of keys to values",
    ),
}


@pytest.mark.parametrize(("text", "said"), BAD.values(), ids=BAD)
def test_what_is_wrong_is_said_in_one_line_with_place_value_and_remedy(text: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        load_manifests([("run.yaml", text)])
    message = str(error.value)
    assert said in message
    assert message.startswith("run.yaml")
    assert "\n" not in message
    assert ";" in message.removeprefix("run.yaml"), "no remedy"


def test_a_long_value_is_not_shown_whole() -> None:
    with pytest.raises(UsageError) as error:
        load(session(f"  mode: {'x' * 500}\n"))
    assert len(str(error.value)) < 250


MAPS = (
    ConfigMap(
        namespace="default",
        name="texts",
        data={"input": "from the map", "agent": "{model: {provider: scripted}}", "bad": "{model: {}}", "broken": "["},
        binary_data={"raw": b"\x00"},
    ),
    ConfigMap(namespace="other", name="elsewhere", data={"input": "x"}, binary_data={}),
)


def referring(field: str, key: str, name: str = "texts", kind: str = "configMapKeyRef") -> SessionManifest:
    base = {"space": {}, "input": "go"}
    if field == "inputFrom":
        del base["input"]
    reference = {kind: {"name": name, "key": key}}
    spec = {**base, field: reference} if field != "script" else {**base, "agent": {"model": {"provider": "scripted"}}}
    if field == "script":
        spec["agent"]["scriptFrom"] = reference  # type: ignore[index]
    return load(HEAD + yaml.safe_dump({"spec": spec}))


def test_input_agent_script_and_files_come_from_config_maps() -> None:
    assert resolve_input(load(session("")), ()) == "go"
    assert resolve_input(referring("inputFrom", "input"), MAPS) == "from the map"
    agent = resolve_agent(referring("agentFrom", "agent"), MAPS)
    assert agent is not None
    assert agent.model.provider == "scripted"
    assert yaml.safe_load(agent_document(agent)) == {"model": {"provider": "scripted"}}
    scripted = referring("script", "input")
    assert resolve_script(scripted, scripted.spec.agent, MAPS) == "from the map"
    assert resolve_script(load(session("")), None, MAPS) is None
    whole = load_manifests([("fix.yaml", FULL)])
    place = whole.sessions[0].spec.space_spec()
    assert place is not None
    assert resolve_source(place, "default", "here", whole.config_maps) == {
        "calc.py": b"x = 1\n",
        "logo.png": b"\x00\x01\x02",
    }


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        (referring("inputFrom", "inptu"), "spec.inputFrom: ConfigMap texts has no key inptu; did you mean input?"),
        (
            referring("inputFrom", "raw"),
            "spec.inputFrom: key raw of ConfigMap texts is binary; put the text under data",
        ),
        (referring("inputFrom", "x", "text"), "there is no ConfigMap text in namespace default; did you mean texts?"),
        (
            referring("inputFrom", "x", "elsewhere"),
            "there is no ConfigMap elsewhere in namespace default; known are texts",
        ),
        (
            referring("inputFrom", "x", kind="secretKeyRef"),
            "the Secret texts is only known on a cluster; use a ConfigMap here",
        ),
    ],
)
def test_a_reference_that_leads_nowhere_is_said_to(manifest: SessionManifest, said: str) -> None:
    with pytest.raises(UsageError) as error:
        resolve_input(manifest, MAPS)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("key", "said"), [("bad", "spec.agentFrom.model.provider: is missing"), ("broken", "the text it names is not YAML")]
)
def test_a_bad_agent_in_a_config_map_is_refused_like_one_in_the_spec(key: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        resolve_agent(referring("agentFrom", key), MAPS)
    assert said in str(error.value)


def test_variables_come_from_the_spec_config_maps_and_the_users_environment() -> None:
    manifest = load(
        session("""  driver:
    env:
    - {name: PLAIN, value: a}
    - {name: MAPPED, valueFrom: {configMapKeyRef: {name: texts, key: input}}}
    - {name: MAYBE, valueFrom: {configMapKeyRef: {name: texts, key: none, optional: true}}}
    - {name: SECRET, valueFrom: {secretKeyRef: {name: models, key: key}}}
    - {name: PERHAPS, valueFrom: {secretKeyRef: {name: models, key: key, optional: true}}}
""")
    )
    assert resolve_env(manifest, MAPS, {"SECRET": "s", "OTHER": "o"}) == {
        "PLAIN": "a",
        "MAPPED": "from the map",
        "SECRET": "s",
    }
    with pytest.raises(UsageError) as error:
        resolve_env(manifest, MAPS, {})
    assert "SECRET comes from the Secret models; here it is read from the environment: export SECRET=..." in str(
        error.value
    )
