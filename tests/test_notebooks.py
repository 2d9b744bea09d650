"""The lessons' form, the suite's runner, and the way nbval is run."""

import importlib.util
import re
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
from checkout import tracked

ROOT = Path(__file__).resolve().parent.parent


def load(path):
    spec = importlib.util.spec_from_file_location(f"loaded_{path.parent.name}_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


canonical = load(ROOT / "notebooks" / "tools" / "canonical.py")
stamp = load(ROOT / "notebooks" / "tools" / "stamp.py")
suite = load(ROOT / "notebooks" / "tools" / "run.py")
tests_run = load(ROOT / "tests" / "run.py")
LESSONS = sorted((ROOT / "notebooks").glob("*.ipynb"))
NAMES = ["00_environment", "00b_mistakes", "01_vadd", "02_fused_gelu", "03_softmax", "04_matmul", "05_flash_attention",
         "06_cuda_cpp", "07_thunder", "08_tiny_transformer"]  # fmt: skip


def test_the_lessons_are_there():
    assert [path.stem for path in LESSONS] == NAMES


@pytest.mark.parametrize("path", LESSONS, ids=lambda p: p.stem)
def test_a_lesson_has_its_form(path):
    assert canonical.problems(path) == []
    notebook = nbformat.read(path, as_version=4)
    text = path.read_text(encoding="utf-8")
    assert canonical.as_text(canonical.canonical(notebook, path.stem)) == text, "run make format"
    assert len(text) < 1_000_000, "outputs are small"
    for leak in (str(Path.home()) + "/", str(ROOT) + "/", "site-packages"):
        assert leak not in text, f"an output or a cell names a path: {leak}"


def test_the_owner_is_the_same_everywhere(tmp_path):
    owners = stamp.owners()
    named = [
        ROOT / name
        for name in tracked()
        if re.search(r"github\.com/OWNER/", (ROOT / name).read_bytes().decode(errors="ignore"))
    ]
    assert {p for p in named if "tests" not in p.parts} <= set(stamp.files()), "no file is left out"
    assert all(len(found) == 1 for found in owners.values()), owners
    assert len({next(iter(found)) for found in owners.values()}) == 1
    (tmp_path / "notebooks" / "tools").mkdir(parents=True)
    for path in stamp.files():
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(exist_ok=True)
        copy.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    assert stamp.stamp("some-body", tmp_path) == len(stamp.files(tmp_path))
    assert set().union(*stamp.owners(tmp_path).values()) == {"some-body"}
    with pytest.raises(ValueError, match="letters, digits"):
        stamp.stamp("some body", tmp_path)


def notebook(tmp_path, *cells, kernel="python3", outputs=None, name="99_test"):
    made = nbformat.v4.new_notebook(
        metadata={"kernelspec": {"name": kernel, "display_name": kernel, "language": "python"}}
    )
    made.cells = [nbformat.v4.new_code_cell(source) for source in cells]
    if outputs:
        made.cells[-1].outputs, made.cells[-1].execution_count = outputs, 1
    path = tmp_path / f"{name}.ipynb"
    nbformat.write(made, path)
    return path


KILLS = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.parametrize(
    ("cells", "kernel", "words"),
    [
        (["1 + 1"], "python3", None),
        (["import sys; print('a warning', file=sys.stderr)"], "python3", None),
        (["x = 1", "raise ValueError('wrong number')"], "python3", "raised ValueError: wrong number"),
        ([KILLS], "python3", "the kernel died"),
        (["import time; time.sleep(60)"], "python3", "ran longer than 3 s"),
        (["1"], "no-such-kernel", "kernel is not installed"),
    ],
)
def test_the_runner_says_what_happened(tmp_path, cells, kernel, words):
    problem = suite.execute(notebook(tmp_path, *cells, kernel=kernel), timeout_s=3)
    assert problem is None if words is None else words in problem


def test_the_suite_prints_a_line_a_lesson_and_fails_when_one_fails(tmp_path, capsys):
    notebook(tmp_path, "1 + 1", name="01_good")
    assert suite.main([], tmp_path) == 0
    notebook(tmp_path, "1 / 0", name="02_bad")
    assert suite.main([], tmp_path) == 1
    out = capsys.readouterr().out
    assert "01_good                ok" in out and "02_bad                 failed" in out
    assert "ZeroDivisionError" in out and "1 of 2 lessons ran to their end" in out
    assert suite.main(["nothing"], tmp_path) == 2


def test_the_line_of_a_lesson_is_rewritten_in_a_terminal_and_seldom_repeated_in_a_log(monkeypatch, capsys):
    monkeypatch.setattr(suite, "LOG_EVERY_S", 0.05)
    line = suite.Line("01_name")
    line.progress(1, 3)
    time.sleep(0.06)
    line.progress(2, 3)
    line.close("ok")
    assert [text.split()[1] for text in capsys.readouterr().out.splitlines()] == ["running", "cell", "ok"]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    line = suite.Line("01_name")
    line.progress(1, 3)
    line.close("ok")
    out = capsys.readouterr().out
    assert out.count("\n") == 1 and out.count("\r") == 3 and "cell 1/3" in out


@pytest.mark.parametrize(
    ("bodies", "status", "last"),
    [
        (["def test_a(): pass", "def test_b(): pass\ndef test_c(): __import__('pytest').skip('why')"], 0, (2, 0, 1)),
        (["def test_a(): pass", "def test_b(): assert False"], 1, (1, 1, 0)),
        (["def test_a(): pass", "raise RuntimeError"], 1, (1, 1, 0)),
        (["def test_a(): pass", ""], 1, (1, 1, 0)),  # a group in which nothing runs counts as a failure
        (["def test_a(): pass", "import os\ndef test_b(): os._exit(3)"], 1, (1, 1, 0)),
    ],
    ids=["all pass", "one fails", "cannot be collected", "nothing runs", "pytest dies"],
)
def test_the_count_over_all_groups(tmp_path, monkeypatch, capsys, bodies, status, last):
    groups = {}
    for name, body in zip("xy", bodies, strict=True):
        path = tmp_path / f"test_{name}.py"
        path.write_text(body)
        groups[name] = (None, ["-p", "no:cacheprovider", "-c", str(tmp_path / "pytest.ini"), str(path)])
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.setattr(tests_run, "GROUPS", groups)
    assert tests_run.main([]) == status
    assert capsys.readouterr().out.splitlines()[-1] == "{} passed, {} failed, {} skipped".format(*last)


def nbval(path, timeout=5):
    options = [f"--nbval-cell-timeout={timeout}" if "cell-timeout" in o else o for o in tests_run.NBVAL]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, str(path)]
    return subprocess.run(command, capture_output=True, text=True, cwd=path.parent, timeout=120)


