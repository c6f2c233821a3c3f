"""Measure what a language model loses when its key-value cache drops the first tokens.

Runs each row of text with the whole cache (full), with the last SIZE tokens (window), with the
first KEPT and the last SIZE - KEPT (sink_window, positions counted in the cache), with other early
tokens instead (other_window), and with the cache of only one label's heads cut. Writes
sink_experiment.json, with losses in nats, and a figure to the folder OUT.

Examples:
    interp sinks --scan results/heads.json
    interp sinks --model gpt2 --size 256 --kept 1
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from interp import command


def main(
    source: command.Source,
    drawing: command.Drawing,
    out: Annotated[
        Path, typer.Option(help="Folder for sink_experiment.json and the figure.")
    ] = Path("results"),
    scan: command.HeadTable = None,
    size: Annotated[int, typer.Option(min=2, help="Tokens in the cut cache.")] = 128,
    kept: Annotated[int, typer.Option(min=1, help="First tokens that stay in it.")] = 4,
    length: Annotated[int, typer.Option(min=5, help="Tokens in a row of text.")] = 384,
    rows: Annotated[int, typer.Option(min=2, help="Maximum number of rows of text.")] = 6,
    seed: Annotated[int, typer.Option(min=0, help="Random seed of the scan, if one is made.")] = 0,
) -> None:
    import interp
    from interp import files
    from interp.effects import sink_experiment, windowed
    from interp.models import load
    from interp.show import figures as plots

    context = load.context_of(source.model)
    sink_experiment.check_sizes(size=size, kept=kept, length=length, context=context)
    with command.about("--scan"):
        table = None if scan is None else interp.HeadScan.load(scan)
    with files.staged(out) as scratch, command.progress(f"loading {source.model}") as step:
        opened = load.load_for(out, **vars(source))
        windowed.check(opened, length)  # Before the scan, which takes longer.
        if table is None:
            step(f"scanning {opened.name}")
            table = interp.scan_heads(opened, seed=seed, progress=step.advance)
        step("cutting the cache")
        result = sink_experiment.sink_experiment(
            opened, table, size=size, kept=kept, length=length, rows=rows, progress=step.advance
        )
        result.save(scratch / "sink_experiment.json")
        step("drawing")
        plots.save_figures({"sink_experiment": plots.sink_losses(result)}, scratch, drawing.formats)
        written = sorted(path.name for path in scratch.iterdir())
    command.show(*_lines(result), f"wrote {', '.join(written)} to {out}", result=result)


def _lines(result: Mapping[str, Any]) -> Iterator[str]:
    made_by = result["made_by"]
    yield (
        f"{made_by['model']}, {made_by['rows']} rows of {made_by['length']} tokens of text,"
        f" queries from {result['counted_from']} on, nats per token"
    )
    yield f"{'cache':<42} loss  [95 % interval]    more than full"
    for name, words in result["caches"].items():
        low, high = result["loss_interval"][name]
        yield (
            f"{words:<42} {result['loss'][name]:.2f}  [{low:.2f}, {high:.2f}]"
            f"     {result['cost'][name]:+.2f}"
        )
    yield result["verdict"]
    yield "\nonly the heads of one label cut: attention on the first tokens and on others that"
    yield "leave, cost without and with the first tokens kept"
    for label, group in result["labels"].items():
        heads = f"{group['heads']} head" + ("s" if group["heads"] != 1 else "")
        yield (
            f"{label:<16} {heads:>10}   first {group['on_first']:.2f}   others"
            f" {group['on_others']:.2f}   cost {group['cost']:+.2f}   kept"
            f" {group['cost_kept']:+.2f}"
        )
