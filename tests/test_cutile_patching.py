"""``ct.launch`` that interprets: in a block, in a process, for a script; and torch's CUDA tensors on the CPU."""

import inspect
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tilekit import cutile_interpreter, environment
from tilekit.cutile_interpreter import cuda_tensors, patching

ct = pytest.importorskip("cuda.tile")
NVIDIAS = ct.launch


@ct.kernel
def fill(out, value):
    ct.store(out, ct.bid(0), ct.full((4,), value, out.dtype))


def test_launch_interprets_inside_the_block_and_only_there():
    out = np.zeros(8, np.int32)
    with cutile_interpreter.interpreting():
        ct.launch(None, (2,), fill, (out, 7), programmatic_dependent_launch=True)
    assert (out == 7).all() and ct.launch is NVIDIAS
    with pytest.raises(ZeroDivisionError), cutile_interpreter.interpreting():
        1 / 0  # noqa: B018
    assert ct.launch is NVIDIAS


def test_blocks_nest_and_end_in_any_order():
    first, second = cutile_interpreter.interpreting(), cutile_interpreter.interpreting()
    search = ct.tune.exhaustive_search
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert ct.launch is patching.launch and ct.tune.exhaustive_search is not search
    second.__exit__(None, None, None)
    assert ct.launch is NVIDIAS and ct.tune.exhaustive_search is search
    with pytest.raises(RuntimeError, match="without start"):
        patching.stop()


def test_threads_launch_at_the_same_time():
    wrong = []

    def work(value):
        for _ in range(20):
            out = np.zeros(16, np.int32)
            with cutile_interpreter.interpreting():
                ct.launch(None, (4,), fill, (out, value))
            wrong.extend(out[out != value])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and ct.launch is NVIDIAS


PROGRAM = """
import sys
import numpy as np
import cuda.tile as ct
from cuda.tile import launch
@ct.kernel
def fill(out):
    ct.store(out, ct.bid(0), ct.full((4,), 7, out.dtype))
out = np.zeros(4, np.int32)
launch(None, (1,), fill, (out,))
print(out.tolist(), sys.argv[1:], __name__)
"""


def python(*arguments, cwd, **environment):
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, cwd=cwd, env={**os.environ, **environment}
    )


def test_a_script_and_a_module_run_interpreted(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "helper.py").write_text("")
    runner = ("-m", "tilekit.cutile_interpreter")
    done = python(*runner, "program.py", "--support", "-m", "x", cwd=tmp_path)
    assert done.stdout == "[7, 7, 7, 7] ['--support', '-m', 'x'] __main__\n", done.stderr
    done = python(*runner, "-m", "program", "script.py", "--help", cwd=tmp_path)
    assert done.stdout == "[7, 7, 7, 7] ['script.py', '--help'] __main__\n", done.stderr


def test_a_scripts_end_is_its_own(tmp_path):
    (tmp_path / "ends.py").write_text("import sys; sys.exit(5)")
    assert python("-m", "tilekit.cutile_interpreter", "ends.py", cwd=tmp_path).returncode == 5
    (tmp_path / "fails.py").write_text("1 / 0")
    done = python("-m", "tilekit.cutile_interpreter", "fails.py", cwd=tmp_path)
    assert done.returncode == 1 and "ZeroDivisionError" in done.stderr and "fails.py" in done.stderr
    for arguments in ((), ("missing.py",), ("-m",)):
        assert python("-m", "tilekit.cutile_interpreter", *arguments, cwd=tmp_path).returncode == 2


def test_the_environment_variable(tmp_path):
    (tmp_path / "program.py").write_text("import tilekit.cutile_interpreter\n" + PROGRAM)
    done = python("program.py", cwd=tmp_path, TILEKIT_CUTILE="interpret")
    assert done.stdout.startswith("[7, 7, 7, 7]"), done.stderr
    done = python("program.py", cwd=tmp_path, TILEKIT_CUTILE="interpreted")
    assert done.returncode == 1 and "TILEKIT_CUTILE is 'interpreted'; set it to 'interpret'" in done.stderr


USES_BOTH = """
print(torch.ones(3, device='cuda').device)
@ct.kernel
def fill(out):
    ct.store(out, ct.bid(0), ct.full((4,), 7, out.dtype))
out = torch.zeros(4, device='cuda')
ct.launch(None, (1,), fill, (out,))
print(out.tolist())
"""


