"""The matrix product with torch: what a torch user would write."""

import torch


def launch(a, b):
    return torch.matmul(a, b).contiguous()
