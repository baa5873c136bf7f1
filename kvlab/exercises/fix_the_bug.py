"""Exercise `fix-the-bug`: one test that tells eight faulty managers from a good one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvlab.exercises.exercise import Case, Exercise, Wrong
from kvlab.exercises.planted import PLANTED, make_variant
from kvlab.exercises.report import Failed, Picture, Score, require


def fault_found(test_manager: Any, number: int) -> bool:
    """Whether the test fails on variant `number`; 0 is the good manager."""
    try:
        test_manager(make_variant(number))
    except NotImplementedError:
        raise
    except Exception:  # on a faulty manager any error is a find: a good one raises none
        return True
    return False


def case_passes_on_the_good_manager(test_manager: Any) -> None:
    """The test passes on a manager without a fault, every time."""
    for _ in range(2):
        try:
            test_manager(make_variant(0))
        except AssertionError as error:
            told = str(error) or "an assertion of yours did not hold"
            raise Failed("test_manager on the good manager", told, "no error", "what you assert: is it so?") from error


def _find(number: int) -> Case:
    def case(test_manager: Any) -> None:
        case_passes_on_the_good_manager(test_manager)
        require(
            fault_found(test_manager, number),
            called=f"test_manager on variant {number}, which has one fault",
            returned="no error: the fault got past your test",
            expected="an AssertionError",
            look_at="a promise of the manager that your test does not try yet; hints name kinds",
        )
        case_passes_on_the_good_manager(test_manager)

    case.__name__ = f"case_finds_variant_{number}"
    case.__doc__ = f"The test fails on variant {number}."
    return case


def scores(test_manager: Any, reference: Any) -> Sequence[Score]:
    def found(answer: Any) -> int:
        return sum(fault_found(answer, number) for number in range(1, len(PLANTED) + 1))

    return [Score(f"faults found of {len(PLANTED)} (more is better)", found(test_manager), found(reference))]


def picture(test_manager: Any) -> Picture:
    rows = [(f"variant {number}", (kind, what)) for number, (kind, what, _) in enumerate(PLANTED, start=1)]
    return Picture("What was planted", rows, "The kinds are those of public bug reports of such caches.")


_SLOTS = "    assert list(manager.prepare_load(to_keys([2, 1]), CTX).block_ids) == slots[::-1]\n"

EXERCISE = Exercise(
    name="fix-the-bug",
    title="a test that finds them all",
    notebook="09",
    minutes=20,
    level=3,
    entry="test_manager",
    task=(
        "Eight managers have one fault each, of kinds that users reported in public. You do not see their code. Write "
        "one test that passes on the good manager and fails on every other. Run the check after each few lines: it "
        "tells you the first variant that still gets past."
    ),
    teaches="turning the promises of an interface into assertions, and small cases that show one thing.",
    does_not_teach="mending: each fault is one line, and the report names it once you have found them all.",
    stretch="which of the eight would a random run of a thousand calls find by itself, and what would it compare?",
    hints=(
        "One promise at a time: what does lookup say before and after complete_store? Where do failed stores leave "
        "their slots?",
        "Kinds: a block readable too early; a slot or a pin not given back, or given back too soon; a count that "
        "drifts; slots in the wrong order; a wrong victim; a refusal that changes something.",
        "Two readers of one block. A touch of [1, 2, 3]. A store of two with one idle block, and what is there "
        "afterwards. A store of [1, 3] into a full cache of [1, 2].",
    ),
    cases=(case_passes_on_the_good_manager, *(_find(number) for number in range(1, len(PLANTED) + 1))),
    wrong=(
        Wrong(
            "asserts nothing",
            "case_finds_variant_1",
            text="def test_manager(make_manager):\n    make_manager(4)\n",
        ),
        Wrong(
            "fails on everything",
            "case_passes_on_the_good_manager",
            text="def test_manager(make_manager):\n    assert False\n",
        ),
        Wrong(
            "expects the scan's order after a load",
            "case_passes_on_the_good_manager",
            (("assert store(manager, 4) == [3]", "assert store(manager, 4) == [1]"),),
        ),
        Wrong(
            "looks at happy stores only",
            "case_finds_variant_2",
            (("success=False)\n    assert manager.num_free_blocks == 4", "success=False)"),),
        ),
        Wrong("does not look at slots", "case_finds_variant_3", ((_SLOTS, ""),)),
        Wrong(
            "does not look at what a refusal left",
            "case_finds_variant_7",
            (("    assert manager.lookup(to_key(2), CTX) is LookupResult.HIT\n", ""),),
        ),
        Wrong(
            "does not offer a resident block",
            "case_finds_variant_8",
            (
                ("to_keys([1, 3])", "to_keys([3])"),
                ("to_numbers(output.evicted_keys) == [2]", "to_numbers(output.evicted_keys) == [1]"),
            ),
        ),
        Wrong(
            "fails from its third run on",
            "case_finds_variant_1",
            text=("runs = []\n\n\ndef test_manager(make_manager):\n    runs.append(1)\n    assert len(runs) < 5\n"),
        ),
    ),
    scores=scores,
    picture=picture,
)
