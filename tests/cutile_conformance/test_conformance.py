"""Run every case: interpreted by default, or as TILEKIT_CONFORMANCE says (see harness.py)."""

import collections

import pytest
import torch

from . import dtypes, harness

CASES = harness.collect()
each_case = pytest.mark.parametrize("case", [pytest.param(c, id=c.id) for c in CASES])


def test_every_case_has_a_name_of_its_own():
    counts = collections.Counter(case.id for case in CASES)
    assert [name for name, count in counts.items() if count > 1] == []


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

        with harness.deviation(case):
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
            with harness.deviation(case):
                harness.front_end(case.kernel, given, architecture)
