"""The table of the server's options and limits, which the command line's flags, defaults and help come from."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from voxcpm_runtime import InputError

if TYPE_CHECKING:
    from typing import Self

    from voxcpm_runtime.commands.shared_arguments import Engine
    from voxcpm_server.middleware.authentication import Keys

network = functools.partial(typer.Option, rich_help_panel="Network")
access = functools.partial(typer.Option, rich_help_panel="Access")
_limit = functools.partial(typer.Option, rich_help_panel="Limits")
_speech = functools.partial(typer.Option, rich_help_panel="Voices and models")

OPENAI_VOICES = {
    "alloy": "alloy",
    "ash": "fenrir",
    "ballad": "george",
    "cedar": "daniel",
    "coral": "aoede",
    "echo": "eric",
    "fable": "fable",
    "marin": "isabella",
    "nova": "river",
    "onyx": "michael",
    "sage": "emma",
    "shimmer": "heart",
    "verse": "liam",
}
"""The voices of OpenAI's own service, which some clients ask for and know no other, and the built-in voices that they
mean; with another bundle than the built-in one they mean the checkpoint's own voice."""
OPENAI_MODELS = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts")
"""The models of OpenAI's own service, likewise; each name means the default bundle unless one has that name."""
MEGABYTE = 1_000_000
# A character beyond U+FFFF in JSON is two escapes of six bytes.
_MAX_BYTES_OF_A_CHARACTER = 12
_REST_OF_A_MESSAGE = 16_384


@dataclass(frozen=True)
class Settings:
    """How a server behaves. Numbers are seconds, characters, requests or megabytes (1,000,000 bytes), as named."""

    host: Annotated[str, network(help="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, network(min=0, max=65535, help="Port to listen on; 0 is any that is free.")] = 8000
    cors_origin: Annotated[
        list[str] | None,
        network(
            help="A web page's origin that may call this server, such as https://example.org; repeat for more."
        ),
    ] = None
    access_log: Annotated[
        bool, network("--access-log", help="Log each request: address, method, path, status.")
    ] = False
    drain_seconds: Annotated[
        int, network(min=0, max=86_400, help="After SIGTERM, seconds for requests that are being answered.")
    ] = 30

    api_key: Annotated[
        list[str] | None,
        access(help="A key that clients must send; repeat for more. Other users of this machine can see it."),
    ] = None
    api_key_file: Annotated[
        Path | None,
        access(
            help="File with a key on each line. $VOXCPM_COREML_API_KEYS holds keys, too, separated by commas."
        ),
    ] = None
    insecure_serve_without_key: Annotated[
        bool,
        access(
            "--insecure-serve-without-key",
            help="Without a key, serve whoever reaches the address, over Wyoming too; otherwise on loopback only.",
        ),
    ] = False
    model_name: Annotated[
        str | None, _speech(help="Name of BUNDLE in the list of models. Default: its generation.")
    ] = None
    bundles: Annotated[
        list[str] | None,
        _speech(
            "--bundle", metavar="NAME=BUNDLE",
            help="Another bundle and its name among the models, loaded when first asked for; repeat for more.",
        ),
    ] = None  # fmt: skip
    max_memory: Annotated[
        str | None,
        _speech(
            metavar="AMOUNT",
            help="Memory of this process, such as 8GB, beyond which bundles that are not in use are closed for others.",
        ),
    ] = None
    voice_aliases: Annotated[
        Path | None,
        _speech(
            help='JSON file that gives names to voices, such as {"alloy": "ada"}; "default" is the checkpoint\'s own.'
        ),
    ] = None
    voices_folder: Annotated[Path | None, _speech(help="Folder of the voices. Default: the user's own.")] = (
        None
    )
    preview_text: Annotated[str, _speech(help="What a voice's preview says.")] = "Hello, this is how I sound."

    max_connections: Annotated[
        int,
        _limit(
            min=1,
            max=100_000,
            help="Requests and websockets at the same time; one more is answered with 503.",
        ),
    ] = 512
    concurrency: Annotated[
        int,
        _limit(
            min=1, max=1024,
            help="Texts that are spoken at the same time.",
        ),
    ] = 2  # fmt: skip
    queue: Annotated[
        int, _limit(min=0, max=100_000, help="Requests that may wait; one more is answered with 503.")
    ] = 32
    queue_per_key: Annotated[
        int | None,
        _limit(
            min=1, max=100_000,
            help="Requests of one key that may wait; one more is answered with 429. Default: half of --queue with "
            "several keys, otherwise all of it.",
        ),
    ] = None  # fmt: skip
    max_characters: Annotated[int, _limit(min=1, max=10_000_000, help="Longest text of a request.")] = 4096
    max_conversations: Annotated[
        int, _limit(min=1, max=100_000, help="Websockets and Wyoming connections that may be open.")
    ] = 64
    idle_seconds: Annotated[
        float,
        _limit(
            min=0.1, max=86_400,
            help="Seconds without a message, while nothing is spoken, until such a connection is closed.",
        ),
    ] = 180  # fmt: skip
    max_audio_seconds: Annotated[float, _limit(min=1, max=86_400, help="Longest speech of a request.")] = 600
    max_recording_seconds: Annotated[
        float, _limit(min=1, max=3_600, help="Longest recording of a voice, prompt or reference.")
    ] = 60
    max_upload_megabytes: Annotated[
        float, _limit(min=0.001, max=10_000, help="Largest body of a request.")
    ] = 25
    max_bodies_megabytes: Annotated[
        float,
        _limit(
            min=0.001, max=10_000_000,
            help="All bodies of requests that are being answered or wait; what goes beyond is answered with 503.",
        ),
    ] = 1000  # fmt: skip
    max_voices: Annotated[int, _limit(min=0, max=1_000_000, help="Voices that may be stored.")] = 1000
    buffer_seconds: Annotated[
        float,
        _limit(min=1, max=86_400, help="Speech that may wait for a slow reader; then speaking pauses."),
    ] = 120
    client_timeout: Annotated[
        float,
        _limit(min=0.1, max=86_400, help="Seconds without progress until a client that stalls is given up."),
    ] = 30

    def check(self) -> None:
        """Raises InputError for options that contradict each other."""
        if self.max_bodies_megabytes < self.max_upload_megabytes:
            raise InputError(
                f"--max-bodies-megabytes: expected at least --max-upload-megabytes {self.max_upload_megabytes:g}, "
                f"got {self.max_bodies_megabytes:g}"
            )

    def only_alone(self) -> Iterator[str]:
        """The given options that only a single server can have, not one of several."""
        if self.bundles:
            yield "--bundle"

    def for_replica(self) -> Self:
        """The settings of one of several servers."""
        # The keys themselves are not sent to other machines.
        return replace(self, api_key=None, api_key_file=None)

    def serve_elsewhere(self, bundle: str | None, engine: Engine, keys: Keys, *, quiet: bool) -> bool:  # noqa: ARG002
        """Serve by other means than this process, if the options ask for it; otherwise False."""
        return False

    @property
    def max_message_bytes(self) -> int:
        """The largest message of a websocket or of Wyoming in bytes: the longest text, however JSON escapes it."""
        return _MAX_BYTES_OF_A_CHARACTER * self.max_characters + _REST_OF_A_MESSAGE

    @property
    def max_upload_bytes(self) -> int:
        """The largest body of a request in bytes."""
        return round(self.max_upload_megabytes * MEGABYTE)

    @property
    def max_bodies_bytes(self) -> int:
        """The largest sum of the bodies that are held at the same time, in bytes."""
        return round(self.max_bodies_megabytes * MEGABYTE)
