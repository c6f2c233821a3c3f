"""`interp patch` as a script."""

from interp.command import run
from interp.commands.patch import main

if __name__ == "__main__":
    run(main)
