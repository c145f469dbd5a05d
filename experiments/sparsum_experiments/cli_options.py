"""What the commands can be told, with what their help says of it."""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer

from sparsum_experiments import registry

Experiment = Annotated[str, typer.Argument(help=f"One of {', '.join(registry.NAMES)}.")]
Method = Annotated[
    str,
    typer.Argument(
        help="How the sum over the latent variable is made: exactly over few assignments (sparse, entmax15, topk, "
        "topk-bound, sparsemap, sparsemap-budget) or over all (dense); by samples with a running mean (sfe), a second one "
        "(sfe-plus) or a network (nvil) as baseline, or by weighted ones (wake-wake); partly exactly (distinct-bound, "
        "sum-and-sample); relaxed (gumbel, st-gumbel, and for bits st-gumbel-mode, which is the paper's); in the signal "
        "game also with the 0/1 loss of a sampled answer (sfe-01, sfe-plus-01). "
        "A wrong one lists those of the experiment."
    ),
]
Data = Annotated[str | None, typer.Option(help="digits (comes with scikit-learn), mnist, fashion-mnist, or a folder.")]
DataDir = Annotated[str | None, typer.Option(help="Where the files of data sets are. [default: data]")]
ViewDataDir = Annotated[
    str | None, typer.Option(help="Where the data is, for what latent variables learned. [default: as each run was told]")
]
Epochs = Annotated[
    int | None, typer.Option(min=1, help="Passes over the data after the warm start. [default: the preset's]")
]
Seed = Annotated[int | None, typer.Option(help="Of the weights and all noise. [default: 0]")]
Rate = Annotated[float | None, typer.Option("--lr", min=0, help="Learning rate of Adam. [default: the method's preset]")]
BatchSize = Annotated[int | None, typer.Option(min=1, help="Examples per step. [default: the preset's]")]
Entropy = Annotated[
    float | None,
    typer.Option(
        help="signal-game: coefficient of the entropy bonus; bitvector-vae: weight of the entropy, 1 for the ELBO."
    ),
]
Decay = Annotated[float | None, typer.Option(min=0, help="Gumbel methods: r in the temperature max(0.5, exp(-r t)).")]
Every = Annotated[int | None, typer.Option(min=1, help="Gumbel methods: steps between changes of the temperature.")]
Bits = Annotated[int | None, typer.Option(min=1, help="bitvector-vae: the number of bits.")]
K = Annotated[
    int | None,
    typer.Option("--k", min=1, help="topk, topk-bound, distinct-bound, wake-wake, sum-and-sample: how many assignments."),
]
Budget = Annotated[int | None, typer.Option(min=1, help="sparsemap-budget: how many bits may be 1. [default: half of them]")]
Solver = Annotated[str | None, typer.Option(help="sparsemap: nested, systematic or active-set.")]
BitOrder = Annotated[str | None, typer.Option(help="sparsemap, solver systematic: fixed, random or sorted. [fixed]")]
ScoreTemperature = Annotated[float | None, typer.Option(help="bitvector-vae: what scores are divided by. [default: 1]")]
ScoreCentre = Annotated[
    str | None,
    typer.Option(help="bitvector-vae: none, or batch, to take away the mean score of each bit over a batch. [none]"),
]
WarmEpochs = Annotated[int | None, typer.Option(min=0, help="ssvae: epochs on labelled images first. [100; digits 10]")]
SymbolInit = Annotated[str | None, typer.Option(help="signal-game: normal or uniform. [Gumbel methods: uniform]")]
SenderTemperature = Annotated[float | None, typer.Option(help="signal-game: what the sender's scores are divided by. [10]")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or auto. [default: auto]")]
Precision = Annotated[str | None, typer.Option(help="32 or bf16-mixed; a GPU records steps in 32 alone. [default: 32]")]
Out = Annotated[pathlib.Path | None, typer.Option(help="Folder of the run. [default: runs/EXPERIMENT/...]")]
TunedBy = Annotated[
    pathlib.Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Each method takes the setting that was best on the validation data among the runs in or below FOLDER, "
        "those of an earlier sweep with --grid that agree with the options given here.",
    ),
]
By = Annotated[
    str | None,
    typer.Option(
        metavar="METRIC",
        help="What --tuned-by goes by. bitvector-vae: elbo, bound, or bits_per_dim_paper, bits_per_dim_proposal or "
        "bits_per_dim_annealed, as evaluate --split validation has measured them; ssvae: elbo, accuracy; signal-game: "
        "success, expected_success. [default: the first, or the bound that a method is trained by]",
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")]

Save = Annotated[float, typer.Option(min=0, help="How often to save in the middle of an epoch; a killed run loses no more.")]
