"""Learn to segment: find the parts of a noisy signal, and their kinds, from examples with known segments.

Each kind of segment has its own mean and its own typical width. Scores of segments are sums of scores of their positions,
and a bias for each width and kind; the loss is the likelihood of the observed segmentation under `sparsum.Segmentation`.

Run it with ``python -m examples.segmenter``; it takes about 3 seconds.
"""

from __future__ import annotations

import torch
from torch import Tensor

import sparsum as sp

LENGTH, MAX_WIDTH, N_KINDS, N_CHANNELS = 24, 6, 3, 4


def signals(structure: sp.Segmentation, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Noisy signals, (n, LENGTH, N_CHANNELS), and their segmentations, (n, LENGTH)."""
    widths = torch.tensor([2.0, 4.0, 6.0])  # of each kind
    fit = -3 * (torch.arange(1, MAX_WIDTH + 1).unsqueeze(-1) - widths).square()
    atoms = sp.Gibbs(fit.expand(n, LENGTH, -1, -1), structure).sample(generator=generator)
    start = torch.where(atoms >= 0, torch.arange(LENGTH), 0).cummax(-1).values
    kind = atoms.gather(-1, start) % N_KINDS
    means = torch.eye(N_KINDS, N_CHANNELS)[kind]
    return means + 0.3 * torch.randn(means.shape, generator=generator), atoms


def segment_scores(positions: Tensor, widths: Tensor) -> Tensor:
    """Of all segments, by cumulative sums over positions: (n, LENGTH, MAX_WIDTH, N_KINDS)."""
    sums = torch.nn.functional.pad(positions.cumsum(1), (0, 0, 1, MAX_WIDTH))
    windows = sums.unfold(1, MAX_WIDTH + 1, 1).movedim(-1, 2)[:, :LENGTH]
    return windows[:, :, 1:] - windows[:, :, :1] + widths


def main(n_steps: int = 100, seed: int = 0) -> tuple[float, float]:
    """Train, and return the share of segments of unseen signals that are found exactly, before and after."""
    torch.manual_seed(seed)
    generator, structure = torch.Generator().manual_seed(seed), sp.Segmentation(LENGTH, MAX_WIDTH, N_KINDS)
    position, width = torch.nn.Linear(N_CHANNELS, N_KINDS), torch.nn.Parameter(torch.zeros(MAX_WIDTH, N_KINDS))
    optimizer = torch.optim.Adam([*position.parameters(), width], lr=0.1)
    tests, answers = signals(structure, 500, generator)

    def share_found() -> float:
        return float((structure.argmax(segment_scores(position(tests), width)) == answers)[answers >= 0].double().mean())

    before = share_found()
    for _ in range(n_steps):
        signal, atoms = signals(structure, 32, generator)
        optimizer.zero_grad()
        sp.structured_nll(segment_scores(position(signal), width), structure, atoms).backward()
        optimizer.step()
    print(f"segments found exactly: {before:.0%} before, {share_found():.0%} after")
    return before, share_found()


if __name__ == "__main__":
    main()
