//! Changes of aliases, tags and descriptions, as plans.

use ron_custody::labels::Labels;
use ron_custody::store::{Change, Meta};
use ron_custody::{Cause, Refusal};
use ron_proto::kms::{ALIASES_MAX, DESCRIPTION_BYTES_MAX, KeyOp, KeyState, SetAlias, TAGS_MAX};
use ron_proto::values::{Alias, Kid, TagName, TagValue, is_control};

use super::{By, Plan, Planner};

impl Planner<'_> {
    /// Has an alias name the key. The key that it leaves changes in the same transaction, so that it names one key at any time.
    pub(super) fn set_alias(
        &self,
        by: By<'_>,
        kid: &Kid,
        mut meta: Meta,
        (alias, ask): (&Alias, &SetAlias),
    ) -> Result<Plan, Refusal> {
        if meta.state() == KeyState::Destroyed {
            return Err(ron_custody::index::not_active(KeyState::Destroyed));
        }
        let holder = self.store.named(&kid.tenant, alias).cloned();
        let expected = ask.from.as_ref().or(Some(kid).filter(|_| holder.is_some()));
        if holder.as_ref() != expected {
            let detail = match (&holder, &ask.from) {
                (None, Some(_)) => "there is no such alias; leave `from` out to make it".to_owned(),
                (Some(holder), None) => format!(
                    "the alias names {holder}; give it as `from` to move the alias (`ron kms alias move`)"
                ),
                _ => "the alias names another key than `from` by now; read it again".to_owned(),
            };
            return Err(Refusal::new(Cause::StaleAlias, detail));
        }
        if meta.labels.aliases.len() >= ALIASES_MAX && !meta.labels.aliases.contains(alias) {
            let detail = format!("a key has at most {ALIASES_MAX} aliases; delete one first");
            return Err(Refusal::new(Cause::BadRequest, detail));
        }
        meta.labels.aliases.insert(alias.clone());
        let other = holder.filter(|holder| holder != kid);
        let context = match &other {
            Some(other) => format!("alias/{alias} from {other}"),
            None => format!("alias/{alias}"),
        };
        let other = other.map(|other| {
            self.allows(by, &other, KeyOp::Alias)?;
            let mut meta = self.store.known(&other)?.clone();
            meta.labels.aliases.remove(alias);
            Ok::<_, Refusal>((other, meta))
        });
        Ok(Plan {
            change: Change {
                other: other.transpose()?,
                ..Change::of(kid, meta)
            },
            context: Some(context),
        })
    }
}

/// Removes an alias from the key that the request was sent to, if it still has it.
pub(super) fn delete_alias(kid: &Kid, mut meta: Meta, alias: &Alias) -> Result<Plan, Refusal> {
    if !meta.labels.aliases.remove(alias) {
        let detail = "the alias was moved or deleted meanwhile; nothing was done";
        return Err(Refusal::new(Cause::StaleAlias, detail));
    }
    Ok(Plan {
        change: Change::of(kid, meta),
        context: Some(format!("alias/{alias} deleted")),
    })
}

/// Sets or removes the description.
pub(super) fn describe(labels: &mut Labels, text: &str) -> Result<(), Refusal> {
    if text.len() > DESCRIPTION_BYTES_MAX || text.chars().any(is_control) {
        let detail = format!(
            "`description` may have at most {DESCRIPTION_BYTES_MAX} bytes and no control characters"
        );
        return Err(Refusal::new(Cause::BadRequest, detail));
    }
    labels.description = Some(text.to_owned()).filter(|text| !text.is_empty());
    Ok(())
}

/// Sets or removes a tag; its text for the leaf.
pub(super) fn tag(
    labels: &mut Labels,
    name: &TagName,
    value: Option<&TagValue>,
) -> Result<String, Refusal> {
    let Some(value) = value else {
        labels.tags.remove(name);
        return Ok(format!("tag={name} removed"));
    };
    labels.tags.insert(name.clone(), value.clone());
    if labels.tags.len() > TAGS_MAX {
        let detail = format!("a key has at most {TAGS_MAX} tags; remove one first");
        return Err(Refusal::new(Cause::BadRequest, detail));
    }
    Ok(format!("tag={name}={value}"))
}
