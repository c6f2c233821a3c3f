"""The command `interp`: `interp heads --model gpt2` runs `interp/commands/heads.py`."""

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

import interp
from interp import command
from interp.commands import GROUPS

EXAMPLES = """\b
Examples:
    interp heads --model gpt2 --out results
    interp gallery --scan results/heads.json
"""


class Commands(TyperGroup):
    """All subcommands; each is imported when it is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of the subcommands."""
        return [name for group in GROUPS.values() for name in group]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A subcommand, or None if there is no such one."""
        if cmd_name not in self.list_commands(ctx):
            return None
        return command.program(import_module(f"interp.commands.{cmd_name}").main)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the subcommands under their headings."""
        for heading, group in GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl([*group.items()])


def main() -> None:
    """Run `interp` with the arguments of the command line."""
    app = typer.Typer(cls=Commands, rich_markup_mode=None)

    @app.callback(epilog=EXAMPLES, invoke_without_command=True, no_args_is_help=True)
    def interp_(
        version: bool = typer.Option(False, "--version", help="Show the version and exit."),
    ) -> None:
        """What each attention head of a language model does, with the evidence.

        `interp COMMAND --help` lists the options of a command.
        """
        if version:
            typer.echo(interp.__version__)
            raise typer.Exit

    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    command.run(group, "interp")


if __name__ == "__main__":
    main()
