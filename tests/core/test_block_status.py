"""Four records, one behaviour."""

from __future__ import annotations

import sys

import pytest

from kvlab.block_status import BLOCK_STATUS, PlainBlockStatus, SlotsBlockStatus, describe_state
from tests.helpers import CTX, make_cpu_manager, store_and_complete, to_key, to_keys


@pytest.mark.parametrize("name", sorted(BLOCK_STATUS))
def test_a_record_starts_as_being_written(name: str) -> None:
    block = BLOCK_STATUS[name](7)
    assert (block.block_id, block.ref_cnt, block.is_ready) == (7, -1, False)
    block.ref_cnt = 0
    assert block.is_ready
    block.ref_cnt += 2
    assert (block.ref_cnt, block.is_ready) == (2, True)


@pytest.mark.parametrize("name", sorted(BLOCK_STATUS))
def test_its_repr_says_what_it_is(name: str) -> None:
    block = BLOCK_STATUS[name](7)
    assert repr(block) == f"{type(block).__name__}(block_id=7, ref_cnt=-1: being written)"
    block.ref_cnt = 0
    assert repr(block).endswith("ref_cnt=0: idle)")
    block.ref_cnt = 3
    assert repr(block).endswith("ref_cnt=3: pinned by 3)")
    assert describe_state(None) == "not resident"


@pytest.mark.parametrize("name", sorted(BLOCK_STATUS))
def test_two_records_are_never_equal(name: str) -> None:
    cls = BLOCK_STATUS[name]
    assert cls(1) != cls(1)


@pytest.mark.parametrize("name", sorted(BLOCK_STATUS))
def test_a_large_slot_number_fits(name: str) -> None:
    assert BLOCK_STATUS[name](2**40).block_id == 2**40


def test_which_have_a_dictionary_and_which_are_smaller() -> None:
    has_dict = {name: hasattr(cls(0), "__dict__") for name, cls in BLOCK_STATUS.items()}
    assert has_dict["plain"]
    assert not has_dict["slots"]
    assert not has_dict["dataclass"]
    # ctypes holds 12 bytes of data, and is the largest object
    size = {name: sys.getsizeof(cls(0)) for name, cls in BLOCK_STATUS.items()}
    assert size["slots"] == size["dataclass"] < size["ctypes"]


def test_a_manager_takes_a_name_or_a_class() -> None:
    for choice in ("plain", PlainBlockStatus):
        manager = make_cpu_manager(2, block_status=choice)
        store_and_complete(manager, [1])
        assert type(manager.cache_policy.get(to_key(1))) is PlainBlockStatus
    default = make_cpu_manager(2)
    default.prepare_store(to_keys([1]), CTX)
    assert type(default.cache_policy.get(to_key(1))) is SlotsBlockStatus
