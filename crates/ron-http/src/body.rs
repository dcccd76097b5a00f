//! Request body decoders, free of I/O: length-framed and chunked bodies, in pieces of any size.

use crate::parse::{Framing, Refusal};

/// Extracts a body from the bytes of a connection, which may arrive in pieces of any size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BodyDecoder {
    /// Number of bytes still missing.
    Length(u64),
    Chunked(ChunkDecoder),
}

/// What one call of a decoder did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// Bytes of the input that belonged to the body.
    pub used: usize,
    /// True when the body is complete.
    pub done: bool,
}

impl BodyDecoder {
    /// The decoder for a framing; refuses at once a length above the cap.
    pub fn new(framing: Framing, cap: u64) -> Result<Self, Refusal> {
        match framing {
            Framing::Empty => Ok(Self::Length(0)),
            Framing::Length(length) if length > cap => Err(Refusal::BodyTooLarge),
            Framing::Length(length) => Ok(Self::Length(length)),
            Framing::Chunked => Ok(Self::Chunked(ChunkDecoder::default())),
        }
    }

    /// Maximum number of bytes that may still come.
    pub(crate) fn missing(&self) -> u64 {
        match self {
            Self::Length(missing) => *missing,
            Self::Chunked(_) => u64::MAX,
        }
    }

    /// Moves body bytes from `input` to `out`, which grows by at most `room`, the rest of the
    /// body's cap.
    pub fn feed(&mut self, input: &[u8], out: &mut Vec<u8>, room: u64) -> Result<Decoded, Refusal> {
        match self {
            Self::Length(missing) => {
                let used = usize::try_from(*missing)
                    .unwrap_or(usize::MAX)
                    .min(input.len());
                out.extend_from_slice(&input[..used]);
                *missing -= used as u64;
                Ok(Decoded {
                    used,
                    done: *missing == 0,
                })
            }
            Self::Chunked(chunks) => chunks.feed(input, out, room),
        }
    }
}

/// Longest chunk extension that is skipped, in bytes.
const EXTENSION_MAX: usize = 256;
/// Maximum bytes of chunk extensions and trailer fields in one body; no client needs either here.
const EXTRAS_MAX: usize = 8 << 10;
/// Maximum digits of a chunk size: sizes above 2^32 are beyond every cap.
const SIZE_DIGITS_MAX: u8 = 8;

/// The state of a chunked body between two pieces of input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ChunkState {
    /// At the digits of a size, with the value and digits so far.
    #[default]
    Start,
    Size {
        value: u64,
        digits: u8,
    },
    Extension {
        value: u64,
        length: usize,
    },
    SizeLf {
        value: u64,
    },
    Data {
        missing: u64,
    },
    DataCr,
    DataLf,
    /// At the start of a line after the last chunk.
    EndCr,
    EndLf,
    /// In a trailer field; true after its colon.
    Trailer(bool),
    TrailerLf,
}

/// Decodes chunked transfer coding; strict about CRLF. Trailer fields are skipped: no field that
/// arrives after authorisation may change the meaning of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChunkDecoder {
    state: ChunkState,
    /// Bytes of extensions and trailers so far.
    extras: usize,
}

impl ChunkDecoder {
    fn feed(&mut self, input: &[u8], out: &mut Vec<u8>, room: u64) -> Result<Decoded, Refusal> {
        let mut used = 0;
        let before = out.len();
        while let Some(byte) = input.get(used).copied() {
            // Data is copied in one piece; only the framing around it goes byte by byte.
            if let ChunkState::Data { missing } = self.state {
                let rest = &input[used..];
                let take = usize::try_from(missing)
                    .unwrap_or(usize::MAX)
                    .min(rest.len());
                out.extend_from_slice(&rest[..take]);
                used += take;
                let missing = missing - take as u64;
                self.state = match missing {
                    0 => ChunkState::DataCr,
                    _ => ChunkState::Data { missing },
                };
                continue;
            }
            used += 1;
            if self.state == ChunkState::EndLf {
                return if byte == b'\n' {
                    Ok(Decoded { used, done: true })
                } else {
                    Err(Refusal::BadChunk)
                };
            }
            if matches!(
                self.state,
                ChunkState::Extension { .. } | ChunkState::EndCr | ChunkState::Trailer(_)
            ) {
                // Bytes without content are limited too: they would keep a worker reading for
                // nothing.
                self.extras += 1;
                if self.extras > EXTRAS_MAX {
                    return Err(Refusal::Trailers);
                }
            }
            let left = room.saturating_sub((out.len() - before) as u64);
            self.state = step(self.state, byte, left)?;
        }
        Ok(Decoded { used, done: false })
    }
}

/// Handles one byte outside chunk data; `room` is the rest of the body's cap.
fn step(state: ChunkState, byte: u8, room: u64) -> Result<ChunkState, Refusal> {
    let bad = Err(Refusal::BadChunk);
    match (state, byte) {
        (ChunkState::Start, _) => match hex(byte) {
            Some(value) => Ok(ChunkState::Size { value, digits: 1 }),
            None => bad,
        },
        (ChunkState::Size { value, .. }, b'\r') => Ok(ChunkState::SizeLf { value }),
        (ChunkState::Size { value, .. }, b';') => Ok(ChunkState::Extension { value, length: 0 }),
        (ChunkState::Size { value, digits }, _) => match hex(byte) {
            Some(digit) if digits < SIZE_DIGITS_MAX => Ok(ChunkState::Size {
                value: value * 16 + digit,
                digits: digits + 1,
            }),
            Some(_) => Err(Refusal::BodyTooLarge),
            None => bad,
        },
        (ChunkState::Extension { value, .. }, b'\r') => Ok(ChunkState::SizeLf { value }),
        (ChunkState::Extension { value, length }, b'\t' | 0x20..=0x7e | 0x80..)
            if length < EXTENSION_MAX =>
        {
            Ok(ChunkState::Extension {
                value,
                length: length + 1,
            })
        }
        (ChunkState::SizeLf { value: 0 }, b'\n') => Ok(ChunkState::EndCr),
        // Refused by the announced size, before a byte of the chunk is read.
        (ChunkState::SizeLf { value }, b'\n') if value > room => Err(Refusal::BodyTooLarge),
        (ChunkState::SizeLf { value }, b'\n') => Ok(ChunkState::Data { missing: value }),
        (ChunkState::DataCr, b'\r') => Ok(ChunkState::DataLf),
        (ChunkState::DataLf, b'\n') => Ok(ChunkState::Start),
        (ChunkState::EndCr, b'\r') => Ok(ChunkState::EndLf),
        (ChunkState::EndCr, b':') => Err(Refusal::Trailers),
        (ChunkState::EndCr | ChunkState::Trailer(false), _) if is_token(byte) => {
            Ok(ChunkState::Trailer(false))
        }
        (ChunkState::Trailer(false), b':') => Ok(ChunkState::Trailer(true)),
        (ChunkState::Trailer(true), b'\t' | 0x20..=0x7e | 0x80..) => Ok(ChunkState::Trailer(true)),
        (ChunkState::Trailer(true), b'\r') => Ok(ChunkState::TrailerLf),
        (ChunkState::TrailerLf, b'\n') => Ok(ChunkState::EndCr),
        (ChunkState::EndCr | ChunkState::Trailer(_) | ChunkState::TrailerLf, _) => {
            Err(Refusal::Trailers)
        }
        _ => bad,
    }
}

/// A byte of a field name.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

fn hex(byte: u8) -> Option<u64> {
    char::from(byte).to_digit(16).map(u64::from)
}
