"""Totals over rows: what cannot be read counts as nothing, caches of the former version are made anew, and audits compare.

Random histories: ``chunkstore.testing`` for the stores, ``tests/engine/test_state_machine.py`` for containers.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import chunkstore
from chunkstore.config import Settings, Tuning
from chunkstore.metadata.codec import encode_segment
from chunkstore.metadata.lmdb.cache import environment_of
from chunkstore.metadata.port import NO_TOTALS, Totals
from chunkstore.metadata.rows import changed, sealed
from tests.golden.metadata_samples import SEGMENT
from tests.support.data import pattern

HEAD = b"\0head"


def test_an_audit_compares_totals_with_a_recount(tmp_path: Path) -> None:
    settings = Settings(cache_dir=str(tmp_path / "cache"), lease_s=0, tuning=Tuning(lmdb_map_bytes=1 << 26))
    with chunkstore.open(f"file://{tmp_path}/root", settings=settings) as store:
        store.create("a")
        store.append("a", pattern(0, 50))
        rows = store._container.current.store
        rows.view().close()
        with environment_of(rows).handle.begin(write=True) as txn:
            raw = txn.get(HEAD)
            assert raw is not None
            txn.put(HEAD, sealed(HEAD, raw[:-5] + bytes((raw[-5] ^ 1,))))
        assert store.usage().garbage_bytes == 1
        assert [finding.invariant for finding in store.check("quick")] == [12]
        assert (store.usage().garbage_bytes, store.usage().live_bytes) == (0, 50)


@pytest.mark.parametrize("value", [b"", b"\xc1", b"\x93\x01\x00\xa1a", b"\xc0", b"\x80", encode_segment(SEGMENT)[:-1]])
def test_a_row_that_cannot_be_read_counts_as_nothing(value: bytes) -> None:
    for kind in b"SG":
        assert changed(NO_TOTALS, [(kind, None, value)]) == NO_TOTALS
    there = changed(NO_TOTALS, [(ord("S"), None, encode_segment(SEGMENT))])
    assert there != NO_TOTALS
    assert changed(there, [(ord("S"), encode_segment(SEGMENT), value)]) == NO_TOTALS


def test_rows_with_many_attributes_and_sums_beyond_all_bounds() -> None:
    greatest = (1 << 63) - 1
    long = SEGMENT._replace(
        start_offset=0, length=greatest, first_chunk_skip=greatest, attributes={f"{n:03}": n for n in range(128)}
    )
    row = encode_segment(long)
    thrice = changed(NO_TOTALS, [(ord("S"), None, row)] * 3)
    assert thrice == Totals(3, 3 * long.chunk_count, 3 * greatest % (1 << 64), 3 * greatest % (1 << 64), 0)
    assert changed(thrice, [(ord("S"), row, None)] * 3) == NO_TOTALS
