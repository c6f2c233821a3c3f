"""Show every attention head of a model: a page for the browser, and figures for a paper.

Writes to the folder OUT gallery.html, one self-contained page of all heads by label, each of which
opens in full, and with FORMAT png, svg or pdf the figures that DRAW lists: gallery (the strongest
heads of each label on the first prompt; gallery_2 on the second, ...), head_L5H1, arcs_L5H1, zoo
and score_by_layer. A page that would exceed LIMIT shows the strongest heads of each label, and the
first 1,024 tokens of a prompt, and says so. Existing files of these names are replaced.

With PATTERNS the heads are labelled from the patterns in that file and no model is run. Each row
of a batch is a prompt, and tokens are shown as ids.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from interp import command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from matplotlib.figure import Figure

    from interp import AttentionPatterns, Gallery, Head, HeadScan, Model

OF_EITHER = {"scan", "label", "heads", "format", "draw", "query", "out", "limit"}
"""Options of patterns and of models."""

FIGURES = ("page", "heads", "arcs", "zoo", "layers")


@dataclass(frozen=True)
class Source:
    """Prompts with their attention, of a model or from a file.

    Attributes:
        rows: Token ids of each prompt.
        most: Number of tokens of a prompt that a figure shows.
        causal: Whether queries see earlier keys only.
        scan: Function that labels the heads.
        page: Function that makes the page from a table, some heads (None for all) and a limit.
        patterns: Function that gives the patterns of a prompt, by its number, in some layers.
    """

    rows: list[list[int]]
    most: int
    causal: bool
    scan: "Callable[[command.Stage], HeadScan]"
    page: "Callable[[HeadScan, list[Head] | None, float, command.Stage], Gallery]"
    patterns: "Callable[[int, list[int] | None], AttentionPatterns]"


def main(
    context: typer.Context,
    model: command.ModelName = "SmolLM2-135M",
    scan: command.HeadTable = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option(
            help="Text to show the heads on; may be repeated.  [default: repeated random tokens,"
            " and a passage of prose]"
        ),
    ] = None,
    prompt_file: Annotated[
        list[Path] | None,
        typer.Option(help="UTF-8 file with a text, shown after those of --prompt; repeatable."),
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="Show heads with one of these labels: 'induction,sink'.")
    ] = None,
    heads: Annotated[str | None, typer.Option(help="Show these heads: L5H1,L18H6.")] = None,
    format: Annotated[
        str, typer.Option(help="Formats, comma-separated: html, png, svg, pdf.")
    ] = "html",
    draw: Annotated[
        str | None,
        typer.Option(
            help="Figures, comma-separated: page (strongest heads of each label), heads (each of"
            " HEADS in full), arcs (attention of one query of each of HEADS), zoo (a head of each"
            " kind next to its ideal), layers (scores by layer).  [default: page; with HEADS also"
            " heads]"
        ),
    ] = None,
    query: Annotated[
        int | None, typer.Option(min=0, help="Position of the query for arcs.  [default: last]")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the page and figures.")] = Path("results"),
    limit: Annotated[
        float, typer.Option(help="Maximum size of the page in millions of bytes.")
    ] = 20.0,
    seed: command.Seed = 0,
    device: command.Device = "auto",
    dtype: command.Dtype = "float32",
    patterns: command.PatternsFile = None,
    tokens: command.TokensFile = None,
    special: command.SpecialIds = None,
    learned_sinks: command.LearnedSinks = False,
    both_ways: command.BothWays = False,
) -> None:
    command.refuse_misplaced(context, OF_EITHER)
    import interp
    from interp import files
    from interp.show import figures as plots
    from interp.show.pages import gallery as pages

    pages.room_of(limit)
    formats = command.listed(format, ("html", *command.FORMATS), name="--format")
    endings = [ending for ending in formats if ending != "html"]
    named = None if heads is None else command.heads(heads, name="--heads")
    labels = [word.strip().replace("_", " ") for word in label.split(",")] if label else []
    if named and labels:
        raise interp.InputError("--heads must be left out with --label, got both")
    asked = _asked(draw, query, drawn=bool(endings), named=bool(named))
    texts = [("--prompt", text) for text in prompt or []]
    for path in prompt_file or []:
        with command.about("--prompt-file"):
            texts.append((f"--prompt-file {path}", files.text_of(files.content_of(path))))
    with command.about("--scan"):
        table = None if scan is None else interp.HeadScan.load(scan)
    chosen = None if table is None else _chosen(table, named, labels)
    notes = []
    with (
        files.staged(out) as scratch,
        command.progress(f"reading {patterns}" if patterns else f"loading {model}") as step,
    ):
        if patterns is not None:
            how = {"learned_sinks": learned_sinks, "causal": not both_ways}
            source = _of_file(patterns, tokens, special, how)
        else:
            opened = interp.load_model(model, dtype=dtype, device=device)
            if table and (of := table.made_by.get("model", opened.name)) != opened.name:
                raise interp.InputError(f"--scan must be of {opened.name}, got one of {of}")
            source = _of_model(opened, *_prompts(opened, texts, seed), seed)
        last = min(source.most, *map(len, source.rows)) - 1
        if query is not None and query > last:
            raise interp.InputError(f"--query must be from 0 to {last}, got {query}")
        if table is None:
            table = source.scan(step)
            chosen = _chosen(table, named, labels)
        if "html" in formats:
            count = len(table.frame) if chosen is None else len(chosen)
            lengths = [len(row) for row in source.rows]
            size = pages.estimate(count, lengths, causal=source.causal)
            step(f"drawing {count} heads, a page of about {size:.1f} million bytes")
            page = source.page(table, chosen, limit, step)
            page.save(scratch / "gallery.html")
            notes += page.notes
        if endings and (longest := max(map(len, source.rows))) > source.most:
            notes.append(f"Figures show the first {source.most:,} of {longest:,} tokens.")
        for name, figure in _figures(asked, table, source, chosen, labels, query, step):
            for ending in endings:
                plots.save_figure(figure, scratch / f"{name}.{ending}")
        written = sorted(path.name for path in scratch.iterdir())
    command.show(*notes, f"wrote {', '.join(written)} to {out}")


def _of_model(model: "Model", rows: list[list[int]], titles: list[str] | None, seed: int) -> Source:
    from interp import attention_patterns, scan_heads
    from interp.patterns.tensor import beginning
    from interp.show.pages import gallery as pages

    causal = model.direction == "causal"

    def scan(step: command.Stage) -> "HeadScan":
        step(f"scanning {model.name}")
        return scan_heads(model, seed=seed, progress=step.advance)

    def page(
        table: "HeadScan", heads: "list[Head] | None", limit: float, step: command.Stage
    ) -> "Gallery":
        more = {"titles": titles, "limit": limit, "progress": step.advance}
        return pages.gallery_of_model(table, model, rows, heads=heads, **more)

    def patterns(number: int, layers: list[int] | None) -> "AttentionPatterns":
        # Later tokens change the weights of those that see them.
        run = rows[number][: pages.LONGEST if causal else None]
        return beginning(attention_patterns(model, run, layers), pages.LONGEST)

    return Source(rows, pages.LONGEST, causal, scan, page, patterns)


def _of_file(file: Path, tokens: Path | None, special: str | None, how: dict[str, bool]) -> Source:
    from interp import gallery
    from interp.kinds.targets import NONE
    from interp.patterns import read as arrays
    from interp.scan import given

    ids = [] if special is None else command.whole_numbers(special, name="--special", least=0)
    taken = arrays.take(file, tokens)

    def scan(step: command.Stage) -> "HeadScan":
        step("labelling the heads")
        return given.scan_given(taken, file, tokens, special=ids, **how)

    def page(
        table: "HeadScan", heads: "list[Head] | None", limit: float, step: command.Stage
    ) -> "Gallery":
        whole = arrays.read_patterns(taken, **how)
        return gallery(table, whole, heads=heads, limit=limit)

    def patterns(number: int, layers: list[int] | None) -> "AttentionPatterns":
        row = slice(number, number + 1)
        one = replace(
            taken, arrays=[layer[row] for layer in taken.arrays], tokens=taken.tokens[row]
        )
        return given.first_prompt(one, **how)

    rows = [row[row != NONE].tolist() for row in taken.tokens]
    return Source(rows, given.SHOWN, how["causal"], scan, page, patterns)


def _asked(draw: str | None, query: int | None, *, drawn: bool, named: bool) -> list[str]:
    """The figures to draw; none without a format for them."""
    from interp import InputError

    asked = command.listed(draw or ("page,heads" if named else "page"), FIGURES, name="--draw")
    if not named and {"heads", "arcs"} & set(asked):
        raise InputError(f"--draw must list heads and arcs only with --heads, got {draw}")
    if not drawn and (draw is not None or query is not None):
        option = "draw" if draw is not None else "query"
        raise InputError(f"--{option} must come with png, svg or pdf in --format, got html")
    if query is not None and "arcs" not in asked:
        raise InputError(f"--query must come with --draw arcs, got {','.join(asked)}")
    return asked if drawn else []


def _prompts(
    model: "Model", texts: list[tuple[str, str]], seed: int
) -> tuple[list[list[int]], list[str] | None]:
    """The token ids of each prompt, and titles of the default prompts."""
    from interp.kinds import probes
    from interp.scan.plan import encoded_passages

    if texts:
        rows = []
        for option, text in texts:
            with command.about(option):
                rows.append(model.to_tokens(text)[0].tolist())
        return rows, None
    length = min(49, model.n_ctx)
    closing = [] if model.closing is None else [model.closing]
    ids, inside = model.vocabulary, length - len(closing)
    probe = probes.repeated(ids, rows=1, length=inside, bos=model.bos, seed=seed)
    rows = [[*probe.tokens[0].tolist(), *closing]]
    titles = [f"{length} random tokens that repeat"]
    encoded = dict(zip(probes.passages(), encoded_passages(model)))
    if "prose" in encoded:
        opening = [] if model.bos is None else [model.bos]
        opened = [*opening, *encoded["prose"].tolist()]
        rows.append([*opened[: min(128, model.n_ctx) - len(closing)], *closing])
        titles.append(f"{len(rows[1])} tokens of prose")
    return rows, titles


def _figures(
    asked: list[str],
    table: "HeadScan",
    source: Source,
    heads: list["Head"] | None,
    labels: list[str],
    query: int | None,
    step: command.Stage,
) -> "Iterator[tuple[str, Figure]]":
    """Name and figure of each that is asked for."""
    from interp.kinds.kind import KINDS
    from interp.show import figures as plots

    if "layers" in asked:
        yield "score_by_layer", plots.score_by_layer(table)
    if "zoo" in asked:
        step("drawing the zoo")
        layers = sorted({head.layer for head in plots.zoo_heads(table).values()}) or [0]
        patterns = source.patterns(0, layers)
        yield "zoo", plots.head_zoo(table, patterns, whole=len(source.rows[0]))
    if not {"page", "heads", "arcs"} & set(asked):
        return
    kinds = [kind.name for kind in KINDS.values() if kind.label in labels] or list(KINDS)
    layers = None if heads is None else sorted({head.layer for head in heads})
    for number, row in enumerate(source.rows):
        step(f"drawing prompt {number + 1}")
        patterns, whole = source.patterns(number, layers), len(row)
        end = "" if number == 0 else f"_{number + 1}"
        if "page" in asked:
            top = 4 if heads is None else 8
            figure = plots.pattern_page(
                table, patterns, top=top, heads=heads, kinds=kinds, whole=whole
            )
            yield f"gallery{end}", figure
        for head in heads or []:
            if "heads" in asked:
                figure = plots.head_page(patterns, head, scan=table, whole=whole)
                yield f"head_{head}{end}", figure
            if "arcs" in asked:
                figure = plots.attention_arcs(patterns, head, query, scan=table, whole=whole)
                yield f"arcs_{head}{end}", figure


def _chosen(scan: "HeadScan", named: list["Head"] | None, labels: list[str]) -> list["Head"] | None:
    """The named heads, or those with one of the labels; None for all heads."""
    from interp import InputError

    names = set(scan.frame["name"])
    if absent := [head for head in named or [] if str(head) not in names]:
        raise InputError(f"--heads must be in the scan, got {absent[0]}, which is not")
    if not labels:
        return named
    with command.about("--label"):
        found = {head for word in labels for head in scan.heads(word)}
    if not found:
        raise InputError(f"--label must be one that some head has, got {', '.join(labels)}")
    return sorted(found)


if __name__ == "__main__":
    command.run(main)
