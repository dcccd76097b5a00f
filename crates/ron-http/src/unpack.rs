//! Compressed request bodies: gzip, deflate (zlib) and zstd, one coding at a time, never larger
//! than a cap.

use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};

use flate2::bufread::{GzDecoder, ZlibDecoder};
use ruzstd::decoding::StreamingDecoder;

use crate::head::Headers;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coding {
    Gzip,
    Deflate,
    Zstd,
}

/// The `Accept-Encoding` of every refusal of a coding.
pub(crate) const ACCEPTED: &str = "gzip, deflate, zstd";

/// Largest window of a zstd frame in bytes, as RFC 9659 limits it in HTTP.
const ZSTD_WINDOW_MAX: u64 = 8 << 20;

/// Why a body cannot be decompressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The decompressed body is above the cap.
    TooLarge,
    /// The body breaks its format, ends early, or has bytes after its end.
    Damaged,
}

impl Coding {
    /// The coding of a request's body; `None` for none, an error for an unknown one or several.
    pub(crate) fn of(headers: &Headers) -> Result<Option<Self>, ()> {
        let Some(name) = headers.raw("content-encoding") else {
            return Ok(None);
        };
        if headers.count("content-encoding") > 1 {
            return Err(());
        }
        match name.to_ascii_lowercase().as_slice() {
            b"identity" => Ok(None),
            b"gzip" | b"x-gzip" => Ok(Some(Self::Gzip)),
            b"deflate" => Ok(Some(Self::Deflate)),
            b"zstd" => Ok(Some(Self::Zstd)),
            _ => Err(()),
        }
    }

    /// Decompresses a whole body to at most `cap` bytes and stops as soon as there would be more.
    /// Memory grows with the decompressed bytes, not with the size that the body claims.
    pub(crate) fn unpack(self, packed: &[u8], cap: usize) -> Result<Vec<u8>, Fault> {
        // A panic of a decoder is treated as damage: the body comes from the network.
        catch_unwind(AssertUnwindSafe(|| self.run(packed, cap))).unwrap_or(Err(Fault::Damaged))
    }

    fn run(self, packed: &[u8], cap: usize) -> Result<Vec<u8>, Fault> {
        match self {
            Self::Gzip => {
                let mut decoder = GzDecoder::new(packed);
                let out = collect(&mut decoder, cap)?;
                whole(out, decoder.get_ref())
            }
            Self::Deflate => {
                let mut decoder = ZlibDecoder::new(packed);
                let out = collect(&mut decoder, cap)?;
                whole(out, decoder.get_ref())
            }
            Self::Zstd => {
                let decoder = StreamingDecoder::new_with_max_window_size(packed, ZSTD_WINDOW_MAX);
                let mut decoder = decoder.map_err(|_| Fault::Damaged)?;
                let out = collect(&mut decoder, cap)?;
                // The streaming decoder does not compare the frame's checksum itself.
                let stated = decoder.decoder.get_checksum_from_data();
                if stated.is_some() && stated != decoder.decoder.get_calculated_checksum() {
                    return Err(Fault::Damaged);
                }
                whole(out, decoder.get_ref())
            }
        }
    }
}

fn collect(decoder: &mut impl Read, cap: usize) -> Result<Vec<u8>, Fault> {
    let mut out = Vec::new();
    // One byte above the cap is enough to know that the body is too large.
    let end = decoder.take(cap as u64 + 1).read_to_end(&mut out);
    if out.len() > cap {
        return Err(Fault::TooLarge);
    }
    end.map(|_| out).map_err(|_| Fault::Damaged)
}

