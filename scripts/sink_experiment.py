"""`interp sinks` as a script."""

from interp.command import run
from interp.commands.sinks import main

if __name__ == "__main__":
    run(main)
