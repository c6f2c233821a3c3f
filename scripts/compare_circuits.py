"""`interp compare` as a script."""

from interp.command import run
from interp.commands.compare import main

if __name__ == "__main__":
    run(main)
