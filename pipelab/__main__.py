"""`python -m pipelab` is the command line, as `pipelab` is."""

from pipelab.cli.entry import main

if __name__ == "__main__":
    main()
