"""`interp circuit` as a script."""

from interp.command import run
from interp.commands.circuit import main

if __name__ == "__main__":
    run(main)
