"""Measure the cost of Q-, K- and V-composition of all pairs of heads, next to TransformerLens.

Each way runs on the default model in a new process with limited memory, and reports seconds and
the peak above the loaded model, or the reason of its failure:

- `interp`: scores and z of all three kinds, norms folded, with the self-test of the weights;
- `interp_stored`: the same on the stored weights, which TransformerLens uses;
- `transformer_lens`: its `all_composition_scores`, three times; no z;
- `transformer_lens_by_layer`: its `composition_scores` on one later layer at a time, which a user
  would write to save memory.
"""

import gc
import json
import multiprocessing
import platform
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from einops import repeat
from torch import Tensor

import interp
from interp import command, files
from interp.weights.composition import KINDS
from interp.weights.folded import composition_scores

Scores = dict[str, Tensor]


def ours(model: interp.Model, *, fold: bool = True) -> Scores:
    """Scores by kind, computed together with z."""
    found = composition_scores(model, fold=fold)
    return {kind: found.scores(kind) for kind in KINDS}


def ours_stored(model: interp.Model) -> Scores:
    """The same with norms left out."""
    return ours(model, fold=False)


def all_at_once(model: interp.Model) -> Scores:
    """As TransformerLens documents it."""
    with torch.no_grad():
        return {kind: model.bridge.all_composition_scores(kind).scores for kind in KINDS}


def by_layer(model: interp.Model) -> Scores:
    """TransformerLens' scores of two factored matrices, one later layer at a time."""
    from transformer_lens import FactoredMatrix
    from transformer_lens.utilities.matrix import composition_scores

    group = model.n_heads // len(model.bridge.blocks[0].attn.W_K)

    def stacked(name: str, times: int) -> Tensor:
        weights = torch.stack([getattr(block.attn, name) for block in model.bridge.blocks])
        return repeat(weights, "layer kv d e -> layer (kv g) d e", g=times).detach()

    W_Q, W_O = (stacked(name, 1) for name in ("W_Q", "W_O"))
    W_K, W_V = (stacked(name, group) for name in ("W_K", "W_V"))
    scores = {}
    for kind in KINDS:
        left, right = {"Q": (W_Q, W_K.mT), "K": (W_K, W_Q.mT), "V": (W_V, W_O)}[kind]
        scores[kind] = W_V.new_zeros((model.n_layers, model.n_heads) * 2)
        for later in range(1, model.n_layers):
            written = FactoredMatrix(W_V[:later], W_O[:later])
            read = FactoredMatrix(left[later : later + 1], right[later : later + 1])
            scores[kind][:later, :, later] = composition_scores(written, read)[:, :, 0]
    return scores


WAYS: dict[str, Callable[[interp.Model], Scores]] = {
    "interp": ours,
    "interp_stored": ours_stored,
    "transformer_lens": all_at_once,
    "transformer_lens_by_layer": by_layer,
}


def _child(way: str, limit_gib: float, pipe: Any) -> None:
    model = interp.load_model()
    with torch.no_grad():
        model.plain(model.vocabulary[:2][None])  # Weights are read from disk when first used.
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # Linux: forget the peak of loading.
    loaded = _kib("VmRSS")
    limit = int(limit_gib * 2**30) + _kib("VmSize") * 1024
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    start = time.perf_counter()
    try:
        scores = WAYS[way](model)
    except Exception as error:
        pipe.send({"failed": f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"})
        return
    taken = time.perf_counter() - start
    peak = (_kib("VmHWM") - loaded) / 1024
    pipe.send(
        {
            "seconds": taken,
            "peak_mb": peak,
            # As numbers: a tensor would be shared through a file that ends with this process.
            "scores": {kind: all_pairs.flatten().tolist() for kind, all_pairs in scores.items()},
        }
    )


def _kib(name: str) -> int:
    """One of the sizes, in KiB, that Linux keeps of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise OSError(f"/proc/self/status has no {name}")


def once(way: str, limit_gib: float) -> dict[str, Any]:
    """Seconds, peak MiB above the loaded model and scores of a fresh process; or `failed`."""
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("spawn").Process(
        target=_child, args=(way, limit_gib, theirs)
    )
    child.start()
    theirs.close()
    try:
        return ours.recv()
    except EOFError:
        child.join()
        return {"failed": f"the process ended with code {child.exitcode}"}
    finally:
        child.join()


def measure(way: str, repeats: int, limit_gib: float) -> tuple[dict[str, Any], Any]:
    """The record of one way, medians of fresh processes, and its scores if it has any."""
    runs = [once(way, limit_gib)]
    while "failed" not in runs[0] and len(runs) < repeats:
        runs.append(once(way, limit_gib))
    if failed := [run["failed"] for run in runs if "failed" in run]:
        return {"way": way, "limit_gib": limit_gib, "failed": failed[0]}, None
    record = {name: statistics.median(run[name] for run in runs) for name in ("seconds", "peak_mb")}
    return {"way": way, "repeats": repeats, **record}, runs[0]["scores"]


def apart(ours: dict[str, list[float]], theirs: dict[str, list[float]]) -> float:
    """Largest difference of two ways' scores; entries without a pair are NaN here and 0 there."""
    return max(
        (torch.tensor(ours[kind]).nan_to_num() - torch.tensor(theirs[kind])).abs().max().item()
        for kind in KINDS
    )


def main(
    out: Annotated[Path, typer.Option(help="File for the records, as JSON.")] = Path(
        "benchmarks/composition.json"
    ),
    repeats: Annotated[int, typer.Option(min=1, help="Processes for each way.")] = 3,
    limit: Annotated[
        float, typer.Option(min=0.1, help="GiB that a process may take above the loaded model.")
    ] = 12,
) -> None:
    made_on = {"torch": torch.__version__, "threads": torch.get_num_threads()}
    made_on |= {"machine": platform.machine(), "python": platform.python_version()}
    with files.staged(out.parent) as scratch:
        records, stored = [], None
        for way in WAYS:
            record, scores = measure(way, repeats, limit)
            if way == "interp_stored":
                stored = scores
            elif way.startswith("transformer_lens") and scores and stored:
                record["max_difference"] = apart(stored, scores)
            records.append({**record, "made_on": made_on})
            command.show(json.dumps(records[-1]))
        files.write_json(scratch / out.name, records)


if __name__ == "__main__":
    command.run(main)
