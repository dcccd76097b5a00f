//! `POST /v1/batch`: up to 1,000 operations under one key, in one ledger call.
//!
//! Item 0 has the caller's key, item `i` has `key#i`. Each item carries the item count and a hash of
//! the whole body, so that a key matches only the identical batch, and all items of a batch can be
//! found from its key.

use std::sync::Arc;

use ron_http::{Need, Request, Route};
use ron_proto::ledger::{BatchTag, CommitRequest, Entry, HoldRef, MAX_COMMIT_BYTES, RequestKey};
use ron_proto::wallet::{
    Batch, BatchAnswer, BatchItem, Burn, Capture, HoldMoney, MAX_BATCH, Reverse, Transfer,
};
use ron_proto::{ContentId, Problem, jcs, scope};

use super::Api;
use super::holds::{self, Facts, NamedHold};
use super::submit::{Accepted, write};
use super::tx::reverse;
use super::writes::{Tag, WriteEntry, burn, issue, tag, transfer};
use crate::render::Shape;

pub fn route(api: &Arc<Api>) -> Route {
    write(api, "/v1/batch", Need::Identity, "batch", read)
        .summary("Commit up to 1,000 operations under one key; a linked batch is all or nothing. Requires the scope of every item. A capture or release may name the hold that an earlier item of the same linked batch makes: `#i`, counted from 0.")
        .body::<Batch>()
        .body_cap(MAX_COMMIT_BYTES)
        .returns::<BatchAnswer>(200)
        .errors(&[404])
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
    let mut items = Items {
        api,
        req,
        linked,
        holds: Vec::with_capacity(body.items.len()),
    };
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
        let one = items.entry(tag, item);
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

/// The items of one batch, read in their order.
struct Items<'r> {
    api: &'r Api,
    req: &'r Request,
    linked: bool,
    /// The terms of the holds that the items so far make; `None` for an item that makes none.
    holds: Vec<Option<Arc<Facts>>>,
}

impl Items<'_> {
    /// The entry of the next item, checked as the request of its own route would be.
    fn entry(&mut self, tag: Tag, item: BatchItem) -> Result<WriteEntry, Problem> {
        let need = match &item {
            BatchItem::Issue(_) => Some(scope::WALLET_ISSUE),
            BatchItem::Transfer(_) => Some(scope::WALLET_TRANSFER),
            BatchItem::Burn(_) => Some(scope::WALLET_BURN),
            BatchItem::Hold(_) | BatchItem::Capture(_) | BatchItem::Release(_) => {
                Some(scope::WALLET_HOLD)
            }
            // One of two scopes, which its own check names.
            BatchItem::Reverse(_) => None,
        };
        if let Some(need) = need
            && !self.req.principal.has_scope(need)
        {
            return Err(Problem::forbidden(format!("this needs the scope {need}")));
        }
        let (api, req) = (self.api, self.req);
        let entry = match item {
            BatchItem::Issue(body) => issue(api, req, tag, body),
            BatchItem::Transfer(body) => transfer(api, req, tag, body),
            BatchItem::Burn(body) => burn(api, req, tag, body),
            BatchItem::Hold(body) => holds::make(api, req, tag, body),
            BatchItem::Capture(item) => {
                let body = Capture {
                    to: item.to,
                    amount_minor: item.amount_minor,
                    ends_hold: item.ends_hold,
                    details: item.details,
                };
                holds::capture(api, req, tag, body, || self.hold(item.hold))
            }
            BatchItem::Release(item) => {
                let hold = self.hold(item.hold)?;
                holds::release(api, req, tag, item.details, hold)
            }
            BatchItem::Reverse(item) => {
                let body = Reverse {
                    amount_minor: item.amount_minor,
                    details: item.details,
                };
                reverse(api, req, tag, body, || Ok(item.txid))
            }
        }?;
        self.holds.push(Facts::of(&entry.0).map(Arc::new));
        Ok(entry)
    }

    /// The hold that an item names: an older one, or that of an earlier item. The ledger puts the id of the latter into
    /// the entry.
    fn hold(&self, hold: HoldRef) -> Result<NamedHold, Problem> {
        let item = match hold {
            HoldRef::Id(id) => return Ok((hold, holds::facts(self.api, self.req, id)?)),
            HoldRef::Item(item) => item,
        };
        let refuse = |why: &str| Err(Problem::bad_request(format!("hold {hold}: {why}")));
        if !self.linked {
            return refuse(
                "an item names the hold of another item only in a linked batch; add \"linked\": true, or name the hold by its id",
            );
        }
        let earlier = usize::try_from(item).ok().and_then(|i| self.holds.get(i));
        match earlier {
            Some(Some(terms)) => Ok((hold, Arc::clone(terms))),
            Some(None) => {
                refuse("that item makes no hold; name the number of an item with \"op\": \"hold\"")
            }
            None => refuse("it must be the number of an earlier item; items count from 0"),
        }
    }
}

fn batch_tag(body: &Batch) -> Result<BatchTag, Problem> {
    let broken = |_| Problem::internal("the batch cannot be written in canonical form");
    let mut compared = body.clone();
    for item in &mut compared.items {
        if let BatchItem::Transfer(Transfer { nonce, .. })
        | BatchItem::Burn(Burn { nonce, .. })
        | BatchItem::Hold(HoldMoney { nonce, .. }) = item
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
        let id = format!("tx_{:032x}", 7);
        let debit = r#""from":"a","asset":"ron","amount_minor":"max""#;
        let others = [
            format!(r#"{{"op":"transfer",{debit},"to":"b"}}"#),
            format!(r#"{{"op":"burn",{debit},"nonce":3}}"#),
            format!(r#"{{"op":"hold",{debit},"expires_at":"2100-01-01T00:00:00Z"}}"#),
            r##"{"op":"capture","hold":"#0","to":"b","amount_minor":"5","final":true}"##.to_owned(),
            format!(r#"{{"op":"capture","hold":"{id}","to":"b","memo":"m"}}"#),
            format!(r#"{{"op":"release","hold":"{id}"}}"#),
            format!(r#"{{"op":"reverse","txid":"{id}","amount_minor":"5","reference":"r"}}"#),
        ];
        for item in others {
            read(&format!(r#"{{"items":[{item}]}}"#)).unwrap();
            let odd = item.replacen('{', r#"{"colour":"red","#, 1);
            assert!(read(&format!(r#"{{"items":[{odd}]}}"#)).is_err(), "{odd}");
        }
        for bad in [
            r#"{"op":"issue","to":"a","asset":"ron","amount_minor":"max"}"#,
            r#"{"op":"transfer","from":"a","to":"b","asset":"ron","amount_minor":5}"#,
            r##"{"op":"reverse","txid":"#0"}"##,
            r#"{"op":"release"}"#,
            r#"{"op":"freeze","account":"a"}"#,
        ] {
            assert!(read(&format!(r#"{{"items":[{bad}]}}"#)).is_err(), "{bad}");
        }
    }
}
