"""What a kernel has to do, as data: its reference, the cases it must get right, and the least work it can do."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

HALF_AND_SINGLE = (torch.float16, torch.bfloat16, torch.float32)


class Make:
    """Draws the inputs of a case. The numbers are the same on every device, so a failure can be repeated.

    >>> Make(seed=0, dtype=torch.float32).randn(2, 3).shape
    torch.Size([2, 3])
    """

    def __init__(self, seed: int, dtype: torch.dtype, device: str | torch.device = "cpu"):
        self.seed, self.dtype, self.device = seed, dtype, torch.device(device)
        self.generator = torch.Generator().manual_seed(seed)

    def randn(self, *shape: int, scale: float = 1.0) -> Tensor:
        """Normally distributed values, times `scale`."""
        return (torch.randn(shape, generator=self.generator, device="cpu") * scale).to(self.device, self.dtype)

    def tensor(self, values) -> Tensor:
        """Exactly these values."""
        return torch.tensor(values, dtype=torch.float64, device="cpu").to(self.device, self.dtype)

    def full(self, shape, value: float) -> Tensor:
        return torch.full(shape, value, dtype=self.dtype, device=self.device)

    def arange(self, *bounds: int) -> Tensor:
        return torch.arange(*bounds, device=self.device).to(self.dtype)

    def offset(self, *shape: int) -> Tensor:
        """Normally distributed values whose first element is one element past a 16-byte boundary."""
        flat = self.randn(1 + torch.Size(shape).numel())
        return flat[1:].view(*shape)


@dataclass(frozen=True)
class Case:
    """One call that a kernel must get right.

    - `id` names what the case is there for.
    - `build(make)` returns the call's positional arguments, and keyword arguments as a dict if there are any.
    - `expected` is given where the reference's own arithmetic is not the promise, such as infinities; it is a
      function of the same arguments and returns what must come out.
    - `dtypes` the case is for; `needs_gpu` where an interpreter would take too long or too much memory.
    - `row` is the row of the list of reported failures (see CONTRIBUTING.md) that the case stands for.
    """

    id: str
    build: Callable[[Make], tuple]
    expected: Callable[..., Tensor | tuple[Tensor, ...]] | None = None
    dtypes: tuple[torch.dtype, ...] = HALF_AND_SINGLE
    needs_gpu: bool = False
    row: str = ""

    def arguments(self, make: Make) -> tuple[tuple, dict]:
        built = self.build(make)
        return (built[:-1], built[-1]) if isinstance(built[-1], dict) else (built, {})


@dataclass(frozen=True)
class Work:
    """The least that a call must move and compute: bytes of device memory, and floating-point operations."""

    bytes: int
    flops: int


@dataclass(frozen=True)
class Spec:
    """A kernel's name, the public signature, the float64 reference, torch's own function, and the cases.

    - `reference(*args, **kwargs)` computes in float64 whatever it is given.
    - `torch_own(*args, **kwargs)` is what torch's user would call, in the inputs' dtype: its error sets the bar.
    - `reduction_length(*args, **kwargs)` is K, how many terms a result's element sums up.
    - `work(*args, **kwargs)` is the least work of the call.
    - `cases` are shared by the tests and by :func:`tilekit.check`.
    - `results` are the names of the results, where there are several.
    - `hints` help a learner whose kernel is wrong, by a word in the case's id, or by the name of the wrong result.
    """

    name: str
    signature: str
    reference: Callable
    torch_own: Callable
    reduction_length: Callable[..., int]
    work: Callable[..., Work]
    cases: tuple[Case, ...]
    matrix_product: bool = False
    results: tuple[str, ...] = ()
    hints: Mapping[str, str] = field(default_factory=dict)
