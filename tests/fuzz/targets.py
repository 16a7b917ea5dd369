"""All decoders that are fuzzed."""

from __future__ import annotations

from tests.fuzz.journal_targets import JOURNAL_TARGETS
from tests.fuzz.kafka_record_targets import KAFKA_RECORD_TARGETS
from tests.fuzz.kafka_targets import KAFKA_TARGETS
from tests.fuzz.message_targets import MESSAGE_TARGETS
from tests.fuzz.offload_targets import OFFLOAD_TARGETS
from tests.fuzz.pip17_targets import PIP17_TARGETS
from tests.fuzz.target import Target

TARGETS: tuple[Target, ...] = (
    JOURNAL_TARGETS + KAFKA_RECORD_TARGETS + KAFKA_TARGETS + MESSAGE_TARGETS + OFFLOAD_TARGETS + PIP17_TARGETS
)
