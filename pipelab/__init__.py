"""pipelab: which GPUs should hold which layers of a large language model?

    import pipelab as pl

    problem = pl.load_case("tiny", max_gpus_per_stage=2)
    result = pl.solve(problem)

The public names are listed once, in `__init__.pyi`, in the order in which a reader meets them. Each
is imported when it is first used, so that `import pipelab` stays quick.
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
