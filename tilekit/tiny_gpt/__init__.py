"""A small GPT of characters, in which every kernel of tilekit has its place: the model of lessons 07 and 08.

The five kernels are an argument of the model, so that it can run on tilekit's, on torch's, or on one's own:
:data:`TILEKIT` and :data:`TORCH` are namespaces of functions with the names and signatures of ``tilekit.kernels.NAMES``.

>>> import torch
>>> from tilekit import tiny_gpt
>>> data = tiny_gpt.encode(tiny_gpt.text())
>>> model = tiny_gpt.GPT(width=32, heads=2, layers=1, context=16)
>>> loss = model(data[None, :16], targets=data[None, 1:17])
>>> loss.backward()

Source: A. Radford and others, "Language Models are Unsupervised Multitask Learners", 2019, for the arrangement (a norm
before each half of a block, learned positions).
"""

from functools import lru_cache
from importlib import resources
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tilekit
from tilekit import kernels


def gelu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """``tilekit.fused_gelu`` in torch's operators."""
    return F.gelu(x * w + b, approximate="tanh")


TILEKIT = SimpleNamespace(**{name: getattr(tilekit, name) for name in kernels.NAMES})
TORCH = SimpleNamespace(
    vadd=torch.add,
    fused_gelu=gelu,
    softmax=torch.softmax,
    matmul=torch.matmul,
    flash_attention=F.scaled_dot_product_attention,
)


@lru_cache(maxsize=1)
def text() -> str:
    """Fifteen sonnets by Shakespeare, some 9,000 characters of ASCII: the text to learn from.

    >>> text().splitlines()[0]
    'From fairest creatures we desire increase,'
    """
    lines = resources.files("tilekit").joinpath("tiny_gpt/sonnets.txt").read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if not line.startswith("#"))


@lru_cache(maxsize=1)
def characters() -> str:
    """Every character of the text once, in order: the vocabulary. A token is a position in it."""
    return "".join(sorted(set(text())))


def encode(string: str) -> Tensor:
    """The tokens of a string, (length,) int64.

    Raises:
        ValueError: a character does not occur in the text.

    >>> decode(encode("love"))
    'love'
    """
    unknown = sorted(set(string) - set(characters()))
    if unknown:
        raise ValueError(f"encode: the sonnets have no {unknown[0]!r}; the vocabulary is {characters()!r}")
    return torch.tensor([characters().index(c) for c in string], dtype=torch.int64)


def decode(tokens: Tensor) -> str:
    """The string of tokens, (length,) integers."""
    return "".join(characters()[token] for token in tokens.tolist())


class Block(nn.Module):
    """Attention, then an MLP, each added to what came in. Linear layers are bare matrices, without a bias."""

    def __init__(self, width: int, heads: int, functions):
        super().__init__()
        self.heads, self.functions = heads, functions
        self.norm_1, self.norm_2 = (nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = matrix(width, 3 * width), matrix(width, width)
        self.up, self.down = matrix(width, 4 * width), matrix(4 * width, width)
        self.gain, self.shift = nn.Parameter(torch.ones(4 * width)), nn.Parameter(torch.zeros(4 * width))

    def forward(self, x):
        q, k, v = self.split(x)
        return self.mix(x, self.functions.flash_attention(q, k, v, is_causal=True))

    def split(self, x):
        qkv = self.functions.matmul(self.norm_1(x), self.qkv)
        q, k, v = qkv.chunk(3, -1)
        return [a.reshape(*x.shape[:2], self.heads, -1).transpose(1, 2) for a in (q, k, v)]

    def mix(self, x, attended):
        f = self.functions
        x = f.vadd(x, f.matmul(attended.transpose(1, 2).reshape(x.shape), self.out))
        hidden = f.fused_gelu(f.matmul(self.norm_2(x), self.up), self.gain, self.shift)
        return f.vadd(x, f.matmul(hidden, self.down))


class GPT(nn.Module):
    """Predicts the next character from up to `context` characters before it.

    Args:
        width: the length of the vector that stands for a character; a multiple of `heads`.
        heads: of attention, with ``width // heads`` channels each.
        layers: how many blocks.
        context: how many characters the model sees at most.
        functions: the five kernels, by name: :data:`TILEKIT`, :data:`TORCH`, or a namespace of your own.

    Raises:
        ValueError: `width` is no multiple of `heads`.

    >>> sum(p.numel() for p in GPT(width=32, heads=2, layers=1, context=16).parameters()) > 12 * 32 * 32
    True
    """

    def __init__(self, width=64, heads=4, layers=2, context=64, functions=TILEKIT):
        super().__init__()
        if width % heads:
            raise ValueError(f"GPT: width must be a multiple of heads; got width {width} and heads {heads}")
        self.context, self.functions = context, functions
        self.embedding = nn.Parameter(torch.randn(len(characters()), width) * 0.02)
        self.position = nn.Parameter(torch.randn(context, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, heads, functions) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = matrix(width, len(characters()))

    def forward(self, tokens, targets=None):
        """The logits of the next character, or with targets their mean cross-entropy.

        Args:
            tokens: (batch, length) int64, length at most `context`.
            targets: what comes after each token, (batch, length) int64.

        Returns:
            (batch, length, vocabulary) of the parameters' dtype; with targets a 0-d tensor, in nats a character.

        Raises:
            ValueError: there are more tokens than `context`.
        """
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        logits = self.functions.matmul(self.norm(x), self.head)
        return logits if targets is None else self.loss(logits, targets)

    def embed(self, tokens, first=0):
        if first + tokens.shape[1] > self.context:
            raise ValueError(f"GPT: the context is at most {self.context}; got {first + tokens.shape[1]} characters")
        x = F.embedding(tokens, self.embedding)
        position = self.position[first : first + tokens.shape[1]]
        return self.functions.vadd(x, position.expand(x.shape))

    def loss(self, logits, targets):
        # Right while no probability is 0: lesson 08 shows what happens then, and what a loss for any logits does.
        probabilities = self.functions.softmax(logits, dim=-1)
        return -probabilities.gather(-1, targets[..., None]).log().mean()


def matrix(rows: int, columns: int) -> nn.Parameter:
    """A linear layer's weights: its outputs begin with the variance of its inputs."""
    return nn.Parameter(torch.randn(rows, columns) * rows**-0.5)


def calls(model: GPT, tokens: Tensor, targets: Tensor) -> list[tuple[str, tuple[Tensor, ...], dict]]:
    """What one forward pass asks of the kernels: name, arrays and options of each call, in order.

    The arrays are those of the call, detached. With a model and tokens on the device "meta" nothing is computed.

    >>> model, tokens = GPT().to("meta"), torch.zeros(1, 8, dtype=torch.int64, device="meta")
    >>> [name for name, _, _ in calls(model, tokens, tokens)][:3]
    ['vadd', 'matmul', 'flash_attention']
    """
    noted = []

    def noting(name):
        def call(*arrays, **options):
            noted.append((name, tuple(a.detach() for a in arrays), options))
            return getattr(own, name)(*arrays, **options)

        return call

    own, parts = model.functions, [model, *model.blocks]
    try:
        for part in parts:
            part.functions = SimpleNamespace(**{name: noting(name) for name in kernels.NAMES})
        with torch.no_grad():
            model(tokens, targets)
    finally:
        for part in parts:
            part.functions = own
    return noted
