#!/usr/bin/env python3
"""Speak a text: python generate_coreml.py --text … [--prompt WAV --prompt-text …] [--output out.wav]

The same as `voxcpm-coreml generate BUNDLE …`, whose options it takes, with the bundle as an option.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
DEFAULT_BUNDLE = "bundle"


def main() -> int:
    """Exit code of `voxcpm-coreml generate`."""
    # So that the script runs from a checkout too, where only the requirements are installed.
    sys.path[:0] = [str(ROOT / "constants"), str(ROOT / "runtime")]
    from voxcpm_runtime.commands.cli import main as voxcpm_coreml

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--bundle", default=DEFAULT_BUNDLE)
    known, others = parser.parse_known_args()
    return voxcpm_coreml(["generate", known.bundle, *others])


if __name__ == "__main__":
    sys.exit(main())
