//! Arrow's stream and file formats, read message by message.
//!
//! The file format is the stream format with a magic in front and an index behind, so both are read
//! alike, from start to end. Every length that a message claims is compared with a bound before
//! anything of that size is allocated, and a stream without its end mark is refused: rows may be
//! missing.

use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_ipc::reader::StreamDecoder;
use arrow_ipc::{MessageHeader, root_as_message};

use super::ImportError;
use super::columns::Columns;
use super::rows::Rows;

/// The file format's magic.
const MAGIC: &[u8; 8] = b"ARROW1\0\0";
/// Maximum zero padding after the magic, in units of the magic's length.
const PADDING_MAX: usize = 32;
const CONTINUATION: [u8; 4] = [0xff; 4];
/// Maximum size of one message's metadata, in bytes.
const HEAD_MAX: usize = 16 << 20;
/// Maximum size of one message's body, compressed or not, in bytes.
const BODY_MAX: usize = 512 << 20;

fn refuse(why: impl Into<String>) -> ImportError {
    ImportError::File(why.into())
}

/// A stream that counts its messages.
struct Messages<R> {
    source: R,
    /// Bytes read ahead to tell the two formats apart.
    ahead: Vec<u8>,
    count: u64,
}

/// Reads every batch into `rows`.
pub(super) fn read(source: impl Read, rows: &mut Rows) -> Result<(), ImportError> {
    let mut messages = Messages::begin(source)?;
    let mut decoder = StreamDecoder::new();
    let mut columns: Option<Columns> = None;
    let mut next = 1;
    while let Some(message) = messages.next()? {
        let count = messages.count;
        let batch = decode(&mut decoder, message)
            .map_err(|why| refuse(format!("message {count} (after row {}): {why}", next - 1)))?;
        if columns.is_none()
            && let Some(schema) = decoder.schema()
        {
            columns = Some(Columns::of(&schema)?);
        }
        if let (Some(batch), Some(columns)) = (batch, &columns) {
            rows.expect(batch.num_rows() as u64)?;
            columns.add(&batch, next, rows)?;
            next += batch.num_rows() as u64;
        }
    }
    columns.map_or_else(|| Err(refuse("there is no schema")), |_| Ok(()))
}

/// Decodes one message. A panic of the library must not end this process, whatever the bytes are.
fn decode(decoder: &mut StreamDecoder, message: Vec<u8>) -> Result<Option<RecordBatch>, String> {
    let mut buffer = Buffer::from(message);
    let decoded = catch_unwind(AssertUnwindSafe(|| decoder.decode(&mut buffer)));
    match decoded {
        Ok(Ok(batch)) => Ok(batch),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("malformed".into()),
    }
}

impl<R: Read> Messages<R> {
    fn begin(mut source: R) -> Result<Self, ImportError> {
        let mut ahead = vec![0; MAGIC.len()];
        fill(&mut source, &mut ahead, "the first message")?;
        if ahead == MAGIC {
            // Some writers pad with zeros up to their own alignment.
            for _ in 0..PADDING_MAX {
                fill(&mut source, &mut ahead, "the first message")?;
                if ahead != [0; MAGIC.len()] {
                    break;
                }
            }
        }
        if !ahead.starts_with(&CONTINUATION) {
            return Err(refuse("not an Arrow stream or file: wrong first bytes"));
        }
        Ok(Self {
            source,
            ahead,
            count: 0,
        })
    }

    /// The next whole message with its lengths, checked; `None` at the end mark.
    fn next(&mut self) -> Result<Option<Vec<u8>>, ImportError> {
        self.count += 1;
        let name = format!("message {}", self.count);
        let mut message = std::mem::take(&mut self.ahead);
        let from = message.len();
        message.resize(8, 0);
        fill(&mut self.source, &mut message[from..], &name)?;
        let Some(length) = message.strip_prefix(&CONTINUATION) else {
            return Err(refuse(format!("{name} does not begin like one")));
        };
        let head = u32::from_le_bytes([length[0], length[1], length[2], length[3]]) as usize;
        if head == 0 {
            return Ok(None);
        }
        if head > HEAD_MAX {
            return Err(refuse(format!(
                "{name} claims a description of {head} bytes; at most {HEAD_MAX} are read"
            )));
        }
        message.resize(8 + head, 0);
        fill(&mut self.source, &mut message[8..], &name)?;
        let body = body_length(&message[8..], &name)?;
        let mut read = 0;
        // The buffer grows as bytes arrive, so that a claimed length alone takes no memory.
        while read < body {
            let step = (body - read).min(1 << 20);
            let at = message.len();
            message.resize(at + step, 0);
            fill(&mut self.source, &mut message[at..], &name)?;
            read += step;
        }
        check_packed(&message[8..8 + head], &message[8 + head..], &name)?;
        Ok(Some(message))
    }
}

fn fill(source: &mut impl Read, into: &mut [u8], what: &str) -> Result<(), ImportError> {
    source.read_exact(into).map_err(|error| {
        if error.kind() == std::io::ErrorKind::UnexpectedEof {
            refuse(format!("the file ends within {what}; it is truncated"))
        } else {
            ImportError::Read(error)
        }
    })
}

fn body_length(head: &[u8], name: &str) -> Result<usize, ImportError> {
    let message = root_as_message(head)
        .map_err(|_| refuse(format!("the description of {name} is malformed")))?;
    let length = message.bodyLength();
    usize::try_from(length)
        .ok()
        .filter(|length| *length <= BODY_MAX)
        .ok_or_else(|| {
            refuse(format!(
                "{name} claims a body of {length} bytes; at most {BODY_MAX} are read"
            ))
        })
}

/// Compressed buffers begin with their uncompressed length, which is what the library allocates.
fn check_packed(head: &[u8], body: &[u8], name: &str) -> Result<(), ImportError> {
    let message = root_as_message(head)
        .map_err(|_| refuse(format!("the description of {name} is malformed")))?;
    let batch = match message.header_type() {
        MessageHeader::RecordBatch => message.header_as_record_batch(),
        MessageHeader::DictionaryBatch => message
            .header_as_dictionary_batch()
            .and_then(|dictionary| dictionary.data()),
        _ => None,
    };
    let Some(batch) = batch.filter(|batch| batch.compression().is_some()) else {
        return Ok(());
    };
    let mut total = 0_usize;
    for buffer in batch.buffers().into_iter().flatten() {
        let at = usize::try_from(buffer.offset()).ok();
        let field = at.and_then(|at| body.get(at..at.checked_add(8)?));
        let Some(field) = field.filter(|_| buffer.length() >= 8) else {
            continue; // empty, or the decoder refuses it
        };
        let mut length = [0; 8];
        length.copy_from_slice(field);
        let length = i64::from_le_bytes(length).max(0); // -1: stored uncompressed
        total = total.saturating_add(usize::try_from(length).unwrap_or(usize::MAX));
    }
    if total > BODY_MAX {
        return Err(refuse(format!(
            "{name} claims to unpack to more than {BODY_MAX} bytes"
        )));
    }
    Ok(())
}