def started_by_python(tmp_path, text, **variables):
    (tmp_path / "program.py").write_text("import tilekit.cutile_startup\n" + text)
    variables = {"TILEKIT_CUTILE": "interpret", "PYTHONPATH": os.pathsep.join(sys.path), **variables}
    return python("program.py", cwd=tmp_path, **variables)


@pytest.mark.parametrize(
    "imports",
    [
        "import importlib.util as u; u.find_spec('cuda') and u.find_spec('cuda.tile'); import cuda.tile as ct, torch",
        "import cuda.tile as ct, importlib.util; importlib.util.find_spec('torch'); import torch",
        "import tilekit.cutile_interpreter; import cuda.tile as ct, torch",
        "import torch; import cuda.tile.tune; import cuda.tile as ct",
        "import torch; from cuda.tile import load, launch; import cuda.tile as ct",
        "import torch, tilekit; tilekit.probe(); import cuda.tile as ct",
    ],
)
def test_in_whatever_order_a_program_imports(imports, tmp_path):
    done = started_by_python(tmp_path, f"{imports}\n{USES_BOTH}")
    assert done.stdout == "cpu\n[7.0, 7.0, 7.0, 7.0]\n" and not done.stderr, done.stderr


def test_a_wrong_value_is_refused_each_time(tmp_path):
    text = (
        "for _ in range(2):\n    try:\n        import cuda.tile\n    except ValueError as error:\n        print(error)"
    )
    done = started_by_python(tmp_path, text, TILEKIT_CUTILE="on")
    assert done.stdout == 2 * "TILEKIT_CUTILE is 'on'; set it to 'interpret', or not at all\n", done.stderr


def test_the_first_import_may_be_in_a_thread(tmp_path):
    lines = "".join(f"    {line}\n" for line in ("import torch, cuda.tile as ct\n" + USES_BOTH).splitlines())
    text = f"import threading\ndef work():\n{lines}t = threading.Thread(target=work)\nt.start()\nt.join()"
    done = started_by_python(tmp_path, text)
    assert done.stdout == "cpu\n[7.0, 7.0, 7.0, 7.0]\n" and not done.stderr, done.stderr


def test_a_folder_with_torchs_name_is_no_matter(tmp_path):
    (tmp_path / "torch").mkdir()
    hidden = "import without_cuda_tile; without_cuda_tile.hide('torch.nothing')\n"
    text = f"{hidden}import sys, cuda.tile\nsys.path[:] = ['{tmp_path}']\nimport torch\nprint(torch.__path__)"
    done = started_by_python(tmp_path, text, PYTHONPATH=os.pathsep.join([str(Path(__file__).parent), *sys.path]))
    assert str(tmp_path) in done.stdout, done.stderr


# torch's CUDA tensors --------------------------------------------------------------------------------------------------


def test_torch_makes_its_cuda_tensors_on_the_cpu():
    available = torch.cuda.is_available
    with cuda_tensors.on_cpu():
        made = [
            torch.ones(2, device="cuda"), torch.empty_like(torch.ones(2), device=torch.device("cuda", 0)), torch.ones(2).cuda(),
            torch.ones(2).to("cuda:0"), torch.ones(2).to(device="cuda", dtype=torch.float16), torch.tensor([1.0], device="cuda"),
            torch.nn.Linear(2, 2).to("cuda").weight, torch.nn.Linear(2, 2, device="cuda").weight,
        ]  # fmt: skip
        with torch.device("cuda"):
            made.append(torch.ones(2))
        assert [t.device.type for t in made] == ["cpu"] * len(made)
        assert made[4].dtype == torch.float16
        assert torch.cuda.is_available() and torch.cuda.get_device_properties(0).multi_processor_count >= 1
    assert torch.cuda.is_available is available
    assert torch.ones(2).device.type == "cpu"


