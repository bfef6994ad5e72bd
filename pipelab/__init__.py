"""pipelab: which GPUs should hold which layers of a large language model?

    import pipelab as pl

    problem = pl.load_case("tiny", max_gpus_per_stage=2)
    result = pl.solve(problem)

The public names are listed once, in `__init__.pyi`, in the order in which a reader meets them. Each
is imported when it is first used, so that `import pipelab` stays quick.
"""

import signal
import threading

from pipelab.lazy_names import public_names

_A_MOMENT = 0.1  # seconds
__version__ = "0.3.0"

__all__, _import, __dir__ = public_names(__name__, __file__)


def __getattr__(name: str) -> object:
    """Import a public name when it is first used."""
    from pipelab.interrupts import noted_interrupts

    try:
        with noted_interrupts(passed_on=False) as interrupted:
            found = _import(name)
        if interrupted():  # once more, when what was asked for has begun, and can answer
            threading.Timer(_A_MOMENT, signal.raise_signal, (signal.SIGINT,)).start()
        globals()[name] = found  # not asked for again
        return found
    except ModuleNotFoundError as error:
        if error.name and error.name.partition(".")[0] == "pipelab":
            raise
        from pipelab.errors import MissingPackage

        raise MissingPackage(f"pl.{name}", error.name or "") from error
