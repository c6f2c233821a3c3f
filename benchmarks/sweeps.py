"""Measure sweeps: `python benchmarks/sweeps.py`; writes benchmarks/sweeps.json.

- **Overhead:** CPU seconds of a sweep over three checkpoints, and of loading and scanning the same
  models in a loop; the difference as a share of a unit of 5 s.
- **Memory:** resident memory after each of 100 checkpoints of a small model.
- **Onset:** circuits built by hand, interpolated from random weights to the complete circuit. The
  known onset is where a scan of 16 times as many rows is above its null; 100 runs with other
  circuits and rows find it.
- **Kills:** a sweep over 120 small checkpoints that is killed (SIGKILL) at 20 random moments and
  resumed, compared with sweeps of one process and of two that run through.
- **Many:** 400 small checkpoints in two processes: 8 paths of 50 from random weights to the learned
  model.
- **Callback:** CPU seconds of a `Trainer` with and without `ScanCallback`.
- **Matching:** the learned model with its heads shuffled, 25 times, on the same rows and on others.
"""

import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import torch
import transformers

import interp
from interp import files, models
from interp.circuits.learned import load_learned
from interp.circuits.training import Recipe, draw_rows
from interp.sweeps.callback import ScanCallback
from interp.sweeps.matching import match_heads
from interp.sweeps.trajectories import Trajectories

RECORD = Path(__file__).with_suffix(".json")
SHARES = [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1]


def gpt2(seed: int, **sizes: int) -> interp.Model:
    torch.manual_seed(seed)
    config = transformers.GPT2Config(bos_token_id=0, eos_token_id=0, **sizes)
    return interp.load_model(transformers.GPT2LMHeadModel(config))


def overhead(folder: Path) -> dict:
    for seed in range(3):
        sizes = {"n_layer": 8, "n_head": 8, "n_embd": 512, "vocab_size": 2000}
        models.save(gpt2(seed, **sizes), folder / "big" / f"checkpoint-{seed}")
    names = sorted((folder / "big").iterdir())
    settings = {"rows": 16}
    interp.scan_heads(interp.load_model(names[0]), **settings)  # Imports and first use.
    seconds: dict[str, list[float]] = {"loop": [], "sweep": []}
    for turn in range(3):
        begun = time.process_time()
        for name in names:
            interp.scan_heads(interp.load_model(name), **settings)
        seconds["loop"].append(time.process_time() - begun)
        begun = time.process_time()
        interp.sweep(names, out=folder / f"out{turn}", **settings)
        seconds["sweep"].append(time.process_time() - begun)
    loop, swept = (float(np.median(times)) / 3 for times in seconds.values())
    extra = swept - loop
    return {"unit_s": loop, "extra_s": extra, "share_of_5_s": extra / 5, "cpu_seconds": seconds}


def memory(folder: Path) -> dict:
    sizes = {"n_layer": 2, "n_head": 4, "n_embd": 256, "vocab_size": 2000, "n_positions": 64}
    for seed in range(100):
        models.save(gpt2(seed, **sizes), folder / "small" / f"checkpoint-{seed}")
    process, rss = psutil.Process(), []
    interp.sweep(
        folder / "small",
        out=folder / "out",
        rows=4,
        progress=lambda *_: rss.append(process.memory_info().rss / 2**20),
    )
    first, last = np.mean(rss[10:20]), np.mean(rss[-10:])
    return {"first_mb": first, "last_mb": last, "growth": last / first - 1, "checkpoints": 100}


