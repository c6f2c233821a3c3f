"""`interp accuracy` as a script."""

from interp.command import run
from interp.commands.accuracy import main

if __name__ == "__main__":
    run(main)
