"""Open a page that answers typed prompts: all heads, and the next token with and without some.

The first line on standard output is the page's address. It has a token that works once, for the
first browser. The page listens on 127.0.0.1; interrupt the command to end it.

Examples:
    interp serve
    interp serve --model gpt2 --scan results/heads.json --port 8123 --no-open
"""

import threading
import webbrowser
from typing import Annotated

import typer

from interp import command


def main(
    source: command.Source,
    scan: command.HeadTable = None,
    prompt: Annotated[str | None, typer.Option(help="Prompt that the page begins with.")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: a free one.")] = 0,
    host: Annotated[
        str, typer.Option(help="Address to listen at; any but the default lets others connect.")
    ] = "127.0.0.1",
    browser: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the page in a browser.")
    ] = True,
) -> None:
    import interp
    from interp.show.live.start import made

    with command.about("--scan"):
        table = None if scan is None else interp.HeadScan.load(scan)
    with command.progress(f"loading {source.model}") as step:
        opened = interp.load_model(**vars(source))
        if table is None:
            step(f"scanning {opened.name}")
            table = interp.scan_heads(opened, progress=step.advance)
        page = made(opened, table, prompt=prompt, host=host, port=port)
    typer.echo(page.address)
    if browser:
        threading.Timer(0.5, webbrowser.open, [page.address]).start()
    page.run()