def kills(folder: Path) -> dict:
    """Which files 20 killed and resumed sweeps write, next to those of sweeps that ran through.

    Each is killed up to 0.5 s after its first, second or third result; five have two processes.
    """
    sizes = {"n_layer": 2, "n_head": 4, "n_embd": 64, "vocab_size": 500, "n_positions": 64}
    for seed in range(120):
        models.save(gpt2(seed, **sizes), folder / "toys" / f"checkpoint-{seed}")

    def swept(out: str, processes: int | None) -> None:
        interp.sweep(folder / "toys", out=folder / out, processes=processes, rows=2)

    def parts(out: str) -> dict[Path, bytes]:
        found = (folder / out).glob("model=*/revision=*/*")
        return {f.relative_to(folder / out): f.read_bytes() for f in found if f.is_file()}

    swept("whole", None)
    swept("two", 2)
    generator, counts = random.Random(0), []
    for kill in range(20):
        enough = len(parts("killed")) + generator.randint(1, 3)
        if not (child := os.fork()):
            swept("killed", 2 if kill % 4 == 0 else None)
            os._exit(0)
        while len(parts("killed")) < enough:
            time.sleep(0.01)
        time.sleep(generator.uniform(0, 0.5))
        os.kill(child, signal.SIGKILL)
        assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
        counts.append(len(parts("killed")))
    swept("killed", None)
    whole = parts("whole")
    return {
        "units": len(whole),
        "kills": len(counts),
        "results_after_each": counts,
        "two_processes_same_bytes": parts("two") == whole,
        "killed_same_bytes": parts("killed") == whole,
    }


def many(folder: Path) -> dict:
    """Time of a sweep over 400 checkpoints in two processes."""
    learned = load_learned().plain
    end = learned.state_dict()
    for seed in range(8):
        torch.manual_seed(seed)
        start = {name: torch.randn_like(w) * w.std(correction=0) for name, w in end.items()}
        for step in range(50):
            path = folder / "many" / f"seed{seed}" / f"checkpoint-{step}"
            models.save(interp.load_model(between(learned, start, end, step / 49)), path)
    before, begun = os.times(), time.perf_counter()
    swept = interp.sweep(f"{folder}/many/*/checkpoint-*", out=folder / "out", processes=2)
    wall, after = time.perf_counter() - begun, os.times()
    cpu = sum(after[:4]) - sum(before[:4])
    done = int((swept.plan["state"] == "done").sum())
    return {"checkpoints": done, "processes": 2, "wall_s": wall, "cpu_s": cpu}


class Timed(ScanCallback):
    """Scans whose CPU seconds are added up."""

    cpu = 0.0

    def _scan(self, *args, **more) -> None:
        begun = time.process_time()
        super()._scan(*args, **more)
        self.cpu += time.process_time() - begun


def callback(folder: Path) -> dict:
    """CPU seconds of a training with and without scans, and those of the scans."""
    recipe = Recipe()
    rows = draw_rows(recipe, 4000, torch.Generator().manual_seed(0)).tokens
    data = [{"input_ids": row, "labels": row} for row in rows]
    seconds: dict[str, list[float]] = {"plain": [], "scanned": [], "scans": []}

    def trained(callbacks: list) -> tuple[float, list]:
        options = transformers.TrainingArguments(
            output_dir=str(folder),
            max_steps=500,
            per_device_train_batch_size=32,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        )
        model = models.attention_only(
            n_ids=129, n_ctx=65, d_model=64, n_heads=4, n_layers=2, seed=0
        )
        trainer = transformers.Trainer(model, options, callbacks=callbacks, train_dataset=data)
        begun = time.process_time()
        trainer.train()
        return time.process_time() - begun, [w.clone() for w in model.parameters()]

    for turn in range(3):
        scans = Timed(folder / f"scans{turn}", every=50)
        plain, before = trained([])
        scanned, after = trained([scans])
        assert all(torch.equal(*pair) for pair in zip(before, after))
        for name, value in zip(seconds, (plain, scanned, scans.cpu)):
            seconds[name].append(value)
    scans_s = np.array(seconds["scans"])
    a_scan = float(np.median(scans_s)) / len(scans.seconds)
    a_step = float(np.median(np.array(seconds["scanned"]) - scans_s)) / 500
    counts = {"steps": 500, "scans": len(scans.seconds), "steps_a_scan": a_scan / a_step}
    return {**counts, "a_step_s": a_step, "a_scan_s": a_scan, "cpu_seconds": seconds}


