"""`interp prompts` as a script."""

from interp.command import run
from interp.commands.prompts import main

if __name__ == "__main__":
    run(main)
