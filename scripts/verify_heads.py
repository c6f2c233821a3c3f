"""Check by ablation whether the labels of a model's heads matter.

Takes the strongest heads of each label out of the model, compares what that costs with random
other heads of the same layers, prints a verdict for each label, and writes all numbers.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from interp import command

if TYPE_CHECKING:
    from interp.verdicts import Verification


def main(
    model: Annotated[
        str,
        typer.Option(
            help="SmolLM2-135M (from the package index), a hub id such as gpt2,"
            " a Hugging Face folder, or a .gguf file."
        ),
    ] = "SmolLM2-135M",
    out: Annotated[Path, typer.Option(help="The .json file to write.")] = Path(
        "results/effects.json"
    ),
    scan: Annotated[
        Path | None,
        typer.Option(
            help="Table of this model's heads from find_induction_heads.py (heads.json,"
            " heads.parquet, heads.csv); made anew if left out."
        ),
    ] = None,
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
    seed: Annotated[int, typer.Option(min=0, max=2**63, help="Of all that is random.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
) -> None:
    """Check by ablation whether the labels of a model's heads matter.

    For each label, the TOP strongest heads are taken out of the model together, their outputs
    replaced by zero or by their mean, and so are, DRAWS times, as many other heads of the same
    layers. Prints what that costs on tokens that repeat and on text, with a verdict, and writes
    all numbers, in nats, to OUT.

    Exit code: 0 when the file is there and whole, 2 for a mistake in the call.
    """
    import interp
    from interp import effects, files, verdicts

    out = verdicts.as_json_path(out)
    methods = command.listed(method, ("zero", "mean"), name="--method")
    table = None if scan is None else interp.HeadScan.load(scan)
    known = effects.labels_in(table)
    kinds = None if label is None else command.listed(label, known, name="--label")
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


def _lines(found: "Verification") -> Iterator[str]:
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
    yield "second copy, first copy: loss on tokens that repeat, and before they do"
    yield "in-context score: loss late in a text minus loss early in it, below 0 if context helps"
    if (drawn := found.made_by["draws"]) < 20:
        yield f"{drawn} random draws are few: 20 or more say what random heads can do"
    if "text" not in found.before:
        yield "without a tokenizer natural text was not run"


def _words(measure: str) -> str:
    return "in-context score" if measure == "in_context_score" else measure.replace("_", " ")


if __name__ == "__main__":
    command.run(main)
