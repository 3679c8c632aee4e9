"""read, write, edit and bash on the local environment: what the model is told, in success and in failure."""

from pathlib import Path
from typing import Any

import pytest

from durable_base.errors import HaltError
from durable_harness.coding import CODING_TOOLS, OUTPUT_BYTES_MAX, OutputTail
from durable_harness.env import ExecResult
from durable_harness.local_env import LocalExecutionEnv
from durable_harness.tools import ToolCall, ToolResult

TOOLS = {tool.name: tool for tool in CODING_TOOLS}


class Api:
    """As much of ToolApi as these tools use."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.live: list[str] = []
        self.call = ToolCall(1, 7, "c", "tool", {}, recovered=False)

    def output(self, text: str) -> None:
        self.live.append(text)

    async def commit(self, fn: Any) -> Any:
        raise AssertionError("these tools keep no records of their own")

    at_result = after_result = commit


@pytest.fixture
def api(tmp_path: Path) -> Api:
    return Api(LocalExecutionEnv(tmp_path))


async def use(api: Api, tool: str, **arguments: Any) -> ToolResult:
    result = await TOOLS[tool].run(api, arguments)
    assert isinstance(result, ToolResult)
    return result


def notes(result: ToolResult) -> list[tuple[str, str]]:
    return [(note.code, note.message) for note in result.diagnostics]


async def test_written_and_read_again_is_the_same(api: Api, tmp_path: Path) -> None:
    assert (await use(api, "write", path="src/a.py", content="ä = 1\r\nb")).output == "Wrote 9 bytes to src/a.py."
    assert (tmp_path / "src/a.py").read_bytes() == "ä = 1\r\nb".encode()
    assert await use(api, "read", path="src/a.py") == ToolResult("ä = 1\r\nb")


async def test_a_part_of_a_file_says_how_to_go_on(api: Api, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("".join(f"{n}\n" for n in range(1, 11)))
    result = await use(api, "read", path="f", offset=4, limit=2)
    assert result.output == "4\n5\n"
    assert notes(result) == [("truncated", "Lines 4 to 5; the file goes on: read again with offset 6.")]
    assert await use(api, "read", path="f", offset=9) == ToolResult("9\n10\n")


async def test_a_long_file_is_cut_at_a_line_that_fits(api: Api, tmp_path: Path) -> None:
    (tmp_path / "f").write_text(("x" * 1023 + "\n") * 100)
    result = await use(api, "read", path="f")
    assert len(result.output) == OUTPUT_BYTES_MAX
    assert notes(result)[0][1].endswith("offset 51.")
    (tmp_path / "g").write_text("y" * (OUTPUT_BYTES_MAX + 1))
    assert "use bash" in notes(await use(api, "read", path="g"))[0][1]


async def test_an_empty_file_is_no_error_and_a_line_behind_the_end_is(api: Api, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    empty = await use(api, "read", path="f")
    assert (empty.is_error, notes(empty)) == (False, [("empty", "The file is empty.")])
    (tmp_path / "f").write_text("one\n")
    behind = await use(api, "read", path="f", offset=2)
    assert (behind.is_error, notes(behind)) == (True, [("tool_error", "the file has 1 lines, so there is no line 2")])


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [("read", {}), ("write", {"content": "x"}), ("edit", {"old_text": "a", "new_text": "b"})],
)
async def test_a_file_that_is_a_folder_is_a_result_that_says_so(
    api: Api, tmp_path: Path, tool: str, arguments: dict[str, str]
) -> None:
    (tmp_path / "d").mkdir()
    result = await use(api, tool, path="d", **arguments)
    assert result.is_error
    assert "is a directory" in notes(result)[0][1]


async def test_an_edit_replaces_the_one_place_and_keeps_the_rest_byte_for_byte(api: Api, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"\xef\xbb\xbfa\r\nb = 1\r\nc")
    result = await use(api, "edit", path="f", old_text="b = 1", new_text="b = 2\r\nb2 = 3")
    assert (tmp_path / "f").read_bytes() == b"\xef\xbb\xbfa\r\nb = 2\r\nb2 = 3\r\nc"
    assert result == ToolResult("Replaced the text at line 2 of f.", details={"line": 2})


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("z", "y", "is not there: read the file"),
        ("if x:\n  y()", "", "line 1 differs from it in white space only"),
        ("y()", "z()", "is there 2 times (lines 2, 3)"),
        ("", "z", "old_text is empty"),
        ("if x:", "if x:", "are equal"),
    ],
)
async def test_an_edit_that_is_not_unique_and_exact_changes_nothing_and_says_what_to_do(
    api: Api, tmp_path: Path, old: str, new: str, says: str
) -> None:
    content = "if x:\n    y()\ny()\n"
    (tmp_path / "f").write_text(content)
    result = await use(api, "edit", path="f", old_text=old, new_text=new)
    assert result.is_error
    assert says in notes(result)[0][1]
    assert (tmp_path / "f").read_text() == content


async def test_a_file_that_is_not_text_is_not_edited(api: Api, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"a\xff")
    result = await use(api, "edit", path="f", old_text="a", new_text="b")
    assert "not UTF-8" in notes(result)[0][1]
    assert (tmp_path / "f").read_bytes() == b"a\xff"


async def test_a_command_gives_its_output_live_and_as_result(api: Api) -> None:
    result = await use(api, "bash", command="echo one; echo two >&2")
    assert sorted(result.output.splitlines()) == ["one", "two"]
    assert (result.is_error, result.diagnostics, result.details) == (False, (), {"exitCode": 0})
    assert "".join(api.live) == result.output


async def test_a_failing_command_is_an_error_with_its_output_and_exit_code(api: Api) -> None:
    result = await use(api, "bash", command="echo broken; exit 3")
    assert (result.output, result.is_error, result.details) == ("broken\n", True, {"exitCode": 3})
    assert notes(result) == [("exit_code", "The command ended with exit code 3.")]


async def test_a_command_over_its_time_keeps_what_it_said(api: Api) -> None:
    result = await use(api, "bash", command="echo started; exec sleep 60", timeout=0.5)
    assert (result.output, result.is_error) == ("started\n", True)
    assert notes(result)[0][0] == "timeout"


async def test_a_long_output_keeps_its_end(api: Api) -> None:
    result = await use(api, "bash", command="seq 1 3000")
    lines = result.output.splitlines()
    assert (lines[0], lines[-1], len(lines)) == ("1001", "3000", 2000)
    dropped = sum(len(f"{n}\n") for n in range(1, 1001))
    assert f"The first {dropped} bytes" in notes(result)[0][1]
    assert not result.is_error


async def test_a_halt_is_no_result(tmp_path: Path) -> None:
    class Gone(LocalExecutionEnv):
        async def exec(self, *args: Any, **how: Any) -> ExecResult:
            raise HaltError("SpaceUnreachable", "gone")

    with pytest.raises(HaltError):
        await use(Api(Gone(tmp_path)), "bash", command="true")


def test_a_tail_holds_whole_lines_and_whole_characters_in_bounded_memory() -> None:
    tail = OutputTail(10, 100)
    for _ in range(1000):
        tail.add("abc\n")
    assert tail.text() == "abc\nabc\n"
    assert len(tail._chunks) <= 3
    one = OutputTail(4, 100)
    one.add("xäöü")
    assert one.text() == "öü"
    assert "The first 3 bytes" in one.diagnostics()[0].message


def test_what_a_wrapper_must_know_of_each_tool() -> None:
    facts = {tool.name: (tool.effects, tool.replay, tool.truncate) for tool in CODING_TOOLS}
    assert facts == {
        "read": ("none", "safe", "head"),
        "write": ("files", "unsafe", "head"),
        "edit": ("files", "unsafe", "head"),
        "bash": ("command", "unsafe", "tail"),
    }
    command_of = TOOLS["bash"].command_of
    assert command_of is not None
    assert command_of({"command": "make", "timeout": 3}) == "make"
