"""Show every attention head of a model: a page for the browser, and pictures for a paper.

Runs the model on a prompt or several, labels its heads (or takes the labels of an earlier scan),
and writes gallery.html, one file that needs no network, and gallery.png, .svg or .pdf.
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

PICTURES = ("page", "heads", "arcs", "zoo", "layers")


@dataclass(frozen=True)
class Shown:
    """What the heads are shown on, whether a model runs it or a file holds it.

    Attributes:
        rows: The token ids of each prompt.
        most: Tokens of a prompt that a picture shows.
        causal: Whether no query looks ahead.
        scan: Labels the heads.
        page: The page, of a table, of some heads, within a limit.
        patterns: Of the prompt with that number, in some layers, as much as a picture shows.
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
            help="A text to show the heads on; may be given several times.  [default: random"
            " tokens that repeat, and a passage of prose]"
        ),
    ] = None,
    prompt_file: Annotated[
        list[Path] | None,
        typer.Option(
            help="A UTF-8 file whose text is a prompt; may be given several times. Files come"
            " after all of --prompt."
        ),
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(help="Only heads with one of these labels, by commas: 'induction,sink'."),
    ] = None,
    heads: Annotated[str | None, typer.Option(help="Only these heads, by commas: L5H1,L18H6.")] = (
        None
    ),
    format: Annotated[str, typer.Option(help="html, png, svg, pdf, by commas.")] = "html",
    draw: Annotated[
        str | None,
        typer.Option(
            help="The pictures, by commas: page (the strongest heads of each label), heads (each"
            " of HEADS in full), arcs (where one query of each of HEADS looks), zoo (a head of"
            " each kind beside its ideal), layers (scores by layer).  [default: page; with HEADS"
            " heads too]"
        ),
    ] = None,
    query: Annotated[
        int | None,
        typer.Option(min=0, help="Position of the query for arcs.  [default: the last]"),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("results"),
    limit: Annotated[
        float, typer.Option(help="Size of the page in millions of bytes at most.")
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
    """Show every attention head of a model: a page for the browser, and pictures for a paper.

    Writes to the folder OUT: gallery.html, one self-contained page with all heads, by label, each
    of which opens in full; and gallery.png, .svg or .pdf, the strongest heads of each label on the
    first prompt (gallery_2 and so on for further ones); and what else DRAW lists, as head_L5H1,
    arcs_L5H1, zoo and score_by_layer, the last two once. A page that would be larger than LIMIT
    shows the strongest heads of each label, and of a prompt its first 1,024 tokens; it says so.
    Files of these names that OUT holds already are replaced.

    With PATTERNS no model is loaded: the heads are labelled by what is in that file, each row of
    a batch is a prompt, and tokens are shown by their ids.

    Exit code: 0 when every file is there and whole, 2 for a mistake in the call.
    """
    command.refuse_misplaced(context, OF_EITHER)
    import interp
    from interp import files
    from interp.show import figures as plots
    from interp.show.pages import gallery as pages

    pages.room_of(limit)
    formats = command.listed(format, ("html", "png", "svg", "pdf"), name="--format")
    pictures = [ending for ending in formats if ending != "html"]
    named = _named(heads)
    if named and label is not None:
        raise interp.InputError("--heads must stand without --label, got both")
    asked = _asked(draw, query, pictures=bool(pictures), named=bool(named))
    texts = [("--prompt", text) for text in prompt or []]
    texts += [(f"--prompt-file {path}", _read(path)) for path in prompt_file or []]
    with command.about("--scan"):
        table = None if scan is None else interp.HeadScan.load(scan)
    chosen = None if table is None else _chosen(table, named, label)
    notes = []
    with (
        files.staged(out) as scratch,
        command.progress(f"reading {patterns}" if patterns else f"loading {model}") as step,
    ):
        if patterns is not None:
            how = {"learned_sinks": learned_sinks, "causal": not both_ways}
            shown = _of_file(patterns, tokens, special, how)
        else:
            opened = interp.load_model(model, dtype=dtype, device=device)
            if table and table.made_by.get("model", opened.name) != opened.name:
                of = table.made_by["model"]
                raise interp.InputError(f"--scan must be of {opened.name}, got one of {of}")
            shown = _of_model(opened, *_prompts(opened, texts, seed), seed)
        last = min(shown.most, *map(len, shown.rows)) - 1
        if query is not None and query > last:
            raise interp.InputError(f"--query must be from 0 to {last}, got {query}")
        if table is None:
            table = shown.scan(step)
            chosen = _chosen(table, named, label)
        if "html" in formats:
            count = len(table.frame) if chosen is None else len(chosen)
            lengths = [len(row) for row in shown.rows]
            size = pages.estimate(count, lengths, causal=shown.causal)
            step(f"drawing {count} heads, a page of about {size:.1f} million bytes")
            page = shown.page(table, chosen, limit, step)
            page.save(scratch / "gallery.html")
            notes += page.notes
        if pictures and (longest := max(map(len, shown.rows))) > shown.most:
            notes.append(
                f"Pictures of a prompt of {longest:,} tokens show its first {shown.most:,}."
            )
        for name, figure in _figures(asked, table, shown, chosen, label, query, step):
            for ending in pictures:
                plots.save_figure(figure, scratch / f"{name}.{ending}")
        written = sorted(path.name for path in scratch.iterdir())
    command.show(*notes, f"wrote {', '.join(written)} to {out}")


def _of_model(model: "Model", rows: list[list[int]], titles: list[str] | None, seed: int) -> Shown:
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

    return Shown(rows, pages.LONGEST, causal, scan, page, patterns)


def _of_file(file: Path, tokens: Path | None, special: str | None, how: dict[str, bool]) -> Shown:
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
        own = slice(number, number + 1)
        one = replace(
            taken, arrays=[layer[own] for layer in taken.arrays], tokens=taken.tokens[own]
        )
        return given.first_prompt(one, **how)

    rows = [row[row != NONE].tolist() for row in taken.tokens]
    return Shown(rows, given.SHOWN, how["causal"], scan, page, patterns)


def _asked(draw: str | None, query: int | None, *, pictures: bool, named: bool) -> list[str]:
    """The pictures to draw: none where no format of theirs is asked for."""
    from interp import InputError

    asked = command.listed(draw or ("page,heads" if named else "page"), PICTURES, name="--draw")
    if not named and {"heads", "arcs"} & set(asked):
        raise InputError(f"--draw must list heads and arcs with --heads alone, got {draw}")
    if not pictures and (draw is not None or query is not None):
        option = "draw" if draw is not None else "query"
        raise InputError(f"--{option} must come with a picture, got --format html")
    if query is not None and "arcs" not in asked:
        raise InputError(f"--query must come with --draw arcs, got {','.join(asked)}")
    return asked if pictures else []


def _read(path: Path) -> str:
    """The text of a file as it is, its line ends among it, but for a byte order mark."""
    from interp import InputError

    try:
        return path.read_bytes().decode("utf-8-sig")
    except (OSError, ValueError) as error:
        told = getattr(error, "strerror", None) or "it is not UTF-8"
        raise InputError(f"--prompt-file must be a text file, got {path}: {told}") from None


def _prompts(
    model: "Model", texts: list[tuple[str, str]], seed: int
) -> tuple[list[list[int]], list[str] | None]:
    """The token ids of each prompt, and titles where the prompts are our own."""
    from interp.kinds import probes as tokens
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
    probe = tokens.repeated(ids, rows=1, length=inside, bos=model.bos, seed=seed)
    rows = [[*probe.tokens[0].tolist(), *closing]]
    titles = [f"{length} random tokens that repeat"]
    encoded = dict(zip(tokens.passages(), encoded_passages(model)))
    if "prose" in encoded:
        opening = [] if model.bos is None else [model.bos]
        opened = [*opening, *encoded["prose"].tolist()]
        rows.append([*opened[: min(128, model.n_ctx) - len(closing)], *closing])
        titles.append(f"{len(rows[1])} tokens of prose")
    return rows, titles


def _figures(
    asked: list[str],
    table: "HeadScan",
    shown: Shown,
    heads: list["Head"] | None,
    label: str | None,
    query: int | None,
    step: command.Stage,
) -> "Iterator[tuple[str, Figure]]":
    """Each figure that is asked for, with its name."""
    from interp.kinds.looks import WORDS
    from interp.show import figures as plots

    if "layers" in asked:
        yield "score_by_layer", plots.score_by_layer(table)
    if "zoo" in asked:
        step("drawing the zoo")
        layers = sorted({head.layer for head in plots.zoo_heads(table).values()}) or [0]
        patterns = shown.patterns(0, layers)
        yield "zoo", plots.head_zoo(table, patterns, whole=len(shown.rows[0]))
    if not {"page", "heads", "arcs"} & set(asked):
        return
    kinds = [kind for kind, word in WORDS.items() if label and word in label.split(",")]
    layers = None if heads is None else sorted({head.layer for head in heads})
    for number, row in enumerate(shown.rows):
        step(f"drawing prompt {number + 1}")
        patterns, whole = shown.patterns(number, layers), len(row)
        end = "" if number == 0 else f"_{number + 1}"
        if "page" in asked:
            top = 4 if heads is None else 8
            yield (
                f"gallery{end}",
                plots.pattern_page(
                    table, patterns, top=top, heads=heads, kinds=kinds or list(WORDS), whole=whole
                ),
            )
        for head in heads or []:
            if "heads" in asked:
                yield (
                    f"head_{head}{end}",
                    plots.head_page(patterns, head, scan=table, whole=whole),
                )
            if "arcs" in asked:
                arcs = plots.attention_arcs(patterns, head, query, scan=table, whole=whole)
                yield f"arcs_{head}{end}", arcs


def _named(heads: str | None) -> list["Head"] | None:
    from interp import Head

    with command.about("--heads"):
        return (
            None
            if heads is None
            else list(dict.fromkeys(Head.parse(part) for part in heads.split(",")))
        )


def _chosen(scan: "HeadScan", named: list["Head"] | None, label: str | None) -> list["Head"] | None:
    """The heads that are named, or that carry one of the labels; None stands for all."""
    from interp import InputError

    there = set(scan.frame["name"].tolist())
    if absent := [head for head in named or [] if str(head) not in there]:
        raise InputError(f"--heads must be in the scan, got {absent[0]}, which is not")
    if label is None:
        return named
    with command.about("--label"):
        found = {head for word in label.split(",") for head in scan.heads(word)}
    if not found:
        raise InputError(f"--label must be one that some head has, got {label!r}")
    return sorted(found)


if __name__ == "__main__":
    command.run(main)
