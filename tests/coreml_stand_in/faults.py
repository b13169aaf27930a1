"""What the stand-in is told through one environment variable, so that child processes are told the same.

The variable is JSON: the path of a SystemVersion.plist, the path of a log, and a list of `Fault` by field.
"""

import ctypes
import json
import os
import signal
import threading
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
    "first load": "E5RT: ANECCompile() FAILED.",
    "predict": "Unable to compute the prediction using ML Program. "
    "It can be an invalid input data or broken/unsupported model.",
}


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong. package, unit, function: patterns as of file names; "" is the only function.

    unit: ALL, CPU_ONLY, CPU_AND_GPU, CPU_AND_NE. at: compile (which knows no unit), first load (on a unit, which takes
    longer than all others), load or predict. does: refuse, abort (SIGABRT), kill (SIGKILL), hang,
    delay (by `seconds`; both hold the GIL, as Core ML's binding does), wrong (predictions come out in another order).
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
        "test": os.getpid(),
    })  # fmt: skip


def meet(at: str, package: str, unit: str = "", function: str = "", hints: object = None) -> bool:
    """Log the event and apply its faults. Returns whether the numbers must be wrong."""
    event = {"at": at, "package": package, "unit": unit, "function": function}
    record(**event, hints=hints)
    wrong = False
    for fault in (Fault(**fields) for fields in told()["faults"]):
        asked = asdict(fault)
        if fault.at == at and all(
            fnmatch(event[key], asked[key])
            for key in ("package", "unit", "function")
            if (key, at) != ("unit", "compile")
        ):
            _DOES[fault.does](fault)
            wrong |= fault.does == "wrong"
    return wrong


def record(**event):
    """Write an event into the log."""
    line = json.dumps({**event, "pid": os.getpid(), "thread": threading.current_thread().name})
    with Path(told()["log"]).open("a") as log:
        log.write(f"{line}\n")


def events():
    """All events in the log so far, of all processes."""
    log = Path(told()["log"])
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def crash(reason):
    """End this process as the system would; in the test's own process, leave that to the fixture."""
    record(at="crash", reason=reason)
    if os.getpid() != told()["test"]:
        os.kill(os.getpid(), signal.SIGSEGV)


def _refuse(fault):
    words = fault.message or WORDS[fault.at]
    # Of a compilation the binding throws the sentence, of all else the `userInfo` of Core ML's error as it is printed.
    raise RuntimeError(words if fault.at == "compile" else printed_dictionary(words))


def printed_dictionary(description):
    """An error's `userInfo` as Foundation prints it."""
    entries = {
        "NSLocalizedDescription": description,
        "NSUnderlyingError": "Error Domain=com.apple.CoreML Code=0",
    }
    return "{\n" + "".join(f"    {key} = {_quoted(text)};\n" for key, text in entries.items()) + "}"


def _quoted(text):
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return '"' + "".join(c if c.isascii() else f"\\U{ord(c):04x}" for c in escaped) + '"'


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
    "delay": lambda fault: ctypes.PyDLL(None).usleep(int(1e6 * fault.seconds)),
    "wrong": lambda fault: None,
}
