"""One training loop for all experiments, with resumption to the same bits.

Written by hand: no library resumes in the middle of an epoch with the same noise, nor captures steps of varying sizes.
"""

from __future__ import annotations

import math
import resource
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from lightning_fabric import Fabric
from torch import distributed
from torch.utils.tensorboard import SummaryWriter

from sparsum import NoDistribution
from sparsum_experiments.errors import DivergedError, Stopped, UsageError
from sparsum_experiments.experiment import AbstractExperiment
from sparsum_experiments.options import CommonArgs, config_digest
from sparsum_experiments.runs import RunFolder
from sparsum_experiments.seeds import generator_for, seed_for
from sparsum_experiments.training.epoch_log import EpochLog
from sparsum_experiments.training.joint_steps import JointSteps
from sparsum_experiments.training.progress import LiveLine
from sparsum_experiments.training.ranks import ALONE, Ranks
from sparsum_experiments.training.steps import steps_for

#: A run that is killed loses at most this much.
CHECKPOINT_SECONDS = 60.0
#: At the end of an epoch a run saves after this time already; not at every one, since epochs can take less than saving.
EPOCH_CHECKPOINT_SECONDS = 5.0
#: After how many steps in which no scores got a gradient the loop says so.
SATURATED_STEPS = 100
#: How often the loop looks at its measurements, which on a GPU waits for it.
LOOK_SECONDS = 1.0


@dataclass
class _Place:
    """How far a run is."""

    epoch: int = 0
    step: int = 0  # within the epoch
    best: float = -float("inf")
    seconds: float = 0.0  # of training, in all epochs before this one
    epoch_seconds: float = 0.0  # in this one


