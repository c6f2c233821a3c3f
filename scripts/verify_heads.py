"""Check by ablation whether the labels of a model's heads matter.

Takes the strongest heads of each label out of the model, compares what that costs with random
other heads of the same layers, prints a verdict for each label, and writes all numbers.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from interp import command
from interp.effects.verdicts import FEW_DRAWS, Verification, as_json_path


def main(
    model: command.ModelName = "SmolLM2-135M",
    out: Annotated[
        Path | None,
        typer.Option(
            help="The .json file to write.  [default: results/effects.json, with --label"
            " results/effects_LABEL.json]"
        ),
    ] = None,
    scan: command.HeadTable = None,
    label: Annotated[
        str | None,
        typer.Option(help="Labels to judge, by commas, such as 'induction,previous token'; all."),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Heads of a label to take out together.")] = 10,
    draws: Annotated[int, typer.Option(min=1, help="Random draws of other heads.")] = 20,
    rows: Annotated[int, typer.Option(min=2, help="Rows of random tokens, and of text.")] = 4,
    length: Annotated[
        int | None,
        typer.Option(
            min=12, help="Tokens in a row.  [default: 129, or the model's context if shorter]"
        ),
    ] = None,
    method: Annotated[
        str, typer.Option(help="What stands in for a head's output; the first decides.")
    ] = "zero,mean",
    seed: command.Seed = 0,
    device: command.Device = "auto",
    dtype: command.Dtype = "float32",
) -> None:
    """Check by ablation whether the labels of a model's heads matter.

    For each label, the TOP strongest heads are taken out of the model together, their outputs
    replaced by zero or by their mean, and so are, DRAWS times, as many other heads of the same
    layers. Prints what that costs on tokens that repeat and on text, with a verdict, and writes
    all numbers, in nats, to OUT. A run for some labels has a file of its own if OUT is left out,
    so that it does not take the place of a run for all.

    Exit code: 0 when the file is there and whole, 2 for a mistake in the call.
    """
    import interp
    from interp import files
    from interp.effects import verify as effects
    from interp.models import ahead

    methods = command.listed(method, ("zero", "mean"), name="--method")
    with command.about("--scan"):
        table = None if scan is None else interp.HeadScan.load(scan)
    known = effects.labels_in(table)
    kinds = None if label is None else command.listed(label, known, name="--label")
    out = as_json_path(out or _usual_path(kinds))
    files.refuse_of_another(out, ahead.name_of(model))
    with files.staged(out.parent) as scratch:
        with command.progress(f"loading {model}") as step:
            opened = interp.load_model(model, dtype=dtype, device=device)
            if table is None:
                step(f"scanning {opened.name}")
                table = interp.scan_heads(opened, seed=seed, progress=step.advance)
            step("taking heads out")
            found = effects.verify(
                opened,
                table,
                kinds=kinds,
                top=top,
                draws=draws,
                rows=rows,
                length=length,
                seed=seed,
                methods=methods,
                progress=step.advance,
            )
        found.save(scratch / out.name)
    command.show(*_lines(found), f"wrote {out}")


def _usual_path(kinds: list[str] | None) -> Path:
    parts = [re.sub(r"\W+", "_", kind).strip("_") for kind in kinds or []]
    return Path("results") / f"{'_'.join(['effects', *parts])}.json"


def _lines(found: Verification) -> Iterator[str]:
    before = ", ".join(f"{_words(name)} {loss:.2f}" for name, loss in found.before.items())
    yield f"{found.made_by['model']}, all heads in place, in nats: {before}"
    for label, result in found.labels.items():
        yield f"\n{label}: {result.verdict}"
        if result.heads:
            yield f"  taken out: {', '.join(map(str, result.heads))}"
        for note in result.notes:
            yield f"  note: {note}"
        for method, measures in (result.effects or {}).items():
            for name, effect in measures.items():
                yield f"  {method}, {_words(name)}: {effect.verdict}"
    yield "\nin square brackets: 95 % interval over rows; few rows make it rough"
    yield "an effect lies beyond 0 and all random heads with its whole interval; none lies between"
    yield "0 and them with all of it; anything else is not decided"
    yield "second copy, first copy: loss on tokens that repeat, and before they do"
    yield "in-context score: loss late in a text minus loss early in it, below 0 if context helps"
    if any(0 < len(result.draws) < FEW_DRAWS for result in found.labels.values()):
        yield f"few draws: fewer than {FEW_DRAWS}, which say little of what random heads can do"
    if "text" not in found.before:
        yield "without a tokenizer natural text was not run"


def _words(measure: str) -> str:
    return "in-context score" if measure == "in_context_score" else measure.replace("_", " ")


if __name__ == "__main__":
    command.run(main)