/// Refuses bytes after the one compressed stream of a body.
fn whole(out: Vec<u8>, rest: &[u8]) -> Result<Vec<u8>, Fault> {
    if rest.is_empty() {
        Ok(out)
    } else {
        Err(Fault::Damaged)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::{GzEncoder, ZlibEncoder};
    use proptest::prelude::*;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    const ALL: [Coding; 3] = [Coding::Gzip, Coding::Deflate, Coding::Zstd];

    fn pack(coding: Coding, bytes: &[u8]) -> Vec<u8> {
        let good = "writing to a Vec cannot fail";
        match coding {
            Coding::Gzip => {
                let mut to = GzEncoder::new(Vec::new(), Compression::best());
                to.write_all(bytes).expect(good);
                to.finish().expect(good)
            }
            Coding::Deflate => {
                let mut to = ZlibEncoder::new(Vec::new(), Compression::best());
                to.write_all(bytes).expect(good);
                to.finish().expect(good)
            }
            Coding::Zstd => compress_to_vec(bytes, CompressionLevel::Fastest),
        }
    }

    #[test]
    fn the_cap_is_exact() {
        let bytes: Vec<u8> = (0..100_000_u32).map(|i| (i / 7) as u8).collect();
        for coding in ALL {
            let packed = pack(coding, &bytes);
            assert_eq!(coding.unpack(&packed, bytes.len()).as_ref(), Ok(&bytes));
            let less = coding.unpack(&packed, bytes.len() - 1);
            assert_eq!(less, Err(Fault::TooLarge), "{coding:?}");
            assert_eq!(coding.unpack(&pack(coding, b""), 0), Ok(Vec::new()));
        }
    }

    #[test]
    fn a_bomb_is_stopped_at_the_cap_and_not_allocated() {
        let bomb = vec![0; 64 << 20];
        for coding in ALL {
            let packed = pack(coding, &bomb);
            assert!(packed.len() < 1 << 20, "{coding:?} {}", packed.len());
            let start = ron_kernel::Clock::now(&ron_kernel::SystemClock);
            assert_eq!(coding.unpack(&packed, 1 << 20), Err(Fault::TooLarge));
            let took = ron_kernel::Clock::now(&ron_kernel::SystemClock) - start;
            assert!(took.as_millis() < 1000, "{coding:?} took {took:?}");
        }
    }

    #[test]
    fn damage_ends_and_additions_are_refused() {
        let bytes: Vec<u8> = (0..5000_u32).map(|i| (i * i / 3) as u8).collect();
        for coding in ALL {
            let packed = pack(coding, &bytes);
            for cut in [0, 1, 5, packed.len() / 2, packed.len() - 1] {
                let found = coding.unpack(&packed[..cut], 10_000);
                assert_eq!(found, Err(Fault::Damaged), "{coding:?} cut at {cut}");
            }
            let mut more = packed.clone();
            more.push(0);
            assert_eq!(coding.unpack(&more, 10_000), Err(Fault::Damaged));
            let twice = [packed.clone(), packed.clone()].concat();
            assert_eq!(coding.unpack(&twice, 20_000), Err(Fault::Damaged));
            let mut bent = packed.clone();
            let last = bent.len() - 2;
            bent[last] ^= 1;
            assert_eq!(
                coding.unpack(&bent, 10_000),
                Err(Fault::Damaged),
                "{coding:?}"
            );
        }
        // A zstd frame that claims a window of 1 GiB: magic, descriptor, window, empty last block.
        let greedy = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 20 << 3, 0x01, 0x00, 0x00];
        assert_eq!(Coding::Zstd.unpack(&greedy, 100), Err(Fault::Damaged));
    }

    proptest! {
        #[test]
        fn whatever_was_packed_comes_back_and_noise_never_panics(
            bytes in proptest::collection::vec(any::<u8>(), 0..3000),
            at in any::<proptest::sample::Index>(),
        ) {
            for coding in ALL {
                let packed = pack(coding, &bytes);
                prop_assert_eq!(coding.unpack(&packed, bytes.len()), Ok(bytes.clone()));
                let mut bent = packed;
                let at = at.index(bent.len());
                bent[at] = bent[at].wrapping_add(1);
                let found = coding.unpack(&bent, 4000);
                prop_assert!(found.is_err() || found.is_ok_and(|out| out.len() <= 4000));
            }
        }
    }
}
