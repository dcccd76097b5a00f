//! Receipt files as callers get them: the copy for a payee, and those that wait because the ledger's
//! next checkpoint has yet to cover their entry.

use std::time::Duration;

use ron_crypto::hash::sha256;
use ron_http::{Responder, Response};
use ron_kernel::{Deadline, Receiver, Recv, Shutdown, ThreadCtx};
use ron_proto::Problem;
use ron_proto::ledger::{Hash64, HiddenPart, PrivatePart, ReceiptFile, TxId};

use crate::topology::RECEIPTS_QUEUE;
use crate::upstream::SharedUpstream;

/// Interval at which the ledger is asked how far its newest checkpoint reaches; it does not announce
/// one.
const EVERY: Duration = Duration::from_millis(100);
/// Maximum time of one call to the ledger.
const CALL: Duration = Duration::from_secs(1);

/// What of the private record a caller is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReceiptCopy {
    Maker,
    /// Everybody but the maker sees the reference, if the maker shares it.
    Payee {
        reference: bool,
    },
}

/// A request whose answer waits for a checkpoint.
pub struct WaitingReceipt {
    pub txid: TxId,
    pub copy: ReceiptCopy,
    pub until: Deadline,
    pub responder: Responder,
}

/// The thread's body.
pub fn run(ctx: &ThreadCtx, queue: &Receiver<WaitingReceipt>, upstream: &SharedUpstream) {
    let mut waiting: Vec<WaitingReceipt> = Vec::new();
    loop {
        let pause = if waiting.is_empty() {
            Duration::from_secs(60)
        } else {
            EVERY
        };
        match queue.recv(&ctx.shutdown, Deadline::within(pause)) {
            Recv::Item(one) => waiting.push(one),
            Recv::Timeout => {}
            Recv::Shutdown | Recv::Closed => break,
        }
        // What does not fit stays in the queue, which refuses more.
        while waiting.len() < RECEIPTS_QUEUE.capacity {
            match queue.try_recv() {
                Some(one) => waiting.push(one),
                None => break,
            }
        }
        waiting = answer(waiting, upstream, &ctx.shutdown);
        // A burst of requests must not turn into a burst of calls.
        if !waiting.is_empty() && ctx.shutdown.wait(Deadline::within(EVERY)) {
            break;
        }
    }
    let rest = std::iter::from_fn(|| queue.try_recv());
    for one in waiting.into_iter().chain(rest) {
        one.responder.send(Problem::draining(2));
    }
}

/// Answers the requests whose entries are covered, and those whose time is over; returns the others.
fn answer(
    waiting: Vec<WaitingReceipt>,
    upstream: &SharedUpstream,
    shutdown: &Shutdown,
) -> Vec<WaitingReceipt> {
    let by = Deadline::within(CALL);
    let covered = match upstream.client.head(by) {
        Ok(head) => head.checkpoint_size,
        Err(_) => 0,
    };
    let mut rest = Vec::with_capacity(waiting.len());
    for one in waiting {
        if shutdown.is_set() {
            rest.push(one); // a drain does not wait for a ledger that answers slowly
        } else if one.txid.seq() < covered {
            let _scope = one.responder.enter();
            match upstream.client.receipt(one.txid, Deadline::within(CALL)) {
                Ok(file) => {
                    let file = shown(file, one.copy);
                    one.responder.send(Response::json(200, &file));
                }
                Err(_) => one
                    .responder
                    .send(Problem::unavailable("the ledger cannot be read now", 2)),
            }
        } else if one.until.expired() {
            one.responder.send(not_yet_covered());
        } else {
            rest.push(one);
        }
    }
    rest
}

/// The answer while no checkpoint covers the transaction.
pub fn not_yet_covered() -> Problem {
    Problem::new(
        409,
        "not_yet_covered",
        "No checkpoint covers the transaction yet",
        "the transaction is durable; its receipt can be proved under the ledger's next checkpoint, within about a second",
    )
    .retryable(true)
    .with_retry_after(1)
}

/// The copy of a receipt file for a caller: parts that are not theirs stand as hashes.
pub fn shown(mut file: ReceiptFile, copy: ReceiptCopy) -> ReceiptFile {
    let reference = match copy {
        ReceiptCopy::Maker => return file,
        ReceiptCopy::Payee { reference } => reference,
    };
    if let Some(parts) = &mut file.private {
        hide(&mut parts.caller);
        parts.memo.iter_mut().for_each(hide);
        parts.metadata.iter_mut().for_each(hide);
        if !reference {
            parts.reference.iter_mut().for_each(hide);
        }
        let open = |part: &Option<PrivatePart>| matches!(part, Some(PrivatePart::Shown(_)));
        if !open(&parts.reference) {
            file.private = None;
        }
    }
    file
}

fn hide(part: &mut PrivatePart) {
    if let PrivatePart::Shown(shown) = part {
        let hash = sha256(&[shown.salt.as_slice(), &shown.bytes].concat());
        *part = PrivatePart::Hidden(HiddenPart { hash: Hash64(hash) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ron_proto::ledger::{PrivateParts, RECEIPT_FORMAT, ShownPart};

    fn part(salt: u8, text: &str) -> PrivatePart {
        PrivatePart::Shown(ShownPart {
            salt: vec![salt; 16],
            bytes: text.as_bytes().to_vec(),
        })
    }

    fn file() -> ReceiptFile {
        ReceiptFile {
            format: RECEIPT_FORMAT.to_owned(),
            leaf: vec![1, 2, 3],
            private: Some(PrivateParts {
                salt: vec![9; 16],
                caller: part(1, "principal and key"),
                memo: Some(part(2, "memo")),
                metadata: None,
                reference: Some(part(4, "order 17")),
            }),
            path: Vec::new(),
            checkpoint: String::new(),
            vkey: String::new(),
        }
    }

    #[test]
    fn others_see_the_reference_at_most() {
        assert_eq!(shown(file(), ReceiptCopy::Maker), file());
        let parts = shown(file(), ReceiptCopy::Payee { reference: true })
            .private
            .unwrap();
        assert_eq!(parts.reference, file().private.unwrap().reference);
        let hash = Hash64(sha256(
            b"\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01principal and key",
        ));
        assert_eq!(parts.caller, PrivatePart::Hidden(HiddenPart { hash }));
        assert!(matches!(parts.memo, Some(PrivatePart::Hidden(_))));
        let nothing = shown(file(), ReceiptCopy::Payee { reference: false });
        assert_eq!(nothing.private, None);
        assert_eq!(nothing.leaf, file().leaf);
    }
}