class Training:
    """A run of an experiment in its folder, from where it was."""

    def __init__(
        self,
        experiment: AbstractExperiment,
        folder: RunFolder,
        fabric: Fabric,
        line: LiveLine,
        checkpoint_seconds: float,
        ranks: Ranks = ALONE,
        until: int | None = None,
    ) -> None:
        self.experiment, self.folder, self.fabric, self.line = experiment, folder, fabric, line
        self.ranks = ranks
        self.checkpoint_seconds = checkpoint_seconds  # within an epoch; at its end, the run saves more often
        self.n_epochs = min(experiment.args.epochs, until or experiment.args.epochs)  # after which it ends or pauses
        self.place = _Place()
        self.steps = steps_for(experiment, fabric) if ranks.n == 1 else JointSteps(experiment, fabric, ranks)
        self.log = self._new_log()
        self._noise: torch.Tensor | None = None  # the generator's state within an epoch
        self._best: dict[str, Any] | None = None  # a checkpoint to be written with the next one
        self._saved_at = self._looked_at = time.monotonic()
        self._is_begun = False
        self._n_saturated, self._has_warned = 0, False  # steps in a row, and whether that was said

    def restore(self) -> None:
        """Continue where the run was, if it has a checkpoint; nothing is written unless everything fits."""
        file = self.folder.checkpoint_file("last")
        try:
            state = self.folder.load("last", self.fabric.device)
        except ValueError as error:
            raise ValueError(f"{error}; delete it to start from the beginning") from error
        if state is not None:
            check_config(self.folder, state, self.experiment.args)
            self._check_ranks(state)
            try:
                self._restore(state)
            except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
                raise ValueError(
                    f"{file} does not fit this run or this version; delete it to start from the beginning"
                ) from error
            self._is_begun = True
        elif n_lost := len(self.folder.metrics()):
            self.line.say(f"{file} is missing: training starts from the beginning, and epochs 1 to {n_lost} are run again")
        self.folder.keep_metrics(self.place.epoch)

    def run(self) -> list[dict[str, Any]]:
        """Train to the end; returns the metrics of all epochs."""
        place = {"its epoch": self.place.epoch, "its step": self.place.step}
        self.ranks.check_same("checkpoint, from a file system that they share", place)
        if not self._is_begun:
            try:
                self.ranks.together(lambda: self.experiment.start(self.line.say))
            except KeyboardInterrupt:  # it starts again when the run is resumed
                raise Stopped(f"stopped before the first step of {self.folder.path}", self.folder.path) from None
        if self.place.epoch >= self.n_epochs:
            self.line.say(f"already finished after {self.place.epoch} epochs; give more --epochs to continue")
            return self.folder.metrics()
        if self.ranks.n > 1:
            self._begin_together()
        with _stop_requests() as requests, self._scalars() as writer:
            while self.place.epoch < self.n_epochs:
                with self.steps.epoch():
                    self._train_epoch(requests)
                line = self._end_epoch()
                if writer is not None:
                    _write_scalars(writer, line)
        return self.folder.metrics()

    def _begin_together(self) -> None:
        """Give all ranks the weights of rank 0, since a warm start or a checkpoint came after the model was made."""
        if self.fabric.device.type == "cuda":
            self.line.say("with several devices, steps are not captured as CUDA graphs")
        for tensor in self.experiment.model.state_dict().values():
            distributed.broadcast(tensor, 0)

    def _scalars(self) -> AbstractContextManager[SummaryWriter | None]:
        if not self.ranks.is_first:
            return nullcontext()
        return SummaryWriter(str(self.folder.path / "tensorboard"), purge_step=self.place.epoch)

    def _train_epoch(self, requests: list[int]) -> None:
        """Take the steps of an epoch that are left."""
        experiment, place = self.experiment, self.place
        generator = self.steps.generator.manual_seed(seed_for(experiment.args.seed, "epoch", place.epoch))
        order = experiment.start_epoch(generator)  # the same on all ranks
        if not self.ranks.is_first:  # whose noise is that of a training in one process
            generator.manual_seed(seed_for(experiment.args.seed, "epoch", place.epoch, "rank", self.ranks.rank))
        if self._noise is not None:
            generator.set_state(self._noise)
            self._noise = None
        self.steps.model.train()
        begin = time.monotonic() - place.epoch_seconds
        for i in range(place.step, experiment.n_steps):
            try:
                self.log.add(i, self.steps.take(order, i))
            except NoDistribution as error:  # estimators refuse the scores of a diverged model before there is a loss
                self._raise_diverged(f"at step {self._n_steps_done() + 1} the scores became NaN or infinite: {error}")
            place.step, place.epoch_seconds = i + 1, time.monotonic() - begin
            self._look(generator, is_stopping=bool(requests))
        self._check()
        if self.fabric.device.type == "cuda":
            torch.cuda.synchronize(self.fabric.device)
        place.epoch_seconds = time.monotonic() - begin

    def _look(self, generator: torch.Generator, *, is_stopping: bool) -> None:
        """Now and then show progress, check the loss, and save."""
        now = time.monotonic()
        is_stopping, is_saving, is_looking = self.ranks.any(  # clocks and signals differ
            is_stopping, now - self._saved_at > self.checkpoint_seconds, now - self._looked_at > LOOK_SECONDS
        )
        if not (is_stopping or self.fabric.device.type == "cpu" or is_looking):
            return
        self._check()
        if is_stopping or is_saving:
            self._save(generator)
        if is_stopping:
            self.ranks.wait()  # a launcher kills all once one has ended
            raise Stopped(f"stopped after step {self._n_steps_done()}; saved in {self.folder.path}", self.folder.path)
        if is_looking:
            self._looked_at = now
            self._show()

    def _check(self) -> None:
        """Stop a run whose loss became NaN or infinite; its checkpoint dates from before."""
        if problem := self.log.problem(self.place.step, self.place.epoch * self.experiment.n_steps):
            self._raise_diverged(problem)

    def _raise_diverged(self, what: str) -> NoReturn:
        self._save_best()
        file = self.folder.checkpoint_file("last")
        where = f"the last good checkpoint is {file}" if file.exists() else "there is no checkpoint yet"
        raise DivergedError(f"{what}; {where}; a smaller --lr may help") from None

    def _n_steps_done(self) -> int:
        return self.place.epoch * self.experiment.n_steps + self.place.step

    def _show(self) -> None:
        place, n_all = self.place, self.n_epochs * self.experiment.n_steps
        done = self._n_steps_done() / n_all
        loss, calls = self.log.recent(place.step)
        left = (place.seconds + place.epoch_seconds) / done * (1 - done)
        self.line.step(place.epoch, done, loss, calls, left)
        self.folder.write_progress(
            {"epoch": place.epoch, "done": done, "loss": loss, "calls": calls, "seconds_left": left, "time": time.time()}
        )

    def _end_epoch(self) -> dict[str, Any]:
        """Validate, write metrics and checkpoints, and go to the next epoch."""
        experiment, place = self.experiment, self.place
        begin = time.monotonic()
        experiment.model.eval()
        generator = generator_for(self.fabric.device, experiment.args.seed, "validation")
        try:
            with self.fabric.autocast(), torch.no_grad():
                validation = experiment.validate(generator)
        except NoDistribution as error:
            self._raise_diverged(f"after epoch {place.epoch + 1} the scores became NaN or infinite: {error}")
        if wrong := [f"{name} = {value}" for name, value in validation.items() if not math.isfinite(value)]:
            self._raise_diverged(f"after epoch {place.epoch + 1} the metrics became NaN or infinite: {', '.join(wrong)}")
        train, calls = self.log.summary()
        train |= self._saturation()
        line = {
            "epoch": place.epoch,
            "step": (place.epoch + 1) * experiment.n_steps,
            "train": train,
            "validation": validation,
            "calls": calls,
            "seconds": round(place.epoch_seconds, 3),
            "validation_seconds": round(time.monotonic() - begin, 3),
            "peak_memory_mb": round(_peak_memory_mb(self.fabric.device), 1),
        }
        self.folder.add_metrics(line)
        score = validation[experiment.criterion_of(experiment.args.method)]
        is_best = score > place.best
        self.place = _Place(epoch=place.epoch + 1, best=max(place.best, score), seconds=place.seconds + place.epoch_seconds)
        self.log = self._new_log()
        if is_best:
            weights = {name: tensor.clone() for name, tensor in experiment.model.state_dict().items()}
            self._best = {"model": weights, "epoch": line["epoch"], "config": config_digest(experiment.args)}
        wait = min(self.checkpoint_seconds, EPOCH_CHECKPOINT_SECONDS)
        is_last = self.place.epoch >= self.n_epochs
        if any(self.ranks.any(is_last or time.monotonic() - self._saved_at >= wait)):
            self._save(None)
        self.line.epoch(line)
        return line

    def _saturation(self) -> dict[str, float]:
        """The share of examples whose scores got no gradient in this epoch; say once if these were all for many steps."""
        if not self.experiment.is_sparse_sum:
            return {}
        share, n_last = self.log.saturation()
        self._n_saturated = n_last + (self._n_saturated if n_last == self.log.n_steps else 0)
        if self._n_saturated >= SATURATED_STEPS and not self._has_warned:
            self._has_warned = True
            self.line.say(
                f"in the last {self._n_saturated} steps every example had a single assignment with mass, so that its scores "
                f"got no gradient: a smaller --lr{self.experiment.remedy} may help"
            )
        return {"saturation": share}

    def _new_log(self) -> EpochLog:
        return EpochLog(self.experiment.n_steps, self.experiment.n_calls_per_step, self.fabric.device)

    def _save(self, generator: torch.Generator | None) -> None:
        """Write the last checkpoint; within an epoch with its noise and measurements.

        A step with a finite loss may still have made weights NaN or infinite; then the earlier checkpoint stays.
        """
        for name, weights in self.experiment.model.state_dict().items():
            if weights.is_floating_point() and not bool(weights.isfinite().all()):
                self._raise_diverged(f"after step {self._n_steps_done()} the weights {name} became NaN or infinite")
        state: dict[str, Any] = {
            "model": self.experiment.model.state_dict(),
            "optimiser": self.steps.optimiser.state_dict(),
            "place": vars(self.place),
            "config": config_digest(self.experiment.args),
        }
        if generator is not None:
            noise = self.ranks.gather(generator.get_state())
            state |= {"noise": noise[0] if self.ranks.n == 1 else noise, "epoch_log": self.log.state()}
        self._save_best()
        self.folder.save("last", state)
        self._saved_at = time.monotonic()

    def _save_best(self) -> None:
        """Write the best checkpoint, if there is a newer one than that on disk."""
        if self._best is not None:
            self.folder.save("best", self._best)
            self._best = None

    def _check_ranks(self, state: dict[str, Any]) -> None:
        """Raise a UsageError if a checkpoint within an epoch has the noise of another number of ranks."""
        if "noise" in state and (n := len(_noises(state))) != self.ranks.n:
            raise UsageError(
                f"{self.folder.path} stopped within an epoch of {n} process{'es' * (n > 1)}, each with noise of its own, "
                f"and cannot continue it with {self.ranks.n}: continue with as many, to the end of this epoch at least "
                f"(--until {state['place']['epoch'] + 1})"
            )

    def _restore(self, state: dict[str, Any]) -> None:
        """Take over a checkpoint; an error of any kind means that it does not fit."""
        self.experiment.model.load_state_dict(state["model"])
        self.steps.optimiser.load_state_dict(state["optimiser"])
        for group in self.steps.optimiser.param_groups:  # it may come from another device
            group["capturable"] = self.fabric.device.type == "cuda"
        self.place = place = _Place(**state["place"])
        if (
            not all(type(count) is int and count >= 0 for count in (place.epoch, place.step))
            or place.step > self.log.n_steps
        ):
            raise ValueError("epoch and step must be counts")
        place.best, place.seconds, place.epoch_seconds = map(float, (place.best, place.seconds, place.epoch_seconds))
        if place.step:
            self.log.restore(state["epoch_log"])
            self._noise = _noises(state)[self.ranks.rank].cpu()
            torch.Generator(self.fabric.device).set_state(self._noise)  # raises if it is not a state