def test_nbval_notices_a_cell_that_kills_its_kernel(tmp_path):
    done = nbval(notebook(tmp_path, KILLS, "1"), timeout=3)
    assert done.returncode != 0 and "Cell 0" in done.stdout and "1 failed" in done.stdout


def test_nbval_notices_a_cell_that_sleeps(tmp_path):
    done = nbval(notebook(tmp_path, "import time; time.sleep(60)"), timeout=2)
    assert done.returncode != 0 and "Timeout of 2 seconds exceeded" in done.stdout


def test_nbval_lets_a_warning_pass_and_uses_this_environment_whatever_the_kernelspec_says(tmp_path):
    done = nbval(notebook(tmp_path, "import warnings; warnings.warn('look')", kernel="no-such-kernel"))
    assert done.returncode == 0, done.stdout


def test_nbval_compares_marked_outputs_only(tmp_path):
    said = [nbformat.v4.new_output("stream", name="stdout", text="3\n")]
    assert nbval(notebook(tmp_path, "print(4)", outputs=said)).returncode == 0
    assert nbval(notebook(tmp_path, "# NBVAL_CHECK_OUTPUT\nprint(4)", outputs=said)).returncode != 0
    assert nbval(notebook(tmp_path, "# NBVAL_CHECK_OUTPUT\nprint(3)", outputs=said)).returncode == 0


def test_the_canonical_form_drops_what_may_not_stay(tmp_path):
    path = notebook(tmp_path, "print(1)", "bootstrap", "# NBVAL_CHECK_OUTPUT\nprint(2)")
    made = nbformat.read(path, as_version=4)
    for cell in made.cells:
        cell.execution_count = 7
        cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text="2\n")]
    form = canonical.canonical(made, "99_test")
    assert form.cells[0].outputs == [] and form.cells[0].execution_count is None
    assert [cell.id for cell in form.cells] == ["99-000", "99-001", "99-002"]
    assert form.cells[1].outputs == [] and len(form.cells[2].outputs) == 1
    assert canonical.as_text(form) == canonical.as_text(canonical.canonical(form, "99_test"))


def test_a_solution_stays_out_of_sight(tmp_path):
    def problems(*cells):
        made = nbformat.v4.new_notebook()
        for source in cells:
            made.cells.append(
                nbformat.v4.new_code_cell(source, metadata={"tags": ["hidden"]} if "solved" in source else {})
            )
        nbformat.write(made, tmp_path / "99_test.ipynb")
        return " ".join(canonical.problems(tmp_path / "99_test.ipynb"))

    good = problems("a", "b", "exercise", "what to remember", "#@title Solution\nsolved", "assert True")
    assert "solutions are hidden" not in good and "#@title" not in good
    assert "solutions are hidden" in problems("a", "b", "exercise", "#@title Solution\nsolved", "c", "assert True")
    assert "does not begin with '#@title" in problems("a", "b", "exercise", "solved", "assert True")


def test_a_solution_is_folded_in_jupyter_and_in_colab(tmp_path):
    made = nbformat.read(notebook(tmp_path, "badge", "bootstrap", "#@title Solution\nsolved = 1"), as_version=4)
    made.cells[2].metadata["tags"] = ["hidden"]
    folded = canonical.canonical(made, "99_test").cells[2].metadata
    assert folded.jupyter.source_hidden and folded.cellView == "form"
