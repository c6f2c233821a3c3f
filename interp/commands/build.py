"""Build a two-layer induction circuit by hand and save it as a Hugging Face folder.

Layer 0 writes the previous token at each position. Layer 1 attends to the position whose previous
token is the current one, and copies the token there. The folder is a model like any other:
`interp heads --model OUT` finds the two heads.

Examples:
    interp build --positions rotary --out circuit
    interp build --positions absolute --vocab 64 --no-previous
"""

from pathlib import Path
from typing import Annotated

import typer

from interp import command


def main(
    positions: Annotated[
        str, typer.Option(help="absolute (a GPT-2) or rotary (a Llama with grouped heads).")
    ],
    vocabulary: Annotated[
        int, typer.Option("--vocab", "--vocabulary", help="Vocabulary size with BOS, 8 to 32769.")
    ] = 128,
    length: Annotated[int, typer.Option(help="Context length with BOS, 8 to 4096.")] = 129,
    out: Annotated[Path, typer.Option(help="Folder of the model.")] = Path("results/circuit"),
    sharpness: Annotated[
        float | None,
        typer.Option(
            help="Attention score of the target key, in nats.  [default: enough for 0.9999 of"
            " each query's attention]"
        ),
    ] = None,
    bos: Annotated[int, typer.Option(help="Token id of BOS, where heads without target rest.")] = 0,
    kv_heads: Annotated[
        int | None, typer.Option(help="Key-value heads of the rotary circuit: 1, 2 or 4.")
    ] = None,
    previous: Annotated[bool, typer.Option(help="With the previous-token head.")] = True,
    match: Annotated[bool, typer.Option(help="With the comparison of tokens in layer 1.")] = True,
    blur: Annotated[
        float,
        typer.Option(help="Share of the previous-token head's attention that goes two back."),
    ] = 0.0,
    wrong_copy: Annotated[
        float, typer.Option(help="Share of the tokens that are copied as another token.")
    ] = 0.0,
    seed: command.Seed = 0,
) -> None:
    options = {name: value for name, value in locals().items() if name != "out"}
    import interp

    with command.progress("building"):
        model = interp.build_circuit(**options)
        from interp import models  # Late: a mistake in the call is reported without this import.

        models.save(model, out)
    config = model.plain.config
    made = config.hand_built
    left_out = [part for part in ("previous", "match") if not made[part]]
    broken = f" (without {', '.join(left_out)}: no induction)" if left_out else ""
    command.show(
        f"{made['previous_token_head']} previous token, {made['induction_head']} induction{broken};"
        f" {config.vocab_size} ids, {model.n_ctx} positions, width {config.hidden_size},"
        f" sharpness {made['sharpness']:g}",
        f"wrote {out}",
    )
