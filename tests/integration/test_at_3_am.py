"""docs/at-3-am.md is the script: each section's own commands, typed from the built wheel after its fault was made.

After each section every byte that was acknowledged is compared. The page's text holds the commands; here are only the faults.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from tests.faults.disks import small_disk
from tests.support.paths import ROOT
from tests.support.wheels import WheelEnvironment

pytestmark = [pytest.mark.proof, pytest.mark.timeout(600)]

INTRODUCTION, *_SECTIONS = re.split(
    r"^## ", (ROOT / "docs" / "at-3-am.md").read_text(encoding="utf-8"), flags=re.MULTILINE
)
SECTIONS = {section.split("\n", 1)[0].split(" (`")[0]: section for section in _SECTIONS}

# An application: appends, says so when it is acknowledged, and then lives until it is killed.
APPLICATION = """
import sys, chunkstore
root, cache, segment, file = sys.argv[1:]
with chunkstore.open(root, create=False, settings=chunkstore.Settings(cache_dir=cache)) as store:
    store.append(segment, open(file, "rb").read())
    print("acknowledged", flush=True)
    sys.stdin.read()
"""


class Sandbox:
    """A root, its backup and one acknowledged model of its segments."""

    def __init__(self, wheel: WheelEnvironment, folder: Path, disk: Path) -> None:
        self.wheel, self.folder, self.root = wheel, folder, disk / "root"
        self.work = folder / "work"
        self.work.mkdir()
        self.acknowledged: dict[str, bytes] = {}
        self.env = {
            "ROOT": str(self.root),
            "BACKUP": str(folder / "backup"),
            "COPY": str(folder / "copy"),
            "FILE": str(folder / "file"),
            "SEGMENT": "orders",
            "OLD": "old",
            "WHEN": "",
            "XDG_CACHE_HOME": str(folder / "cache"),
        }
        self._random = Random(7)
        self.put("orders", 3_000_000)
        self.put("old", 9_000_000)
        self.type('chunkstore backup "$ROOT" "$BACKUP"')
        self.put("others", 200_000)

    def bytes_in_file(self, size_bytes: int) -> bytes:
        data = self._random.randbytes(size_bytes)
        Path(self.env["FILE"]).write_bytes(data)
        return data

    def put(self, segment: str, size_bytes: int) -> None:
        data = self.bytes_in_file(size_bytes)
        append = "--append" if segment in self.acknowledged else ""
        self.type(f'chunkstore put "$ROOT" {segment} "$FILE" {append}')
        self.acknowledged[segment] = self.acknowledged.get(segment, b"") + data

    def type(self, commands: str, *, exit_code: int = 0) -> tuple[str, str]:
        done = self.wheel.run("bash", "-euo", "pipefail", "-c", commands, cwd=self.work, env=self.env)
        assert done.returncode == exit_code, f"{commands}\n{done.stdout}\n{done.stderr}"
        return done.stdout, done.stderr

    def chunk(self) -> Path:
        """The file of the only chunk of ``orders``."""
        [line] = self.type('chunkstore layout "$ROOT" orders --json')[0].splitlines()
        return self.root / str(json.loads(line)["name"])

    def follow(self, section: str) -> None:
        """Type what a section says, and see what it says."""
        named = re.search(r"\(`(\w+)`\)", section.split("\n", 1)[0])
        for kind, block in re.findall(r"^```(console|sh)\n(.*?)^```", section, re.MULTILINE | re.DOTALL):
            if kind == "sh":
                self.type(block)
            elif named is None:
                command, *lines = block.splitlines()
                assert any(matches(line, self.type(command.removeprefix("$ "))[0]) for line in lines)
            else:
                command, *lines = block.splitlines()
                error = json.loads(self.type(f"{command.removeprefix('$ ')} --json", exit_code=1)[1].splitlines()[-1])
                assert error["error"] == named[1], error
                assert any(matches(line.removeprefix("chunkstore: "), error["message"]) for line in lines), error

    def compare(self) -> None:
        listed = [json.loads(line) for line in self.type('chunkstore ls "$ROOT" --json')[0].splitlines()]
        assert {info["name"] for info in listed} == set(self.acknowledged)
        for segment, data in self.acknowledged.items():
            self.type(f'chunkstore cat "$ROOT" {segment} > got.bytes')
            assert (self.work / "got.bytes").read_bytes() == data, f"{segment} is not what was acknowledged"
        self.type('chunkstore check "$ROOT" --deep')


def matches(line: str, text: str) -> bool:
    """Whether the words of a line of the page are in ``text``, in this order; ``...`` is anything."""
    return re.search(".*".join(re.escape(part.strip()) for part in line.split("...")), text, re.DOTALL) is not None


def lose_a_chunk(sandbox: Sandbox) -> None:
    sandbox.chunk().unlink()


def flip_a_byte(sandbox: Sandbox) -> None:
    with open(sandbox.chunk(), "r+b") as file:
        file.seek(1_000_000)
        [byte] = file.read(1)
        file.seek(1_000_000)
        file.write(bytes([byte ^ 1]))


def fill_the_disk(sandbox: Sandbox) -> None:
    """Bytes for ``put`` of which a part fits; the deletion of ``old`` makes room for all."""
    sandbox.env["SEGMENT"] = "uploads"
    sandbox.acknowledged["uploads"] = sandbox.bytes_in_file(12_400_000)
    del sandbox.acknowledged["old"]


def kill_the_owner(sandbox: Sandbox, *prefix: str) -> None:
    data = sandbox.bytes_in_file(100_000)
    program = [
        *prefix,
        "python",
        "-c",
        APPLICATION,
        sandbox.root,
        sandbox.env["XDG_CACHE_HOME"],
        "orders",
        sandbox.env["FILE"],
    ]
    with subprocess.Popen(
        [str(word) for word in program], cwd=sandbox.work, env=sandbox.wheel.environ(), stdin=-1, stdout=-1, text=True
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "acknowledged\n"
        owner.kill()
    sandbox.acknowledged["orders"] += data


def lose_the_machine(sandbox: Sandbox) -> None:
    """As ``kill_the_owner``, on a machine of another name, whose cache is gone with it."""
    if subprocess.run(["unshare", "-ru", "true"], capture_output=True, check=False).returncode:
        pytest.skip("another host name needs user and UTS namespaces")
    kill_the_owner(sandbox, "unshare", "-ru", "sh", "-c", 'hostname dead && exec "$@"', "sh")
    sandbox.env["XDG_CACHE_HOME"] = str(sandbox.folder / "cache-of-another-machine")


def delete_a_segment(sandbox: Sandbox) -> None:
    sandbox.put("orders", 100_000)  # no backup has it
    sandbox.env["WHEN"] = str(time.time_ns() // 1_000_000)
    sandbox.type('chunkstore rm "$ROOT" orders')
    sandbox.put("others", 100_000)


def delete_and_collect(sandbox: Sandbox) -> None:
    sandbox.type('chunkstore rm "$ROOT" orders && chunkstore gc "$ROOT" --grace-s 0')
    sandbox.put("others", 100_000)


FAULTS: dict[str, tuple[Callable[[Sandbox], None], ...]] = {
    "A chunk is gone": (lose_a_chunk,),
    "A block is rotten": (flip_a_byte,),
    "The disk is full": (fill_the_disk,),
    "The owner's machine is dead": (kill_the_owner, lose_the_machine),
    "A segment was deleted and is not collected": (delete_a_segment,),
    "A segment was deleted and collected": (delete_and_collect,),
}


@pytest.fixture
def sandbox(wheel_environment: WheelEnvironment, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    with contextlib.ExitStack() as stack:
        full = request.node.callspec.params["fault"] is fill_the_disk
        disk = stack.enter_context(small_disk("tmpfs", tmp_path / "disk")).path if full else tmp_path
        yield Sandbox(wheel_environment, tmp_path, disk)


@pytest.mark.parametrize(
    ("title", "fault"),
    [pytest.param(title, fault, id=fault.__name__) for title, faults in FAULTS.items() for fault in faults],
)
def test_the_commands_of_a_section_end_its_fault(
    sandbox: Sandbox, title: str, fault: Callable[[Sandbox], None]
) -> None:
    fault(sandbox)
    sandbox.follow(SECTIONS[title])
    sandbox.compare()


def test_each_section_has_its_fault_and_each_name_its_value() -> None:
    assert list(SECTIONS) == list(FAULTS)
    for section in SECTIONS.values():
        assert "```sh\n" in section
        assert "*It is over*" in section
        assert set(re.findall(r"\$([A-Z]+)", section)) <= set(re.findall(r"([A-Z]+)=", INTRODUCTION))
