"""What a conversation contains: exact counts, shared prefixes, equal in every process, hashes against a naive chain."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvlab.workload
from kvlab.base import get_offload_block_hash, get_offload_group_idx
from kvlab.workload import NONE_HASH, Request, RequestSource, Workload, WorkloadSpec, offload_keys

PAPER = WorkloadSpec(
    prompt_tokens=128, output_tokens=128, prefix_tokens=10_000, prefix_count=200,
    turns=5, rate=100, random_seed=889, max_seconds=700.0,
)  # fmt: skip


def small_spec(**changes: Any) -> WorkloadSpec:
    fields: dict[str, Any] = {
        "prompt_tokens": 10,
        "output_tokens": 7,
        "prefix_tokens": 50,
        "prefix_count": 3,
        "turns": 4,
        "rate": 2,
        "random_seed": 889,
        "max_seconds": 1.0,
    }
    return WorkloadSpec(**(fields | changes))


def naive_hashes(token_ids: list[int], block_tokens: int = 16) -> list[bytes]:
    """The chain from the token ids alone, block by block."""
    parent, hashes = NONE_HASH, []
    for end in range(block_tokens, len(token_ids) + 1, block_tokens):
        data = b"".join(token.to_bytes(4, "little") for token in token_ids[end - block_tokens : end])
        parent = hashlib.sha256(parent + data).digest()
        hashes.append(parent)
    return hashes


def test_paper_prompt_lengths_grow_by_prompt_and_output() -> None:
    workload = Workload(PAPER)
    requests = [workload.request(0, turn) for turn in range(1, 6)]
    assert [r.num_prompt_tokens for r in requests] == [10_128, 10_384, 10_640, 10_896, 11_152]
    assert [len(r.block_hashes) for r in requests] == [633, 649, 665, 681, 697]
    assert {r.max_tokens for r in requests} == {128}
    assert len(workload.prompt_token_ids(0, 5)) == 11_152


def test_next_prompt_begins_with_this_prompt_and_its_answer() -> None:
    workload = Workload(small_spec())
    for turn in range(1, 4):
        said = workload.prompt_token_ids(1, turn) + workload.output_token_ids(1, turn)
        following = workload.prompt_token_ids(1, turn + 1)
        assert following[: len(said)] == said
        assert len(following) == len(said) + 10


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    prompt=st.integers(1, 40), output=st.integers(1, 40), prefix=st.integers(0, 70), turns=st.integers(1, 4),
    block_tokens=st.sampled_from([1, 5, 16]), data=st.data(),
)  # fmt: skip
def test_incremental_hashes_equal_the_naive_chain(
    prompt: int, output: int, prefix: int, turns: int, block_tokens: int, data: st.DataObject
) -> None:
    spec = small_spec(prompt_tokens=prompt, output_tokens=output, prefix_tokens=prefix, turns=turns)
    workload = Workload(spec, block_tokens)
    first = workload.request(data.draw(st.integers(0, 5)))
    # In any order of asking: the chain may have grown beyond this turn already.
    for turn in data.draw(st.permutations(range(1, turns + 1))):
        request = first.history.request(turn)
        prompt_ids = workload.prompt_token_ids(request.conversation, turn)
        assert len(prompt_ids) == request.num_prompt_tokens == prefix + turn * prompt + (turn - 1) * output
        assert list(request.block_hashes) == naive_hashes(prompt_ids, block_tokens)

        num_outputs = data.draw(st.integers(0, output))
        ids = prompt_ids + workload.output_token_ids(request.conversation, turn)[:num_outputs]
        extended = [*request.block_hashes, *request.output_block_hashes(num_outputs)]
        assert extended == naive_hashes(ids, block_tokens)
        assert list(map(list, request.offload_keys(3, num_outputs))) == list(offload_keys(extended, 3))


def test_prefixes_are_shared_and_the_rest_is_not() -> None:
    workload = Workload(small_spec(prefix_count=3, prefix_tokens=64))
    requests = [workload.request(i) for i in range(60)]
    prefix_blocks = {r.prefix_index: r.block_hashes[:4] for r in requests}
    assert len(prefix_blocks) == 3
    assert len(set(prefix_blocks.values())) == 3
    for request in requests:
        # Not only equal: the same objects, in hashes and keys.
        shared = prefix_blocks[request.prefix_index]
        assert all(a is b for a, b in zip(request.block_hashes, shared, strict=False))
        keys = request.offload_keys(2)
        cached = workload.prefix_keys(request.prefix_index, 2)
        assert all(
            a is b for mine, theirs in zip(keys, cached, strict=True) for a, b in zip(mine, theirs, strict=False)
        )
    # What follows the prefix differs from conversation to conversation, prompts and answers alike.
    assert len({tuple(workload.prompt_token_ids(i, 1)[64:]) for i in range(60)}) == 60
    parts = [tuple(workload.output_token_ids(i, turn)) for i in range(60) for turn in (1, 2)]
    assert len(set(parts)) == 120


def test_prefixes_are_drawn_uniformly() -> None:
    workload = Workload(PAPER)
    drawn = Counter(workload.prefix_index(i) for i in range(20_000))
    assert set(drawn) == set(range(200))
    # 100 draws a prefix are expected, standard deviation 10: the sum of squares is chi-squared with 199 degrees.
    chi_squared = sum((n - 100) ** 2 / 100 for n in drawn.values())
    assert 199 - 5 * 20 < chi_squared < 199 + 5 * 20


def test_turns_of_a_conversation_share_key_objects() -> None:
    first = Workload(small_spec()).request(0, 1)
    second = first.history.request(2)
    for mine, theirs in zip(first.offload_keys(2), second.offload_keys(2), strict=True):
        assert len(mine) < len(theirs)
        assert all(a is b for a, b in zip(mine, theirs, strict=False))


def test_keys_of_groups_do_not_collide() -> None:
    request = Workload(small_spec()).request(0)
    keys = request.offload_keys(6)
    for group, group_keys in enumerate(keys):
        assert [get_offload_block_hash(key) for key in group_keys] == list(request.block_hashes)
        assert {get_offload_group_idx(key) for key in group_keys} == {group}
    assert len({key for group_keys in keys for key in group_keys}) == 6 * len(request.block_hashes)


def test_content_does_not_depend_on_rate_but_on_the_seed() -> None:
    def content(**changes: Any) -> list[Request]:
        workload = Workload(small_spec(**changes))
        return [workload.request(i, turn) for i in range(4) for turn in (1, 2)]

    assert content(rate=1) == content(rate=4) == content(rate=100)
    assert [r.block_hashes for r in content(random_seed=1)] != [r.block_hashes for r in content(random_seed=2)]


ROOT = Path(__file__).parents[2]
PRINT_KEYS = """
from tests.workload.test_workload import small_spec
from kvlab.workload import Workload
request = Workload(small_spec()).request(2, 3)
print(request.prefix_index, [key.hex() for group in request.offload_keys(2, 7) for key in group])
"""


def test_same_keys_in_every_process() -> None:
    outputs = set()
    for seed in ("0", "1", "4711"):
        env = os.environ | {"PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", PRINT_KEYS]
        outputs.add(subprocess.run(command, capture_output=True, text=True, env=env, check=True, cwd=ROOT).stdout)
    assert len(outputs) == 1
    request = Workload(small_spec()).request(2, 3)
    assert outputs.pop().split()[1].strip("[',") == request.offload_keys(2)[0][0].hex()


def test_tokens_are_below_65_536() -> None:
    ids = Workload(PAPER).prompt_token_ids(0, 1)
    assert 0 <= min(ids) < 100
    assert 65_000 < max(ids) < 65_536


class TestCost:
    """Counted, not timed."""

    @pytest.fixture
    def hashed_blocks(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        counts: list[int] = []
        original = kvlab.workload.hash_full_blocks

        def counting(*args: Any) -> list[bytes]:
            hashes = original(*args)
            counts.append(len(hashes))
            return hashes

        monkeypatch.setattr(kvlab.workload, "hash_full_blocks", counting)
        return counts

    def test_nothing_is_made_before_it_is_asked_for(self, hashed_blocks: list[int]) -> None:
        workload = Workload(PAPER)
        source = RequestSource(workload)
        assert hashed_blocks == []
        workload.request(0)
        assert sum(hashed_blocks) == 625 + 16  # one prefix, one prompt with its answer
        assert source.workload is workload

    def test_each_block_is_hashed_once(self, hashed_blocks: list[int]) -> None:
        source = RequestSource(Workload(PAPER))
        requests = source.initial()
        for _ in range(4):
            requests = [following for r in requests if (following := source.next_after(r))]
        assert [r.turn for r in requests] == [5] * 100
        num_prefixes = len({r.prefix_index for r in requests})
        # 5 turns of 16 blocks (128 + 128 tokens) a conversation; prefixes once each, 625 blocks are no remainder.
        assert sum(hashed_blocks) == num_prefixes * 625 + 100 * 5 * 16


class TestSpec:
    def test_scaled_divides_tokens_and_squares_time(self) -> None:
        laptop = PAPER.scaled(4)
        assert (laptop.prefix_tokens, laptop.prompt_tokens, laptop.output_tokens) == (2_500, 32, 32)
        assert laptop.max_seconds == 43.75
        assert (laptop.turns, laptop.rate, laptop.prefix_count, laptop.random_seed) == (5, 100, 200, 889)
        assert PAPER.scaled(1) == PAPER

    def test_scaled_rounds_and_keeps_at_least_one_token(self) -> None:
        spec = small_spec(prompt_tokens=10, output_tokens=6, prefix_tokens=0).scaled(4)
        assert (spec.prompt_tokens, spec.output_tokens, spec.prefix_tokens) == (3, 2, 0)  # 2.5 and 1.5 round up
        assert PAPER.scaled(1_000).prompt_tokens == 1

    @pytest.mark.parametrize("scale", [0, -1, float("inf"), float("nan"), "4", True])
    def test_wrong_scale_is_named(self, scale: Any) -> None:
        with pytest.raises(ValueError, match=r"workload scale=.*: allowed is a finite number > 0"):
            PAPER.scaled(scale)

    @pytest.mark.parametrize(
        ("field", "value", "message"),
        [
            ("prompt_tokens", 0, "workload prompt_tokens must be an int >= 1, got 0"),
            ("output_tokens", 1.5, "workload output_tokens must be an int >= 1, got 1.5"),
            ("prefix_tokens", -1, "workload prefix_tokens must be an int >= 0, got -1"),
            ("prefix_count", 0, "workload prefix_count must be an int >= 1, got 0"),
            ("turns", 0, "workload turns must be an int >= 1, got 0"),
            ("rate", True, "workload rate must be an int >= 1, got True"),
            ("random_seed", "889", "workload random_seed must be an int >= 0, got '889'"),
            ("max_seconds", 0, "workload max_seconds=0: allowed is a finite number of seconds > 0"),
            ("max_seconds", float("nan"), "workload max_seconds=nan: allowed"),
            ("max_seconds", "700", "workload max_seconds='700': allowed"),
        ],
    )
    def test_wrong_values_are_named(self, field: str, value: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            small_spec(**{field: value})

    def test_from_guidellm_reads_fields_of_any_object(self) -> None:
        fields = {name: getattr(PAPER, name) for name in WorkloadSpec.__dataclass_fields__}
        config = SimpleNamespace(**(fields | {"rate": 100.0, "target": "unused"}))
        assert WorkloadSpec.from_guidellm(config) == PAPER
        config.turns = None
        with pytest.raises(ValueError, match="workload turns is not set in SimpleNamespace"):
            WorkloadSpec.from_guidellm(config)
        config.turns, config.rate = 5, 1.5
        with pytest.raises(ValueError, match=r"workload rate must be an int >= 1, got 1\.5"):
            WorkloadSpec.from_guidellm(config)

    def test_wrong_turns_and_outputs_are_named(self) -> None:
        workload = Workload(small_spec())
        for turn in (0, 5):
            with pytest.raises(ValueError, match=f"turn={turn} of conversation 3: allowed is 1 to 4"):
                workload.request(3, turn)
        with pytest.raises(ValueError, match="num_output_tokens=8: allowed is 0 to 7"):
            workload.request(0).output_block_hashes(8)
        with pytest.raises(ValueError, match="conversation index must be an int >= 0, got -1"):
            workload.request(-1)


class TestRequestSource:
    def test_streams_play_conversations_to_their_end(self) -> None:
        source = RequestSource(Workload(small_spec(turns=2, rate=2)))
        zero, one = source.initial()
        assert [(r.conversation, r.turn) for r in (zero, one)] == [(0, 1), (1, 1)]
        # The second stream is faster: it takes conversation 2 while the first one is still at turn 1.
        sent = one
        seen = []
        for _ in range(3):
            following = source.next_after(sent)
            assert following is not None
            seen.append((following.conversation, following.turn))
            sent = following
        assert seen == [(1, 2), (2, 1), (2, 2)]
        following = source.next_after(zero)
        assert following is not None and (following.conversation, following.turn) == (0, 2)
        assert following.request_id == "c0-t2"

    def test_content_does_not_depend_on_completion_order(self) -> None:
        def all_requests(pick: int) -> dict[str, Request]:
            source = RequestSource(Workload(small_spec(rate=4)), samples=9)
            in_flight, seen = source.initial(), {}
            while in_flight:
                request = in_flight.pop(pick)
                seen[request.request_id] = request
                in_flight += [r for r in [source.next_after(request)] if r is not None]
            return seen

        first_finished, last_finished = all_requests(0), all_requests(-1)
        assert first_finished == last_finished
        # 9 conversations of 4 turns, each turn once.
        assert len(first_finished) == 9 * 4

    def test_samples_below_the_rate_start_fewer_streams(self) -> None:
        source = RequestSource(Workload(small_spec(rate=5, turns=1)), samples=2)
        requests = source.initial()
        assert len(requests) == 2
        assert [source.next_after(r) for r in requests] == [None, None]
        with pytest.raises(ValueError, match="workload samples must be an int >= 1, got 0"):
            RequestSource(Workload(small_spec()), samples=0)

    def test_a_request_finishes_once(self) -> None:
        source = RequestSource(Workload(small_spec()))
        zero = source.initial()[0]
        source.next_after(zero)
        with pytest.raises(ValueError, match="request c0-t1 is not in flight"):
            source.next_after(zero)
        with pytest.raises(ValueError, match="request c7-t1 is not in flight"):
            source.next_after(source.workload.request(7))
        with pytest.raises(ValueError, match="called twice"):
            source.initial()
