"""Find out what each attention head of a language model does.

Runs the model on repeated random tokens and on natural text. Labels every head as induction,
duplicate token, previous token, current token, local window or attention sink. Prints the strongest
heads of each kind, and writes the table (heads.csv, heads.parquet, heads.json) and two figures
(score_mosaic, pattern_page) to the folder OUT; with LENGTH above 129 also the induction score by
distance (induction_by_distance), and with --explained or --preferred how much of the attention on
natural text the kinds explain (explained_map).

With PATTERNS the heads are labelled from the patterns in that file. No model is run, so the table
has no intervals, null, text, effects or weights.

Examples:
    interp heads --out results
    interp heads --model gpt2 --kinds default,last_punctuation
"""

from pathlib import Path
from typing import Annotated

import typer

from interp import command

OF_EITHER = {"out", "top", "format", "plain", "width"}
"""Options of patterns and of models."""


def main(
    source: command.Source,
    drawing: command.Drawing,
    out: Annotated[Path, typer.Option(help="Folder for the tables and figures.")] = Path("results"),
    seed: command.Seed = 0,
    rows: Annotated[int, typer.Option(min=1, help="Rows of random tokens to average over.")] = 16,
    length: Annotated[
        int | None,
        typer.Option(
            min=12, help="Tokens in a row.  [default: 129, or the model's context if shorter]"
        ),
    ] = None,
    method: command.Method = "stream",
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Leave out the null, the effect on logits and the weights."),
    ] = False,
    also: Annotated[
        str | None,
        typer.Option(help="Other published scores, comma-separated: stripe, mul_induction, ..."),
    ] = None,
    kinds: command.Kinds = None,
    explained: Annotated[
        bool,
        typer.Option("--explained", help="Measure how much of the attention the kinds explain."),
    ] = False,
    preferred: Annotated[
        bool,
        typer.Option(
            "--preferred",
            help="As --explained, and also by the keys that a head prefers for any query.",
        ),
    ] = False,
    text: Annotated[
        Path | None,
        typer.Option(
            help="Your own natural text: .jsonl or .parquet with text, another file of running"
            " text, or a folder. An interrupted run resumes.  [default: built-in texts]"
        ),
    ] = None,
    top: Annotated[
        int, typer.Option(min=1, help="Heads of each kind to print; at most 4 are drawn.")
    ] = 8,
    patterns: command.PatternsFile = None,
    tokens: command.TokensFile = None,
    special: command.SpecialIds = None,
    learned_sinks: command.LearnedSinks = False,
    both_ways: command.BothWays = False,
) -> None:
    command.refuse_misplaced(OF_EITHER)
    import interp
    from interp import files
    from interp.kinds import probes
    from interp.kinds.builtin import as_kinds
    from interp.kinds.targets import NONE
    from interp.patterns import read as arrays
    from interp.patterns.definitions import DEFINITIONS
    from interp.scan import given, report
    from interp.show import figures as plots

    definitions = [] if also is None else command.listed(also, list(DEFINITIONS), name="--also")
    chosen = kinds and as_kinds(kinds)
    ids = [] if special is None else command.whole_numbers(special, name="--special", least=0)
    with (
        files.staged(out) as scratch,
        command.progress(f"reading {patterns}" if patterns else f"loading {source.model}") as step,
    ):
        if patterns is not None:
            taken = arrays.take(patterns, tokens)
            how = {"learned_sinks": learned_sinks, "causal": not both_ways}
            scan = given.scan_given(taken, patterns, tokens, special=ids, **how)
            shown = given.first_prompt(taken, **how)
            whole = int((taken.tokens[0] != NONE).sum())
        else:
            from interp.models.load import load_for

            opened = load_for(out, **vars(source))
            step(f"scanning {opened.name}")
            scan = interp.scan_heads(
                opened,
                rows=rows,
                seed=seed,
                length=length,
                method=method,
                quick=quick,
                definitions=definitions,
                kinds=chosen,
                explained="preferred" if preferred else explained,
                text=text,
                folder=None if text is None else out,
                progress=step.advance,
            )
            example = probes.repeated(
                opened.vocabulary, rows=1, length=min(49, opened.n_ctx), bos=opened.bos, seed=seed
            )
            shown, whole = interp.attention_patterns(opened, example.tokens), None
        step("drawing")
        figures = {
            "score_mosaic": plots.score_mosaic(scan),
            "pattern_page": plots.pattern_page(scan, shown, top=min(top, 4), whole=whole),
        }
        if scan.by_distance():
            figures["induction_by_distance"] = plots.distance_curves(scan)
        lines = []
        if "explained" in scan.frame:
            lines = [str(scan.explained())]
            figures["explained_map"] = plots.explained_map(scan)
        for ending in ("csv", "parquet", "json"):
            scan.save(scratch / f"heads.{ending}")
        plots.save_figures(figures, scratch, drawing.formats)
        written = sorted(path.name for path in scratch.iterdir())
    written = f"wrote {', '.join(written)} to {out}"
    command.show(*report.report(scan, top), *lines, written, result=scan)
