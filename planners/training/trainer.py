"""Trainer of planner-tiny: optimiser steps over batches of rollouts, a curriculum, and checkpoints to resume from."""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn import functional as F

from keep_agent.errors import ModelError, check_rate
from keep_agent.files import read_json
from keep_agent.options import usable_device
from planners.tiny.checkpoint import new_checkpoint, read_tensors, weights_hash
from planners.training.batches import BatchSource
from planners.training.forward import Exactness, exactness, faster_precision, forward
from planners.training.lessons import lesson_files
from planners.training.optimizers import Optimizers
from planners.training.options import exit_codes
from planners.training.packed_attention import PackedBatch
from planners.training.parallel import SINGLE_PROCESS, ProcessGroup
from planners.training.rollout_files import rollout_files
from planners.training.run_start import MASTER_WEIGHTS, RunStart, load_trained, start_run

STATE = "optimizer.safetensors"  # file of the optimisers' state
AVERAGE = "average.safetensors"  # file of the float32 running mean of the weights


@dataclass(frozen=True, slots=True)
class BatchResult:
    """Result of one batch: mean loss, norm of the step's gradient before clipping, count of exactly predicted lines."""

    loss: float
    norm: float
    exactness: Exactness


class Trainer:
    """Training run in a folder; weights, optimiser state and progress are saved together."""

    def __init__(self, args: argparse.Namespace, group: ProcessGroup = SINGLE_PROCESS) -> None:
        check_rate(args.lr)
        self.args, self.group = args, group
        self.device = usable_device("--device", args.device)
        self.out = Path(args.out)
        data = Path(args.data)
        files, lessons = rollout_files(data), lesson_files(data)
        self.start = start = self._start(files, lessons)
        self.model, self.progress, self.checkpoint = start.model, start.progress, start.checkpoint
        self.levels = start.curriculum.levels
        self.calls = [*start.calls, self._call(data)]
        self.model.to(self.device).train()
        self.trained = {name: value for name, value in self.model.named_parameters() if value.requires_grad}
        self.precision = self._precision()
        self.optimizers = Optimizers(self.model, args.optimizer, args.lr)
        if self.checkpoint:
            self.optimizers.load(read_tensors(self.checkpoint / STATE))
        self.average = {name: value.detach().clone() for name, value in self.trained.items()}  # running mean
        if self.checkpoint and (file := self.checkpoint / AVERAGE).exists():
            load_trained(self.average, read_tensors(file), file)
        self.source = BatchSource(
            files, start.encode, start.bos, start.pad, args.batch_tokens,
            args.seed + self.progress.step + 7919 * group.rank, self.progress.level, args.transcript,
            lessons, args.apart, args.frozen, args.goals, start.curriculum,
        )  # fmt: skip

    def _start(self, files: Sequence[Path], lessons: Sequence[Path]) -> RunStart:
        if not self.args.base:
            return start_run(self.args, files, lessons)
        from planners.training.adapter_start import start_adapter  # lazy: only adapters need peft

        return start_adapter(self.args)

    def _call(self, data: Path) -> dict:
        """Return the record of this call: its settings, the shape of the model, and the data."""
        settings = {key: value for key, value in vars(self.args).items() if key not in ("data", "out", "init")}
        origin = [read_json(path) for path in sorted(data.glob("*.json"))]
        call = {"from_step": self.progress.step, "args": settings | self.start.shape(), "data": origin}
        call["curriculum"] = self.start.curriculum.record()
        if self.args.init and not self.checkpoint:
            call["init"] = weights_hash(Path(self.args.init), self.start.weights)
        return call

    def _precision(self) -> torch.dtype:
        """Return the precision, which the leading process chooses for all."""
        option = self.args.precision
        dtype = faster_precision(self.device) if option == "auto" else getattr(torch, option)
        (half,) = self.group.broadcast(int(dtype is torch.bfloat16))
        return torch.bfloat16 if half else torch.float32

    def save(self) -> None:
        """Write a checkpoint: the running mean in bf16 and float32, the weights, and the optimiser's state."""
        history = {"calls": self.calls, "progress": vars(self.progress)}
        master, average = _on_host(self.trained), _on_host(self.average)
        more = {MASTER_WEIGHTS: master, AVERAGE: average, STATE: self.optimizers.state()}
        with new_checkpoint(self.out, self.progress.step) as folder:
            self.start.write(folder, average, history, more)

    def rate(self, share: float, steps: int) -> float:
        """Return the learning rate after a ``share`` of this call's time and ``steps`` steps of this call.

        The rate warms up (faster after a resume), stays constant, then falls to 2 % over the last ``--decay`` share.
        """
        warm = min(1.0, (steps + 1) / min(self.args.warmup, 20 if self.checkpoint else self.args.warmup))
        decay = self.args.decay
        tail = 1.0 if share < 1 - decay else max(0.02, (1 - share) / decay)
        return self.args.lr * warm * tail

    def run(self) -> None:
        start, steps = time.time(), 0
        last_report = last_save = start
        base = self.progress.seconds
        window: list[BatchResult] = []
        budget = self.args.minutes * 60
        while (elapsed := self._elapsed(time.time() - start, steps)) is not None:
            self.optimizers.set_rate(self.rate(elapsed / budget, steps))
            batches = [self.source.next() for _ in range(max(1, self.args.accumulate // self.group.size))]
            window += (outcomes := self._step([batch.to(self.device) for _, batch in batches]))
            for (level, _), outcome in zip(batches, outcomes, strict=True):
                self._advance(level, outcome.exactness)
            steps += 1
            self.progress.seconds = base + time.time() - start
            if self.group.is_leader and time.time() - last_report > self.args.report:
                self._report(window)
                window, last_report = [], time.time()
            if self.group.is_leader and time.time() - last_save > self.args.save:
                self.save()
                last_save = time.time()
        if self.group.is_leader:
            self._report(window)
            self.save()

    def _elapsed(self, elapsed: float, steps: int) -> float | None:
        """Return the seconds so far, or None after the last step. One process decides for all, since clocks differ."""
        more = elapsed < self.args.minutes * 60 and steps != self.args.steps
        more, ms, self.source.level = self.group.broadcast(int(more), int(1e3 * elapsed), self.source.level)
        return ms / 1e3 if more else None

    def close(self) -> None:
        """Stop the thread that packs batches."""
        self.source.close()

    def _step(self, batches: Sequence[PackedBatch]) -> list[BatchResult]:
        """Take one optimiser step on the mean loss of the batches."""
        results = []
        for batch in batches:
            logits, labels, rows = forward(self.model, batch, self.precision)
            loss = F.cross_entropy(logits, labels)
            (loss / len(batches)).backward()
            results.append((loss.item(), exactness(logits.detach(), labels, rows, batch)))
            self.progress.tokens += batch.ids.numel() * self.group.size
        self.group.average(self.trained.values())
        norm = torch.nn.utils.clip_grad_norm_(self.trained.values(), 0.5).item()
        if not math.isfinite(norm):
            raise ModelError(
                f"the gradient of step {self.progress.step + 1} is not finite in {self.precision}; go on from the last "
                "checkpoint with --precision float32, or a lower --lr"
            )
        self.optimizers.step()
        self.progress.step += 1
        if self.group.is_leader:
            self._update_average()
        return [BatchResult(loss, norm, exact) for loss, exact in results]

    @torch.no_grad()
    def _update_average(self) -> None:
        """Move the running mean towards the weights; in the first steps it is the plain mean of all weights so far."""
        share = max(1 - self.args.average, 1 / (self.progress.step + 1))
        for name, mean in self.average.items():
            mean.lerp_(self.trained[name], share)

    def _advance(self, level: int, exact: Exactness) -> None:
        """Update the running accuracy; begin the next level once it passes the mark. Only the leader does this."""
        progress, judge = self.progress, self.levels[level].judged_kind
        if (
            not self.group.is_leader
            or level != progress.level
            or level + 1 == len(self.levels)
            or not exact.total[judge]
        ):
            return
        progress.mark = 0.95 * progress.mark + 0.05 * exact.rate(judge)
        if progress.mark > self.levels[level].pass_mark:
            progress.level, progress.mark = level + 1, 0.3
            self.source.level = progress.level
            print(f"-- level {progress.level} at step {progress.step}, {progress.seconds:.0f} s", flush=True)

    def _report(self, window: Sequence[BatchResult]) -> None:
        if not window:
            return
        progress, exact = self.progress, sum((outcome.exactness for outcome in window), Exactness())
        row: dict = {"step": progress.step, "seconds": round(progress.seconds), "tokens": progress.tokens}
        means = {key: sum(getattr(outcome, key) for outcome in window) / len(window) for key in ("loss", "norm")}
        means |= {f"exact_{kind}": exact.rate(kind) for kind in sorted(exact.total)}
        row |= {"level": progress.level} | {key: round(value, 4) for key, value in means.items()}
        progress.curve.append(row)
        print(json.dumps(row), flush=True)


def _on_host(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def train(group: ProcessGroup, args: argparse.Namespace) -> None:
    """Run the training in one process."""
    if args.threads or group.size > 1:
        torch.set_num_threads(args.threads or max(1, (os.cpu_count() or 1) // group.size))
    with exit_codes(), closing(Trainer(args, group)) as trainer:
        trainer.run()
