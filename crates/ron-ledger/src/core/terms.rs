//! The rules of what an operator sets for accounts and assets.

use ron_proto::ledger::{AccountTerms, AssetLimits, AssetTerms, Sides};
use ron_proto::{Account, Asset};

use super::limits::Limit;
use super::overlay::Overlay;
use super::rules::{Rule, no, reserved};
use super::state::BalanceLimits;
use super::verdict::Refusal;

impl Overlay<'_> {
    pub(super) fn freeze(&mut self, account: &Account, sides: Sides) -> Rule<()> {
        reserved(account)?;
        let known = self.find(account);
        self.room(known)?;
        let ix = self.or_new(known, account);
        self.touch(ix).row.frozen = sides;
        Ok(())
    }

    /// The sides of an account that are frozen.
    pub(super) fn frozen(&self, account: &Account) -> Sides {
        self.find(account)
            .map_or(Sides::None, |ix| self.row(ix).frozen)
    }

    pub(super) fn set_account(&mut self, account: &Account, terms: &AccountTerms) -> Rule<()> {
        reserved(account)?;
        let known = self.find(account);
        if terms.closed == Some(true) {
            let left = known.is_some_and(|ix| self.row(ix).balances.iter().any(|b| !b.is_empty()));
            if left {
                return no(Refusal::AccountNotEmpty);
            }
        }
        let limited = match &terms.limits {
            None => None,
            Some(limits) => Some((self.check_limits(account, limits)?, limits)),
        };
        self.room(known)?;
        let ix = self.or_new(known, account);
        if let Some((asset, limits)) = limited {
            let asset = asset.unwrap_or_else(|| self.add_asset(&limits.asset));
            let set = BalanceLimits {
                credit: limits.credit_limit_minor.0,
                max: limits.max_balance_minor.map(|most| most.0),
            };
            self.touch(ix).row.set_limits(asset, set);
        }
        let row = &mut self.touch(ix).row;
        if let Some(sides) = terms.frozen {
            row.frozen = sides;
        }
        if let Some(closed) = terms.closed {
            row.terms_mut().closed = closed;
        }
        if let Some(required) = terms.require_nonce {
            row.terms_mut().require_nonce = required;
        }
        if let Some(class) = &terms.class {
            row.terms_mut().class = Some(class.clone()).filter(|class| !class.as_str().is_empty());
        }
        row.forget_empty_terms();
        Ok(())
    }

    /// Returns the row number of the limits' asset, if it has one.
    fn check_limits(&self, account: &Account, limits: &AssetLimits) -> Rule<Option<u32>> {
        let asset = self.usable_asset(&limits.asset)?;
        let balance = match (self.find(account), asset) {
            (Some(ix), Some(asset)) => Some(self.row(ix).balance(asset)),
            _ => None,
        };
        let credit = limits.credit_limit_minor.0;
        if balance.is_some_and(|b| !b.is_covered(credit)) {
            return no(Refusal::CreditInUse);
        }
        Ok(asset)
    }

    /// The row number of an asset that is to come into use; refuses one that has to be registered first.
    pub(super) fn usable_asset(&self, name: &Asset) -> Rule<Option<u32>> {
        let known = self.asset_ix(name)?;
        let registered = known.is_some_and(|ix| self.asset(ix).terms.is_some());
        if self.limits.registered_assets && !registered {
            return no(Refusal::Limit(Limit::RegisteredAssets));
        }
        Ok(known)
    }

    pub(super) fn set_asset(&mut self, name: &Asset, terms: &AssetTerms) -> Rule<()> {
        let known = self.asset_ix(name)?;
        if let Some(row) = known.map(|ix| self.asset(ix)) {
            let other = row.terms.as_ref().is_some_and(|t| t.scale != terms.scale);
            if other && row.issued > 0 {
                return no(Refusal::AssetScale);
            }
        }
        let ix = known.unwrap_or_else(|| self.add_asset(name));
        self.asset_mut(ix).terms = Some(terms.clone());
        Ok(())
    }
}
