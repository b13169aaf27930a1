// Writes 16-bit WAV files and saves downloads.

/** pieces: Int16Arrays. rate: in Hz. */
export function encodeWav(pieces, rate) {
  const size = 2 * pieces.reduce((sum, piece) => sum + piece.length, 0);
  const bytes = new DataView(new ArrayBuffer(44 + size));
  const writeString = (at, text) => [...text].forEach((letter, i) => bytes.setUint8(at + i, letter.charCodeAt(0)));
  writeString(0, "RIFF");
  bytes.setUint32(4, 36 + size, true);
  writeString(8, "WAVEfmt ");
  bytes.setUint32(16, 16, true);
  bytes.setUint16(20, 1, true);
  bytes.setUint16(22, 1, true);
  bytes.setUint32(24, rate, true);
  bytes.setUint32(28, 2 * rate, true);
  bytes.setUint16(32, 2, true);
  bytes.setUint16(34, 16, true);
  writeString(36, "data");
  bytes.setUint32(40, size, true);
  let at = 44;
  for (const piece of pieces) {
    for (const value of piece) {
      bytes.setInt16(at, value, true);
      at += 2;
    }
  }
  return new Blob([bytes], { type: "audio/wav" });
}

export function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  // The browser reads the URL after the click.
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
