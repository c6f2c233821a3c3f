"""Measure sweeps: `python benchmarks/sweeps.py`; writes benchmarks/sweeps.json.

- **Overhead:** CPU seconds of a sweep over three checkpoints, and of loading and scanning the same
  models in a loop; the difference as a share of a unit of 5 s.
- **Memory:** resident memory after each of 100 checkpoints of a small model.
- **Onset:** circuits built by hand, interpolated from random weights to the complete circuit. The
  known onset is where a scan of 16 times as many rows is above its null; 100 runs with other
  circuits and rows find it.
- **Matching:** the learned model with its heads shuffled, 25 times, on the same rows and on others.
"""

import json
import os
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


def matching() -> dict:
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
        parts = {"overhead": overhead, "memory": memory, "onset": onset}
        for name in sys.argv[1:] or [*parts, "matching"]:
            measured = matching() if name == "matching" else parts[name](Path(scratch))
            record[name] = {**measured, "versions": files.versions(), "processors": os.cpu_count()}
            files.write_json(RECORD, record)
            print(name, {k: v for k, v in record[name].items() if k != "off"})  # noqa: T201
