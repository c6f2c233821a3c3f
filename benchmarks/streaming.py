"""Measure the cost of scoring all heads, next to the plain forward pass and to other tools.

For each length, on the default model and the same token ids, in one process and in turns: the
plain forward pass with the fused kernel, and the same pass with every head scored. For lengths
whose patterns fit in memory also TransformerLens' three head scores as documented (`detect_head`
on the text, one run per score), the same on one shared cache of patterns, and transformers'
`output_attentions=True`. Times are medians; memory is the peak above the loaded model, each in a
new process. `--no-peers` measures the first two times alone:
`--no-peers --lengths 128,256,512,1024 --repeats 5 --out ratios.json` takes about two minutes.
"""

import gc
import json
import math
import multiprocessing
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

import interp
from interp import command, files
from interp.kinds import probes as tokens
from interp.kinds.mass import Attention
from interp.kinds.scores import LayerScores, Thresholds, ask, score_layer
from interp.models.hooks import cheap_forward, run
from interp.models.stream import stream
from interp.scan.measure import asked_of
from interp.show import figures as plots

KINDS = ("previous_token_head", "duplicate_token_head", "induction_head")
PEER_LENGTHS = 2048
"""Longest prompt for tools that keep every pattern: a longer one needs over 24 GB."""


class Case:
    """Prompts of the default model, and every way to run them.

    The forward pass and the scan run 2,048 tokens at once, the others one prompt.
    """

    def __init__(self, length: int) -> None:
        self.model = interp.load_model()
        vocabulary, bos = self.model.vocabulary, self.model.bos
        self.rows = max(1, 2048 // length)  # As many as a scan runs at once.
        self.probe = tokens.repeated(vocabulary, rows=self.rows, length=length, bos=bos, seed=0)
        self.model.plain.set_attn_implementation("sdpa")

    def forward(self) -> None:
        """The plain forward pass: the fused kernel, no logits but the last, no cache."""
        with torch.no_grad():
            self.model.plain(self.probe.tokens, **cheap_forward(self.model.plain))

    def stream(self) -> dict[tuple[str, int], LayerScores]:
        """All six kinds for every head, before and after the first repeat, without patterns."""
        return self._score(stream)

    def hooks(self) -> dict[tuple[str, int], LayerScores]:
        """The same scores from patterns, one layer's at a time."""
        return self._score(run)

    def _score(self, read: Callable[..., None]) -> dict[tuple[str, int], LayerScores]:
        scores, thresholds = {}, Thresholds()
        questions = {
            part: ask(
                self.probe.tokens,
                counted=queries,
                special=self.model.special,
                thresholds=thresholds,
                kinds=asked_of(part),
                statistics=False,
            )
            for part, queries in self.probe.parts.items()
        }

        def score(layer: int, attention: Attention | torch.Tensor) -> None:
            for part, asked in questions.items():
                scores[part, layer] = score_layer(attention, asked, thresholds)

        read(self.model, self.probe.tokens, score)
        return scores

    def detect_heads(self) -> None:
        """TransformerLens' three scores as its documentation shows: one run for each."""
        from transformer_lens.head_detector import detect_head

        for kind in KINDS:
            detect_head(self.model.bridge, self._text(), kind)

    def detect_heads_shared(self) -> None:
        """The three scores on one cache that holds the patterns alone."""
        from transformer_lens.head_detector import detect_head

        text = self._text()
        _, cache = self.model.bridge.run_with_cache(
            text, names_filter=lambda name: name.endswith("hook_pattern"), remove_batch_dim=True
        )
        for kind in KINDS:
            detect_head(self.model.bridge, text, kind, cache=cache)

    def output_attentions(self) -> None:
        """Every pattern as transformers returns it; nothing is scored."""
        model = self.model.plain
        own = model.config._attn_implementation
        model.set_attn_implementation("eager")
        with torch.no_grad():
            model(self.probe.tokens[:1], output_attentions=True, **cheap_forward(model))
        model.set_attn_implementation(own)

    def _text(self) -> str:
        """A text of as many tokens, or a few less."""
        passages = " ".join(tokens.passages().values()) * 4
        ids = self.model.tokenizer(passages, add_special_tokens=False)["input_ids"]
        return self.model.tokenizer.decode(ids[: self.probe.tokens.shape[1] - 8])


def seconds(*calls: Callable[[], object], repeats: int) -> list[float]:
    """The median time of each call, run in turns after one warm-up."""
    times: list[list[float]] = [[] for _ in calls]
    for turn in range(repeats + 1):
        for call, taken in zip(calls, times):
            gc.collect()
            start = time.perf_counter()
            call()
            if turn:
                taken.append(time.perf_counter() - start)
    return [statistics.median(taken) for taken in times]


def _peak(length: int, way: str, pipe: Any) -> None:
    case = Case(length)
    with torch.no_grad():
        case.model.plain(case.probe.tokens[:1, :2])  # Weights are read from disk when first used.
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # Linux: forget the peak of loading.
    loaded = _kib("VmRSS")
    getattr(case, way)()
    pipe.send((_kib("VmHWM") - loaded) / 1024)


def _kib(name: str) -> int:
    """One of the sizes, in KiB, that Linux keeps of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise OSError(f"/proc/self/status has no {name}")


def peak_mb(length: int, way: str, repeats: int = 1) -> float:
    """Peak memory of one way above the loaded model, in MiB: the median of fresh processes."""
    return statistics.median(_peak_once(length, way) for _ in range(repeats))


def _peak_once(length: int, way: str) -> float:
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("spawn").Process(target=_peak, args=(length, way, theirs))
    child.start()
    theirs.close()
    try:
        return ours.recv()
    finally:
        child.join()


def largest_difference(case: Case) -> float:
    """Between the scores without and with patterns, over all kinds, heads and layers."""
    ours, theirs = case.stream(), case.hooks()
    return max(
        (tally.mean - theirs[place].tallies[kind].mean).nan_to_num().abs().max().item()
        for place, scores in ours.items()
        for kind, tally in scores.tallies.items()
    )


def measure(length: int, repeats: int, peers: bool) -> dict[str, Any]:
    """The record of one length: seconds for one prompt, and with `peers` peak memory in MiB."""
    case = Case(length)
    both = seconds(case.forward, case.stream, repeats=repeats)
    forward, streamed = (taken / case.rows for taken in both)
    record: dict[str, Any] = {
        "length": length,
        "forward_s": forward,
        "stream_s": streamed,
        "ratio": streamed / forward,
    }
    if not peers:
        return record
    if length <= PEER_LENGTHS:
        documented, shared, attentions = seconds(
            case.detect_heads,
            case.detect_heads_shared,
            case.output_attentions,
            repeats=1 if length > 1024 else 3,
        )
        record |= {
            "transformer_lens_s": documented,
            "transformer_lens_ratio": documented / streamed,
            "transformer_lens_shared_s": shared,
            "transformer_lens_shared_ratio": shared / streamed,
            "output_attentions_s": attentions,
            "max_difference": largest_difference(case),
        }
    del case
    forward_mb, stream_mb = (peak_mb(length, way, repeats=3) for way in ("forward", "stream"))
    record |= {
        "forward_memory_mb": forward_mb,
        "stream_memory_mb": stream_mb,
        "extra_memory_mb": max(0.0, stream_mb - forward_mb),
    }
    if length <= PEER_LENGTHS:
        record["transformer_lens_memory_mb"] = peak_mb(length, "detect_heads")
        record["transformer_lens_shared_memory_mb"] = peak_mb(length, "detect_heads_shared")
        record["output_attentions_memory_mb"] = peak_mb(length, "output_attentions")
    return record


def commit() -> str:
    """The commit that is measured; it ends in `-dirty` if files were changed since."""
    described = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    return subprocess.check_output(described, cwd=Path(__file__).parent, text=True).strip()


def growth(before: dict[str, Any], after: dict[str, Any]) -> dict[str, float]:
    """The exponent e of `size ~ length ** e` between two records, for each time and memory."""
    longer = math.log(after["length"] / before["length"])
    return {
        name: math.log(value / before[name]) / longer
        for name, value in after.items()
        if name.endswith(("_s", "_memory_mb")) and min(value, before.get(name, 0)) > 0
    }


def main(
    out: Annotated[Path, typer.Option(help="File for the records, as JSON.")] = Path(
        "benchmarks/streaming.json"
    ),
    lengths: Annotated[str, typer.Option(help="Tokens, comma-separated.")] = (
        "128,256,512,1024,2048,4096,8192"
    ),
    repeats: Annotated[int, typer.Option(min=1, help="Timed turns, after one warm-up.")] = 9,
    peers: Annotated[bool, typer.Option(help="Measure other tools, and memory, too.")] = True,
    figure: Annotated[Path | None, typer.Option(help="File of a figure of the records.")] = None,
) -> None:
    sizes = command.whole_numbers(lengths, name="--lengths", least=12)
    with files.staged(out.parent) as scratch:
        records = []
        for size in sizes:
            records.append(measure(size, repeats if size <= 4096 else min(repeats, 3), peers))
            records[-1]["growth"] = growth(*records[-2:]) if len(records) > 1 else {}
            command.show(json.dumps(records[-1]))
        made_on = {"torch": torch.__version__, "threads": torch.get_num_threads()}
        made_on |= {"machine": platform.machine(), "python": platform.python_version()}
        made_on["commit"] = commit()
        for record in records:
            record["made_on"] = made_on
        files.write_json(scratch / out.name, records)
    if figure is not None:
        with files.staged(figure.parent) as scratch:
            plots.save_figure(plots.cost_curves(records), scratch / figure.name)


if __name__ == "__main__":
    command.run(main)
