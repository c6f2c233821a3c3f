"""`interp build` as a script."""

from interp.command import run
from interp.commands.build import main

if __name__ == "__main__":
    run(main)
