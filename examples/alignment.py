"""Learn the sounds of symbols from words and recordings that are not aligned.

A frame of a recording is the sound of one symbol of its word, with noise. The likelihood of a recording is a sum over all
monotone alignments, which `sparsum.Gibbs` over `sparsum.Alignment` computes exactly. Words differ in length.

Run it with ``python -m examples.alignment``; it takes about 5 seconds.
"""

from __future__ import annotations

import torch
from torch import Tensor

import sparsum as sp

N_SYMBOLS, N_TOKENS, N_FRAMES, N_WORDS = 6, 6, 20, 256


def recordings(sounds: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Words, (N_WORDS, N_TOKENS), noisy frames, (N_WORDS, N_FRAMES, 8), their lengths, and the true alignments."""
    words = torch.randint(N_SYMBOLS, (N_WORDS, N_TOKENS), generator=generator)
    n_tokens = torch.randint(4, N_TOKENS + 1, (N_WORDS,), generator=generator)
    lengths = torch.stack([n_tokens, 2 * n_tokens + torch.randint(9, (N_WORDS,), generator=generator)], -1)
    structure = sp.Alignment(N_TOKENS, N_FRAMES, lengths=lengths)
    truth = sp.Gibbs(torch.zeros(N_WORDS, N_TOKENS, N_FRAMES), structure).sample(generator=generator)
    frames = sounds[words.gather(1, truth)]
    return words, frames + 0.25 * torch.randn(frames.shape, generator=generator), lengths, truth


def main(n_steps: int = 150, seed: int = 0) -> tuple[float, float]:
    """Train, and return the share of frames that are aligned rightly, before and after."""
    generator = torch.Generator().manual_seed(seed)
    words, frames, lengths, truth = recordings(torch.eye(N_SYMBOLS, 8), generator)
    sound = torch.nn.Parameter(0.1 * torch.randn(N_SYMBOLS, 8, generator=generator))
    optimizer = torch.optim.Adam([sound], lr=0.03)
    is_frame = torch.arange(N_FRAMES) < lengths[:, 1:]

    def scores(batch: Tensor) -> Tensor:
        """The log-likelihood of each frame under each symbol of its word."""
        return -(sound[words[batch]].unsqueeze(2) - frames[batch].unsqueeze(1)).square().sum(-1) / (2 * 0.25**2)

    def accuracy() -> float:
        found = sp.Alignment(N_TOKENS, N_FRAMES, lengths=lengths).argmax(scores(torch.arange(N_WORDS)))
        return float((found == truth)[is_frame].double().mean())

    before = accuracy()
    for _ in range(n_steps):
        batch = torch.randint(N_WORDS, (32,), generator=generator)
        p = sp.Gibbs(scores(batch), sp.Alignment(N_TOKENS, N_FRAMES, lengths=lengths[batch]))
        optimizer.zero_grad()
        (-p.log_partition.mean()).backward()
        optimizer.step()
    after = accuracy()
    print(f"frames aligned rightly: {before:.0%} before, {after:.0%} after")
    return before, after


if __name__ == "__main__":
    main()
