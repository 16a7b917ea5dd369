"""Random programs tell a wrong model from the store; no storage's affair, so it is shown in one world."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import Phase

from chunkstore.changes import Append, Change
from tests.support.programs import Program, run
from tests.support.segment_model import apply_all
from tests.support.worlds import World

pytestmark = pytest.mark.proof


class AppendsTwice(Program):
    def call(self, change: Change, lengths: dict[str, int]) -> None:
        super().call(change, lengths)
        if isinstance(change, Append):
            self.store.append(change.name, change.data)


class LosesTheLastChange(Program):
    def commit_all(self, program: list[Change]) -> None:
        super().commit_all(program)
        self.state = self.state if len(program) < 2 else apply_all(self.state, program[:1])[0]


@pytest.mark.parametrize("broken", [AppendsTwice, LosesTheLastChange])
def test_a_difference_is_found(tmp_path: Path, broken: type[Program]) -> None:
    with pytest.raises(AssertionError):
        run(broken, World("memory", "append", tmp_path), programs=200, steps=40, phases=(Phase.generate,))
