"""What the stand-in is told through one environment variable, so that child processes are told the same.

The variable is JSON: the path of a SystemVersion.plist, the path of a log, and a list of `Fault` by field.
"""

import ctypes
import json
import os
import signal
import threading
import time
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path

VARIABLE = "COREML_STAND_IN"

# Core ML's own words, by what it was doing.
WORDS = {
    "compile": 'Error compiling model: "Failed to parse the model specification. Error: Unable to parse ML Program: '
    'in operation scores: Incompatible Shape.".',
    "load": "Failed to build the model execution plan using a model architecture file "
    "'model.mil' with error code: -14.",
    "predict": "Unable to compute the prediction using ML Program. "
    "It can be an invalid input data or broken/unsupported model.",
}


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong. package, unit, function: patterns as of file names; "" is the only function.

    unit: ALL, CPU_ONLY, CPU_AND_GPU, CPU_AND_NE. at: compile (which knows no unit), load or predict.
    does: refuse, abort (SIGABRT), kill (SIGKILL), hang (holds the GIL, as Core ML would), delay (by `seconds`),
    wrong (predictions come out in another order).
    """

    package: str = "*"
    unit: str = "*"
    function: str = "*"
    at: str = "load"
    does: str = "refuse"
    message: str = ""
    seconds: float = 0.0


def told():
    return json.loads(os.environ[VARIABLE])


def settings(system_version: Path, log: Path, faults=()):
    """The variable's value."""
    return json.dumps({
        "system_version": str(system_version), "log": str(log), "faults": [asdict(fault) for fault in faults],
    })  # fmt: skip


def meet(at: str, package: str, unit: str = "", function: str = "", hints: object = None) -> bool:
    """Write the event into the log, and do what the faults for it say. True if the numbers shall be wrong."""
    given = told()
    event = {"at": at, "package": package, "unit": unit, "function": function}
    line = json.dumps(
        {**event, "hints": hints, "pid": os.getpid(), "thread": threading.current_thread().name}
    )
    with Path(given["log"]).open("a") as log:
        log.write(f"{line}\n")
    wrong = False
    for fault in (Fault(**fields) for fields in given["faults"]):
        asked = asdict(fault)
        if fault.at == at and all(
            fnmatch(event[key], asked[key])
            for key in ("package", "unit", "function")
            if (key, at) != ("unit", "compile")
        ):
            _DOES[fault.does](fault)
            wrong |= fault.does == "wrong"
    return wrong


def _refuse(fault):
    raise RuntimeError(fault.message or WORDS[fault.at])


def _hang(_):
    # PyDLL keeps the GIL, so that no other thread of this process runs, and no signal's handler in Python. A lock that
    # is taken twice is never had, and no signal ends the waiting.
    libc, lock = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
    while True:
        libc.pthread_mutex_lock(lock)


_DOES = {
    "refuse": _refuse,
    "abort": lambda fault: os.abort(),
    "kill": lambda fault: os.kill(os.getpid(), signal.SIGKILL),
    "hang": _hang,
    "delay": lambda fault: time.sleep(fault.seconds),
    "wrong": lambda fault: None,
}
