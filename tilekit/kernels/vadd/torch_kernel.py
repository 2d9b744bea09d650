"""Vector addition with torch: what a torch user would write."""

import torch


def launch(a, b):
    # a + b follows its inputs' layout; the promise is a contiguous result.
    return torch.add(a, b).contiguous()
