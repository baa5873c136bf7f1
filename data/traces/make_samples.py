"""Makes the trace samples in this folder, the same bytes each time:  python data/traces/make_samples.py [FOLDER]

Nothing here is measured traffic. `conversations` is a made workload of some size, for figures and goldens: chats that
share one of a few system prompts, come back after a while with everything said so far, and now and then end. The others
are a few records of each format that kvlab reads, with the field names and units of the real ones.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import struct
import sys
from hashlib import blake2b
from pathlib import Path
from random import Random

SEED = 46216
BLOCK = 512
Request = dict[str, object]


def conversations(requests: int = 2000, chats: int = 150, prompts: int = 12) -> list[Request]:
    """Poisson arrivals, 2 a second; a few system prompts are common, most are rare; a turn adds 200 to 3,000 tokens."""
    rng = Random(SEED)
    system = [(f"system {i}", rng.randint(2, 12) * BLOCK) for i in range(prompts)]
    live: list[tuple[str, int, list[tuple[str, int]], int]] = []
    numbers: dict[bytes, int] = {}
    made: list[Request] = []
    now, started = 0.0, 0
    while len(made) < requests:
        now += rng.expovariate(2.0)
        if len(live) < chats and rng.random() < 0.3:
            prompt = system[min(int(rng.expovariate(0.35)), prompts - 1)]
            live.append((f"chat-{started}", 0, [prompt], started))
            started += 1
        if not live:
            continue
        at = min(int(rng.expovariate(0.02)), len(live) - 1)
        name, turn, parts, number = live.pop(-1 - at)
        parts = [*parts, (f"{name} turn {turn}", rng.randint(200, 3000))]
        answer = rng.randint(50, 800)
        made.append(
            {
                "timestamp": round(now * 1000),
                "input_length": sum(tokens for _, tokens in parts),
                "output_length": answer,
                "hash_ids": block_ids(parts, BLOCK, numbers),
                "session_id": name,
                "turn": turn,
            }
        )
        if turn < 15 and rng.random() < 0.88:
            live.append((name, turn + 1, [*parts, (f"{name} answer {turn}", answer)], number))
    return made


def block_ids(parts: list[tuple[str, int]], size: int, numbers: dict[bytes, int], partial: bool = True) -> list[int]:
    """Chained ids of a prompt made of named pieces of so many tokens, numbered by first use."""
    total = sum(tokens for _, tokens in parts)
    blocks: list[list[tuple[str, int, int]]] = [[] for _ in range(-(-total // size))]
    position = 0
    for name, tokens in parts:
        for index in range(position // size, -(-(position + tokens) // size)):
            first, last = max(position, index * size), min(position + tokens, (index + 1) * size)
            blocks[index].append((name, first - position, last - position))
        position += tokens
    if not partial:
        del blocks[total // size :]
    parent, found = b"", []
    for block in blocks:
        parent = blake2b(parent + repr(block).encode(), digest_size=16).digest()
        found.append(numbers.setdefault(parent, len(numbers)))
    return found


def qwen_bailian() -> list[Request]:
    """Three chats of up to four turns in blocks of 16 tokens; timestamps in seconds."""
    rng, numbers, records = Random(SEED + 1), {}, []
    for chat in range(3):
        parts, parent = [("system", 64)], -1
        for turn in range(1, rng.randint(2, 4) + 1):
            parts = [*parts, (f"{chat} turn {turn}", rng.randint(10, 60))]
            number, answer = 100 * chat + turn, rng.randint(5, 40)
            records.append(
                {
                    "chat_id": number,
                    "parent_chat_id": parent,
                    "timestamp": round(7.0 * turn + chat / 8, 3),
                    "input_length": sum(tokens for _, tokens in parts),
                    "output_length": answer,
                    "type": "text",
                    "turn": turn,
                    "hash_ids": block_ids(parts, 16, numbers),
                }
            )
            parent, parts = number, [*parts, (f"{chat} answer {turn}", answer)]
    return sorted(records, key=lambda record: float(str(record["timestamp"])))


def weka_session(name: str, seed: int) -> Request:
    """A coding session in blocks of 64 tokens, with a sub-agent that starts from the same tools."""
    rng, numbers = Random(seed), {}
    tools = ("tools", 640)

    def request(t: float, parts: list[tuple[str, int]]) -> Request:
        tokens = sum(part[1] for part in parts)
        blocks = [1 + block for block in block_ids(parts, 64, numbers, partial=False)]
        return {"t": t, "type": "n", "model": "made", "in": tokens, "out": 40, "hash_ids": blocks, "api_time": 2.0}

    parts, entries, t = [tools, (f"{name} task", 200)], [], 0.0
    for turn in range(4):
        entries.append(request(t, parts))
        parts = [*parts, (f"{name} step {turn}", rng.randint(60, 400))]
        t += float(rng.randint(4, 20))
        if turn == 1:
            agent = [request(t + 0.5 + i, [tools, ("agent task", 90), (f"agent step {i}", 70 * i)]) for i in range(3)]
            entries.append({"t": t, "type": "subagent", "agent_id": "agent-1", "requests": agent})
            t += 4.0
    return {"id": name, "block_size": 64, "hash_id_scope": "local", "requests": entries}


def ragpulse() -> list[Request]:
    """Two system prompts, passages in any order: the raw ids repeat where the prefix does not."""
    rng = Random(SEED + 2)
    return [
        {
            "timestamp": str(10 * i),
            "input_length": rng.randint(1500, 3000),
            "output_length": rng.randint(50, 300),
            "hash_ids": {
                "sys_prompt": [900, 901 + i % 2],
                "passages_ids": rng.sample(range(12), 4),
                "history": [],
                "web_search": [],
                "user_input": [5000 + i],
            },
            "session_id": f"made-{i // 3}",
        }
        for i in range(12)
    ]


def lmcache_lookup() -> list[Request]:
    rng, numbers, records = Random(SEED + 3), {}, []
    for i in range(10):
        parts = [("system", 512), (f"document {i % 4}", 700), (f"question {i}", rng.randint(20, 300))]
        hashes = [f"0x{block:016x}" for block in block_ids(parts, 256, numbers, partial=False)]
        tokens = sum(part[1] for part in parts)
        records.append(
            {
                "timestamp": 1711929600.25 + 3 * i,
                "request_id": f"made-{i}",
                "model_name": "made",
                "chunk_size": 256,
                "seq_len": tokens,
                "dtypes": ["bfloat16"],
                "shapes": [[32, 256, 128]],
                "chunk_hashes": hashes,
            }
        )
    return records


def lmcache_agent() -> list[Request]:
    """Text prompts that grow by what the agent said; microseconds since 1970."""
    records, prompt = [], "You are a made agent. " * 20
    for step in range(5):
        answer = f"Step {step}: look at file {step}. " * 3
        records.append(
            {"timestamp": 1760428436442742 + 1500000 * step, "input": prompt, "output": answer, "session_id": "made"}
        )
        prompt += answer + f"Result {step}: nothing. " * 8
    return records


def kvcache_simulator(requests: list[Request]) -> list[Request]:
    return [
        {"block_size": BLOCK, "hash_ids": r["hash_ids"], "input_length": r["input_length"], "timestamp": i}
        for i, r in enumerate(requests)
    ]


def azure() -> str:
    rng, text = Random(SEED + 4), io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["TIMESTAMP", "ContextTokens", "GeneratedTokens"])
    for i in range(12):
        table.writerow([f"2023-11-16 18:15:{40 + i}.{rng.randrange(10**7):07d}", rng.randint(50, 4000), 100 + i])
    return text.getvalue()


def oracle_general(requests: list[Request]) -> bytes:
    blocks = [(i, block) for i, request in enumerate(requests) for block in request["hash_ids"]]  # type: ignore[attr-defined]
    next_use, ahead = [-1] * len(blocks), {}
    for position in range(len(blocks) - 1, -1, -1):
        block = blocks[position][1]
        next_use[position] = ahead.get(block, -1)
        ahead[block] = position
    return b"".join(struct.pack("<IQIq", i, block, 1, use) for (i, block), use in zip(blocks, next_use, strict=True))


def lines(records: list[Request]) -> bytes:
    return b"".join(json.dumps(record, separators=(",", ":")).encode() + b"\n" for record in records)


def main(folder: Path) -> None:
    chats = conversations()
    few = chats[:25]
    (folder / "weka_sessions").mkdir(parents=True, exist_ok=True)
    for k in range(3):
        session = weka_session(f"session-{k}", SEED + 10 + k)
        (folder / "weka_sessions" / f"session_{k}.json").write_text(json.dumps(session, indent=1) + "\n")
    files = {
        "conversations.jsonl.gz": gzip.compress(lines(chats), mtime=0),
        "qwen_bailian.jsonl": lines(qwen_bailian()),
        "ragpulse.jsonl": lines(ragpulse()),
        "lmcache_lookup.jsonl": lines(lmcache_lookup()),
        "lmcache_agent.jsonl": lines(lmcache_agent()),
        "kvcache_simulator.jsonl": lines(kvcache_simulator(few)),
        "azure.csv": azure().encode(),
        "conversations.oracleGeneral": oracle_general(few),
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
