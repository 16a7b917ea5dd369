"""The documents are held to the code: examples run, links lead somewhere, cited rules exist, verbs are described."""

from __future__ import annotations

import inspect
import re
import tomllib
from pathlib import Path

import pytest

import chunkstore
from chunkstore import ChunkedSegmentStorage, Replica, StorageReader, StorageWriter, errors
from chunkstore.engine.reading import ReadableContainer
from chunkstore.operations.session_writer import SessionWriter
from chunkstore.operations.tables import Session, Table
from tests.support.documents import has_examples, run_examples
from tests.support.reference import GENERATED, PAGES, commands

ROOT = Path(__file__).resolve().parent.parent
SIMULATOR = ROOT / "tests" / "simulator" / "README.md"
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", SIMULATOR, *(ROOT / "docs").rglob("*.md")])
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))
CODE = [
    path
    for folder in ("chunkstore", "bindings", "journal", "examples", "tests", "benchmarks")
    for path in (ROOT / folder).rglob("*.py")
]
# Run by tests/spark/test_guide.py, tests/s3/test_guide_arrow.py and tests/integration/test_first_hour.py.
RUN_ELSEWHERE = [
    ROOT / "docs" / f"{name}.md" for name in ("guide-spark", "guide-spark-writing", "guide-arrow", "first-hour")
]


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


WITH_EXAMPLES = [path for path in DOCUMENTS if has_examples(path) and path not in RUN_ELSEWHERE]


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=named)
def test_examples_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of one document run one after the other, as a reader would type them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run_examples(path)


def test_readme_prints_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for offset in (0, 11):  # the second run finds what the first one stored
        test_examples_run(ROOT / "README.md", tmp_path, monkeypatch)
        assert capsys.readouterr().out == f"{offset} b'hello world'\n"


def test_readme_begins_with_what_it_is_and_is_not() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    first, second = text.split("\n\n")[1:3]
    assert first.startswith("chunkstore is ")
    assert second.startswith("It is not ")
    assert first.count(". ") == 0
    assert text.count("\n") <= 130
    assert {"make demo", "make test"} <= set(re.findall(r"make \w+", text))


