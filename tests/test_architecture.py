"""The house holds its own laws: this reads the source of every module and checks who imports whom, sizes and exports.

Nothing is imported here, so a module that breaks a law is named even when it cannot be loaded.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.support.paths import PACKAGES, ROOT

MODULE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70

# From the bottom to the top. A module may import its own layer and lower ones. The longest matching prefix decides.
_LAYERS: tuple[tuple[str, ...], ...] = (
    ("chunkstore.errors",),
    (
        "chunkstore.runtime",
        "chunkstore.config",
        "chunkstore.checksum",
        "chunkstore.processes",
        "chunkstore.deadline",
        "chunkstore.metrics",
    ),
    ("chunkstore.records",),
    (  # ports
        "chunkstore.storage",
        "chunkstore.journal",
        "chunkstore.metadata.port",
        "chunkstore.metadata.keys",
        "chunkstore.changes",
        "chunkstore.observer",
    ),
    ("chunkstore.metadata", "chunkstore.codec", "chunkstore_bindings"),
    ("chunkstore.operations", "chunkstore_journal"),
    ("chunkstore.upkeep", "chunkstore.registry"),
    ("chunkstore.engine",),
    ("chunkstore.headers", "chunkstore.buckets"),
    ("chunkstore.assembly",),
    ("chunkstore.pulsar", "chunkstore.kafka", "chunkstore.backup", "chunkstore.following"),
    ("chunkstore", "chunkstore.aio", "chunkstore.arrow", "chunkstore.fs", "chunkstore.testing"),
    ("chunkstore.demo", "chunkstore.spark"),
    ("pyspark_chunkstore", "pyspark_kafka_tiered", "pyspark_pulsar_offload", "chunkstore.cli"),
    ("chunkstore.__main__",),
)
LAYERS = {name: number for number, names in enumerate(_LAYERS) for name in names}

# Lines of each folder, without its subfolders that have an entry of their own.
# A budget is what a room that is being built may grow to.
BUDGETS = {
    "chunkstore/codec": 5_653,
    "chunkstore/pulsar": 5_230,
    "chunkstore/kafka": 4_742,
    "bindings/chunkstore_bindings/bucket": 363,
    "tests/bucket": 429,
    "tests/pulsar": 4_415,
    "tests/kafka": 5_928,
}
# A ceiling is what the folder has today. It may only fall: lower it when the folder becomes shorter (CEILING_SLACK).
CEILINGS = {
    "bindings/chunkstore_bindings": 347,
    "bindings/chunkstore_bindings/filesystem": 1_933,
    "bindings/chunkstore_bindings/hdfs": 1_788,
    "bindings/chunkstore_bindings/s3": 2_191,
    "bindings/chunkstore_bindings/wrappers": 889,
    "bindings/pyspark_chunkstore": 5,
    "bindings/pyspark_kafka_tiered": 5,
    "bindings/pyspark_pulsar_offload": 5,
    "chunkstore": 4_675,
    "chunkstore/backup": 3_600,
    "chunkstore/changes": 621,
    "chunkstore/cli": 4_562,
    "chunkstore/demo": 461,
    "chunkstore/engine": 3_548,
    "chunkstore/headers": 671,
    "chunkstore/metadata": 4_419,
    "chunkstore/operations": 7_256,
    "chunkstore/records": 2_227,
    "chunkstore/spark": 5_413,
    "chunkstore/testing": 907,
    "chunkstore/upkeep": 2_380,
    "journal": 7_400,
    "tests": 1_097,
    "tests/backup": 1_309,
    "tests/backup_restore": 1_165,
    "tests/chaos": 598,
    "tests/cli": 2_242,
    "tests/contract": 1_328,
    "tests/engine": 8_102,
    "tests/faults": 2_744,
    "tests/fuzz": 1_552,
    "tests/golden": 317,
    "tests/hdfs": 1_560,
    "tests/integration": 354,
    "tests/interop": 172,
    "tests/journal": 2_199,
    "tests/judges": 2_551,
    "tests/models": 887,
    "tests/offload": 520,
    "tests/regressions": 1_711,
    "tests/s3": 1_857,
    "tests/servers": 147,
    "tests/simulation": 3_722,
    "tests/simulator": 6_704,
    "tests/spark": 2_086,
    "tests/support": 7_198,
    "tests/unit": 7_977,
}
CEILING_SLACK = 100

# Each foreign package has its room. What is in neither list is not a dependency.
ROOMS = {
    "boto3": ("chunkstore_bindings.s3",),
    "botocore": ("chunkstore_bindings.s3",),
    "cryptography": ("chunkstore.codec.kafka.encryption",),
    "cramjam": ("chunkstore.codec.kafka.compression", "chunkstore.codec.pulsar.compression"),
    "fsspec": ("chunkstore.fs",),
    "google": ("chunkstore.codec.pulsar.offload_metadata", "chunkstore.codec.pulsar.protobuf"),
    "google_crc32c": ("chunkstore.checksum",),
    "lmdb": ("chunkstore.metadata.lmdb",),
    "lz4": ("chunkstore.codec.kafka.compression", "chunkstore.codec.pulsar.compression"),
    "numpy": ("chunkstore.codec.kafka.record_batches", "chunkstore.codec.pulsar"),
    "hdfs": ("chunkstore_bindings.hdfs.rest",),
    "requests": ("chunkstore_bindings.hdfs.connections", "chunkstore_bindings.hdfs.rest"),
    "urllib3": (
        "chunkstore_bindings.hdfs.connections",
        "chunkstore_bindings.hdfs.rest",
        "chunkstore_bindings.s3",
    ),
    "msgpack": ("chunkstore.kafka.rows", "chunkstore.metadata.codec", "chunkstore.pulsar", "chunkstore_journal"),
    "prometheus_client": ("chunkstore.metrics", "chunkstore.pulsar.offload_metrics"),
    "pyarrow": (
        "chunkstore.arrow",
        "chunkstore.codec.kafka.record_batches",
        "chunkstore.codec.pulsar.arrow",
        "chunkstore.codec.pulsar.message_batches",
        "chunkstore.kafka.bucket",
        "chunkstore.pulsar",
        "chunkstore.spark.batches",
        "chunkstore.spark.chunks_out",
        "chunkstore.spark.columns",
        "chunkstore.spark.jobs",
        "chunkstore.spark.job_runner",
        "chunkstore.spark.job_files",
        "chunkstore.spark.kafka_runs",
        "chunkstore.spark.ledger_batches",
        "chunkstore.spark.mapping",
        "chunkstore.spark.pulsar_runs",
        "chunkstore.spark.sink",
        "chunkstore.spark.source",
        "chunkstore.spark.stream",
        "chunkstore.spark.tables",
        "chunkstore.spark.tier_sources",
    ),
    "pyspark": (
        "chunkstore.spark.batches",
        "chunkstore.spark.jobs",
        "chunkstore.spark.job_runner",
        "chunkstore.spark.kafka_runs",
        "chunkstore.spark.mapping",
        "chunkstore.spark.pulsar_runs",
        "chunkstore.spark.sink",
        "chunkstore.spark.source",
        "chunkstore.spark.stream",
        "chunkstore.spark.tier_sources",
    ),
    "pytest": ("chunkstore.testing",),
    "rich": ("chunkstore.cli", "chunkstore.demo"),
    "typer": ("chunkstore.cli",),
    "zstandard": (
        "chunkstore.codec.kafka.compression",
        "chunkstore.codec.kafka.manifest",
        "chunkstore.codec.pulsar.compression",
    ),
}

# Only these know concrete bindings and the journal, and only inside functions.
COMPOSERS = (
    "chunkstore.assembly",
    "chunkstore.backup.files",
    "chunkstore.backup.sources",
    "chunkstore.backup.restore",
    "chunkstore.buckets",
    "chunkstore.engine.parts",
    "chunkstore.registry",
)

BUCKET_PORT = "chunkstore_bindings.bucket.port"
"""A port, not a binding: whoever reads buckets knows it."""

DOORS = {"time", "random", "uuid", "threading", "secrets", "sched", "concurrent", "multiprocessing", "asyncio"}
DOOR_CALLS = {("os", "urandom"), ("os", "getrandom"), ("datetime", "now"), ("datetime", "utcnow"), ("date", "today")}
DOOR_KEEPER = "chunkstore.runtime"
LOOP_KEEPER = "chunkstore.aio"


@dataclass(frozen=True)
class Module:
    name: str
    path: Path
    text: str
    tree: ast.Module
    is_package: bool


@dataclass(frozen=True)
class Import:
    target: str
    line: int
    deferred: bool
    """Inside a function."""
    checking: bool
    """Read by type checkers only."""


@cache
def modules() -> dict[str, Module]:
    return {module.name: module for package, folder in PACKAGES.items() for module in parsed(package, folder)}


@cache
def modules_and_tests() -> dict[str, Module]:
    return modules() | {module.name: module for module in parsed("tests", ROOT / "tests")}


def parsed(package: str, folder: Path) -> Iterator[Module]:
    for path in sorted(folder.rglob("*.py")):
        parts = [package, *path.relative_to(folder).with_suffix("").parts]
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        text = path.read_text(encoding="utf-8")
        yield Module(name, path, text, ast.parse(text, str(path)), is_package)


def every_module() -> list[str]:
    return list(modules())


def of_every_module(rule: Callable[[str], None]) -> Callable[[], None]:
    """One test that holds every module to a rule, and names all that break it."""

    def test() -> None:
        broken = []
        for name in every_module():
            try:
                rule(name)
            except AssertionError as error:
                broken.append(str(error))
        assert not broken, "\n".join(broken)

    test.__doc__ = rule.__doc__
    return test


@cache
def imports(module: Module) -> tuple[Import, ...]:
    """Every import, wherever it stands; ``from package import name`` counts as the module if ``name`` is one."""

    def visit(node: ast.AST, deferred: bool, checking: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                continue  # holds no statement
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(alias.name, child.lineno, deferred, checking)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{module.path}:{child.lineno}: relative import"
                source = child.module or ""
                for alias in child.names:
                    full = f"{source}.{alias.name}"
                    yield Import(full if full in modules_and_tests() else source, child.lineno, deferred, checking)
            function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            guarded = isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING")
            yield from visit(child, deferred or function, checking or guarded)

    return tuple(visit(module.tree, deferred=False, checking=False))


def is_within(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


@cache
def layer(name: str) -> int:
    best = max((prefix for prefix in LAYERS if is_within(name, prefix)), key=len, default=None)
    assert best is not None, f"{name} has no layer: add it to LAYERS"
    if best == "chunkstore":
        assert name == "chunkstore", f"{name} has no layer: add it to LAYERS"
    return LAYERS[best]


def docstring_lines(node: ast.AST) -> int:
    body = getattr(node, "body", [])
    if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        return (body[0].end_lineno or 0) - body[0].lineno + 1
    return 0


def export_order(name: str) -> tuple[int, list[tuple[int, int, str]]]:
    """The order ruff's RUF022 keeps: constants, then classes, then the rest; numbers by value."""
    bare = name.strip("_")
    kind = 0 if len(bare) > 1 and bare.isupper() else 1 if bare[:1].isupper() else 2
    return kind, [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name)]


