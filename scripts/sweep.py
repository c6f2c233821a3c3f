"""`interp sweep` as a script."""

from interp.command import run
from interp.commands.sweep import main

if __name__ == "__main__":
    run(main)
