"""`interp heads` as a script."""

from interp.command import run
from interp.commands.heads import main

if __name__ == "__main__":
    run(main)