def test_the_packages_are_found() -> None:
    found = every_module()
    for package, folder in PACKAGES.items():
        assert package in found, f"{folder} has no __init__.py"
    assert len(found) > 30


def test_imports_go_down() -> None:
    """Deferred imports count, and there is no exception."""
    broken = [
        f"{name}:{item.line} imports {item.target}, which is in a higher layer"
        for name, module in modules().items()
        for item in imports(module)
        if item.target.split(".")[0] in PACKAGES and layer(item.target) > layer(name)
    ]
    assert not broken, "\n".join(broken)


def test_no_folder_grows() -> None:
    """Every folder of production code and of tests has a budget, or a ceiling close to what it has."""
    limits = BUDGETS | CEILINGS
    lines = dict.fromkeys(limits, 0)
    broken = []
    for top in ("chunkstore", "bindings", "journal", "tests"):
        for path in sorted((ROOT / top).rglob("*.py")):
            place = path.relative_to(ROOT)
            folder = next((str(parent) for parent in place.parents if str(parent) in limits), None)
            if folder is None or (folder in ("chunkstore", "tests") and place.parent != Path(folder)):
                broken.append(f"{place} is in a folder without a ceiling")
            else:
                lines[folder] += path.read_text(encoding="utf-8").count("\n")
    for folder, limit in limits.items():
        if lines[folder] > limit:
            broken.append(f"{folder} has {lines[folder]} lines, {lines[folder] - limit} more than it may have")
        elif folder in CEILINGS and lines[folder] < limit - CEILING_SLACK:
            broken.append(f"{folder} has {lines[folder]} lines now: lower its ceiling of {limit}")
    assert not broken, "\n".join(broken)