def _noises(state: dict[str, Any]) -> list[torch.Tensor]:
    """The states of the generators of all ranks in a checkpoint within an epoch."""
    noise = state["noise"]
    return noise if isinstance(noise, list) else [noise]


def check_config(folder: RunFolder, state: dict[str, Any], args: CommonArgs) -> None:
    """Raise a ValueError if the config of a run is not that of its checkpoint."""
    if state.get("config", digest := config_digest(args)) != digest:
        raise ValueError(f"{folder.config_file} was edited since the checkpoint was written: undo the change")


@contextmanager
def _stop_requests() -> Iterator[list[int]]:
    """A list that receives the first Ctrl-C, SIGTERM or SIGHUP; a second one stops at once."""
    requests: list[int] = []

    def note(number: int, _: object) -> None:
        if requests:
            raise KeyboardInterrupt
        requests.append(number)
        sys.stderr.write("\nstopping after this step; press again to stop at once\n")

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # which nohup asks for
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield requests
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _peak_memory_mb(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale / 2**20


def _write_scalars(writer: SummaryWriter, line: dict[str, Any]) -> None:
    for part in ("train", "validation", "calls"):
        for name, value in line[part].items():
            writer.add_scalar(f"{part}/{name}", value, line["epoch"])
    writer.add_scalar("seconds", line["seconds"], line["epoch"])
    writer.flush()
