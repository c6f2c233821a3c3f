"""What a language model loses when its cache lets go of the first tokens.

Runs text through a model whose key-value cache is whole, cut to the last tokens, or cut to the
first few and the last, and tells which heads the cut hurts. Writes numbers and a figure.
"""

import json
from pathlib import Path
from typing import Annotated

import typer

from interp import command


def main(
    model: command.ModelName = "SmolLM2-135M",
    out: Annotated[
        Path, typer.Option(help="Folder for sink_experiment.json and the figure.")
    ] = Path("results"),
    scan: command.HeadTable = None,
    size: Annotated[int, typer.Option(min=2, help="Tokens in a cut cache.")] = 128,
    kept: Annotated[int, typer.Option(min=1, help="First tokens that stay in it.")] = 4,
    length: Annotated[int, typer.Option(min=5, help="Tokens in a row of text.")] = 384,
    rows: Annotated[int, typer.Option(min=2, help="Rows of text, at most.")] = 6,
    format: Annotated[str, typer.Option(help="Of the figure: png, svg, pdf.")] = "png,svg",
    seed: command.Seed = 0,
    device: command.Device = "auto",
    dtype: command.Dtype = "float32",
) -> None:
    """Measure what a model loses when its cache lets go of the first tokens.

    Each row of text is run with the cache whole (full), cut to the last SIZE tokens (window), cut
    to the first KEPT and the last SIZE - KEPT (sink_window, positions counted in the cache), with
    other early tokens kept instead (other_window), and with only the heads of one label cut.
    Writes sink_experiment.json, all losses in nats, and a figure to the folder OUT. SEED is that
    of the scan for labels, where it is made.

    Exit code: 0 when every file is there and whole, 2 for a mistake in the call.
    """
    import interp
    from interp import files
    from interp.effects import sink_experiment, windowed
    from interp.models import ahead
    from interp.show import figures as plots

    formats = command.listed(format, ("png", "svg", "pdf"), name="--format")
    context = ahead.context_of(model)
    sink_experiment.check_sizes(size=size, kept=kept, length=length, context=context)
    with command.about("--scan"):
        table = None if scan is None else interp.HeadScan.load(scan)
        if table is not None:
            sink_experiment.check_scan(table, ahead.name_of(model))
    files.refuse_of_another(out, ahead.name_of(model))
    with files.staged(out) as scratch:
        with command.progress(f"loading {model}") as step:
            opened = interp.load_model(model, dtype=dtype, device=device)
            windowed.check(opened, length)  # Before a scan, which takes longer.
            if table is None:
                step(f"scanning {opened.name}")
                table = interp.scan_heads(opened, seed=seed, progress=step.advance)
            step("cutting the cache")
            result = sink_experiment.sink_experiment(
                opened,
                table,
                size=size,
                kept=kept,
                length=length,
                rows=rows,
                progress=step.advance,
            )
            text = json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False)
            (scratch / "sink_experiment.json").write_text(text + "\n", encoding="utf-8")
            step("drawing")
            figure = plots.sink_losses(result)
            for ending in formats:
                plots.save_figure(figure, scratch / f"sink_experiment.{ending}")
        written = sorted(path.name for path in scratch.iterdir())
    command.show(*sink_experiment.lines(result), f"wrote {', '.join(written)} to {out}")


if __name__ == "__main__":
    command.run(main)
