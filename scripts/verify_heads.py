"""`interp verify` as a script."""

from interp.command import run
from interp.commands.verify import main

if __name__ == "__main__":
    run(main)
