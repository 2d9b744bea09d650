"""The small GPT on a GPU: every gradient as torch's, on each compiled backend and where the kernels are mixed."""

import pytest
import torch
from test_tiny_gpt import assert_same_gradients, pair

import tilekit
from tilekit import environment


@pytest.mark.parametrize("backend", ["cutile", "triton", "cuda", "torch", None])
@pytest.mark.parametrize("size", [{"width": 64, "context": 100}, {"width": 256, "heads": 4, "context": 256}])
def test_every_gradient_is_torchs(backend, size, seed):
    if backend and not environment.probe("cuda").backends[backend].usable:
        pytest.skip(f"{backend} does not run here: {environment.probe('cuda').backends[backend].reason}")
    assert torch.get_float32_matmul_precision() == "highest"
    with tilekit.use_backend(backend):
        assert_same_gradients(*pair(seed, "cuda", **size))
