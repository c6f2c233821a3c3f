"""Show every attention head of a model: a page for the browser, and pictures for a paper.

Runs the model on a prompt or several, labels its heads (or takes the labels of an earlier scan),
and writes gallery.html, one file that needs no network, and gallery.png, .svg or .pdf.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from interp import command

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.figure import Figure

    from interp import Head, HeadScan, Model

PICTURES = ("page", "heads", "arcs", "zoo", "layers")


def main(
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
) -> None:
    """Show every attention head of a model: a page for the browser, and pictures for a paper.

    Writes to the folder OUT: gallery.html, one self-contained page with all heads, by label, each
    of which opens in full; and gallery.png, .svg or .pdf, the strongest heads of each label on the
    first prompt (gallery_2 and so on for further ones); and what else DRAW lists, as head_L5H1,
    arcs_L5H1, zoo and score_by_layer, the last two once. A page that would be larger than LIMIT
    shows the strongest heads of each label, and of a prompt its first 1,024 tokens; it says so.
    Files of these names that OUT holds already are replaced.

    Exit code: 0 when every file is there and whole, 2 for a mistake in the call.
    """
    import interp
    from interp import files, plots
    from interp.pages import gallery as pages

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
    with files.staged(out) as scratch:
        with command.progress(f"loading {model}") as step:
            opened = interp.load_model(model, dtype=dtype, device=device)
            if table and table.made_by.get("model", opened.name) != opened.name:
                of = table.made_by["model"]
                raise interp.InputError(f"--scan must be of {opened.name}, got one of {of}")
            rows, titles = _prompts(opened, texts, seed)
            last = min(pages.LONGEST, *map(len, rows)) - 1
            if query is not None and query > last:
                raise interp.InputError(f"--query must be from 0 to {last}, got {query}")
            if table is None:
                step(f"scanning {opened.name}")
                table = interp.scan_heads(opened, seed=seed, progress=step.advance)
                chosen = _chosen(table, named, label)
            if "html" in formats:
                count = len(table.frame) if chosen is None else len(chosen)
                size = pages.estimate(count, [len(row) for row in rows])
                step(f"drawing {count} heads, a page of about {size:.1f} million bytes")
                page = pages.gallery_of_model(
                    table,
                    opened,
                    rows,
                    heads=chosen,
                    titles=titles,
                    limit=limit,
                    progress=step.advance,
                )
                page.save(scratch / "gallery.html")
                notes += page.notes
            if pictures and (longest := max(map(len, rows))) > pages.LONGEST:
                notes.append(
                    f"Pictures of a prompt of {longest:,} tokens show its first {pages.LONGEST:,}."
                )
            for name, figure in _figures(asked, table, opened, rows, chosen, label, query, step):
                for ending in pictures:
                    plots.save_figure(figure, scratch / f"{name}.{ending}")
        written = sorted(path.name for path in scratch.iterdir())
    command.show(*notes, f"wrote {', '.join(written)} to {out}")


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
    from interp import tokens
    from interp.scan import encoded_passages

    if texts:
        rows = []
        for option, text in texts:
            with command.about(option):
                rows.append(model.to_tokens(text)[0].tolist())
        return rows, None
    length = min(49, model.n_ctx)
    probe = tokens.repeated(model.vocabulary, rows=1, length=length, bos=model.bos, seed=seed)
    rows, titles = [probe.tokens[0].tolist()], [f"{length} random tokens that repeat"]
    encoded = dict(zip(tokens.passages(), encoded_passages(model)))
    if "prose" in encoded:
        opening = [] if model.bos is None else [model.bos]
        rows.append([*opening, *encoded["prose"].tolist()][: min(128, model.n_ctx)])
        titles.append(f"{len(rows[1])} tokens of prose")
    return rows, titles


def _figures(
    asked: list[str],
    table: "HeadScan",
    model: "Model",
    rows: list[list[int]],
    heads: list["Head"] | None,
    label: str | None,
    query: int | None,
    step: command.Stage,
) -> "Iterator[tuple[str, Figure]]":
    """Each figure that is asked for, with its name."""
    from interp import attention_patterns, plots
    from interp.labels import LABELS
    from interp.pages.prompts import LONGEST

    if "layers" in asked:
        yield "score_by_layer", plots.score_by_layer(table)
    if "zoo" in asked:
        step("drawing the zoo")
        layers = sorted({head.layer for head in plots.zoo_heads(table).values()}) or [0]
        patterns = attention_patterns(model, rows[0][:LONGEST], layers)
        yield "zoo", plots.head_zoo(table, patterns, whole=len(rows[0]))
    if not {"page", "heads", "arcs"} & set(asked):
        return
    kinds = [kind for kind, word in LABELS.items() if label and word in label.split(",")]
    layers = None if heads is None else sorted({head.layer for head in heads})
    for number, row in enumerate(rows, start=1):
        step(f"drawing prompt {number}")
        patterns, whole = attention_patterns(model, row[:LONGEST], layers), len(row)
        end = "" if number == 1 else f"_{number}"
        if "page" in asked:
            top = 4 if heads is None else 8
            yield (
                f"gallery{end}",
                plots.pattern_page(
                    table, patterns, top=top, heads=heads, kinds=kinds or list(LABELS), whole=whole
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
