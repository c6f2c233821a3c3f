"""Show every attention head of a model: a page for the browser, and figures for a paper.

Writes to the folder OUT gallery.html, one self-contained page of all heads by label; with FORMAT
json the same as data; and with png, svg or pdf the figures that DRAW lists: gallery (the strongest
heads of each label; gallery_2 on the second prompt, ...), head_L5H1, row, card_L5H1, arcs_L5H1, zoo
and score_by_layer. A page that would exceed LIMIT shows the strongest heads. With PATTERNS the
heads are labelled from the patterns in that file, and no model is run.

Examples:
    interp gallery --scan results/heads.json --prompt 'When Mary and John went out, John'
    interp gallery --heads L18H6,L16H0 --format html,svg
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from interp import command

if TYPE_CHECKING:
    from interp import Head, Model
    from interp.models.rows import Rows
    from interp.show.render import Prompts

OF_EITHER = {"scan", "label", "heads", "draw", "query", "out", "limit"}
OF_EITHER |= {"format", "plain", "width"}
"""Options of patterns and of models."""


def main(
    source: command.Source,
    pages: command.Pages,
    scan: command.HeadTable = None,
    kinds: command.Kinds = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option(
            help="Text to show the heads on; may be repeated.  [default: repeated random tokens,"
            " and a passage of prose]"
        ),
    ] = None,
    prompt_file: Annotated[
        list[Path] | None,
        typer.Option(
            help="UTF-8 file with a text, or .jsonl with a prompt per line as for"
            " `interp prompts`, shown after those of --prompt; repeatable."
        ),
    ] = None,
    special_as_text: command.SpecialAsText = False,
    label: Annotated[
        str | None, typer.Option(help="Show heads with one of these labels: 'induction,sink'.")
    ] = None,
    heads: Annotated[str | None, typer.Option(help="Show these heads: L5H1,L18H6.")] = None,
    draw: Annotated[
        str | None,
        typer.Option(
            help="Figures: page, heads, row, cards (evidence), arcs (of a query), zoo, layers."
            "  [default: page; with HEADS also heads]"
        ),
    ] = None,
    query: Annotated[
        int | None, typer.Option(min=0, help="Query of arcs.  [default: last]")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the page and figures.")] = Path("results"),
    limit: Annotated[
        float, typer.Option(help="Maximum size of the page in millions of bytes.")
    ] = 20.0,
    seed: command.Seed = 0,
    patterns: command.PatternsFile = None,
    tokens: command.TokensFile = None,
    special: command.SpecialIds = None,
    learned_sinks: command.LearnedSinks = False,
    both_ways: command.BothWays = False,
) -> None:
    command.refuse_misplaced(OF_EITHER)
    import interp
    from interp import files
    from interp.errors import reading
    from interp.scan.prompts import prompts_in
    from interp.scan.record import check_made_by
    from interp.show import render

    if limit <= 0:
        raise interp.InputError(f"--limit must be above 0, got {limit:g}")
    named = None if heads is None else command.heads(heads, name="--heads")
    labels = [word.strip().replace("_", " ") for word in label.split(",")] if label else []
    drawn = _drawn(draw, query, named, pages)
    given: list[tuple[str, Any]] = [("--prompt", text) for text in prompt or []]
    for path in prompt_file or []:
        with command.about("--prompt-file"), reading(path, "a text file in UTF-8"):
            lines = path.suffix == ".jsonl" and prompts_in(path)[0]
            texts = lines or [files.content_of(path).decode("utf-8-sig")]
            given += [(f"--prompt-file {path}", text) for text in texts]
    with command.about("--scan"):
        table = None if scan is None else interp.HeadScan.load(scan, kinds=kinds or ())
    if table is not None:
        render.chosen_heads(table, named, labels)
    with (
        files.staged(out) as scratch,
        command.progress(f"reading {patterns}" if patterns else f"loading {source.model}") as step,
    ):
        if patterns is not None:
            how = {"learned_sinks": learned_sinks, "causal": not both_ways}
            prompts = _of_file(patterns, tokens, special, how)
        else:
            from interp.models.load import load_for

            opened = load_for(out, **vars(source))
            if table is not None:
                check_made_by(table.made_by, opened, "scan")
            prompts = render.example_prompts(opened, seed, kinds)
            if given:
                rows = _rows(opened, given, special_as_text=special_as_text)
                prompts = render.of_model(opened, rows, seed=seed, kinds=kinds)
        notes = render.render(
            scratch,
            prompts,
            table,
            formats=pages.listed,
            draw=drawn,
            heads=named,
            labels=labels,
            query=query,
            limit=limit,
            stage=step,
            progress=step.advance,
        )
        written = sorted(path.name for path in scratch.iterdir())
    command.show(*notes, f"wrote {', '.join(written)} to {out}")


def _of_file(
    file: Path, tokens: Path | None, special: str | None, how: dict[str, bool]
) -> "Prompts":
    from interp.patterns.read import take
    from interp.show.render import of_file

    ids = [] if special is None else command.whole_numbers(special, name="--special", least=0)
    return of_file(take(file, tokens), file, tokens, ids, **how)


def _rows(model: "Model", given: list[tuple[str, Any]], *, special_as_text: bool) -> list["Rows"]:
    """The token ids of each prompt."""
    rows = []
    for option, one in given:
        with command.about(option):
            rows.append(model.rows_of(one, special_as_text=special_as_text))
    return rows


def _drawn(
    draw: str | None, query: int | None, heads: list["Head"] | None, pages: command.Pages
) -> list[str]:
    """The figures to draw."""
    from interp import InputError
    from interp.show.render import DRAWN

    drawn = command.listed(draw or ("page,heads" if heads else "page"), DRAWN, name="--draw")
    if not heads and {"heads", "row", "arcs"} & set(drawn):
        raise InputError(f"--draw must list heads, row and arcs only with --heads, got {draw}")
    options = {"draw": draw, "query": query, "plain": pages.plain or None, "width": pages.width}
    given = [name for name, value in options.items() if value is not None]
    if given and not pages.formats:
        rule = f"--{given[0]} must come with png, svg or pdf in --format"
        raise InputError(f"{rule}, got {pages.format}")
    if query is not None and "arcs" not in drawn:
        raise InputError(f"--query must come with --draw arcs, got {','.join(drawn)}")
    return drawn
