"""What all scripts share: options, progress, printing, and errors in one line."""

import errno
import io
import logging
import re
import signal
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.logging import RichHandler
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from interp.errors import InputError, quoted
from interp.heads import Head

HeadTable = Annotated[
    Path | None,
    typer.Option(
        help="Table of this model's heads that find_induction_heads.py wrote (heads.json,"
        " heads.parquet or heads.csv).  [default: a new scan]"
    ),
]
PatternsFile = Annotated[
    Path | None,
    typer.Option(
        help="File of attention patterns (.npy, .npz, .safetensors) to read instead of running a"
        " model: all layers in one array, or one array per layer, named layer0, layer1, ..."
    ),
]
TokensFile = Annotated[
    Path | None,
    typer.Option(
        help="File of the token ids of PATTERNS, -1 for padding (.json, .txt, .npy, .npz,"
        " .safetensors).  [default: tokens or input_ids in PATTERNS]"
    ),
]
SpecialIds = Annotated[
    str | None,
    typer.Option(
        help="Special token ids, comma-separated. The first token is always treated as special."
    ),
]
LearnedSinks = Annotated[
    bool,
    typer.Option("--learned-sinks", help="Allow rows that sum to less than 1, as in gpt-oss."),
]
BothWays = Annotated[bool, typer.Option("--both-ways", help="Bidirectional attention, as in BERT.")]
SpecialAsText = Annotated[
    bool,
    typer.Option(
        "--special-as-text", help="Read the names of special tokens in texts as plain text."
    ),
]
OF_PATTERNS = frozenset({"tokens", "special", "learned_sinks", "both_ways"})
"""Options that require --patterns."""
Seed = Annotated[int, typer.Option(min=0, max=2**63, help="Random seed.")]
Formats = Annotated[
    str, typer.Option(help="Formats of the figures, comma-separated: png, svg, pdf.")
]
FORMATS = ("png", "svg", "pdf")
Method = Annotated[
    str,
    typer.Option(help="stream: without building patterns; hooks: with one layer's at a time."),
]


Kinds = Annotated[
    str | None,
    typer.Option(
        help="Kinds of heads to score, comma-separated: names such as last_punctuation, default,"
        " all, or FILE.py:NAME for a kind of your own.  [default: default]"
    ),
]


@dataclass(frozen=True)
class Source:
    """Which model a script loads: a parameter of this type becomes an option for each field.

    The fields are arguments of `interp.load_model`: `load_model(**vars(source))`.
    """

    model: Annotated[
        str,
        typer.Option(
            help="SmolLM2-135M (from the package index), a hub id such as gpt2,"
            " a Hugging Face folder, or a .gguf file."
        ),
    ] = "SmolLM2-135M"
    tokenizer: Annotated[
        str | None,
        typer.Option(help="Folder or hub id of the tokenizer.  [default: the model's own]"),
    ] = None
    revision: Annotated[
        str | None, typer.Option(help="Commit, tag or branch of a hub id.  [default: main]")
    ] = None
    name: Annotated[
        str | None,
        typer.Option(help="Name of the model in results.  [default: from --model]"),
    ] = None
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 or mps.")] = "auto"
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32"


CONSOLE = Console(stderr=True, highlight=False)
"""For progress and errors; results go to standard output."""


def run(main: Callable[..., None]) -> None:
    """Run `main` as a command line program.

    Its parameters are the options, and the docstring of its module is the help. The exit code is
    0 on success, 2 after a mistake of the caller, which gets one line on standard error, and 130
    after an interrupt.
    """
    logger = logging.getLogger("interp")
    logger.setLevel(logging.INFO)
    logger.addHandler(
        RichHandler(console=CONSOLE, show_time=False, show_level=False, show_path=False)
    )
    warnings.showwarning = lambda message, *_: logger.warning("%s", message)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # An ASCII console shows a ? for other letters.
    for number in (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
        # An exit unwinds the stack, so that scratch folders are removed.
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    sys.exit(call(main, sys.argv[1:]))


def call(main: Callable[..., None], arguments: Sequence[str]) -> int:
    """Run `main` with these command line arguments, and return the exit code (see `run`)."""
    of_model, own = signature(Source).parameters, signature(main).parameters
    groups = [name for name, parameter in own.items() if parameter.annotation is Source]
    parameters: dict[str, Parameter] = {}
    for name, parameter in own.items():
        parameters |= of_model if name in groups else {name: parameter}

    def body(**options: Any) -> int:
        try:
            for name in groups:
                options[name] = Source(**{each: options.pop(each) for each in of_model})
            main(**options)
        except InputError as error:
            name, _, rest = str(error).partition(" ")
            is_option = name in parameters
            return _ended(f"--{name.replace('_', '-')} {rest}" if is_option else error)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return _ended(f"standard output must have room: {error.strerror}")
        except KeyboardInterrupt as interrupt:
            message = interrupt.args[0] if interrupt.args else "no results were written"
            return _ended(message, kind="interrupted", code=130)
        return 0

    options = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in parameters.values()]
    body.__signature__ = Signature(options)  # pyright: ignore[reportFunctionMemberAccess]
    epilog = "Exit code: 0 on success, 2 after a mistake in the call, 130 after an interrupt."
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(help=main.__globals__["__doc__"], epilog=epilog)(body)
    program = typer.main.get_command(app)
    try:
        return program.main([*arguments], Path(sys.argv[0]).name, standalone_mode=False)
    except Exception as error:
        words = getattr(error, "format_message", None)
        if words is None:
            raise
        return _ended(words())  # Typer itself would print three lines of usage.


