"""Score every attention head of a language model on prompts of one's own.

Writes a table with a row per prompt, head and kind. A run that was stopped, however it was,
goes on where it stood when it is called again.
"""

from pathlib import Path
from typing import Annotated

import typer

from interp import command


def main(
    prompts: Annotated[
        Path,
        typer.Option(
            help="File in UTF-8: .txt, a prompt a line, or .jsonl, an object a line with"
            ' "text" or "tokens".'
        ),
    ],
    model: command.ModelName = "SmolLM2-135M",
    out: Annotated[Path, typer.Option(help="Folder for scores.parquet and scores.json.")] = Path(
        "results"
    ),
    bos: Annotated[
        bool, typer.Option("--bos/--no-bos", help="Whether texts are to open with BOS.")
    ] = True,
    method: Annotated[
        str, typer.Option(help="stream: no pattern is ever built; hooks: one layer's at a time.")
    ] = "stream",
    restart: Annotated[
        bool, typer.Option("--restart", help="Throw away what a stopped run has left in OUT.")
    ] = False,
    device: command.Device = "auto",
    dtype: command.Dtype = "float32",
) -> None:
    """Score every attention head of a language model on prompts of one's own.

    Runs each prompt by itself, scores every head for every kind that the prompt can judge,
    prints the strongest head of each kind, and writes scores.parquet (model, prompt, layer,
    head, name, score, value, chance, queries; all numbers from 0) and scores.json (how it was
    made) to the folder OUT. Prompts that are done are kept in OUT/.parts until all are: a run
    that was stopped goes on from there when it is called again with the same options.

    Exit code: 0 when both files are there and whole, 2 for a mistake in the call.
    """
    import interp
    from interp.scan.prompts import prompts_in, telling

    with telling(out):
        prompts_in(prompts)  # What is wrong with the file is told before a model is loaded.
        with command.progress(f"loading {model}") as step:
            opened = interp.load_model(model, dtype=dtype, device=device)
            step(f"scoring with {opened.name}")
            found = interp.score_prompts(
                opened,
                prompts,
                out,
                bos=bos,
                method=method,
                restart=restart,
                progress=step.advance,
            )
        for row in found.strongest().to_dict("records"):
            command.show(
                f"{row['score']}: {row['name']} has the highest mean, {row['value']:.2f}"
                f" (chance {row['chance']:.2f}), over prompts that judge it: {row['prompts']}"
            )
        command.show(f"{len(found.frame)} scores: wrote scores.json, scores.parquet to {out}")


if __name__ == "__main__":
    command.run(main)
