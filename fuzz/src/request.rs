//! Streams of pipelined requests, in pieces: scanner, head parser and body decoder compared with
//! the reference, which reads the whole stream at once.

use crate::http::{Caps, End, Message, stream};
use crate::pieces::cut;
use ron_http::fuzzing::{BodyDecoder, Head, HeadCaps, HeadScanner, Refusal, parse_head};

/// Small, so that inputs reach them.
const CAPS: Caps = Caps {
    request_line: 96,
    block: 384,
    fields: 8,
    body: 64,
};
const HEAD_CAPS: HeadCaps = HeadCaps {
    request_line: CAPS.request_line,
    block: CAPS.block,
    fields: CAPS.fields,
};

#[derive(Default)]
struct Reader {
    buffer: Vec<u8>,
    scan: HeadScanner,
    reading: Option<(Message, BodyDecoder, Vec<u8>)>,
}

impl Reader {
    /// The order of the front: scanner, head, body, and again.
    fn step(&mut self) -> Result<Option<Message>, Refusal> {
        if self.reading.is_none() {
            let Some(length) = self.scan.advance(&self.buffer, &HEAD_CAPS)? else {
                return Ok(None);
            };
            self.scan = HeadScanner::default();
            let head = parse_head(&self.buffer[..length], &HEAD_CAPS)?;
            let message = message(&self.buffer[..length], &head);
            self.buffer.drain(..length);
            let decoder = BodyDecoder::new(head.framing, CAPS.body)?;
            self.reading = Some((message, decoder, Vec::new()));
        }
        let Some((mut message, mut decoder, mut body)) = self.reading.take() else {
            return Ok(None);
        };
        let decoded = decoder.feed(&self.buffer, &mut body, CAPS.body)?;
        assert!(body.len() <= CAPS.body, "the cap holds");
        self.buffer.drain(..decoded.used);
        if decoded.done {
            message.body = body;
            return Ok(Some(message));
        }
        self.reading = Some((message, decoder, body));
        Ok(None)
    }
}

fn message(bytes: &[u8], head: &Head) -> Message {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("ASCII");
    let fields = head.fields.iter();
    Message {
        method: head.method.as_str().to_owned(),
        target: text(&bytes[head.target.clone()]),
        http11: head.http11,
        fields: fields
            .map(|f| (f.name(bytes).to_vec(), f.value(bytes).to_vec()))
            .collect(),
        keep_alive: head.keep_alive,
        expects_continue: head.expects_continue,
        body: Vec::new(),
    }
}

fn ours(pieces: &[&[u8]]) -> (Vec<Message>, End) {
    let mut reader = Reader::default();
    let mut messages = Vec::new();
    for piece in pieces {
        reader.buffer.extend_from_slice(piece);
        loop {
            match reader.step() {
                Err(_) => return (messages, End::Refused),
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
            }
        }
    }
    let end = match (&reader.reading, reader.buffer.is_empty()) {
        (Some(_), _) => End::InBody,
        (None, false) => End::InHead,
        (None, true) => End::Clean,
    };
    (messages, end)
}

/// Tries one input.
pub fn run(data: &[u8]) {
    let Some((whole, pieces)) = cut(data) else {
        return;
    };
    let got = ours(&pieces);
    assert_eq!(got, ours(&[whole]), "pieces matter");
    let want = stream(whole, &CAPS);
    assert_eq!(got.0, want.0);
    if got.1 == End::Refused && want.1 == End::InHead {
        // Refused before the head was complete: then no completion of the head is accepted.
        for end in [&b"\r\n\r\n"[..], b"\n\r\n", b"x\r\n\r\n"] {
            let (messages, end) = stream(&[whole, end].concat(), &CAPS);
            assert_eq!(messages, want.0, "refused too early");
            assert!(
                matches!(end, End::Refused | End::InHead),
                "refused too early"
            );
        }
    } else {
        assert_eq!(got.1, want.1);
    }
}
