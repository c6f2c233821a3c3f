"""Score every attention head of a language model on your own prompts.

Runs each prompt by itself, scores every head for every kind that the prompt can measure, prints the
strongest head of each kind, and writes scores.parquet (model, prompt, layer, head, name, score,
value, chance, queries; all counted from 0) and scores.json (how it was made) to the folder OUT.
Finished prompts are kept in OUT/.parts until the end: after a stop, the same command resumes.

Examples:
    interp prompts --prompts prompts.txt
    interp prompts --prompts chats.jsonl --model gpt2 --out scores
"""

from pathlib import Path
from typing import Annotated

import typer

from interp import command


def main(
    prompts: Annotated[
        Path,
        typer.Option(
            help="UTF-8 file: .txt with a prompt per line, or .jsonl with an object per line that"
            ' has "text", "messages" (a chat) or "tokens".'
        ),
    ],
    source: command.Source,
    out: Annotated[Path, typer.Option(help="Folder for scores.parquet and scores.json.")] = Path(
        "results"
    ),
    bos: Annotated[bool, typer.Option("--bos/--no-bos", help="Start each text with BOS.")] = True,
    special_as_text: command.SpecialAsText = False,
    positions: Annotated[
        str | None,
        typer.Option(
            help="Positions that count in each prompt: START:END, or all.  [default: all but those"
            " of a chat template]"
        ),
    ] = None,
    min_queries: Annotated[
        int, typer.Option(min=1, help="Least number of positions for a score.")
    ] = 4,
    kinds: command.Kinds = None,
    method: command.Method = "stream",
    restart: Annotated[
        bool, typer.Option("--restart", help="Delete what a stopped run left in OUT.")
    ] = False,
) -> None:
    import interp
    from interp.models import load
    from interp.scan.prompts import prompts_in

    chosen = command.positions(positions, name="--positions")
    prompts_in(prompts)  # Errors in the file are reported before a model is loaded.
    with command.progress(f"loading {source.model}") as step:
        opened = load.load_for(out, **vars(source))
        step(f"scoring with {opened.name}")
        result = interp.score_prompts(
            opened,
            prompts,
            out,
            bos=bos,
            special_as_text=special_as_text,
            positions=chosen,
            min_queries=min_queries,
            kinds=kinds,
            method=method,
            restart=restart,
            progress=step.advance,
        )
    for row in result.strongest().to_dict("records"):
        command.show(
            f"{row['score']}: {row['name']} has the highest mean, {row['value']:.2f}"
            f" (chance {row['chance']:.2f}), over prompts that can measure it: {row['prompts']}"
        )
    written = f"{len(result.frame)} scores: wrote scores.json, scores.parquet to {out}"
    strongest = {"made_by": result.made_by, "strongest": result.strongest().to_dict("records")}
    command.show(*result.not_measured(), written, result=strongest)
