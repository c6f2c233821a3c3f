"""`interp sensitivity` as a script."""

from interp.command import run
from interp.commands.sensitivity import main

if __name__ == "__main__":
    run(main)
