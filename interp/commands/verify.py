"""Check by ablation whether the labels of a model's heads matter.

Takes the TOP strongest heads of each label out of the model together, replacing their outputs by
zero or by their mean, and does the same, DRAWS times, with as many random other heads of the same
layers. Prints what that costs on repeated tokens and on text, with a verdict for each label, and
writes all numbers, in nats, to effects.json in the folder OUT; with LABEL to effects_LABEL.json,
so that the results for all labels stay.

Examples:
    interp verify --scan results/heads.json --label induction
    interp verify --model runs/checkpoint-1000 --draws 50
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from interp import command

if TYPE_CHECKING:
    from interp.effects.verify import Verification


def main(
    source: command.Source,
    out: Annotated[Path, typer.Option(help="Folder for effects.json.")] = Path("results"),
    scan: command.HeadTable = None,
    label: Annotated[
        str | None,
        typer.Option(help="Labels, comma-separated, such as 'induction,previous token'; or all."),
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
        str, typer.Option(help="Replacements for a head's output; the first gives the verdict.")
    ] = "zero,mean",
    seed: command.Seed = 0,
) -> None:
    import interp
    from interp import files
    from interp.effects import verify as effects
    from interp.models import load

    methods = command.listed(method, ("zero", "mean"), name="--method")
    with command.about("--scan"):
        table = None if scan is None else interp.HeadScan.load(scan)
    known = effects.labels_in(table)
    kinds = None if label is None else command.listed(label, known, name="--label")
    file = "_".join(["effects", *(kind.replace(" ", "_") for kind in kinds or [])]) + ".json"
    with files.staged(out) as scratch, command.progress(f"loading {source.model}") as step:
        opened = load.load_for(out / file, **vars(source))
        if table is None:
            step(f"scanning {opened.name}")
            table = interp.scan_heads(opened, seed=seed, progress=step.advance)
        step("taking heads out")
        result = effects.verify(
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
        result.save(scratch / file)
    command.show(*_lines(result), f"wrote {file} to {out}", result=result)


def _lines(result: "Verification") -> Iterator[str]:
    from interp.effects.verify import FEW_DRAWS

    before = ", ".join(f"{_words(name)} {loss:.2f}" for name, loss in result.before.items())
    yield f"{result.made_by['model']}, all heads in place, in nats: {before}"
    for label, found in result.labels.items():
        yield f"\n{label}: {found.verdict}"
        if found.heads:
            yield f"  taken out: {', '.join(map(str, found.heads))}"
        for note in found.notes:
            yield f"  note: {note}"
        for method, measures in (found.effects or {}).items():
            for name, effect in measures.items():
                yield f"  {method}, {_words(name)}: {effect.verdict}"
    yield "\nin square brackets: 95 % interval over rows, rough if there are few rows"
    yield "causal: the whole interval is above every random draw and above 0"
    yield "no effect beyond random heads: the whole interval is between 0 and the random draws"
    yield "not decided: anything else"
    yield "second copy, first copy: loss on repeated tokens, and before they repeat"
    yield "in-context score: loss late in a text minus loss early in it; below 0 if context helps"
    if any(0 < len(found.draws) < FEW_DRAWS for found in result.labels.values()):
        yield f"few draws: fewer than {FEW_DRAWS}, too few to show the range of random heads"
    if "text" not in result.before:
        yield "without a tokenizer natural text was not run"


def _words(measure: str) -> str:
    return "in-context score" if measure == "in_context_score" else measure.replace("_", " ")
