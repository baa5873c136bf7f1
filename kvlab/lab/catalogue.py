"""The notebooks: numbers, titles, minutes, goals. Head tables, navigation and the README's table are made from it."""

from __future__ import annotations

from dataclasses import dataclass

from kvlab.checks import unknown_name

#: What the builder writes around a notebook's own text.
WORDS = {
    "en": {
        "language": "English",
        "contents": "contents",
        "glossary": "glossary",
        "time": "time",
        "reading": "{} minutes reading",
        "doing": ", {} minutes doing",
        "goals": "you will be able to",
        "; ": "; ",
        "needs": "needs",
        "in_vllm": "the real code",
        "colab": "open in Colab",
        "binder": "open in Binder",
        "install": "Installs kvlab where it is missing, as on Colab; elsewhere it does nothing.",
    },
    "zh": {
        "language": "中文",
        "contents": "目录",
        "glossary": "术语表",
        "time": "时间",
        "reading": "阅读 {} 分钟",
        "doing": "，动手 {} 分钟",
        "goals": "学完后你能",
        "; ": "；",
        "needs": "需要",
        "in_vllm": "对应的 vLLM 源码",
        "colab": "在 Colab 中打开",
        "binder": "在 Binder 中打开",
        "install": "仅当环境里没有 kvlab 时才安装（例如在 Colab 上），否则什么也不做。",
    },
}

VLLM = "https://github.com/vllm-project/vllm/blob"


@dataclass(frozen=True, slots=True)
class Entry:
    """One notebook. `reading` and `doing` are minutes; `in_vllm` are (release, path) of the real files.

    `language` is one of WORDS'; what is not English carries it in the file's name and in `label`.
    """

    number: str
    slug: str
    title: str
    goals: tuple[str, ...]
    reading: int
    doing: int
    needs: str = "kvlab; no GPU, no network"
    in_vllm: tuple[tuple[str, str], ...] = ()
    language: str = "en"

    @property
    def _suffix(self) -> str:
        return "" if self.language == "en" else f".{self.language}"

    @property
    def label(self) -> str:
        """What the builder is told: "03", or "00.zh" for a translation."""
        return self.number + self._suffix

    @property
    def file(self) -> str:
        return f"{self.number}_{self.slug}{self._suffix}.ipynb"

    @property
    def words(self) -> dict[str, str]:
        return WORDS[self.language]

    @property
    def vllm_links(self) -> list[str]:
        return [f"[{path.removeprefix('vllm/v1/')}]({VLLM}/v{tag}/{path}) ({tag})" for tag, path in self.in_vllm]


_OFFLOAD = "vllm/v1/kv_offload"

CATALOGUE = (
    Entry(
        "00",
        "start_here",
        "Start here",
        ("see that the kit works, and what this machine can measure", "know what the pull request changed"),
        5,
        0,
    ),
    Entry(
        "01",
        "what_a_kv_block_weighs",
        "Why offload: what a KV block weighs",
        (
            "compute the bytes of a block, and how many fit in 400 GiB",
            "place GPU, CPU and NVMe on one scale",
            "read every setting of the pull request's two commands",
        ),
        15,
        10,
        in_vllm=(("0.24.0", "vllm/v1/kv_cache_interface.py"), ("0.24.0", f"{_OFFLOAD}/cpu/spec.py")),
    ),
    Entry(
        "02",
        "the_life_of_a_block",
        "The life of a block",
        ("trace `ref_cnt` through store, load and failure", "say who may be evicted, and when"),
        15,
        15,
        in_vllm=(("0.24.0", f"{_OFFLOAD}/cpu/manager.py"), ("0.24.0", f"{_OFFLOAD}/base.py")),
    ),
    Entry(
        "03",
        "the_full_scan",
        "The full scan",
        (
            "say when `evict` is slow, and build such a state",
            "read a histogram of blocks inspected",
            "say what the guard (PR #45757) saves and what it cannot",
        ),
        15,
        15,
        in_vllm=(("0.23.0", f"{_OFFLOAD}/cpu/policies/lru.py"), ("0.23.0", f"{_OFFLOAD}/cpu/manager.py")),
    ),
    Entry(
        "04",
        "the_evictable_list",
        "The evictable list",
        ("implement it, and argue its cost", "find where it differs from the LRU before it"),
        15,
        35,
        in_vllm=(("0.24.0", f"{_OFFLOAD}/cpu/policies/lru.py"), ("0.24.0", f"{_OFFLOAD}/cpu/policies/base.py")),
    ),
    Entry(
        "05",
        "what_an_object_costs",
        "What an object costs: ctypes, plain, slots",
        ("measure bytes and nanoseconds of one record", "distrust a timing taken under a profiler"),
        12,
        18,
        in_vllm=(("0.24.0", f"{_OFFLOAD}/cpu/policies/base.py"),),
    ),
    Entry(
        "06",
        "down_to_nvme_and_back",
        "Down to NVMe and back",
        ("follow a cascade and a promotion", "see how a slow disk pins CPU blocks"),
        20,
        20,
        in_vllm=(("0.24.0", f"{_OFFLOAD}/tiering/manager.py"), ("0.24.0", f"{_OFFLOAD}/tiering/base.py")),
    ),
    Entry(
        "07",
        "from_microseconds_to_6x",
        "From microseconds to 6x",
        (
            "build the step-time model, and hold it against measurement",
            "find the cache size where the scheduler overtakes the GPU",
            "split the gain by change",
        ),
        20,
        20,
        in_vllm=(("0.24.0", "vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py"),),
    ),
    Entry(
        "08",
        "on_a_real_gpu",
        "On a real GPU",
        ("run the loop with pinned copies and a real compute step", "compare it with the model"),
        15,
        15,
        needs="kvlab; without a GPU it runs on the CPU",
    ),
    Entry(
        "09",
        "your_policy",
        "Your policy (optional)",
        ("design a policy for a given trace, and defend it", "test a cache against faults that users reported"),
        10,
        70,
        in_vllm=(("0.27.0", f"{_OFFLOAD}/cpu/policies/factory.py"),),
    ),
    Entry(
        "10",
        "your_own_workload",
        "Your own workload",
        (
            "read a trace of yours, and say what comes again and when",
            "choose a policy and a size of the CPU tier for it",
            "say whether the disk keeps up, and write the configuration",
        ),
        15,
        20,
        needs="kvlab; a made trace is in it, a real one of yours is better",
    ),
)

TRANSLATIONS = (
    Entry(
        "00",
        "start_here",
        "从这里开始",
        ("确认这套工具能跑，并知道本机能测什么", "说清这个 PR 改了什么"),
        5,
        0,
        needs="kvlab；不需要 GPU，不需要联网",
        language="zh",
    ),
)


def entry(label: str) -> Entry:
    """The notebook of that number, or number and language ("00.zh"). ValueError naming the known ones."""
    every = (*CATALOGUE, *TRANSLATIONS)
    for found in every:
        if found.label == label:
            return found
    raise unknown_name("notebook", label, [found.label for found in every])


def in_other_languages(one: Entry) -> list[Entry]:
    return [other for other in (*CATALOGUE, *TRANSLATIONS) if other.number == one.number and other != one]