FIRST_OPEN = """
import sys, chunkstore
with chunkstore.open("memory://first") as store:
    store.create("a")
    store.append("a", b"bytes")
    assert store.read("a", 0, 9) == b"bytes"
print(*sys.modules)
"""
FIRST_OPEN_FILES_MAX = 120
NOT_AT_FIRST = tuple(f"chunkstore.{room}" for room in ("backup", "headers", "kafka", "pulsar", "spark"))


def test_a_first_open_loads_little() -> None:
    """An import that only some verb needs stands in that verb."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(folder.parent) for folder in PACKAGES.values())}
    done = subprocess.run(
        [sys.executable, "-c", FIRST_OPEN], env=environment, check=True, capture_output=True, text=True
    )
    assert not {"fsspec", "pyarrow"} & set(done.stdout.split())
    loaded = {name for name in done.stdout.split() if name.split(".")[0] in PACKAGES}
    assert len(loaded) <= FIRST_OPEN_FILES_MAX, f"{len(loaded)} files: {sorted(loaded)}"
    assert not [name for name in loaded if any(is_within(name, room) for room in NOT_AT_FIRST)]


def test_no_test_imports_benchmarks() -> None:
    found = [
        f"{name}:{item.line} imports {item.target}"
        for name, module in modules_and_tests().items()
        for item in imports(module)
        if is_within(item.target, "benchmarks")
    ]
    assert not found, "\n".join(found)


def test_imports_form_no_circle() -> None:
    """Deferred imports and those for annotations count; a package that a submodule loads implicitly does not."""
    arrows = {
        name: {item.target for item in imports(module)} & set(modules_and_tests()) - {name}
        for name, module in modules_and_tests().items()
    }
    while ends := {name for name, targets in arrows.items() if not targets & set(arrows)}:
        arrows = {name: targets for name, targets in arrows.items() if name not in ends}
    while ends := set(arrows) - set().union(*arrows.values()):
        arrows = {name: targets for name, targets in arrows.items() if name not in ends}
    shown = {name: sorted(targets & set(arrows)) for name, targets in arrows.items()}
    assert not shown, "\n".join(f"{name} -> {targets}" for name, targets in shown.items())


def test_no_import_of_ours_is_for_annotations_only() -> None:
    found = [
        f"{name}:{item.line} imports {item.target} under TYPE_CHECKING"
        for name, module in modules_and_tests().items()
        if name != "chunkstore"  # its own names, loaded when they are asked for
        for item in imports(module)
        if item.checking and item.target.split(".")[0] in (*PACKAGES, "tests")
    ]
    assert not found, "\n".join(found)


OPERATIONS = ROOT / "chunkstore" / "operations"


def rows_of_table(heading: str) -> list[list[str]]:
    """The cells of the table below a heading of docs/architecture.md."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def files_in(cell: str) -> list[str]:
    return re.findall(r"`([a-z_]+)\.py`", cell)


