"""The checker itself: what it says about endless loops, exits, odd classes and half-written answers; budgets; texts."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from kvlab.exercises import check, get_exercise, hint, registry, solution, use
from kvlab.exercises.report import Failed, Picture, Report, Score, expect
from kvlab.exercises.work import OutOfBudget, growth, is_learners, line_budget
from kvlab.profiling.reads import Reads, counting_status
from tests.exercises.cells import run_cell


def run_function(body: str, name: str = "kv_bytes") -> Report:
    arguments = "block_tokens, num_layers, num_kv_heads, head_size, dtype_bytes, workers=1"
    text = f"def {name}({arguments}):\n" + "".join(f"    {line}\n" for line in body.splitlines())
    return check("kv-bytes", run_cell(text, name))


class TestWhatTheLearnerIsTold:
    def test_a_failed_check_says_what_was_called_returned_and_expected(self) -> None:
        report = run_function("return 1")
        assert report.state == "fail"
        assert dict(report.facts)["called"] == "kv_bytes(1, 1, 1, 1, 1)"
        assert dict(report.facts)["returned"] == "1"
        assert dict(report.facts)["expected"] == "2"
        assert dict(report.facts)["look at"] == "keys *and* values"

    def test_only_the_first_failing_check_is_told(self) -> None:
        report = run_function("return 2")
        assert (report.passed, report.case) == (1, "case_two_mebibytes")
        assert repr(report).count("called:") == 1

    def test_an_error_names_their_line(self) -> None:
        report = run_function("half = 1\nreturn half + undefined_name")
        assert report.state == "error"
        assert dict(report.facts)["your line"] == "3: return half + undefined_name"
        assert "NameError" in dict(report.facts)["error"]

    def test_the_line_is_theirs_even_when_kvlab_raised(self) -> None:
        text = get_exercise("worst-state").solution.replace("keys[:-1], request", "[b'nope'], request")
        report = check("worst-state", run_cell(text, "worst_state"))
        assert report.state == "error"
        assert "manager.prepare_load([b'nope'], request)" in dict(report.facts)["your line"]

    def test_what_is_left_to_write_is_to_do_not_wrong(self) -> None:
        exercise = get_exercise("evictable-list")
        evict_missing = re.sub(
            r"(        victims: .*?return victims)", "        raise NotImplementedError", exercise.solution, flags=re.S
        )
        report = check("evictable-list", run_cell(evict_missing, "EvictableListLRU"))
        assert (report.state, report.passed) == ("todo", 1)
        assert "evict is not written yet" in repr(report)

    def test_another_signature_is_an_error_about_the_signature(self) -> None:
        report = check("kv-bytes", run_cell("def kv_bytes(tokens):\n    return 2\n", "kv_bytes"))
        assert report.state == "error"
        assert "name and arguments" in dict(report.facts)["look at"]

    def test_an_instance_instead_of_the_class(self) -> None:
        exercise = get_exercise("guard")
        report = check("guard", exercise.reference(4))
        assert report.state == "fail" and "the class itself" in repr(report)

    def test_an_unknown_exercise_names_the_nearest(self) -> None:
        assert "did you mean 'guard'?" in repr(check("gaurd", print)).lower()
        with pytest.raises(ValueError, match="guard"):
            hint("gaurd")

    def test_true_is_not_1(self) -> None:
        with pytest.raises(Failed):
            expect(True, 1, called="f()", look_at="f")
        expect(1.0, 1, called="f()", look_at="f")


class TestHostileAnswers:
    @pytest.mark.parametrize(
        "body",
        [
            "import sys\nsys.exit(3)",
            "raise SystemExit",
            "raise KeyboardInterrupt",
            "raise GeneratorExit",
            "return kv_bytes(block_tokens, num_layers, num_kv_heads, head_size, dtype_bytes, workers)",
            "return [][1]",
            "raise BaseException('no')",
            "raise NotImplementedError('later')",
            "class Odd:\n    def __eq__(self, other): raise RuntimeError\nreturn Odd()",
            "class Odd:\n    def __repr__(self): raise RuntimeError\nreturn Odd()",
            "class Odd:\n    def __repr__(self): return 'x' * 10**6\nreturn Odd()",
            "return '<script>alert(1)</script>'",
        ],
    )
    def test_no_answer_escapes_the_report(self, body: str) -> None:
        report = run_function(body)
        assert report.state in ("fail", "error", "todo")
        assert len(repr(report)) < 3_000
        assert "<script>" not in report._repr_html_()

    def test_an_endless_loop_is_a_message_with_its_line(self) -> None:
        report = run_function("n = 0\nwhile True:\n    n += 1")
        assert "never ends" in dict(report.facts)["error"]
        assert re.match(r"[34]: ", dict(report.facts)["your line"])

    def test_an_endless_loop_on_one_line(self) -> None:
        assert "never ends" in repr(run_function("while True: pass"))

    def test_except_exception_does_not_keep_a_loop_alive(self) -> None:
        assert run_function("while True:\n    try:\n        pass\n    except Exception:\n        pass").state == "error"

    def test_a_policy_that_never_stops(self) -> None:
        text = get_exercise("evictable-list").solution.replace(
            "        return self.blocks.get(key)", "        while True:\n            key"
        )
        assert "never ends" in repr(check("evictable-list", run_cell(text, "EvictableListLRU")))

    def test_the_tracer_that_was_there_comes_back(self) -> None:
        def mine(*_: object) -> None:
            return None

        before = sys.gettrace()
        sys.settrace(mine)
        try:
            assert run_function("while True:\n    pass").state == "error"
            assert sys.gettrace() is mine
        finally:
            sys.settrace(before)


class TestWork:
    def test_lines_of_the_learner_are_counted_and_library_lines_are_not(self) -> None:
        add = run_cell("def add(n):\n    import json\n    json.dumps([1] * n)\n    return n\n", "add")
        with line_budget(100) as count:
            add(5)
        assert count.lines == 3

    def test_the_budget_ends_the_loop_at_its_line(self) -> None:
        spin = run_cell("def spin():\n    while True:\n        x = 1\n", "spin")
        with pytest.raises(OutOfBudget) as caught, line_budget(50):
            spin()
        assert caught.value.line in (2, 3)

    def test_reads_of_ref_cnt_are_counted(self) -> None:
        reads = Reads()
        blocks = [counting_status(reads)(number) for number in range(5)]
        blocks[0].ref_cnt = 0
        assert sum(block.ref_cnt == 0 for block in blocks) == 1
        assert blocks[0].is_ready and reads.count == 6

    def test_growth_is_the_ratio_of_work(self) -> None:
        assert growth(lambda size: size, 10, 1_000) == 100
        assert growth(lambda size: 7, 10, 1_000) == 1
        assert growth(lambda size: 0, 10, 1_000) == 0

    def test_whose_code_is_it(self) -> None:
        assert is_learners("<cell 1>") and is_learners("/tmp/ipykernel_1/2.py")
        assert not is_learners(sys.modules["kvlab.manager"].__file__ or "")
        assert not is_learners(sys.modules["json"].__file__ or "")
        assert not is_learners("<frozen importlib._bootstrap>")


class TestTexts:
    def test_a_picture_says_the_same_as_text(self) -> None:
        picture = Picture("Victims", [("you", ["1", "<2>"]), ("reference", ["1"])], "In order.")
        assert picture.text().splitlines() == ["Victims", "  you        [1] [<2>]", "  reference  [1]", "  In order."]
        assert "&lt;2&gt;" in picture.html()

    def test_scores_stand_beside_the_references(self) -> None:
        report = Report("x", "pass", 2, 2, (), (Score("lines", 12_000, 7),))
        assert re.search(r"lines +12,000 +7", repr(report))
        assert "12,000" in report._repr_html_()

    def test_hints_step_on_and_stay_at_the_last(self) -> None:
        count = len(get_exercise("ablation").hints)
        given = [hint("ablation").text for _ in range(count + 2)]
        assert given[:count] == list(get_exercise("ablation").hints)
        assert given[count:] == [given[count - 1]] * 2
        for wrong in (0, count + 1, True, "1"):
            with pytest.raises(ValueError, match="number"):
                hint("ablation", wrong)  # type: ignore[arg-type]

    def test_the_solution_is_folded(self) -> None:
        assert solution("guard")._repr_html_().startswith("<details><summary>")

    def test_use_never_blocks(self, capsys: pytest.CaptureFixture[str]) -> None:
        for exercise in registry():
            assert use(exercise.name, None) is exercise.reference
        assert capsys.readouterr().out.count("reference stands in") == len(registry())

    def test_importing_brings_in_nothing_heavy(self) -> None:
        heavy = {"torch", "plotly", "IPython", "pandas", "numpy"}
        code = f"import sys, kvlab.exercises as e; e.registry(); print({heavy} & set(sys.modules))"
        assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"
