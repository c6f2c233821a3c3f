"""`interp serve` as a script."""

from interp.command import run
from interp.commands.serve import main

if __name__ == "__main__":
    run(main)
