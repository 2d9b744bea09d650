"""Batch dimensions: how a product with many of them becomes products with two."""

from tilekit.plans import collapse


def two_batch_dimensions(a, b, out):
    """The product as products whose batch dimensions merge into two at most: views, no copies."""
    if a.dim() > 4:
        layouts = (t.stride()[:-2] for t in (a, b, out))
        if len(collapse(a.shape[:-2], *layouts)[0]) > 2:
            for parts in zip(a.unbind(0), b.unbind(0), out.unbind(0), strict=True):
                yield from two_batch_dimensions(*parts)
            return
    yield a, b, out