def between(plain, start: dict, end: dict, share: float):
    """A model with the weights at this share of the way from the start to the end."""
    other = type(plain)(plain.config)
    state = {n: (1 - share) * start[n] + share * w for n, w in end.items()}
    other.load_state_dict({n: w.to(end[n].dtype) for n, w in state.items()})
    return other.eval()


def onset(folder: Path) -> dict:
    """How many checkpoints the onset of 100 runs is from the known one."""
    off, known = [], []
    for circuit in range(10):
        built = interp.build_circuit("rotary", 32, 33, seed=circuit).plain
        torch.manual_seed(1000 + circuit)
        start = {name: torch.randn_like(w) * w.std() for name, w in built.state_dict().items()}
        path = [between(built, start, built.state_dict(), share) for share in SHARES]
        found = []
        for seed in range(11):
            out = folder / f"onset-{circuit}-{seed}"
            rows = {"rows": 128 if seed == 0 else 8, "seed": seed}
            swept = interp.sweep({"toy": path}, out=out, kinds="induction", **rows)
            onsets = Trajectories.of(swept.to_frame()).onsets()
            head = onsets[(onsets["kind"] == "induction") & (onsets["name"] == "L1H2")]
            found.append(int(head["onset"].iloc[0]) if len(head) else len(SHARES))
        known.append(found[0])
        off += [each - found[0] for each in found[1:]]
    within = float(np.mean(np.abs(off) <= 1))
    return {"runs": len(off), "within_one": within, "off": off, "known": known}


def shuffled(model: interp.Model, order: list[int], seed: int) -> interp.Model:
    """The model with the heads of each layer in this order."""
    plain = model.plain
    other, width = type(plain)(plain.config), plain.config.n_embd
    size = width // model.n_heads
    places = torch.cat([torch.arange(h * size, (h + 1) * size) for h in order])
    every = torch.cat([places + part * width for part in range(3)])
    state = dict(plain.state_dict())
    for name, weight in state.items():
        if "attn.c_attn" in name:
            state[name] = weight[..., every]
        elif "attn.c_proj.weight" in name:
            state[name] = weight[places]
    other.load_state_dict(state)
    return interp.load_model(other.eval(), name=f"shuffled {seed}")


def matching(_: Path) -> dict:
    """Share of the heads of the learned model that are matched with themselves."""
    model, right = load_learned(), {"same_rows": [], "other_rows": []}
    first = interp.scan_heads(model, rows=16).to_frame()
    for turn in range(25):
        order = torch.randperm(4, generator=torch.Generator().manual_seed(turn)).tolist()
        other = shuffled(model, order, turn)
        for seed, found in zip((0, turn + 1), right.values()):
            pairs = match_heads(
                first, interp.scan_heads(other, rows=16, seed=seed).to_frame(), draws=1
            ).frame
            found += [
                other == f"{name[:2]}H{order.index(int(name[3:]))}"
                for name, other in zip(pairs["name"], pairs["other"])
            ]
    shares = {name: float(np.mean(found)) for name, found in right.items()}
    return {"heads": len(right["same_rows"]), "right": shares}


if __name__ == "__main__":
    torch.set_num_threads(1)
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    with tempfile.TemporaryDirectory() as scratch:
        measures = (overhead, memory, onset, kills, many, callback, matching)
        parts = {measure.__name__: measure for measure in measures}
        for name in sys.argv[1:] or parts:
            measured = parts[name](Path(scratch) / name)
            record[name] = {**measured, "versions": files.versions(), "processors": os.cpu_count()}
            files.write_json(RECORD, record)
            print(name, {k: v for k, v in record[name].items() if k != "off"})  # noqa: T201
