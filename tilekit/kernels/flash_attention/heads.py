"""Leading dimensions: attention over any number of them becomes attention over (batch, heads)."""

from tilekit.plans import collapse


def with_batch_and_heads(tensor):
    """A view or reshape of shape (batch, heads, length, channels)."""
    while tensor.dim() < 4:
        tensor = tensor.unsqueeze(0)
    return tensor if tensor.dim() == 4 else tensor.flatten(0, -4)


def problems(query, key, value, out, lse):
    """Attention as problems with one batch and one head dimension each: views of the arrays, no copies."""
    lead = query.shape[:-3]
    if query.dim() > 4:
        merged = collapse(lead, *(t.stride()[: len(lead)] for t in (query, key, value, out, lse)))
        if len(merged[0]) > 1:
            for parts in zip(*(t.unbind(0) for t in (query, key, value, out, lse)), strict=True):
                yield from problems(*parts)
            return
        views = [
            t.as_strided((*merged[0], *t.shape[len(lead) :]), (*steps, *t.stride()[len(lead) :]))
            for t, steps in zip((query, key, value, out, lse), merged[1:], strict=True)
        ]
        yield tuple(views)
        return
    arrays = [query, key, value, out, lse]
    for _ in range(4 - query.dim()):
        arrays = [t.unsqueeze(0) for t in arrays]
    yield tuple(arrays)
