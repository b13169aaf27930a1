"""Runs first in every child process of a test that has the stand-in."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))

from coreml_stand_in.installation import install_in_child

install_in_child()