def _ended(message: object, *, kind: str = "error", code: int = 2) -> int:
    CONSOLE.print(f"{kind}: {' '.join(str(message).split())}", markup=False, soft_wrap=True)
    return code


class Stage:
    """What a program does now: `stage("loading")` names it."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task = bar.add_task("", total=None)

    def __call__(self, name: str) -> None:
        """Begin the stage `name`."""
        self._bar.reset(self._task, description=name, total=None)
        if not CONSOLE.is_terminal:
            CONSOLE.print(name, markup=False)

    def advance(self, done: int, total: int) -> None:
        """Show that `done` of `total` parts are done."""
        self._bar.update(self._task, completed=done, total=total)


@contextmanager
def progress(name: str) -> Iterator[Stage]:
    """A progress bar on standard error while the block runs; single lines if it is no terminal."""
    columns = TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn()
    with Progress(
        *columns, console=CONSOLE, transient=True, disable=not CONSOLE.is_terminal
    ) as bar:
        stage = Stage(bar)
        stage(name)
        yield stage


def show(*parts: RenderableType) -> None:
    """Print results to standard output, as plain text unless it is a terminal."""
    console = Console(highlight=False)
    # A narrow terminal breaks the lines of a table rather than cutting its columns.
    console.width = max(console.width, 100) if console.is_terminal else 120
    for part in parts:
        console.print(part, markup=False, soft_wrap=isinstance(part, str))


@contextmanager
def about(option: str) -> Iterator[None]:
    """Name `option` in any `InputError` that the block raises."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{option}: {error}") from error


def listed(text: str, allowed: Sequence[str], *, name: str) -> list[str]:
    """The comma-separated parts of `text`, each as `allowed` spells it, with spaces or underscores.

    Example:
        >>> listed("sink,previous_token", ["sink", "previous token"], name="--label")
        ['sink', 'previous token']
    """
    known = {word.replace("_", " "): word for word in allowed}
    parts = [known.get(part.strip().replace("_", " ")) for part in text.split(",")]
    if None in parts:
        raise InputError(f"{name} must list some of {', '.join(allowed)}, got {quoted(text)}")
    return [part for part in parts if part]


def heads(text: str, *, name: str) -> list[Head]:
    """The heads that a comma-separated list names, each once.

    Example:
        >>> heads("L5H1, 18.6, (5, 1)", name="--heads")
        [L5H1, L18H6]
    """
    with about(name):
        parts = re.findall(r"\s*\([^)]*\)|[^,]+", text) or [text]
        return list(dict.fromkeys(map(Head.parse, parts)))


def whole_numbers(text: str, *, name: str, least: int) -> list[int]:
    """The whole numbers of at least `least` in a comma-separated list."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 19 and int(part) >= least for part in parts):
        raise InputError(f"{name} must list whole numbers from {least} up, got {quoted(text)}")
    return [int(part) for part in parts]


def positions(text: str | None, *, name: str) -> str | slice | None:
    """`all`, or a range of positions, `2:10`, `2:` or `:10`; None as it is.

    Example:
        >>> positions("2:", name="--positions")
        slice(2, None, None)
    """
    if text in (None, "all"):
        return text
    if not (ends := re.fullmatch(r"(\d{0,9}):(\d{0,9})", text, re.ASCII)):
        raise InputError(f"{name} must be START:END or all, got {quoted(text)}")
    return slice(*(int(end) if end else None for end in ends.groups()))


def refuse_misplaced(context: Any, of_either: Collection[str]) -> None:
    """Refuse options without effect: those of a model with --patterns, of patterns without it.

    Args:
        context: The `typer.Context` of a command with the options `patterns` and `OF_PATTERNS`.
        of_either: Names of the options that apply with and without patterns.
    """
    by_patterns = context.params["patterns"] is not None
    for name in (name for name in context.params if name not in {"patterns", *of_either}):
        source = context.get_parameter_source(name)
        is_given = source is not None and source.name != "DEFAULT"
        if is_given and (name in OF_PATTERNS) != by_patterns:
            rule = "be left out" if by_patterns else "come"
            raise InputError(f"{name} must {rule} with --patterns")
