"""`interp numbers` as a script."""

from interp.command import run
from interp.commands.numbers import main

if __name__ == "__main__":
    run(main)
