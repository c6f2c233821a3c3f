"""Measure the cost of maps of patching and attribution, next to TransformerLens.

On pairs of names and the default model: CPU seconds of this process, the median of interleaved
repeats, so that other work on the machine counts little.

- `forward`: one plain forward pass of all corrupted prompts together;
- `patch`: `interp.patch` of z of every head, the clean and the corrupted run included;
- `transformer_lens`: its `get_act_patch_attn_head_out_all_pos`, a pass for each head, on some heads
  of every layer: each costs the same, and their mean times the number of heads is what all cost;
- `attribution` and `integrated`: `interp.attribute` without the exact effects, with its 3 steps.
"""

import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import torch
import typer

import interp
from interp import command, files


def seconds(work: Callable[[], Any]) -> float:
    """CPU seconds of this process."""
    start = time.process_time()
    work()
    return time.process_time() - start


def measure(pairs: int, repeats: int) -> dict[str, Any]:
    """The record of one run."""
    from transformer_lens import patching

    model = interp.load_model()
    task = interp.tasks.ioi(model, pairs)
    metric = interp.logit_difference(task)
    clean, corrupted = (model.to_tokens(list(texts)) for texts in (task.clean, task.corrupted))
    some = [(layer, layer % model.n_heads) for layer in range(model.n_layers)]
    places = pd.DataFrame(some, columns=pd.Index(["layer", "head"]))
    right, wrong = (torch.tensor(ids)[:, None] for ids in (task.right_ids, task.wrong_ids))

    def difference(logits: torch.Tensor) -> torch.Tensor:
        return (logits[:, -1].gather(-1, right) - logits[:, -1].gather(-1, wrong)).mean()

    def forward() -> None:
        with torch.no_grad():
            model.plain(corrupted, use_cache=False)

    maps: dict[str, Any] = {}
    lens: list[Any] = []
    cache = model.bridge.run_with_cache(clean)[1]

    def transformer_lens() -> None:
        with torch.no_grad():
            lens.append(
                patching.generic_activation_patch(
                    model.bridge,
                    corrupted,
                    cache,
                    difference,
                    patching.layer_head_vector_patch_setter,
                    activation_name="z",
                    index_df=places,
                )
            )

    def attribution(method: str) -> None:
        maps[method] = interp.attribute(model, clean, corrupted, metric, method, top=0)

    ways: dict[str, Callable[[], Any]] = {
        "patch": lambda: maps.update(patch=interp.patch(model, clean, corrupted, metric)),
        "attribution": lambda: attribution("patching"),
        "integrated": lambda: attribution("integrated"),
        "transformer_lens": transformer_lens,
    }
    forward()
    taken: dict[str, list[float]] = {"forward": [], **{name: [] for name in ways}}
    for _ in range(repeats):
        for name, work in ways.items():
            taken["forward"] += [seconds(forward) for _ in range(3)]
            taken[name].append(seconds(work))
    medians = {name: statistics.median(each) for name, each in taken.items()}
    n_heads = model.n_layers * model.n_heads
    medians["transformer_lens"] *= n_heads / len(places)
    # Both give the same effects.
    low, high = maps["patch"].made_by["corrupted_mean"], maps["patch"].made_by["clean_mean"]
    theirs = (lens[0] - low) / (high - low)
    ours = maps["patch"].matrix().to_numpy()[tuple(places.to_numpy().T)]
    effects = pd.DataFrame({name: each.to_frame()["effect"] for name, each in maps.items()})
    return {
        "pairs": pairs,
        "tokens": clean.shape[1],
        "heads": n_heads,
        "seconds": medians,
        "patch_per_forward": medians["patch"] / (n_heads * medians["forward"]),
        "patch_per_transformer_lens": medians["patch"] / medians["transformer_lens"],
        "attribution_per_forward": medians["attribution"] / medians["forward"],
        "integrated_per_forward": medians["integrated"] / medians["forward"],
        "correlation_with_patch": effects.corr()["patch"].drop("patch").to_dict(),
        "largest_difference": float((theirs - torch.tensor(ours)).abs().max()),
    }


def main(
    out: Annotated[Path, typer.Option(help="File for the record, as JSON.")] = Path(
        "benchmarks/patching.json"
    ),
    pairs: Annotated[int, typer.Option(min=2, help="Pairs of prompts.")] = 8,
    repeats: Annotated[int, typer.Option(min=1, help="Repeats of each way.")] = 1,
) -> None:
    made_on = {"torch": torch.__version__, "threads": torch.get_num_threads()}
    made_on |= {"machine": platform.machine(), "python": platform.python_version()}
    with files.staged(out.parent) as scratch:
        record = {**measure(pairs, repeats), "repeats": repeats, **made_on}
        (scratch / out.name).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    typer.echo(json.dumps(record, indent=1))


if __name__ == "__main__":
    command.run(main)
