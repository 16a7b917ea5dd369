"""Tables of figures in documents are made of saved runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import page


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    results = tmp_path / "results"
    results.mkdir()
    figures = [
        {"name": "fast: speed", "value": 12345.6, "unit": "/s", "target": ">= 10", "met": True, "detail": ""},
        {"name": "fast: memory", "value": 0.25, "unit": "GiB", "target": "", "met": None, "detail": ""},
        {"name": "fast: runs", "value": 8, "unit": "runs", "target": "", "met": None, "detail": "of 22, seed 1"},
    ]
    (results / "run.json").write_text(json.dumps({"machine": {"load": 1.25}, "figures": figures}))
    phases = [{"violations": []}, {"violations": ["one"]}]
    (results / "chaos.json").write_text(json.dumps({"totals": {"kills_in_all": 1234}, "phases": phases}))
    monkeypatch.setattr(page, "_HERE", tmp_path)
    return results


def test_what_stands_behind_a_mark_is_made_anew(saved: Path) -> None:
    made = page.render("# T\n\nwords\n\n<!-- run.json -->\nold\n\n## Next\n\nwords\n")
    assert made.startswith("# T\n\nwords\n\n<!-- run.json -->\n\nLoad of the machine when the run ended: 1.2.\n")
    assert made.endswith("\n\n## Next\n\nwords\n")
    assert "| fast: speed | 12,346 /s | >= 10 | met |\n| fast: memory | 0.25 GiB |  |  |\n" in made
    assert "| fast: runs | 8 runs |  | of 22, seed 1 |\n" in made
    assert "old" not in made
    assert page.render(made) == made


def test_a_mark_may_choose_and_two_may_follow_one_another(saved: Path) -> None:
    made = page.render("<!-- run.json: memory, nothing -->\n\n<!-- chaos.json -->\n")
    assert "memory" in made.replace("<!-- run.json: memory", "") and "speed" not in made
    assert "| kills in all | 1,234 |\n| violations | 1 |\n" in made
    assert page.render(made) == made


def test_a_mark_without_its_file_is_an_error(saved: Path) -> None:
    with pytest.raises(FileNotFoundError):
        page.render("<!-- absent.json -->\n")


@pytest.mark.parametrize("path", page.PAGES, ids=lambda path: path.name)
def test_every_mark_of_the_pages_has_its_file(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert page.render(text).count("<!-- ") == text.count("<!-- ") > 0
