"""Server settings: the source of the command line's flags, defaults and help."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from voxcpm_runtime import InputError


def options(panel: str) -> Callable[..., Any]:
    """A factory of typer options in one help panel: option(help, min, max, **typer_arguments)."""

    def option(help_: str, min_: float | None = None, max_: float | None = None, **more: Any) -> Any:
        flags = more.pop("flags", ())
        return typer.Option(*flags, help=help_, min=min_, max=max_, rich_help_panel=panel, **more)

    return option


network = options("Network")
access = options("Access")
_limit = options("Limits")
_speech = options("Voices and models")

OPENAI_VOICES = {
    "alloy": "alloy", "ash": "fenrir", "ballad": "george", "cedar": "daniel", "coral": "aoede", "echo": "eric",
    "fable": "fable", "marin": "isabella", "nova": "river", "onyx": "michael", "sage": "emma", "shimmer": "heart",
    "verse": "liam",
}  # fmt: skip
"""OpenAI's voice names, which some clients hard-code, and the built-in voices that they select. With any other bundle
they select the checkpoint's own voice."""
OPENAI_MODELS = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts")
"""OpenAI's model names. Each selects the default bundle, unless another bundle has that name."""
MEGABYTE = 1_000_000
# A character beyond U+FFFF in JSON is two escapes of six bytes.
_MAX_BYTES_OF_A_CHARACTER = 12
_REST_OF_A_MESSAGE = 16_384
# Browsers leave out a scheme's own port.
_ORIGIN = re.compile(
    r"(?!http:.*:80$|https:.*:443$)[a-z][a-z0-9+.-]*://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[1-9]\d{0,4})?"
)


@dataclass(frozen=True)
class Settings:
    """Settings of the core. Units are in the names; a megabyte is 1,000,000 bytes."""

    host: Annotated[str, network("Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, network("Port to listen on; 0 means any free port.", 0, 65535)] = 8000
    cors_origin: Annotated[
        list[str] | None,
        network("Allowed origin of web pages (CORS), such as https://example.org, or * for all; repeatable."),
    ] = None
    access_log: Annotated[
        bool, network("Log each request: address, method, path, status.", flags=["--access-log"])
    ] = False
    drain_seconds: Annotated[int, network("Seconds to finish running requests on SIGTERM.", 0, 86_400)] = 30

    api_key: Annotated[
        list[str] | None,
        access("API key that clients must send; repeatable. Other users of this machine can see it."),
    ] = None
    api_key_file: Annotated[
        Path | None,
        access("File with one API key per line; $VOXCPM_COREML_API_KEYS may list more, comma-separated."),
    ] = None
    insecure_serve_without_key: Annotated[
        bool,
        access(
            "Serve other machines without a key, over HTTP and Wyoming.",
            flags=["--insecure-serve-without-key"],
        ),
    ] = False

    model_name: Annotated[str | None, _speech("Model name of BUNDLE. Default: its generation.")] = None
    bundles: Annotated[
        list[str] | None,
        _speech(
            "Additional bundle and its model name, loaded on first use; repeatable.",
            flags=["--bundle"], metavar="NAME=BUNDLE",
        ),
    ] = None  # fmt: skip
    max_memory: Annotated[
        str | None,
        _speech("Memory limit, such as 8GB; idle bundles are closed to stay below it.", metavar="AMOUNT"),
    ] = None
    idle_unload: Annotated[
        str | None,
        _speech(
            "Time without use, such as 10m, after which a bundle is closed; the next request loads it again.",
            metavar="DURATION",
        ),
    ] = None
    voice_aliases: Annotated[
        Path | None,
        _speech('JSON file of voice aliases, such as {"alloy": "ada"}; "default" is the model\'s own voice.'),
    ] = None
    voices_folder: Annotated[Path | None, _speech("Folder of stored voices. Default: the user's.")] = None
    lexicon: Annotated[
        list[Path] | None,
        _speech("Pronunciation lexicon: WRITTEN, a tab, SAID on each line; repeatable."),
    ] = None
    preview_text: Annotated[str, _speech("Text spoken in voice previews.")] = "Hello, this is how I sound."

    max_connections: Annotated[int, _limit("Maximum requests in progress; more get a 503.", 1, 100_000)] = 512
    concurrency: Annotated[int, _limit("Maximum texts spoken concurrently.", 1, 1024)] = 2
    queue: Annotated[int, _limit("Maximum queued requests; more get a 503.", 0, 100_000)] = 32
    queue_per_key: Annotated[
        int | None,
        _limit(
            "Maximum queued requests per key; more get a 429. Default: half of --queue with several "
            "keys, otherwise --queue.", 1, 100_000,
        ),
    ] = None  # fmt: skip
    max_characters: Annotated[int, _limit("Maximum characters of text per request.", 1, 10_000_000)] = 4096
    max_conversations: Annotated[int, _limit("Maximum websockets and Wyoming connections.", 1, 100_000)] = 64
    idle_seconds: Annotated[float, _limit("Seconds before an idle conversation closes.", 0.1, 86_400)] = 180
    max_audio_seconds: Annotated[float, _limit("Maximum seconds of speech per request.", 1, 86_400)] = 600
    max_recording_seconds: Annotated[float, _limit("Maximum seconds per uploaded recording.", 1, 3_600)] = 60
    max_upload_megabytes: Annotated[float, _limit("Maximum megabytes per request body.", 0.001, 10_000)] = 25
    max_bodies_megabytes: Annotated[
        float, _limit("Maximum megabytes of all bodies in progress; more get a 503.", 0.001, 10_000_000)
    ] = 1000
    max_voices: Annotated[int, _limit("Maximum stored voices.", 0, 1_000_000)] = 1000
    buffer_seconds: Annotated[float, _limit("Seconds of speech buffered for a slow client.", 1, 86_400)] = 120
    client_timeout: Annotated[float, _limit("Seconds to wait for a stalled client.", 0.1, 86_400)] = 30

    def check(self) -> None:
        """Raises InputError for options that contradict each other."""
        if self.max_bodies_megabytes < self.max_upload_megabytes:
            raise InputError(
                f"--max-bodies-megabytes: expected at least --max-upload-megabytes {self.max_upload_megabytes:g}, "
                f"got {self.max_bodies_megabytes:g}"
            )

        for origin in self.cors_origin or ():
            # As browsers send it; anything else would never match.
            if origin not in ("*", "null") and not _ORIGIN.fullmatch(origin):
                raise InputError(
                    f"--cors-origin: expected an origin such as https://example.org or http://localhost:3000, without "
                    f"a path or final slash, or *; got {origin!r}"
                )

    @property
    def max_message_bytes(self) -> int:
        """Maximum websocket or Wyoming message in bytes: the longest text with all characters escaped in JSON."""
        return _MAX_BYTES_OF_A_CHARACTER * self.max_characters + _REST_OF_A_MESSAGE

    @property
    def max_upload_bytes(self) -> int:
        """Maximum request body in bytes."""
        return round(self.max_upload_megabytes * MEGABYTE)
