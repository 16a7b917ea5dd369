"""Random events in mode strict: the manager's answers are those of a naive model. Kafka's own cache answers in test_metadata_oracle.py."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chunkstore.kafka import RemoteLogMetadataManager
from chunkstore.kafka.model import TopicIdPartition
from tests.kafka.support_metadata import Leader, Store, answers
from tests.kafka.support_models import (
    EPOCHS,
    OFFSETS,
    Command,
    StrictModel,
    apply,
    apply_to_model,
    random_command,
)

_partitions = itertools.count()


def run(store: Store, script: list[Command], every: int = 1) -> None:
    """Do the script on both, and compare what comes of each command and, after each ``every``, all answers."""
    model = StrictModel()
    leader = Leader(RemoteLogMetadataManager(store), TopicIdPartition(bytes(16), "model", next(_partitions)))
    for number, command in enumerate(script):
        expected, came = apply_to_model(model, command, leader.partition), apply(leader, command)
        # To STARTED: an illegal transition, and an argument that can never be.
        assert came == expected or command.word == "0", command
        if number % every == 0 or number == len(script) - 1:
            assert answers(leader.manager, leader.partition, EPOCHS, OFFSETS) == model.answers(), script[: number + 1]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chance=st.randoms(), count=st.integers(5, 25))
def test_answers_are_the_models(store: Store, chance: random.Random, count: int) -> None:
    run(store, [random_command(chance) for _ in range(count)])


@pytest.mark.parametrize(
    "seed", [pytest.param(62), *(pytest.param(seed, marks=pytest.mark.proof) for seed in range(2, 52))]
)
def test_long_runs(store: Store, seed: int) -> None:
    """As proofs 50 runs of 2,000 commands."""
    chance = random.Random(seed)
    run(store, [random_command(chance) for _ in range(200 if seed == 62 else 2000)], every=5)
