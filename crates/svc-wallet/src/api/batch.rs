//! `POST /v1/batch`: up to 1,000 operations under one key, in one ledger call.
//!
//! Item 0 has the caller's key, item `i` has `key#i`. Each item carries the item count and a hash of
//! the whole body, so that a key matches only the identical batch, and all items of a batch can be
//! found from its key.

use std::sync::Arc;

use ron_http::{Need, Request, Route};
use ron_proto::ledger::{BatchTag, CommitRequest, Entry, MAX_COMMIT_BYTES, RequestKey};
use ron_proto::wallet::{Batch, BatchAnswer, BatchItem, Burn, MAX_BATCH, Transfer};
use ron_proto::{ContentId, Problem, jcs, scope};

use super::Api;
use super::submit::{Accepted, write};
use super::writes::{Tag, WriteEntry, burn, issue, tag, transfer};
use crate::render::Shape;

pub fn route(api: &Arc<Api>) -> Route {
    write(api, "/v1/batch", Need::Identity, "batch", read)
        .summary("Commit up to 1,000 operations under one key; a linked batch is all or nothing. Requires the scope of every item.")
        .body::<Batch>()
        .body_cap(MAX_COMMIT_BYTES)
        .returns::<BatchAnswer>(200)
}

fn read(api: &Api, req: &Request) -> Result<Accepted, Problem> {
    let whole = tag(req)?;
    let body: Batch = req.json()?;
    if body.items.is_empty() || body.items.len() > MAX_BATCH {
        return Err(Problem::bad_request(format!(
            "a batch has 1 to {MAX_BATCH} items"
        )));
    }
    let batch = batch_tag(&body)?;
    let linked = body.linked;
    let mut made: Vec<WriteEntry> = Vec::with_capacity(body.items.len());
    for (i, item) in body.items.into_iter().enumerate() {
        let key = match i {
            0 => whole.owned.key.clone(),
            i => format!("{}#{i}", whole.owned.key)
                .parse()
                .map_err(|_| Problem::bad_request("the idempotency key is not usable"))?,
        };
        let tag = Tag {
            owned: RequestKey {
                key,
                ..whole.owned.clone()
            },
            batch: Some(batch),
        };
        let one = entry(api, req, tag, item);
        made.push(one.map_err(|mut problem| {
            problem.detail = format!("items[{i}]: {}", problem.detail);
            problem
        })?);
    }
    let account = made[0].1.clone();
    let entries: Vec<Entry> = made.into_iter().map(|(entry, _)| entry).collect();
    fits(&entries)?;
    Ok(Accepted {
        entries,
        account,
        shape: Shape::Batch { linked },
    })
}

fn entry(api: &Api, req: &Request, tag: Tag, item: BatchItem) -> Result<WriteEntry, Problem> {
    let need = match &item {
        BatchItem::Issue(_) => scope::WALLET_ISSUE,
        BatchItem::Transfer(_) => scope::WALLET_TRANSFER,
        BatchItem::Burn(_) => scope::WALLET_BURN,
    };
    if !req.principal.has_scope(need) {
        return Err(Problem::forbidden(format!("this needs the scope {need}")));
    }
    match item {
        BatchItem::Issue(body) => issue(api, req, tag, body),
        BatchItem::Transfer(body) => transfer(api, req, tag, body),
        BatchItem::Burn(body) => burn(api, req, tag, body),
    }
}

fn batch_tag(body: &Batch) -> Result<BatchTag, Problem> {
    let broken = |_| Problem::internal("the batch cannot be written in canonical form");
    let mut compared = body.clone();
    for item in &mut compared.items {
        if let BatchItem::Transfer(Transfer { nonce, .. }) | BatchItem::Burn(Burn { nonce, .. }) =
            item
        {
            *nonce = None;
        }
    }
    let hash = ContentId::of(&jcs::to_vec(&compared).map_err(broken)?);
    let mut digest = [0; 16];
    digest.copy_from_slice(&hash.as_bytes()[..16]);
    let items = body.items.len() as u32;
    Ok(BatchTag { items, digest })
}

/// Number of items of the batch that this entry belongs to; `None` for a single operation.
pub fn items_of(entry: &Entry) -> Option<usize> {
    entry.batch().map(|batch| batch.items as usize)
}

/// Refuses a batch whose ledger call would exceed the size limit.
fn fits(entries: &[Entry]) -> Result<(), Problem> {
    let request = CommitRequest {
        entries: entries.iter().collect(),
        linked: true,
        batch: false,
    };
    let bytes = serde_json::to_vec(&request).map_or(usize::MAX, |b| b.len());
    if bytes > MAX_COMMIT_BYTES {
        return Err(Problem::too_large(
            "the batch is too large for one ledger call; send it in parts",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ron_proto::Amount;
    use ron_proto::ledger::Details;
    use ron_proto::wallet::IssueMoney;

    #[test]
    fn the_tag_names_the_whole_batch() {
        let item = |n| {
            BatchItem::Issue(IssueMoney {
                to: "a".parse().unwrap(),
                asset: "ron".parse().unwrap(),
                amount_minor: Amount(n),
                details: Details::default(),
            })
        };
        let batch = |items: Vec<BatchItem>, linked| batch_tag(&Batch { items, linked }).unwrap();
        let two = batch(vec![item(1), item(2)], false);
        assert_eq!(two, batch(vec![item(1), item(2)], false));
        assert_ne!(two, batch(vec![item(2), item(1)], false));
        assert_ne!(two, batch(vec![item(1), item(2)], true));
        assert_eq!(two.items, 2);
    }

    #[test]
    fn items_have_the_members_of_their_requests_and_no_others() {
        let read = |json: &str| serde_json::from_str::<Batch>(json);
        let item =
            r#"{"op":"issue","to":"a","asset":"ron","amount_minor":"1","reference":"order 17"}"#;
        let batch = read(&format!(r#"{{"items":[{item}]}}"#)).unwrap();
        assert_eq!(
            serde_json::to_string(&batch).unwrap(),
            format!(r#"{{"items":[{item}]}}"#)
        );
        let odd = item.replace("reference", "colour");
        assert!(read(&format!(r#"{{"items":[{odd}]}}"#)).is_err());
    }
}
