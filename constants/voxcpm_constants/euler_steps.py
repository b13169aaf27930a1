"""The numbers of Euler steps that are allowed. Nothing is imported here, so that the command line starts fast."""

from __future__ import annotations

MAX_EULER_STEPS = 200
"""The largest number of Euler steps of a patch that may be asked for."""

MIN_SOLVER_STEPS = 2
"""The smallest number for `locdit_solve`, which has CFG-zero*: with that, the first step never moves the patch."""