def test_what_programs_ask_torch_about_its_gpu():
    with cuda_tensors.on_cpu():
        generator = torch.Generator(device="cuda").manual_seed(3)
        assert isinstance(generator, torch.Generator)
        first = torch.randn(4, device="cuda", generator=generator)
        assert torch.equal(first, torch.randn(4, generator=torch.Generator("cpu").manual_seed(3)))
        torch.cuda.manual_seed(5)
        drawn = torch.rand(2, device="cuda")
        torch.manual_seed(5)
        assert torch.equal(drawn, torch.rand(2, device=0))
        assert torch.zeros(2).to(0).device.type == torch.zeros(2, pin_memory=True).pin_memory().device.type == "cpu"
        properties = torch.cuda.get_device_properties("cuda")
        assert (
            properties.warp_size == 32 and properties.shared_memory_per_block_optin > properties.shared_memory_per_block
        )
        stream, event = torch.cuda.current_stream(), torch.cuda.Event()
        stream.wait_event(stream.record_event(event))
        assert stream.query() and event.query()
        first.record_stream(stream)
        with torch.cuda.device(0), torch.cuda.nvtx.range("part"):
            torch.accelerator.synchronize()
        free, total = torch.cuda.mem_get_info()
        assert 0 < free <= total
        torch.cuda.reset_peak_memory_stats()
    assert torch.Generator.__module__ != cuda_tensors.__name__


def test_the_probe_does_not_believe_them():
    with cuda_tensors.on_cpu():
        facts = environment.collect_facts()
    assert facts.device == "cpu" and environment.assess(facts).backends["cutile"].mode == "interpreted"


@pytest.mark.parametrize("hidden", [(), ("cuda.tile",), ("cuda.tile", "cuda")], ids=["wheel", "no wheel", "no cuda"])
@pytest.mark.parametrize("first", ["torch", "cuda.tile"])
def test_a_process_in_which_python_itself_starts_it(hidden, first, tmp_path):
    """As the installed package's .pth file has it; tests/test_packaging.py reads that file from the wheel."""
    prelude = "import tilekit.cutile_startup\n"
    if hidden:
        prelude += f"import without_cuda_tile; without_cuda_tile.hide(*{hidden[1:]})\n"
    uses_torch = "import torch\nx = torch.ones(3, device='cuda')\nprint(x.device, torch.cuda.is_available())\n"
    (tmp_path / "program.py").write_text(f"{prelude}import {first}\n{PROGRAM}{uses_torch}")
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = python("program.py", cwd=tmp_path, TILEKIT_CUTILE="interpret", PYTHONPATH=path)
    assert done.stdout == "[7, 7, 7, 7] [] __main__\ncpu True\n", done.stderr


def test_a_copy_between_devices_stays_a_copy():
    x = torch.zeros(3)
    with cuda_tensors.on_cpu():
        for copy in (x.cuda(), x.to("cuda"), x.to(device="cuda"), x.cpu()):
            copy += 1
    assert (x == 0).all()


def test_a_program_for_a_gpu_runs_as_it_is():
    with cutile_interpreter.interpreting(), cuda_tensors.on_cpu():
        out = torch.zeros(8, device="cuda")
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        with torch.cuda.stream(torch.cuda.Stream()):
            ct.launch(torch.cuda.current_stream(), (2,), fill, (out, 2.5))
        end.record()
        torch.cuda.synchronize()
        assert start.elapsed_time(end) > 0
        torch.testing.assert_close(out.cpu(), torch.full((8,), 2.5))


def test_it_is_imported_without_torch():
    code = "import sys, tilekit.cutile_interpreter; print('torch' in sys.modules)"
    assert python("-c", code, cwd=".").stdout == "False\n"


EXAMPLE = textwrap.dedent(inspect.getdoc(cutile_interpreter.interpret_if_needed).partition("For example::")[2])


@pytest.mark.parametrize("prelude", ["", "import without_cuda_tile; without_cuda_tile.hide()\n"], ids=["wheel", "none"])
def test_one_line_makes_a_program_run_here(tmp_path, prelude):
    script = tmp_path / "example.py"
    again = "assert cutile_interpreter.interpret_if_needed()[0] == device\n"
    script.write_text(f"{prelude}{EXAMPLE}\nprint(out.tolist())\n{again}")
    folders = [str(Path(__file__).parent), *sys.path]
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [str([7] * 8)]


def test_where_a_gpu_compiles_cutile_nothing_is_replaced(monkeypatch):
    compiled = environment.Verdict(True, "compiled", "Compiled by tileiras.", None)
    monkeypatch.setattr(environment, "probe", lambda: SimpleNamespace(backends={"cutile": compiled}))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: "torch's stream")
    assert cutile_interpreter.interpret_if_needed() == ("cuda", "torch's stream")
    assert ct.launch is NVIDIAS
