"""`interp train` as a script."""

from interp.command import run
from interp.commands.train import main

if __name__ == "__main__":
    run(main)
