"""Where the program `pipelab` begins: the command line takes a moment to import."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C before it is imported ends in one sentence, too."""
    try:
        from pipelab.cli.command_line import main as run
    except KeyboardInterrupt:
        print("pipelab: interrupted before it began", file=sys.stderr)
        sys.exit(130)
    run()
