"""`interp lab` as a script."""

from interp.command import run
from interp.commands.lab import main

if __name__ == "__main__":
    run(main)
