"""vLLM's own managers, built small, and a random sequence of calls that several of them are led through in step."""

from __future__ import annotations

import inspect
import random
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import vllm
from vllm.v1.kv_offload import base as offload_base
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.example.manager import ExampleSecondaryTierManager
from vllm.v1.kv_offload.tiering.manager import CPUPrimaryTierOffloadingManager, TieringOffloadingManager

from tests.helpers import to_keys, to_numbers

VERSION = tuple(int(part) for part in vllm.__version__.split(".")[:2])
MODULE = "kvlab.integrations.vllm"
# kvlab's policy -> the policy of vLLM that must choose the same victims in this release.
# `retention` is plain LRU as long as nobody asks for anything to be kept.
LOGICAL = ("logical_recency_lru", "full_scan_lru", "heap_lru", "retention")
SAME_VICTIMS = dict.fromkeys(LOGICAL if VERSION >= (0, 31) else ("evictable_list_lru",), "lru")
if VERSION >= (0, 30):
    SAME_VICTIMS["evictable_list_arc"] = "arc"
# Of these, kvlab's manager tells the policy what vLLM's does, as long as no request finishes: ARC hears of ghosts in
# `on_store_miss` from 0.31 on.
SAME_CALLS = ["evictable_list_lru", "logical_recency_lru", *(["evictable_list_arc"] if VERSION < (0, 31) else [])]
VLLM_NAMES = ("lru", "arc")
PAGE = 4096


def cpu_manager(num_blocks: int, policy: str) -> Any:
    return CPUOffloadingManager(num_blocks, policy, None if policy in VLLM_NAMES else MODULE, True)


@contextmanager
def tiering_manager(num_blocks: int, policy: str) -> Iterator[Any]:
    """With one secondary tier that keeps everything and is done at once."""
    region = SharedOffloadRegion(f"kvlab-{uuid.uuid4().hex}", num_blocks, None, PAGE, PAGE)
    module = None if policy in VLLM_NAMES else MODULE
    primary = CPUPrimaryTierOffloadingManager(num_blocks, region, policy, module)
    tier = ExampleSecondaryTierManager(None, primary.get_kv_memoryview(), "example")
    manager = TieringOffloadingManager(primary, [tier])
    try:
        yield manager
    finally:
        manager.shutdown()


class Requests:
    """One request as each manager sees it: its own context, since managers keep state on it."""

    def __init__(self, name: str, params: dict[str, Any], managers: Sequence[Any]) -> None:
        self.each = [offload_base.ReqContext(name, dict(params)) for _ in managers]
        self.busy = 0

    def place(self, keys: Sequence[bytes], end_tokens: Sequence[int]) -> None:
        for request in self.each:
            for key, end_token in zip(keys, end_tokens, strict=True):
                if hasattr(request, "set_offload_key_position"):
                    request.set_offload_key_position(key, end_token)