def test_readme_names_every_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    table = (ROOT / "README.md").read_text(encoding="utf-8").split("| extra |")[1].split("\n\n")[0]
    rows = re.findall(r"^\| (`[^|]+) \|", table, re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(project["optional-dependencies"])


def anchors(path: Path) -> set[str]:
    """Of the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=named)
def test_links_lead_somewhere(path: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", path.read_text(encoding="utf-8")):
        if "://" not in target:
            page = path.parent / target if target else path
            assert page.exists(), f"{named(path)} links to {target}"
            assert not anchor or anchor in anchors(page), f"{named(path)} links to {target}#{anchor}"


@pytest.mark.parametrize("path", DECISIONS, ids=named)
def test_decision_has_its_form(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    assert len(text.split()) <= 250
    assert re.fullmatch(r"\d{4}-[a-z0-9]+(-[a-z0-9]+)*\.md", path.name)
    assert re.fullmatch(rf"# {path.name[:4]} \S.*", lines[0])
    assert lines[2] in ("Status: proposed", "Status: accepted", "Status: rejected", "Status: superseded")
    headings = [line for line in lines if line.startswith("## ")]
    assert headings == ["## Context", "## Decision", "## Alternatives", "## Consequences"]


def test_no_two_decisions_have_one_number() -> None:
    assert len({path.name[:4] for path in DECISIONS}) == len(DECISIONS)


OF_COMMITS = {
    "Closed",
    "NotOwner",
    "OutcomeUnknown",
    "StorageFull",
    "StorageUnavailable",
    "DeadlineExceeded",
    "Damaged",
}
CHANGING = (
    "Store: create write append append_many seal unseal truncate concat delete update_attributes commit session",
    "Table: put delete",
    "Session: end",
)
PUBLIC = (ChunkedSegmentStorage, Replica, Table, Session, SessionWriter, StorageWriter, StorageReader)
OWNERS = (*PUBLIC, ReadableContainer)
METHODS = [
    pytest.param(kind, name, id=f"{kind.__name__}.{name}")
    for kind in PUBLIC
    for name, found in inspect.getmembers(kind, inspect.isfunction)
    if not name.startswith("_")
]


def errors_named(kind: type, name: str) -> set[str]:
    """Of a method's docstring, and of the methods it refers to (\"Raises as ``append``\")."""
    text = inspect.getdoc(getattr(kind, name)) or ""
    text = text[text.find("Raises") :] if "Raises" in text else ""
    found = set(re.findall(r"``([A-Z]\w+)(?:\([^`]*)?``", text)) & set(errors.__all__)
    for owner, other in re.findall(r"\bas ``(?:(\w+)\.)?(\w+)``", text):
        found |= errors_named(next((item for item in OWNERS if item.__name__ == owner), kind), other)
    return found


@pytest.mark.parametrize(("kind", "name"), METHODS)
def test_public_methods_name_their_errors(kind: type, name: str) -> None:
    text = " ".join((inspect.getdoc(getattr(kind, name)) or "").split())
    found = errors_named(kind, name)
    assert found or "Raises nothing" in text
    for line in CHANGING:
        owner, verbs = line.split(": ")
        if kind.__name__ == owner and name in verbs.split():
            assert found >= OF_COMMITS
            assert "etry" in text, "says nothing of a retry"


def test_changelog_has_a_place_for_the_next_change() -> None:
    assert "\n## 0.1.0, unreleased\n" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def protocol_numbers() -> set[str]:
    """Everything in docs/protocol.md that may be cited: sections, list items, steps, properties, amendments."""
    text = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
    found: set[str] = set()
    section = ""
    for line in text.splitlines():
        if heading := re.match(r"#{2,3} (\d+(?:\.\d+)?)", line):
            section = heading[1]
            found.add(section)
        elif line.startswith("## "):
            section = ""
        elif item := re.match(r"(\d+)\. ", line):
            found.add(f"{section}.{item[1]}")
        elif step := re.match(r"([CT]\d+)  ", line):
            found.add(step[1])
        found.update(re.findall(r"\*\*(P\d+)", line))
        if row := re.match(r"\| (A\d+) \|", line):
            found.add(row[1])
        if row := re.match(r"\| (\d+) \| [a-z0-9-]+ \|", line):
            found.add(f"#{row[1]}")
    return found


CITATION = re.compile(
    r"protocol(?:\.md)?,? (?:sections? )?"
    r"((?:[ATCP]?\d+(?:\.\d+)*|#\d+)(?:(?:, | and | to | )(?:[ATCP]\d+|\d+\.\d+(?:\.\d+)*|#\d+))*)"
)
NUMBER = re.compile(r"#\d+|[ATCP]\d+|\d+(?:\.\d+)*")


def test_cited_rules_exist() -> None:
    known = protocol_numbers()
    assert {"2.3", "3.4", "3.14", "3.14.5", "4", "T6", "C4", "P4", "A13", "#12"} <= known
    cited = 0
    for path in CODE:
        for citation in CITATION.finditer(path.read_text(encoding="utf-8")):
            for number in NUMBER.findall(citation[1]):
                assert number in known, f"{named(path)} cites {citation[0]!r}: docs/protocol.md has no {number}"
                cited += 1
    assert cited > 50


def test_architecture_maps_rules_that_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text.split("## Which rule is kept where")[1].split("\n## ")[0]
    mapped = set()
    for cell in re.findall(r"^\| ([^|]+?) \|", table, re.MULTILINE)[1:]:
        mapped.update(cell.split(", "))
    decisions = {path.name[:4] for path in DECISIONS}
    assert not mapped - protocol_numbers() - decisions
    of_operations = {"A1", "A2", "A4", "A5", "A6", "A7", "A8", "A9", "A11", "A12", "A13", "A14", "A15"}
    of_operations |= {"3.5", "3.6", "3.7", "3.8", "3.9", "3.10", "3.11", "3.13", "3.14.1", "3.14.2", "3.14.4"}
    assert mapped >= of_operations | {"0008", "0011", "0013", "0014"}


def test_every_amendment_and_schedule_is_there() -> None:
    known = protocol_numbers()
    assert {f"A{number}" for number in (1, 2, *range(4, 17))} <= known
    assert {f"#{number}" for number in (*range(1, 26), *range(29, 44), *range(45, 50), 51)} <= known
    assert {f"4.{number}" for number in range(1, 34)} <= known
    assert {f"P{number}" for number in range(1, 11)} <= known


@pytest.mark.parametrize("page", PAGES)
def test_generated_pages_are_what_the_script_writes(page: str) -> None:
    pytest.importorskip("pyspark", reason=f"not tested: docs/{page} (pyspark is not installed)")
    written = (ROOT / "docs" / page).read_text(encoding="utf-8").partition(GENERATED)[2]
    assert written == f"\n\n{PAGES[page]()}", "python -m tests.support.reference writes it anew"


def test_json_of_every_verb_is_described() -> None:
    table = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8").partition("## JSON")[2].partition(GENERATED)[0]
    described = set(re.findall(r"`([a-z -]+)`", "".join(re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE))))
    for name, command in commands():
        if any("--json" in each.opts and "Results" in each.help for each in command.params):
            assert name in described, f"docs/cli.md does not say what {name} --json prints"


# What these pages have today, and it may only fall; all others together have the rest, generated text apart.
WORDS_MAX = {"architecture.md": 1_800, "performance.md": 700, "protocol.md": 11_250}
FORMATS_MAX = 11_500
REST_MAX = 23_500


def test_pages_stay_within_their_words() -> None:
    words = {
        path: len(path.read_text(encoding="utf-8").partition(GENERATED)[0].split())
        for path in [SIMULATOR, *(ROOT / "docs").rglob("*.md")]
    }
    for name, most in WORDS_MAX.items():
        assert words.pop(ROOT / "docs" / name) <= most, name
    assert sum(words.values()) <= REST_MAX
    formats = [path for room in ("chunkstore", "journal") for path in (ROOT / room).rglob("*.md")]
    assert sum(len(path.read_text(encoding="utf-8").split()) for path in formats) <= FORMATS_MAX


def test_readme_names_every_error_of_a_store() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    of_the_storage_port = {"ChunkNotFound", "ChunkExists", "InvalidOffset", "ChunkstoreError"}
    table = set(re.findall(r"[`, ]([A-Z][A-Za-z]+)(?:\(|`)", text))
    for name in set(errors.__all__) - of_the_storage_port - {"Closed", "Conflict", "ContainerNotFound"}:
        assert name in table, f"README's table does not say what to do about {name}"
        assert hasattr(chunkstore, name)
