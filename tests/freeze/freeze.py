"""What a change of structure may not change, compared with an earlier revision on the same machine.

    python tests/freeze/freeze.py REVISION [--only speech ...]

Records what users see through public names alone: samples of every generation, precision and mode, streamed and whole;
public names and signatures; commands and their flags; the OpenAPI document and answers to fixed requests; the packages
and test vectors that a conversion writes. Otherwise both trees speak with the same bundles, which REVISION's tree
converts.

Prints each difference, and exits with 1 if there is one. No record is kept, as samples depend on the processor and on
the release of ONNX Runtime.
"""

# ruff: noqa: T201 - a script that prints
import argparse
import contextlib
import hashlib
import inspect
import io
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import warnings
from pathlib import Path
from typing import Any

TREE = Path(__file__).resolve().parents[2]
ROOTS = ("constants", "runtime", "conversion", "validation", "server")
CONFIGURATIONS = ("tiny", "tiny-kv", "tiny-2")
CONVERTED = ("--precision", "fp16", "--precision", "int8", "--max-length", "128", "--quantize", "all")
Record = dict[str, Any]
PROGRAM = "import sys; from voxcpm_runtime.commands.cli import main; sys.exit(main())"
LONG = "Hello there. The old farmer fed his chickens.\n\nThen he walked to the river, slowly, and sat down there."
REQUESTS = (
    ("/healthz", None),
    ("/v1/models", None),
    ("/v1/audio/voices", None),
    ("/v1/about", None),
    ("/v1/nothing", None),
    ("/openapi.json", None),
    ("/v1/audio/speech", {"input": "hello there.", "seed": 7, "response_format": "wav"}),
    ("/v1/audio/speech", {"input": "hello there.", "seed": 7, "response_format": "pcm"}),
    ("/v1/audio/speech", {"input": "hello there.", "seed": 7, "voice": "heart", "response_format": "flac"}),
    ("/v1/audio/speech", {"input": "hello.", "seed": 7, "stream_format": "sse"}),
    ("/v1/audio/speech", {"input": ""}),
    ("/v1/audio/speech", {"input": "hello.", "speed": 9}),
    ("/v1/audio/speech", {"input": "hello.", "voice": "nobody"}),
    ("/v1/audio/speech", {"text": "hello."}),
)


def speech(bundles):
    """Digests of samples, by bundle, precision and mode."""
    import numpy as np

    from voxcpm_runtime import InputError, VoxCPM
    from voxcpm_runtime.audio.pcm import pcm16

    warnings.simplefilter("ignore")
    noise = np.random.default_rng(3).standard_normal(8_000).astype(np.float32) * 0.1
    modes = {
        "plain": {"text": "hello there."},
        "long": {"text": LONG, "segment_tokens": 12},
        "bounded": {"text": LONG, "segment_tokens": 12, "max_len": 9, "retry_badcase": False},
        "retries": {"text": "hello.", "retry_badcase_ratio_threshold": 1.0, "retry_badcase_max_times": 3},
        "options": {"text": "hello.", "cfg_value": 1.5, "inference_timesteps": 4, "use_cfg_zero_star": False},
        "normalized": {"text": "It costs 5 dollars.", "normalize": True},
        "prompt": {"text": "hello.", "prompt_wav_path": (noise, 16_000), "prompt_text": "so it is."},
        "reference": {"text": "hello.", "reference_wav_path": (noise, 16_000)},
        "control": {"text": "hello.", "control": "warm, slow"},
    }

    def digest(audio):
        return [len(audio), hashlib.sha256(pcm16(audio).tobytes()).hexdigest()[:16]]

    record = {}
    opened = [(None, None), *((name, p) for name in CONFIGURATIONS for p in ("int8", "fp16"))]
    for name, precision in opened:
        with VoxCPM.from_bundle(None if name is None else bundles / name, precision, threads=2) as tts:
            own = record[f"{name or 'built-in'} {precision or ''}"] = {}
            for mode, given in modes.items():
                named = {"seed": 7, "max_len": 24, **given}
                try:
                    made = tts.speak(**named)
                    told = [(s.text, s.seed, s.attempts, s.stopped, s.reason) for s in made.segments]
                    own[mode] = [digest(made.audio), made.seed, told]
                    named["retry_badcase_max_times"] = 1
                    chunks = tts.generate_streaming(**named, chunk_patches=2)
                    own[f"{mode} streamed"] = digest(np.concatenate(list(chunks)))
                except Exception as error:  # noqa: BLE001 - part of the record
                    own[mode] = f"{type(error).__name__}: {error}"
            batch = tts.batch([{"text": "hello there.", "seed": s, "max_len": 8 + s} for s in range(4)])
            own["batch"] = [digest(each.audio) for each in batch]
            with tts.session(seed=7, max_len=12) as session:
                session.push_text("Hello there. And more to say. ")
                session.flush()
                own["session"] = [
                    (c.sentence, c.state_id, hashlib.sha256(c.pcm.tobytes()).hexdigest()[:16])
                    for c in session
                ]
            with contextlib.suppress(InputError):  # It may exceed the KV cache of a small bundle.
                voice = tts.create_voice((noise, 16_000), "so it is.", name="noise")
                own["voice"] = [voice.digest, digest(tts.generate("hi.", voice=voice, seed=1, max_len=9))]
    return record