class Run:
    """The same calls on all managers; every answer must be the same. `evictions` and `refusals` say what happened."""

    def __init__(self, managers: Sequence[Any], seed: int, universe: int = 24, finish_requests: bool = True) -> None:
        self.managers, self.rng, self.universe = managers, random.Random(seed), universe
        self.finish_requests = finish_requests
        self.live: list[Requests] = []
        self.stores: list[tuple[list[bytes], Requests]] = []
        self.loads: list[tuple[list[bytes], Requests]] = []
        self.victims: list[bytes] = []
        self.refusals = self.finished = self.started = 0

    def go(self, steps: int) -> Run:
        calls = (self.store, self.store, self.end_store, self.load, self.end_load, self.touch, self.end_step)
        for _ in range(steps):
            while len(self.live) < 3:
                self.start_request()
            self.rng.choice(calls)()
            if self.rng.random() < 0.15:
                self.finish_request()
        return self

    def ask(self, call: str, *arguments: Any, request: Requests | None = None, **options: Any) -> list[Any]:
        asked = []
        for index, manager in enumerate(self.managers):
            own = () if request is None else (request.each[index],)
            asked.append(getattr(manager, call)(*arguments, *own, **options))
        return asked

    def start_request(self) -> None:
        self.started += 1
        request = Requests(f"r{self.started}", {"session_id": f"s{self.started % 4}"}, self.managers)
        numbers = list(range(self.universe))
        request.place(to_keys(numbers), [16 * (number + 1) for number in numbers])
        self.ask("on_new_request", request=request)
        self.live.append(request)

    def store(self) -> None:
        request = self.rng.choice(self.live)
        start = self.rng.randrange(self.universe)
        keys = to_keys(range(start, min(start + self.rng.randint(1, 5), self.universe)))
        outputs = self.ask("prepare_store", keys, request=request)
        seen = [output and (output.keys_to_store, slots(output.store_spec), output.evicted_keys) for output in outputs]
        assert all(answer == seen[0] for answer in seen), f"prepare_store({keys}): {seen}"
        if outputs[0] is None:
            self.refusals += 1
            return
        self.victims += outputs[0].evicted_keys
        if outputs[0].keys_to_store:
            self.stores.append((list(outputs[0].keys_to_store), request))
            request.busy += 1

    def end_store(self) -> None:
        if self.stores:
            keys, request = self.stores.pop(self.rng.randrange(len(self.stores)))
            self.ask("complete_store", keys, request=request, success=self.rng.random() < 0.9)
            request.busy -= 1

    def load(self) -> None:
        request = self.rng.choice(self.live)
        start = self.rng.randrange(self.universe)
        ready = []
        for key in to_keys(range(start, min(start + 4, self.universe))):
            answers = [answer.name for answer in self.ask("lookup", key, request=request)]
            assert len(set(answers)) == 1, f"lookup({key!r}): {answers}"
            if answers[0] != "HIT":
                break
            ready.append(key)
        # A promotion by a later lookup may have evicted an earlier hit.
        if ready and all(answer.name == "HIT" for answer in self.ask("lookup", ready[0], request=request)):
            ready = ready[:1]
            specs = [slots(spec) for spec in self.ask("prepare_load", ready, request=request)]
            assert all(spec == specs[0] for spec in specs)
            self.loads.append((ready, request))
            request.busy += 1

    def end_load(self) -> None:
        if self.loads:
            keys, request = self.loads.pop(self.rng.randrange(len(self.loads)))
            self.ask("complete_load", keys, request=request)
            request.busy -= 1

    def touch(self) -> None:
        keys = to_keys(self.rng.sample(range(self.universe), 3))
        self.ask("touch", keys, request=self.rng.choice(self.live))

    def end_step(self) -> None:
        for manager in self.managers:
            takes_context = bool(inspect.signature(manager.on_schedule_end).parameters)
            manager.on_schedule_end(*([offload_base.ScheduleEndContext((), ())] if takes_context else []))

    def finish_request(self) -> None:
        request = next((request for request in self.live if not request.busy), None)
        if self.finish_requests and request is not None:
            self.live.remove(request)
            self.ask("on_request_finished", request=request)
            self.finished += 1


def serve(manager: Any, name: str, numbers: Sequence[int], **params: Any) -> list[int] | None:
    """One request from its first call to its last: what is there it reads, the rest it stores.

    The numbers of what was evicted for it; None if its store was refused.
    """
    keys = to_keys(numbers)
    request = Requests(name, params, [manager])
    request.place(keys, [16 * (index + 1) for index in range(len(keys))])
    context = request.each[0]
    manager.on_new_request(context)
    found = [key for key in keys if manager.lookup(key, context).name == "HIT"]
    manager.prepare_load(found, context)
    manager.complete_load(found, context)
    output = manager.prepare_store(keys, context)
    if output is not None:
        manager.complete_store(output.keys_to_store, context)
    manager.on_request_finished(context)
    return None if output is None else to_numbers(output.evicted_keys)


def slots(spec: Any) -> list[int]:
    """Slot numbers of a load or store spec, whatever the release calls them."""
    return [int(slot) for slot in (spec.block_ids if hasattr(spec, "block_ids") else spec.chunk_ids)]
