"""The support table is complete against the installed cuda.tile, and true of the interpreter."""

import enum
import inspect
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from tilekit import cutile_interpreter
from tilekit.cutile_interpreter import dtypes, support
from tilekit.cutile_interpreter.namespace import FUNCTIONS, namespace

ct = pytest.importorskip("cuda.tile")
from cuda.tile._stub import RawArrayMemory  # noqa: E402  without a public name

TABLE = {entry.name: entry for entry in support.table()}
CLASSES = {"Array": ct.Array, "Tile": ct.Tile, "TiledView": ct.TiledView, "RawArrayMemory": RawArrayMemory}
DOCS = Path(__file__).parent.parent / "docs" / "cutile_interpreter.md"


def public_members(cls):
    return [
        name for name in vars(cls) if not name.startswith("_") or name.startswith("__") and name not in vars(object)
    ]


# Complete -------------------------------------------------------------------------------------------------------------


def test_every_public_name_is_listed():
    assert [name for name in ct.__all__ if name not in TABLE] == []


@pytest.mark.parametrize("cls", CLASSES)
def test_every_method_and_property_is_listed(cls):
    left_out = {"__dict__", "__module__", "__weakref__"}
    assert [n for n in public_members(CLASSES[cls]) if f"{cls}.{n}" not in TABLE and n not in left_out] == []


def test_nothing_else_is_listed():
    members = {f"{cls}.{name}" for cls, theirs in CLASSES.items() for name in dir(theirs)}
    assert TABLE.keys() <= set(ct.__all__) | members | {"kernel.replace_hints"}


def test_most_of_it_is_supported():
    # The project's bar: at least 97 of 100; what is refused says why.
    found = support.counts()
    assert found[support.REFUSED] <= 0.03 * sum(found.values())
    assert all(entry.note for entry in TABLE.values() if entry.status != support.RUNS)


def test_a_name_that_nobody_knows_yet_is_refused(monkeypatch):
    monkeypatch.setattr(ct, "__all__", [*ct.__all__, "teleport"])
    monkeypatch.setattr(ct, "teleport", lambda tile: tile, raising=False)
    (entry,) = [e for e in support.table() if e.name == "teleport"]
    assert entry.status == support.REFUSED and "newer" in entry.note


# True -----------------------------------------------------------------------------------------------------------------

RUNNING = [entry for entry in TABLE.values() if entry.status != support.REFUSED]


def ours(name):
    owner, _, member = name.rpartition(".")
    return inspect.getattr_static(getattr(namespace, owner), member) if owner else getattr(namespace, name)


@pytest.mark.parametrize("name", [e.name for e in RUNNING if e.kind == "function" and e.name in FUNCTIONS])
def test_a_function_that_runs_is_the_interpreters_and_takes_the_same_arguments(name):
    found = ours(name)
    assert found.__module__.startswith("tilekit.cutile_interpreter.")
    assert parameters(found) == parameters(getattr(ct, name))


# These are no functions of kernels: they act on the host.
HOST = {"compiler_timeout", "function", "launch"}


def test_all_functions_that_run_are_functions_of_the_interpreter():
    assert {e.name for e in RUNNING if e.kind == "function"} - set(FUNCTIONS) == HOST


@pytest.mark.parametrize("name", [e.name for e in RUNNING if e.kind == "method" and e.name != "kernel.replace_hints"])
def test_a_method_that_runs_takes_the_same_arguments(name):
    owner, _, member = name.partition(".")
    found = ours(name)
    theirs = getattr(CLASSES[owner], member)
    assert found is not inspect.getattr_static(CLASSES[owner], member)
    if not member.startswith("__"):
        skip = 0 if isinstance(found, staticmethod) else 1  # self
        assert parameters(getattr(getattr(namespace, owner), member))[skip:] == parameters(theirs)[skip:]


def parameters(function):
    return [(p.name, p.kind, str(p.default)) for p in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize("name", [e.name for e in RUNNING if e.kind == "dtype"])
def test_a_dtype_that_runs_has_a_format(name):
    assert getattr(ct, name) in dtypes.FORMATS


def test_what_is_said_of_each_name_is_its_kind():
    kinds = {
        "module": lambda v: isinstance(v, types.ModuleType),
        "dtype": lambda v: isinstance(v, ct.DType),
        "enumeration": lambda v: isinstance(v, enum.EnumMeta),
        "exception": lambda v: isinstance(v, type) and issubclass(v, Exception),
    }
    for name in ct.__all__:
        value, kind = getattr(ct, name), TABLE[name].kind
        assert {k: f(value) for k, f in kinds.items()} == {k: k == kind for k in kinds}, name


def test_what_is_accepted_runs_without_effect_and_is_checked():
    @ct.kernel(num_ctas=ct.ByTarget(sm_100=2, default=1))
    def kernel(x, out, LATENCY: ct.Constant[int]):
        ct.grid_dependency_control_wait()
        tile = ct.load(x, ct.bid(0), 4, latency=LATENCY, allow_tma=False)
        ct.store(out, ct.bid(0), tile, latency=LATENCY)
        ct.grid_dependency_control_launch_dependents()

    x, out = np.arange(8, dtype=np.int32), np.zeros(8, np.int32)
    with ct.compiler_timeout(5):
        cutile_interpreter.launch(None, (2,), kernel.replace_hints(occupancy=2), (x, out, 3))
    assert (out == x).all()
    with pytest.raises(ct.TileValueError, match="between 1 and 10"):
        cutile_interpreter.launch(None, (2,), kernel, (x, out, 11))


def test_tuning_is_refused_with_its_reason():
    with cutile_interpreter.interpreting(), pytest.raises(RuntimeError, match="times kernels on a GPU"):
        ct.tune.exhaustive_search([1], None, lambda c: (1,), None, lambda c: ())


# Shown ----------------------------------------------------------------------------------------------------------------


def test_the_command_prints_the_table():
    done = subprocess.run(
        [sys.executable, "-m", "tilekit.cutile_interpreter", "--support"], capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines[: len(TABLE)]] == list(TABLE)
    assert lines[-1].startswith(f"{support.counts()[support.RUNS]} run, ")


def test_the_documentation_has_the_table_of_today():
    assert support.in_document(DOCS.read_text()) == DOCS.read_text(), (
        "make the table anew: python -m tilekit.cutile_interpreter --support docs/cutile_interpreter.md"
    )
