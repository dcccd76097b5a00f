//! Compressed bodies: a compressed body is decompressed up to the cap and not beyond it; arbitrary
//! bytes are refused or stay below the cap.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use ron_http::fuzzing::unpack;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

const CAP: usize = 2048;

fn pack(name: &str, bytes: &[u8]) -> Vec<u8> {
    let good = "writing to a Vec cannot fail";
    match name {
        "gzip" => {
            let mut to = GzEncoder::new(Vec::new(), Compression::fast());
            to.write_all(bytes).expect(good);
            to.finish().expect(good)
        }
        "deflate" => {
            let mut to = ZlibEncoder::new(Vec::new(), Compression::fast());
            to.write_all(bytes).expect(good);
            to.finish().expect(good)
        }
        _ => compress_to_vec(bytes, CompressionLevel::Fastest),
    }
}

/// Tries one input.
pub fn run(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else {
        return;
    };
    for name in ["gzip", "deflate", "zstd"] {
        let plain = rest.repeat(1 + usize::from(*first % 8));
        let packed = pack(name, &plain);
        let want = if plain.len() > CAP {
            Err(())
        } else {
            Ok(Some(plain))
        };
        assert_eq!(unpack(name, &packed, CAP), want, "{name}");
        let longer = [&packed[..], b"x"].concat();
        if want.is_ok() {
            assert_eq!(
                unpack(name, &longer, CAP),
                Ok(None),
                "{name}: a byte follows"
            );
            let shorter = &packed[..packed.len() - 1];
            assert_eq!(
                unpack(name, shorter, CAP),
                Ok(None),
                "{name}: the end is missing"
            );
        }
    }
    // The zstd decoder may panic on damaged input, which the front treats as damage; here a panic
    // would abort.
    for name in ["gzip", "deflate"] {
        let got = unpack(name, rest, CAP);
        assert!(got.iter().flatten().all(|out| out.len() <= CAP), "{name}");
    }
}
