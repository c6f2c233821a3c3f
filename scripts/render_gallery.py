"""`interp gallery` as a script."""

from interp.command import run
from interp.commands.gallery import main

if __name__ == "__main__":
    run(main)
