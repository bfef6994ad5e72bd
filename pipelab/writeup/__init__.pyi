# The public names of `pl.writeup`; see `pipelab/lazy_names.py`.
from .cases_csv import cases as cases
from .cases_csv import load_case as load_case
from .cases_csv import load_coefficients as load_coefficients
from .cases_csv import save_case as save_case
from .linear_rates import Coefficients as Coefficients
from .linear_rates import LinearThroughput as LinearThroughput
from .linear_rates import with_link_units as with_link_units