def test_the_documented_order_of_operations_is_that_of_their_imports() -> None:
    rows = [files_in(row[0]) for row in rows_of_table("`operations/`, from top to bottom")]
    place = {name: number for number, row in enumerate(rows) for name in row}
    assert len(place) == sum(len(row) for row in rows), "docs/architecture.md names a file twice"
    assert set(place) == {path.stem for path in OPERATIONS.glob("*.py")} - {"__init__"}
    for name, number in place.items():
        for item in imports(modules()[f"chunkstore.operations.{name}"]):
            if item.target.startswith("chunkstore.operations."):
                target = item.target.split(".")[2]
                assert place[target] > number, (
                    f"{name}:{item.line} imports {target}, which docs/architecture.md has above"
                )


def test_rules_are_mapped_to_files_of_operations() -> None:
    rows = rows_of_table("Which rule is kept where")
    assert len(rows) > 20
    for rule, _, kept in rows:
        assert files_in(kept), f"docs/architecture.md does not say where {rule} is kept"
        for name in files_in(kept):
            assert (OPERATIONS / f"{name}.py").exists(), f"docs/architecture.md maps {rule} to {name}.py"


@of_every_module
def test_only_composers_know_concrete_parts(name: str) -> None:
    if not is_within(name, "chunkstore"):
        return
    for item in imports(modules()[name]):
        if item.target == BUCKET_PORT:
            continue
        if item.target.split(".")[0] in ("chunkstore_bindings", "chunkstore_journal"):
            assert name in COMPOSERS, f"{name}:{item.line} imports {item.target}; only {COMPOSERS} may"
            assert item.deferred, f"{name}:{item.line} imports {item.target} outside a function"


