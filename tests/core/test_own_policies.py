"""A policy of one's own by name, wherever a name is taken: managers, configurations, replay, other processes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvlab.analysis import replay
from kvlab.config import ConfigError
from kvlab.config.known import check_policy
from kvlab.experiment import ExperimentConfig
from kvlab.experiment.parallel import run_arms
from kvlab.policies import FullScanLRUCachePolicy, get_policy_class, register_policy, registry
from kvlab.policies.other_processes import module_of
from tests.experiment.small import small
from tests.helpers import make_cpu_manager, store_and_complete

SOURCE = '''
from kvlab.policies import FullScanLRUCachePolicy, register_policy

@register_policy("mru_of_the_tests")
class MostRecent(FullScanLRUCachePolicy):
    """Most recently used first."""

    def evict(self, n, protected):
        self.blocks = type(self.blocks)(reversed(self.blocks.items()))
        victims = super().evict(n, protected)
        self.blocks = type(self.blocks)(reversed(self.blocks.items()))
        return victims
'''
NAME = "my_policies_of_the_tests:MostRecent"


@pytest.fixture(autouse=True)
def forget_what_a_test_registers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_POLICIES", dict(registry._POLICIES))
    yield
    sys.modules.pop("my_policies_of_the_tests", None)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Holds a module with a policy, and is on the path."""
    (tmp_path / "my_policies_of_the_tests.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_module_and_class_are_a_name_for_every_taker() -> None:
    manager = make_cpu_manager(2, NAME)
    store_and_complete(manager, [1, 2])
    assert store_and_complete(manager, [3]).evicted_keys == [b"2\0\0\0\0"]
    assert ExperimentConfig(policies=(NAME, "lru")).policies == (NAME, "lru")
    check_policy(NAME)
    assert replay([[1, 2], [3, 1]], NAME, 2).hits == 1
    assert replay([[1, 2], [3, 1]], "lru", 2).hits == 0
    # importing the module registered its other name, and the module says that name too
    assert get_policy_class("mru_of_the_tests") is get_policy_class(NAME)
    assert get_policy_class("my_policies_of_the_tests:mru_of_the_tests") is get_policy_class(NAME)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module_at_all:Mine", "there is no module 'no_such_module_at_all'; its file must be in the current"),
        ("my_policies_of_the_tests:Missing", "must be a subclass of CachePolicy, got 'nothing of that name'"),
        ("json:JSONDecoder", "must be a subclass of CachePolicy"),
        ("my_policies_of_the_tests:", "must be a name, or module:Class"),
        ("my policies:Mine", "must be a name, or module:Class"),
        (":Mine", "must be a name, or module:Class"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_what_is_wrong_with_a_module_is_one_message(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        get_policy_class(name)
    with pytest.raises(ConfigError, match=message):
        ExperimentConfig(policies=(name,))
    with pytest.raises(ConfigError, match=message):
        check_policy(name)


def test_a_module_that_needs_a_missing_one_says_which(folder: Path) -> None:
    (folder / "needs_another_of_the_tests.py").write_text("import not_installed_anywhere\n", encoding="utf-8")
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        get_policy_class("needs_another_of_the_tests:Mine")


# --- arms, each in a process of its own ---


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", [NAME, "mru_of_the_tests"], ids=["module:Class", "registered name"])
def test_a_policy_in_a_module_runs_in_the_arms_process(name: str) -> None:
    get_policy_class(NAME)
    outcome = run_arms([small(policy=name), small(name="lru")], max_processes=2)
    assert outcome.errors == {}
    mine, lru = outcome.arms
    assert mine.policy == name
    assert mine.counts["evictions"] > 0
    assert mine.counts != lru.counts


def test_a_policy_of_a_function_is_refused_before_anything_starts() -> None:
    @register_policy("mine_in_a_function")
    class Mine(FullScanLRUCachePolicy):
        pass

    with pytest.raises(ConfigError, match=r"no other process can find.*%%writefile my_policies.py.*my_policies:Mine"):
        run_arms([small(policy="mine_in_a_function")], max_processes=1)


def test_what_other_processes_have_to_import() -> None:
    assert module_of("lru") == "kvlab.policies.evictable_list_lru"
    with pytest.raises(ValueError, match="'nope' is unknown"):
        module_of("nope")


CELL = """
from kvlab.policies import FullScanLRUCachePolicy, register_policy
@register_policy("mine")
class Mine(FullScanLRUCachePolicy):
    pass
"""
ASK = """
from kvlab.policies.other_processes import module_of
from kvlab.manager import CPUOffloadingManager
print(type(CPUOffloadingManager(4, "mine").cache_policy).__name__)
try:
    print(module_of("mine"))
except ValueError as error:
    print(error)
"""


def test_a_notebook_cell_has_no_file_that_another_process_could_read() -> None:
    """A program read from standard input is `__main__` without a file, as a notebook's cells are."""
    done = subprocess.run([sys.executable, "-"], input=CELL + ASK, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[0] == "Mine"
    assert "in a notebook with %%writefile my_policies.py, and name it my_policies:Mine" in lines[1]


def test_a_script_is_read_again_by_the_arms_processes(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    run = """
if __name__ == "__main__":
    from kvlab.experiment.parallel import run_arms
    from tests.experiment.small import small
    outcome = run_arms([small(policy="mine")], 1)
    print(outcome.errors, [arm.policy for arm in outcome.arms])
"""
    script.write_text(CELL + run, encoding="utf-8")
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, str(script)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=tmp_path, env={"PYTHONPATH": str(root)}
    )
    assert done.stdout.strip() == "{} ['mine']"


def test_reproduce_finds_a_policy_in_the_current_folder(folder: Path) -> None:
    """Started as the `kvlab` command is: the current folder is not on the path by itself."""
    starter = "import sys; sys.path[0] = sys.prefix; from kvlab.cli import main; sys.exit(main())"
    arguments = ["reproduce", "--scale", "tiny", "--seconds", "0.02", "--policies", NAME, "lru", "--json"]
    arguments += ["--scheduler-clock", "counted", "--out", str(folder)]
    done = subprocess.run(
        [sys.executable, "-c", starter, *arguments], capture_output=True, text=True, check=False, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    assert [arm["policy"] for arm in json.loads(done.stdout)["arms"]] == [NAME, "lru"]
