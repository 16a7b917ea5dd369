"""Every engine test is for two worlds that differ in everything, or for all four. No test is left out, and no world is."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from pathlib import Path
from typing import cast

import pytest

from tests.support.worlds import EVERY_WORLD, FULL_RUN, USUAL, VARIANTS, World

HERE = Path(__file__).parent
LEAVING_OUT = {"skip", "skipif", "xfail", "importorskip", "skipTest", "SkipTest"}


def in_world(item: pytest.Item) -> bool:
    return isinstance(item, pytest.Function) and "world" in item.fixturenames and item.path.parent == HERE


def is_proof(node: ast.FunctionDef) -> bool:
    return any(ast.unparse(decorator) == "pytest.mark.proof" for decorator in node.decorator_list)


def test_every_function_was_collected_for_its_worlds(request: pytest.FixtureRequest) -> None:
    """``make test`` (``-m "not proof"``) has half of them."""
    halves = 2 if request.config.option.markexpr and not FULL_RUN else 1
    found: dict[tuple[str, str], set[tuple[str, str]]] = defaultdict(set)
    for item in request.session.items:
        if in_world(item):
            assert isinstance(item, pytest.Function)
            found[item.path.name, item.originalname].add(cast("tuple[str, str]", item.callspec.params["world"]))
            assert not [mark.name for mark in item.iter_markers() if mark.name in LEAVING_OUT], item.nodeid
    assert found, "no test of the engine was collected"
    for function, variants in found.items():
        assert len(variants) * halves in (len(USUAL), len(VARIANTS)), function
    met = Counter(variant for variants in found.values() for variant in variants)
    assert all(met[variant] > 10 for variant in VARIANTS), met
    # Every function of every file that takes part, so that none is missing as a whole.
    for name in {name for name, _ in found} - {Path(__file__).name}:
        tree = ast.parse((HERE / name).read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                assert "world" in [argument.arg for argument in node.args.args], f"{name}: {node.name}"
                assert (name, node.name) in found or (halves == 2 and is_proof(node)), (
                    f"{name}: {node.name} was deselected"
                )


def test_no_test_leaves_itself_out() -> None:
    for path in HERE.glob("*.py"):
        if path.name == Path(__file__).name:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            named = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
            assert named not in LEAVING_OUT, f"{path.name}:{getattr(node, 'lineno', 0)} uses {named}"


@EVERY_WORLD
def test_the_worlds_differ_as_they_say(world: World) -> None:
    store = world.open()
    assert store.journal_mode == world.mode
    capabilities = world.storage().capabilities
    assert capabilities.append == world.appends == (world.id != "memory-slot")
    assert capabilities.medium == "memory" if world.kind == "memory" else capabilities.medium != "memory"
    store.create("a")
    journal = world.objects("default/j/")
    assert any(name.endswith("log.a") for name in journal) == (world.mode == "append")
    assert (world.cache_dir.exists()) == (world.kind == "filesystem")