def names(_):
    """Public names of the runtime with their signatures."""
    import voxcpm_runtime

    record = {}
    for name in voxcpm_runtime.__all__:
        value = getattr(voxcpm_runtime, name)
        members = {
            member: _signature(getattr(value, member)) for member in dir(value) if not member.startswith("_")
        }
        record[name] = {"": _signature(value), **(members if inspect.isclass(value) else {})}
    return record


def _signature(value):
    try:
        return re.sub(r" at 0x[0-9a-f]+", "", str(inspect.signature(value)))
    except (TypeError, ValueError):
        return type(value).__name__


def flags(_):
    """The flags of every command."""
    from voxcpm_runtime.commands.cli import main

    def helped(*arguments):
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
            main([*arguments, "--help"])
        return output.getvalue()

    commands = re.findall(r"^  ([a-z-]+)  ", helped().partition("Commands:")[2], re.M)
    return {command: sorted(set(re.findall(r"--[a-z][a-z0-9-]*", helped(command)))) for command in commands}


def answers(_):
    """A server's responses: status, type and body."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    base, command = f"http://127.0.0.1:{port}", [sys.executable, "-c", PROGRAM, "serve", "--port", str(port)]
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        for _ in range(300):
            with contextlib.suppress(OSError):
                if _answer(base + "/ready", None)[0] == 200:
                    break
            time.sleep(0.2)
        return {f"{index} {path}": _answer(base + path, body) for index, (path, body) in enumerate(REQUESTS)}
    finally:
        server.terminate()
        server.wait()


def _answer(url, body):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})  # noqa: S310 - our server
    try:
        reply = urllib.request.urlopen(request)  # noqa: S310
    except urllib.error.HTTPError as error:
        reply = error
    with reply:
        status, kind, content = reply.status, reply.headers["Content-Type"], reply.read()
    if kind.startswith("application/json"):
        changing = r'"(request_id|id|created|uptime[a-z_]*)": ?("[^"]*"|[0-9.]+)'
        return [status, kind, re.sub(changing, r'"\1": 0', content.decode())]
    return [status, kind, len(content), hashlib.sha256(content).hexdigest()[:16]]


def packages(bundles):
    """Checksums of the weights, constants, tokenizer and vectors of a conversion; programs name values anew."""
    from voxcpm_runtime.commands.cli import main

    record = {}
    for name in CONFIGURATIONS:
        with tempfile.TemporaryDirectory() as folder:
            bundle = Path(folder, name)
            main(["convert", str(bundles / f"checkpoint-{name}"), "-o", str(bundle), *CONVERTED])
            files = json.loads((bundle / "manifest.json").read_text())["files"]
            named_anew = ("Manifest.json", ".mlmodel")
            record[name] = {f: entry["sha256"] for f, entry in files.items() if not f.endswith(named_anew)}
    return record


PARTS = {part.__name__: part for part in (speech, names, flags, answers, packages)}


def _run(tree, *command, **given):
    """Run Python with a tree's packages."""
    path = os.pathsep.join(str(tree / root) for root in ROOTS)
    environment = os.environ | {"PYTHONPATH": path, "COLUMNS": "200"}
    return subprocess.run([sys.executable, *command], env=environment, check=True, **given)


def _recorded(tree, part, bundles):
    """The record of a tree's packages, made in a subprocess."""
    return json.loads(_run(tree, __file__, "--record", part, str(bundles), stdout=subprocess.PIPE).stdout)


def _convert(tree, folder):
    for name in CONFIGURATIONS:
        checkpoint, bundle = folder / f"checkpoint-{name}", folder / name
        for output, command in (
            (checkpoint, ("synthetic", name, "-o", str(checkpoint), "--dtype", "float32")),
            (bundle, ("convert", str(checkpoint), "-o", str(bundle), *CONVERTED)),
        ):
            if not bundle.exists() and not output.exists():
                _run(tree, "-c", PROGRAM, *command, stdout=subprocess.DEVNULL)


def differences(before, after, place=""):
    """Each path at which two records differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        keys = [*before, *(key for key in after if key not in before)]
        return [
            line
            for key in keys
            for line in differences(before.get(key, "absent"), after.get(key, "absent"), f"{place} / {key}")
        ]
    return [] if before == after else [f"{place}:\n    before {before!r}\n    after  {after!r}"]


def main():
    """Compare this tree with a revision."""
    if sys.argv[1:2] == ["--record"]:
        with contextlib.redirect_stdout(sys.stderr):
            record = PARTS[sys.argv[2]](Path(sys.argv[3]))
        print(json.dumps(record))
        return 0
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("revision", help="what to compare with, such as a tag or main~10")
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS))
    given = parser.parse_args()
    git = ["git", "-C", str(TREE)]
    command = [*git, "rev-parse", "--short=12", f"{given.revision}^{{commit}}"]
    revision = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    folder = TREE / "build" / "freeze" / revision
    earlier = folder / "tree"
    if not earlier.exists():
        subprocess.run([*git, "worktree", "add", "--detach", str(earlier), revision], check=True)
    _convert(earlier, folder)
    found = []
    for part in given.only:
        record = folder / f"{part}.json"
        if not record.exists():
            record.write_text(json.dumps(_recorded(earlier, part, folder)))
        changes = differences(json.loads(record.read_text()), _recorded(TREE, part, folder), part)
        print(f"{part}: {len(changes)} differences" if changes else f"{part}: equal", flush=True)
        found += changes
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
