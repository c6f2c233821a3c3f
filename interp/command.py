"""What all commands share: options, help, progress, printing, and errors in one line."""

import errno
import io
import json
import logging
import re
import signal
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field, is_dataclass
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.logging import RichHandler
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from typer.core import TyperCommand, TyperGroup

from interp.errors import InputError, quoted
from interp.heads import Head
from interp.printing import printed

HeadTable = Annotated[
    Path | None,
    typer.Option(help="Table of this model that `interp heads` wrote.  [default: a new scan]"),
]
PatternsFile = Annotated[
    Path | None,
    typer.Option(
        help="Patterns to read instead of running a model (.npy, .npz, .safetensors): one array,"
        " or arrays layer0, layer1, ..."
    ),
]
TokensFile = Annotated[
    Path | None,
    typer.Option(
        help="Token ids, -1 for padding (.json, .txt or as above).  [default: in PATTERNS]"
    ),
]
SpecialIds = Annotated[
    str | None,
    typer.Option(help="Special token ids, comma-separated, besides the first token."),
]
PairsFile = Annotated[
    Path | None,
    typer.Option(
        help="Your own pairs, instead of a task: .jsonl or .csv with clean, corrupted, right"
        " and wrong in each line."
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
    """Which model a command loads: a parameter of this type becomes an option for each field.

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


@dataclass(frozen=True)
class Drawing:
    """How a command draws figures: a parameter of this type becomes an option for each field."""

    format: Annotated[
        str, typer.Option(help="Formats of the figures, comma-separated: png, svg, pdf.")
    ] = "png,svg"
    plain: Annotated[
        bool, typer.Option("--plain", help="Draw for a paper: no titles and no notes.")
    ] = False
    width: Annotated[
        float | None,
        typer.Option(help="Width in inches: 3.3 for a column.  [default: 6.9]"),
    ] = None

    @property
    def formats(self) -> list[str]:
        """The formats of the figures."""
        return [name for name in self.listed if name in FORMATS]

    @property
    def listed(self) -> list[str]:
        """All formats that are asked for."""
        return listed(self.format, FORMATS, name="--format")

    @contextmanager
    def used(self) -> Iterator[None]:
        """Draw so in the block; a mistake is found at once."""
        with printed(context="paper" if self.plain else None, width=self.width):
            _ = self.listed
            yield


@dataclass(frozen=True)
class Pages(Drawing):
    """How a command writes pages and draws figures."""

    format: Annotated[
        str, typer.Option(help="Formats, comma-separated: html, json, png, svg, pdf.")
    ] = "html"

    @property
    def listed(self) -> list[str]:
        """All formats that are asked for."""
        return listed(self.format, ("html", "json", *FORMATS), name="--format")


CONSOLE = Console(stderr=True, highlight=False)
"""For progress and errors; results go to standard output."""


GROUPS = {
    "Output": ("out", "top", *signature(Pages).parameters, "draw", "limit", "json"),
    "Model": tuple(signature(Source).parameters),
    "Patterns from a file": ("patterns", *sorted(OF_PATTERNS)),
}
"""Headings of the help, each with its options; all others are `Options`."""


@dataclass
class Call:
    """A command that runs: which options were given, and what it printed if that is kept."""

    given: list[str] = field(default_factory=list)
    json: bool = False
    result: Any = None
    lines: list[str] = field(default_factory=list)


_CALL: ContextVar[Call] = ContextVar("call", default=Call())  # noqa: B039


class Help(TyperCommand):
    """A command whose help lists its options in groups."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write each group of options under its heading."""
        group_of = {name: group for group, names in GROUPS.items() for name in names}
        groups: dict[str, list[tuple[str, str]]] = {"Options": []} | {g: [] for g in GROUPS}
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is not None:
                # Bounds of a number are in the message that refuses others.
                words = re.sub(r";? ?x[<>]=?[\w.]+|\d+<=x<=\d+", "", record[1])
                words = words.replace("  [; ]", "").replace("; ]", "]").replace("  []", "")
                options = record[0].replace(" range>", ">")
                groups[group_of.get(str(parameter.name), "Options")].append((options, words))
        for group, records in groups.items():
            if records:
                with formatter.section(group):
                    formatter.write_dl(records)


def run(main: "Callable[..., None] | TyperCommand | TyperGroup", name: str | None = None) -> None:
    """Run `main` as a command line program.

    A function becomes a `program`. The exit code is 0 on success, 2 after a mistake of the caller,
    which gets one line on standard error, and 130 after an interrupt.
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
    sys.exit(call(main, sys.argv[1:], name))


def call(
    main: "Callable[..., None] | TyperCommand | TyperGroup",
    arguments: Sequence[str],
    name: str | None = None,
) -> int:
    """Run `main` with these command line arguments, and return the exit code (see `run`)."""
    command = main if isinstance(main, TyperCommand | TyperGroup) else program(main)
    name = name or Path(sys.argv[0]).name
    try:
        return command.main([*arguments], name, standalone_mode=False) or 0
    except Exception as error:
        words = getattr(error, "format_message", None)
        if words is None:
            raise
        return _ended(words())  # Typer itself would print three lines of usage.


def program(main: Callable[..., None]) -> TyperCommand:
    """The command of a function: its parameters are options, its module's docstring is the help.

    `--json` is added: it prints one JSON object instead of text.
    """
    own = signature(main).parameters
    kinds = {name: one.annotation for name, one in own.items()}
    known: dict[str, Any] = {name: kind for name, kind in kinds.items() if is_dataclass(kind)}
    # An option of the command itself comes before one of a group.
    groups: dict[str, Any] = {
        name: {each: one for each, one in signature(kind).parameters.items() if each not in own}
        for name, kind in known.items()
    }
    parameters: dict[str, Parameter] = {}
    for name, parameter in own.items():
        parameters |= groups.get(name, {name: parameter})
    as_json = typer.Option("--json", help="Print one JSON object: result, and lines of text.")
    parameters["json"] = Parameter(
        "json", Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, as_json]
    )

    parameters["context"] = Parameter("context", Parameter.KEYWORD_ONLY, annotation=typer.Context)

    def body(**options: Any) -> int:
        source = options.pop("context").get_parameter_source
        chosen = (name for name in parameters if name in options)
        given = [name for name in chosen if source(name).name != "DEFAULT"]
        call = Call(given, options.pop("json"))
        token = _CALL.set(call)
        try:
            for name, fields in groups.items():
                options[name] = known[name](**{each: options.pop(each) for each in fields})
            drawing = next((one for one in options.values() if isinstance(one, Drawing)), None)
            with nullcontext() if drawing is None else drawing.used():
                main(**options)
            if call.json:
                shown = {"result": call.result, "lines": call.lines}
                typer.echo(json.dumps(shown, allow_nan=False))
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
        finally:
            _CALL.reset(token)
        return 0

    options = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in parameters.values()]
    body.__signature__ = Signature(options)  # pyright: ignore[reportFunctionMemberAccess]
    words, _, examples = (main.__globals__["__doc__"] or "").partition("\nExamples:\n")
    epilog = "Exit code: 0 on success, 2 after a mistake in the call, 130 after an interrupt."
    if examples:
        epilog = f"\b\nExamples:\n{examples.rstrip()}\n\n{epilog}"
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    wide = {"max_content_width": 100}
    app.command(help=words, epilog=epilog, cls=Help, context_settings=wide)(body)
    made = typer.main.get_command(app)
    assert isinstance(made, TyperCommand)
    return made


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

    def advance(self, done: int, total: int) -> None:
        """Show that `done` of `total` parts are done."""
        self._bar.update(self._task, completed=done, total=total)


@contextmanager
def progress(name: str) -> Iterator[Stage]:
    """A progress bar on standard error while the block runs; nothing if it is no terminal."""
    columns = TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn()
    with Progress(
        *columns, console=CONSOLE, transient=True, disable=not CONSOLE.is_terminal
    ) as bar:
        stage = Stage(bar)
        stage(name)
        yield stage


def show(*parts: RenderableType, result: Any = None) -> None:
    """Print results to standard output, as plain text unless it is a terminal.

    With `--json` they are kept, and `result`: something with `to_json`, or plain values.
    """
    if (call := _CALL.get()).json:
        call.lines += [part for part in parts if isinstance(part, str)]
        if result is not None:
            call.result = result.to_json() if hasattr(result, "to_json") else result
        return
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


def refuse_misplaced(of_either: Collection[str]) -> None:
    """Refuse options without effect: those of a model with --patterns, of patterns without it.

    Args:
        of_either: Names of the options that apply with and without patterns.
    """
    given = _CALL.get().given
    by_patterns = "patterns" in given
    for name in given:
        either = name in {"patterns", "json", *of_either}
        if not either and (name in OF_PATTERNS) != by_patterns:
            rule = "be left out" if by_patterns else "come"
            raise InputError(f"{name} must {rule} with --patterns")
