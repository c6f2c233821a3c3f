"""What every script does alike: show progress, and end with one line where the caller erred."""

import errno
import functools
import io
import logging
import signal
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console, RenderableType
from rich.logging import RichHandler
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from typer.core import TyperCommand

from interp.errors import MOST_SEED, InputError

ModelName = Annotated[
    str,
    typer.Option(
        help="SmolLM2-135M (from the package index), a hub id such as gpt2,"
        " a Hugging Face folder, or a .gguf file."
    ),
]
HeadTable = Annotated[
    Path | None,
    typer.Option(
        help="Table of this model's heads from find_induction_heads.py (heads.json,"
        " heads.parquet, heads.csv); made anew if left out."
    ),
]
PatternsFile = Annotated[
    Path | None,
    typer.Option(
        help="Take the attention patterns in this file (.npy, .npz, .safetensors), and run no"
        " model: all layers in one array, or one array each, as layer0."
    ),
]
TokensFile = Annotated[
    Path | None,
    typer.Option(
        help="The token ids behind PATTERNS, -1 for padding (.json, .txt or as PATTERNS)."
        "  [default: tokens or input_ids in PATTERNS]"
    ),
]
SpecialIds = Annotated[
    str | None,
    typer.Option(help="Ids of special tokens in them, by commas; the first needs no naming."),
]
LearnedSinks = Annotated[
    bool,
    typer.Option("--learned-sinks", help="Rows may sum to less than 1, as in gpt-oss."),
]
BothWays = Annotated[bool, typer.Option("--both-ways", help="Queries look ahead too, as in BERT.")]
OF_PATTERNS = frozenset({"tokens", "special", "learned_sinks", "both_ways"})
"""Options that make sense with --patterns alone."""
Seed = Annotated[int, typer.Option(min=0, max=MOST_SEED, help="Of all that is random.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")]
Dtype = Annotated[str, typer.Option(help="float32, bfloat16 or float16.")]

NOTHING = "interrupted: nothing was written"

CONSOLE = Console(file=sys.stderr, highlight=False)
"""For progress and errors; results go to standard output."""


def run(main: Callable[..., None]) -> None:
    """Run `main` as a command line program.

    Its parameters are the options. The exit code is 0 when all is done, 2 for a mistake of
    the caller's, which is told in one line, and 130 when interrupted.
    """
    logger = logging.getLogger("interp")
    logger.setLevel(logging.INFO)
    logger.addHandler(
        RichHandler(console=CONSOLE, show_time=False, show_level=False, show_path=False)
    )
    warnings.showwarning = lambda message, *_: logger.warning("%s", message)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # A console without the letter shows a ?.
    for number in (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
        signal.signal(number, _leave)  # So that what is half done is cleared away.
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

    @app.command(cls=_OneLine)
    @functools.wraps(main)
    def _command(*args: object, **options: object) -> None:
        try:
            main(*args, **options)
        except InputError as error:
            told = str(error)
            # An argument is an option here, which is written with two dashes.
            name, _, rest = told.partition(" ")
            is_option = name in signature(main).parameters
            _leave_with_error(f"--{name.replace('_', '-')} {rest}" if is_option else told)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            _leave_with_error(f"standard output must have room: {error.strerror}")
        except KeyboardInterrupt as interrupt:
            CONSOLE.print(f"interrupted: {interrupt}" if interrupt.args else NOTHING)
            raise typer.Exit(130) from None

    app()


class _OneLine(TyperCommand):
    """A command that tells a wrong option in one line, too."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except _UsageError as error:
            _leave_with_error(" ".join(error.format_message().split()))


_UsageError: Any = typer.BadParameter.__mro__[1]
"""Click's, of which typer has one of its own in some versions and shows this child alone."""


def _leave_with_error(message: str) -> NoReturn:
    """Tell the caller's mistake, and exit with code 2."""
    CONSOLE.print(f"error: {message}", markup=False, soft_wrap=True)
    raise typer.Exit(2) from None


def _leave(number: int, frame: object) -> None:
    sys.exit(128 + number)


class Stage:
    """Where a program is: `stage("loading")` names what it does now."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task = bar.add_task("", total=None)

    def __call__(self, name: str) -> None:
        """Begin to do what `name` says."""
        self._bar.reset(self._task, description=name, total=None)
        if not CONSOLE.is_terminal:
            CONSOLE.print(name, markup=False)

    def advance(self, done: int, total: int) -> None:
        """Show that `done` of `total` parts are behind us."""
        self._bar.update(self._task, completed=done, total=total)


def show(*parts: RenderableType) -> None:
    """Print results to standard output: as plain text, and never cut, where it is no terminal."""
    console = Console(highlight=False)
    # A table that is cut says nothing: a narrow terminal may break its lines instead.
    console.width = max(console.width, 100) if console.is_terminal else 120
    for part in parts:
        console.print(part, markup=False, soft_wrap=isinstance(part, str))


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


@contextmanager
def about(option: str) -> Iterator[None]:
    """Let what the caller got wrong in the block be told as a matter of `option`."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{option}: {error}") from error


def listed(text: str, allowed: Sequence[str], *, name: str) -> list[str]:
    """The parts of `text`, separated by commas.

    Raises:
        InputError: If one of them is not `allowed`.
    """
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if part not in allowed:
            raise InputError(f"{name} must list some of {', '.join(allowed)}, got {text!r}")
    return parts


def refuse_astray(context: typer.Context, of_either: Collection[str]) -> None:
    """Refuse what has no effect: options of a model with --patterns, of patterns without it.

    Args:
        context: Of a command with the options `patterns` and `OF_PATTERNS`.
        of_either: Options that make sense with and without patterns.

    Raises:
        InputError: If one was given.
    """
    by_patterns = context.params["patterns"] is not None
    for name in context.params:
        source = context.get_parameter_source(name)
        if name in {"patterns", *of_either} or source is None or source.name == "DEFAULT":
            continue
        if by_patterns != (name in OF_PATTERNS):
            rule = "be left out with" if by_patterns else "stand with"
            got = "both" if by_patterns else "it alone"
            raise InputError(f"{name} must {rule} --patterns, got {got}")


def whole_numbers(text: str, *, name: str, least: int) -> list[int]:
    """The whole numbers in `text`, separated by commas.

    Raises:
        InputError: If one of them is not a whole number of at least `least`.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 19 and int(part) >= least for part in parts):
        raise InputError(f"{name} must list whole numbers from {least} up, got {text!r}")
    return [int(part) for part in parts]
