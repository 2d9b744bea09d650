"""Run every case: interpreted by default, or as TILEKIT_CONFORMANCE says (see harness.py)."""

import collections

import numpy as np
import pytest
import torch

pytest.importorskip("cuda.tile")

from . import dtypes, harness  # noqa: E402

CASES = harness.collect()
each_case = pytest.mark.parametrize("case", [pytest.param(c, id=c.id) for c in CASES])


def test_every_case_has_a_name_of_its_own():
    counts = collections.Counter(case.id for case in CASES)
    assert [name for name, count in counts.items() if count > 1] == []


def test_every_case_can_fail(seed):
    """Whatever was expected is accepted when it is there, and refused when one element is another."""
    for case in CASES:
        if case.error is not None or isinstance(case.expected, str):
            continue
        before = harness.arguments(case, seed)
        after, places = harness.as_expected(case, before)
        harness.judge(case, before, after)
        for array in places:
            if array.size:
                array[(-1,) * array.ndim] = _another(array[(-1,) * array.ndim])
        with pytest.raises(AssertionError):
            harness.judge(case, before, after)
            pytest.fail(f"{case.id} accepts a wrong element")


def _another(value):
    if value.dtype == bool:
        return not value
    wide = float(value)
    if value.dtype.kind in "iu":
        return value ^ value.dtype.type(1)
    # A value far enough away for every tolerance and inside the range of every format; e8m0 holds powers of two alone.
    return value.dtype.type(1.0 if np.isnan(wide) or abs(wide) > 8 else 32.0)


if harness.MODE == "interpret":

    @each_case
    def test_interpreted(case, seed, capfd):
        interpreter = pytest.importorskip("tilekit.cutile_interpreter")
        if "gpu" in case.needs:
            pytest.skip("needs a GPU")
        if "compiler" in case.needs and not harness.compiler_there():
            pytest.skip("only NVIDIA's front end sees this error")

        def launch(grid, kernel, args):
            interpreter.launch(None, grid, kernel, args)

        place = dtypes.to_torch if case.flavour == "torch" else (lambda array: array)
        harness.run(case, seed, launch, place, lambda: capfd.readouterr().out)

elif harness.MODE == "compiled":

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
    @each_case
    def test_compiled(case, seed, capfd):
        import cuda.tile as ct

        if "sm_100" in case.needs and torch.cuda.get_device_capability() < (10, 0):
            pytest.skip("needs compute capability 10.0")

        def launch(grid, kernel, args):
            ct.launch(torch.cuda.current_stream(), grid, kernel, args)
            torch.cuda.synchronize()

        with harness.deviation(case, runs=True):
            harness.run(case, seed, launch, lambda array: dtypes.to_torch(array).cuda(), lambda: capfd.readouterr().out)

else:

    @each_case
    def test_front_end(case, seed):
        """The verdict alone: what must run is accepted, what is an error raises the class that the case names."""
        if "no-front-end" in case.needs:
            pytest.skip("raised by the launch, before the compiler is asked")
        architecture = None
        if harness.MODE == "cubin":
            architecture = "sm_100" if "sm_100" in case.needs else "sm_90"
        placed = harness.place_all(harness.arguments(case, seed), dtypes.to_torch)
        given = list(case.views(*placed)) if case.views else placed
        if case.error is not None:
            with pytest.raises(case.error, match=f"(?is){case.match}" if case.match else None):
                harness.front_end(case.kernel, given, architecture)
        elif architecture is None:
            harness.front_end(case.kernel, given)
        else:
            with harness.deviation(case, runs=False):
                harness.front_end(case.kernel, given, architecture)
