"""Build a two-layer induction circuit by hand and save it as a Hugging Face folder.

Layer 0 writes the previous token beside the current one, layer 1 looks for the place whose previous
token is the current one and copies what stands there. The folder is a model like any other:
`scripts/find_induction_heads.py --model DIR` finds the two heads.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from interp import command

if TYPE_CHECKING:
    from interp.models import Model


def main(
    positions: Annotated[
        str, typer.Option(help="absolute (a GPT-2) or rotary (a Llama with grouped heads).")
    ],
    vocabulary: Annotated[
        int, typer.Option("--vocab", "--vocabulary", help="Ids, BOS among them: 8 to 32769.")
    ] = 128,
    length: Annotated[int, typer.Option(help="Positions, BOS among them: 8 to 4096.")] = 129,
    out: Annotated[Path, typer.Option(help="The folder to write.")] = Path("results/circuit"),
    sharpness: Annotated[
        float | None,
        typer.Option(
            help="Score, in nats, of a key that is just right; if left out, what gives every"
            " query 0.9999 of its attention where it should be."
        ),
    ] = None,
    bos: Annotated[int, typer.Option(help="The id on which heads rest.")] = 0,
    kv_heads: Annotated[
        int | None, typer.Option(help="Key-value heads of the rotary circuit: 1, 2 or 4.")
    ] = None,
    previous: Annotated[bool, typer.Option(help="With a previous-token head.")] = True,
    match: Annotated[bool, typer.Option(help="With tokens compared in layer 1.")] = True,
    blur: Annotated[
        float,
        typer.Option(help="Share of the previous-token head's attention that goes two back."),
    ] = 0.0,
    wrong_copy: Annotated[
        float, typer.Option(help="Share of the tokens that are copied as another token.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Of all that is random.")] = 0,
) -> None:
    """Build a two-layer induction circuit by hand and save it as a Hugging Face folder.

    Exit code: 0 when the folder is there and whole, 2 for a mistake in the call.
    """
    import interp

    with command.progress("building"):
        model = interp.build_circuit(
            positions,
            vocabulary,
            length,
            sharpness=sharpness,
            bos=bos,
            kv_heads=kv_heads,
            previous=previous,
            match=match,
            blur=blur,
            wrong_copy=wrong_copy,
            seed=seed,
        )
        from interp import models  # Late: a mistake in the call need not wait for it.

        models.save(model, out)
    command.show(_line(model), f"wrote {out}")


def _line(model: "Model") -> str:
    config = model.plain.config
    made = config.hand_built
    left_out = [
        words
        for part, words in (("previous", "no previous-token head"), ("match", "no match"))
        if not made[part]
    ]
    parts = f" ({', '.join(left_out)}: no induction)" if left_out else ""
    return (
        f"{made['previous_token_head']} previous token, {made['induction_head']} induction{parts};"
        f" {config.vocab_size} ids, {model.n_ctx} positions, width {config.hidden_size},"
        f" sharpness {made['sharpness']:g}"
    )


if __name__ == "__main__":
    command.run(main)
