#!/usr/bin/env python3
"""Speak a text: python generate_coreml.py --text … [--prompt WAV --prompt-text …] [--output out.wav]

Has the same options as `voxcpm-coreml generate`, except that the bundle is the option --bundle.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
DEFAULT_BUNDLE = "bundle"


def main() -> int:
    """Run `voxcpm-coreml generate` and return its exit code."""
    # Runs from a checkout where only the requirements are installed.
    sys.path[:0] = [str(ROOT / "constants"), str(ROOT / "runtime")]
    from voxcpm_runtime.commands.cli import main as voxcpm_coreml

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--bundle", default=DEFAULT_BUNDLE)
    known, others = parser.parse_known_args()
    return voxcpm_coreml(["generate", known.bundle, *others])


if __name__ == "__main__":
    sys.exit(main())
