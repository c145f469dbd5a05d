"""Networks that several experiments are built of."""

from __future__ import annotations

import itertools

import torch


def perceptron(*sizes: int) -> torch.nn.Sequential:
    """Linear layers of these sizes, with ReLU between them."""
    layers: list[torch.nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [torch.nn.Linear(before, after), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def adam(model: torch.nn.Module, lr: float, weight_decay: float = 0.0) -> torch.optim.Adam:
    """Adam for all parameters that learn, in one fused kernel that a GPU can record."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    is_recordable = all(parameter.is_cuda for parameter in parameters)
    return torch.optim.Adam(parameters, lr=lr, weight_decay=weight_decay, fused=True, capturable=is_recordable)
