//! The chunked decoder, fed in pieces, compared with the reference.

use crate::http::{Read, chunked};
use crate::pieces::cut;
use ron_http::fuzzing::{BodyDecoder, Framing};

const CAP: usize = 300;

fn ours(pieces: &[&[u8]]) -> Read {
    let mut decoder = BodyDecoder::new(Framing::Chunked, CAP).expect("chunks have no length");
    let (mut buffer, mut body, mut used) = (Vec::new(), Vec::new(), 0);
    for piece in pieces {
        buffer.extend_from_slice(piece);
        let Ok(decoded) = decoder.feed(&buffer, &mut body, CAP) else {
            return Read::Refused;
        };
        assert!(body.len() <= CAP, "the cap holds");
        used += decoded.used;
        buffer.drain(..decoded.used);
        if decoded.done {
            return Read::Done(body, used);
        }
        assert!(buffer.is_empty(), "an unfinished body takes all there is");
    }
    Read::More
}

/// Tries one input.
pub fn run(data: &[u8]) {
    if let Some((whole, pieces)) = cut(data) {
        let want = chunked(whole, CAP);
        assert_eq!(ours(&pieces), want);
        assert_eq!(ours(&[whole]), want);
    }
}
