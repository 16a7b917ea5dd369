"""Random events in both modes: the manager's answers are those of a naive model, at the owner and at a replica."""

from __future__ import annotations

import random
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import chunkstore
from chunkstore.errors import InvalidArgument
from chunkstore.kafka import RemoteLogMetadataManager, RemoteLogMetadataReader
from chunkstore.kafka.model import IllegalTransition, RemoteResourceNotFoundException, TopicIdPartition
from tests.kafka.support_metadata import STARTED, Leader, answers, fresh_root, update
from tests.kafka.support_models import (
    EPOCHS,
    OFFSETS,
    Command,
    KafkaModel,
    StrictModel,
    apply_to_model,
    random_command,
    segment_of,
)

MODES = [pytest.param(StrictModel, id="strict"), pytest.param(KafkaModel, id="kafka-exact")]
_partitions = count()

commands = st.builds(
    Command,
    st.sampled_from(["add", "1", "2", "3", "0"]),
    st.integers(0, 5),
    st.integers(0, 9),
    st.integers(1, 8),
    st.integers(0, 1),
    st.none() | st.integers(0, 5),
)


def apply(leader: Leader, command: Command) -> str:
    """As ``apply_to_model``, by the manager."""
    item = segment_of(command, leader.partition)
    before = leader.manager.remote_log_segment(item.remote_log_segment_id)
    try:
        if command.word == "add":
            leader.add(item)
        else:
            leader.move(item, type(STARTED)(int(command.word)))
    except RemoteResourceNotFoundException:
        return "unknown"
    except InvalidArgument:
        return "argument"
    except IllegalTransition:
        return "dropped"
    after = leader.manager.remote_log_segment(item.remote_log_segment_id)
    wanted = (
        item if command.word == "add" else before and before.with_update(update(item, type(STARTED)(int(command.word))))
    )
    return "done" if after == wanted or (after is None and command.word == "3") else "dropped"


def run(
    store: chunkstore.ChunkedSegmentStorage, model: KafkaModel, script: list[Command], every: int = 1
) -> TopicIdPartition:
    """Do the script on both, and compare what comes of each command and, after each ``every``, all answers. Returns the partition."""
    manager = RemoteLogMetadataManager(store, "strict" if model.strict else "kafka-exact")
    leader = Leader(manager, TopicIdPartition(bytes(16), "model", next(_partitions)))
    for number, command in enumerate(script):
        expected, came = apply_to_model(model, command, leader.partition), apply(leader, command)
        # To STARTED: an illegal transition, and an argument that can never be.
        assert came == expected or (model.strict and command.word == "0"), command
        if number % every == 0 or number == len(script) - 1:
            assert answers(leader.manager, leader.partition, EPOCHS, OFFSETS) == model.answers(), script[: number + 1]
    return leader.partition


@pytest.mark.parametrize("model", MODES)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(script=st.lists(commands, min_size=5, max_size=25))
def test_answers_are_the_models(
    store: chunkstore.ChunkedSegmentStorage, model: type[KafkaModel], script: list[Command]
) -> None:
    run(store, model(), script)


@pytest.mark.parametrize("model", MODES)
@pytest.mark.parametrize(
    "seed", [pytest.param(1), *(pytest.param(seed, marks=pytest.mark.proof) for seed in range(2, 52))]
)
def test_long_runs(store: chunkstore.ChunkedSegmentStorage, model: type[KafkaModel], seed: int) -> None:
    """As proofs 50 runs of 2,000 commands: 100,000 in each mode."""
    chance = random.Random(seed)
    run(store, model(), [random_command(chance) for _ in range(2000 if seed > 1 else 200)], every=5)


@pytest.mark.parametrize("model", MODES)
def test_a_replica_answers_as_the_owner(model: type[KafkaModel]) -> None:
    chance, root, shown = random.Random(9), fresh_root(), model()
    with chunkstore.open(root) as store:
        partition = run(store, shown, [random_command(chance) for _ in range(60)])
        with chunkstore.open_replica(root) as replica:
            assert answers(RemoteLogMetadataReader(replica), partition, EPOCHS, OFFSETS) == shown.answers()