@of_every_module
def test_foreign_packages_stay_in_their_room(name: str) -> None:
    for item in imports(modules()[name]):
        top = item.target.split(".")[0]
        if top in PACKAGES or top in sys.stdlib_module_names:
            continue
        assert top in ROOMS, f"{name}:{item.line} imports {top}, which is not a dependency"
        assert any(is_within(name, room) for room in ROOMS[top]), f"{name}:{item.line}: {top} belongs in {ROOMS[top]}"


@of_every_module
def test_time_chance_and_threads_have_one_door(name: str) -> None:
    if name in (DOOR_KEEPER, LOOP_KEEPER):
        return
    module = modules()[name]
    for item in imports(module):
        assert item.target.split(".")[0] not in DOORS, f"{name}:{item.line} imports {item.target}: use {DOOR_KEEPER}"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute):
            value = node.value
            owner = value.id if isinstance(value, ast.Name) else value.attr if isinstance(value, ast.Attribute) else ""
            assert (owner, node.attr) not in DOOR_CALLS, f"{name}:{node.lineno} {owner}.{node.attr}: use {DOOR_KEEPER}"


@of_every_module
def test_sizes(name: str) -> None:
    module = modules()[name]
    lines = module.text.count("\n")
    most = MODULE_LINES_MAX
    assert lines <= most, f"{name} has {lines} lines; split it"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1 - docstring_lines(node)
            assert length <= FUNCTION_LINES_MAX, f"{name}:{node.lineno} {node.name} has {length} lines; split it"


@of_every_module
def test_docstring_and_sorted_exports(name: str) -> None:
    module = modules()[name]
    assert ast.get_docstring(module.tree), f"{name} does not say what it promises"
    if name.endswith("__main__"):
        return
    exports = None
    for node in module.tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
                assert node.value is not None
                exports = ast.literal_eval(node.value)
    if exports is None and module.is_package and len(module.tree.body) == 1:
        return  # a docstring alone exports nothing
    assert exports is not None, f"{name} has no __all__"
    assert list(exports) == sorted(exports, key=export_order), f"{name}: __all__ is not sorted"
    assert len(set(exports)) == len(exports), f"{name}: __all__ names something twice"


def project_texts() -> list[Path]:
    folders = ["chunkstore", "bindings", "journal", "examples", "tests", "benchmarks", "docs", "scripts", ".ci"]
    suffixes = {".py", ".md", ".toml", ".sh", ".txt", ".cfg", ""}
    found = [path for path in ROOT.iterdir() if path.is_file() and path.suffix in suffixes and path.name != ".git"]
    for folder in folders:
        found += [path for path in (ROOT / folder).rglob("*") if path.is_file() and path.suffix in suffixes]
    # The objects of a genuine broker are bytes whose names have no suffix.
    left_out = {"__pycache__", "objects"}
    return [path for path in found if not left_out & set(path.parts) and path.name != "LICENSE"]


def test_the_project_speaks_of_itself_alone() -> None:
    """No path of the machine it was written on, no package registry's host, no reference to notes outside it."""
    words = [
        "/wo" + "rk/",
        "shared/" + "design",
        "shared/" + "reference",
        "../" + "shared",
        "py" + "pi.org",
        "python" + "hosted",
    ]
    words += ["registry.npm" + "js", "proxy." + "golang", "TO" + "DO", "FIX" + "ME", "XX" + "X:"]
    for path in project_texts():
        text = path.read_text(encoding="utf-8")
        for word in words:
            assert word not in text, f"{path.relative_to(ROOT)} mentions {word!r}"


def test_no_other_place_takes_an_object_from_a_row() -> None:
    """A stored object name is looked at where rows are confined and where they are coded, and nowhere else."""
    users = {
        path.name
        for path in (ROOT / "chunkstore").rglob("*.py")
        if re.search(r"\b(record|chunk|row|tail|first|last|kept)\.object\b", path.read_text(encoding="utf-8"))
    }
    assert users == {"names.py"}
