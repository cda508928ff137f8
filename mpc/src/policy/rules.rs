//! The rules of one scope of a policy, and how an order is judged by them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use covault_core::{
    amount::U256,
    fault::{ExecuteCode, Fault},
    networks::{
        Payload, PayloadKind,
        outflow::{AccountChange, Asset, ChainScope, ContentKind, Outflow},
    },
};

use super::{
    AmountLimit, JudgingScope, PolicyRequest, PolicyScope, PolicyVerdict, Spending,
    SpendingCounter,
    approvals::{ApplyingRule, ApprovalRequirement, RuleReason, is_unknown},
    over_day,
};

/// How many times the price that nodes may name a request may name itself: its client wants it, and it may still be the
/// orchestrator who says so.
const OWN_PRICE_TIMES: u64 = 4;

/// What one scope (the node, a vault, a wallet) allows. An omitted key is no rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ScopeRules {
    /// `None`: everywhere.
    pub(super) networks: Option<BTreeSet<ChainScope>>,
    /// `None`: all.
    pub(super) kinds: Option<BTreeSet<PayloadKind>>,
    /// `None`: off for the node, and in a vault or wallet where something is limited.
    pub(super) raw_signing: Option<bool>,
    /// `None`: on.
    pub(super) messages: Option<bool>,
    /// `None`: where nothing is limited.
    pub(super) typed_data: Option<BTreeSet<ChainScope>>,
    /// `None`: where nothing is limited.
    pub(super) custom_calls: Option<BTreeSet<ChainScope>>,
    /// Where something is signed although no list can hold who gets it.
    pub(super) unseen_recipients: BTreeSet<ChainScope>,
    /// `None`: none of the node, and no rule of a vault or wallet.
    pub(super) account_changes: Option<BTreeSet<AccountChange>>,
    pub(super) only_listed_assets: bool,
    pub(super) only_listed_recipients: bool,
    /// Wallets of the same vault may receive, and nobody else that no list names.
    pub(super) own_wallets: bool,
    /// An empty list is nobody.
    pub(super) recipients: BTreeMap<ChainScope, BTreeSet<String>>,
    pub(super) most_fee: BTreeMap<ChainScope, U256>,
    /// The highest prices that are paid, whoever names them.
    pub(super) most_price: BTreeMap<ChainScope, U256>,
    /// The same where the request names them. Left out: [`OWN_PRICE_TIMES`] those.
    pub(super) most_own_price: BTreeMap<ChainScope, U256>,
    pub(super) limits: BTreeMap<Asset, AmountLimit>,
    pub(super) approvals: Vec<ApprovalRequirement>,
}

impl ScopeRules {
    /// Judges by these rules, which are of `scope`, and adds to the `verdict` what has to be counted and
    /// approved.
    pub(super) fn check<'p>(
        &'p self,
        scope: &JudgingScope,
        asked: &PolicyRequest<'_>,
        outflow: &Outflow,
        verdict: &mut PolicyVerdict<'p>,
    ) -> Result<(), Fault> {
        self.check_kind(scope, asked.payload.payload_kind(), outflow)?;
        self.check_account_changes(scope, asked.payload)?;
        self.check_network(scope, outflow)?;
        self.check_recipients(scope, asked.own_wallets, outflow)?;
        self.check_fee(scope, asked.fee, &outflow.place)?;
        self.check_price(scope, asked, &outflow.place)?;
        let totals = self.check_amounts(scope, asked.fee, outflow)?;
        let counted = verdict.spending.len();
        for (asset, amount) in &totals {
            verdict.spending.extend(self.count(scope, asset, *amount)?);
        }
        if !self.approvals.is_empty() {
            self.ask(asked.payload, outflow, &totals, counted, verdict);
        }
        Ok(())
    }

    /// Adds the rules of approval that apply. Those of a day look at what was counted from the place
    /// `counted` on.
    fn ask<'p>(
        &'p self,
        payload: &Payload,
        outflow: &Outflow,
        totals: &BTreeMap<Asset, U256>,
        counted: usize,
        verdict: &mut PolicyVerdict<'p>,
    ) {
        let named = |asset: &Asset| {
            let mut above = self.approvals.iter().filter_map(|rule| rule.above.as_ref());
            above.any(|(other, _)| other == asset)
        };
        let mut moved = outflow
            .spends
            .iter()
            .filter(|spend| !spend.amount.is_zero());
        let unknown = is_unknown(payload, outflow)
            || (self.only_listed_assets && moved.any(|spend| !named(&spend.asset)));
        for rule in &self.approvals {
            let amount = |asset: &Asset| totals.get(asset).copied().unwrap_or_default();
            let day = match rule.applies(payload, outflow, unknown, amount) {
                None => continue,
                Some(RuleReason::Always) => None,
                Some(RuleReason::AboveDay(most)) => {
                    let asset = rule.above.as_ref().map(|(asset, _)| asset.to_string());
                    let mut spending = verdict.spending.iter().skip(counted);
                    let place = spending.position(|one| Some(&one.counter.asset) == asset.as_ref());
                    // What is not counted cannot be told to be little.
                    place.map(|place| (counted.saturating_add(place), most))
                }
            };
            verdict.applying.push(ApplyingRule { rule, day });
        }
    }

    fn check_network(&self, scope: &JudgingScope, outflow: &Outflow) -> Result<(), Fault> {
        let Some(allowed) = &self.networks else {
            return Ok(());
        };
        let place = &outflow.place;
        let fits = allowed.iter().any(|allowed| match outflow.nature {
            // No chain does what a text says.
            ContentKind::Message => allowed.meets(place),
            ContentKind::Transfer
            | ContentKind::Custom
            | ContentKind::TypedData
            | ContentKind::Raw => allowed.covers(place),
        });
        if fits {
            return Ok(());
        }
        let sentence = match place.chain_id {
            Some(_) => format!("{scope} does not allow {place}"),
            None => format!("{scope} does not allow all of {place}, where this is good"),
        };
        Err(Fault::field("network", sentence))
    }

    fn check_kind(
        &self,
        scope: &JudgingScope,
        kind: PayloadKind,
        outflow: &Outflow,
    ) -> Result<(), Fault> {
        let forbidden = |why: fmt::Arguments<'_>| Err(Fault::field("kind", why));
        let name = kind.name();
        if let Some(kinds) = &self.kinds
            && !kinds.contains(&kind)
        {
            return forbidden(format_args!("{scope} does not allow {name}"));
        }
        let place = &outflow.place;
        let opaque = match outflow.nature {
            ContentKind::Transfer => return Ok(()),
            ContentKind::Raw if self.raw(scope, place) => return Ok(()),
            ContentKind::Raw => {
                return forbidden(format_args!("raw signing ({name}) is off in {scope}"));
            }
            ContentKind::Message if self.messages.unwrap_or(true) => return Ok(()),
            ContentKind::Message => {
                return forbidden(format_args!("messages ({name}) are off in {scope}"));
            }
            ContentKind::TypedData => ("typed data", "typed_data", &self.typed_data),
            ContentKind::Custom => ("custom calls", "custom_calls", &self.custom_calls),
        };
        let (what, switch, allowed) = opaque;
        match allowed {
            Some(allowed) if allowed.iter().any(|allowed| allowed.covers(place)) => Ok(()),
            Some(_) => forbidden(format_args!(
                "{scope} does not allow {what} ({name}) for {place}"
            )),
            // What moves with it cannot be told, so no limit would hold.
            None if self.limited(place) => forbidden(format_args!(
                "{scope} limits {place}, and the amount that {what} ({name}) move cannot be \
                 determined; its operator can allow them under {switch}"
            )),
            None => Ok(()),
        }
    }

    /// Anyone who has the account needs no more signatures, so no other rule would hold after it.
    fn check_account_changes(&self, scope: &JudgingScope, payload: &Payload) -> Result<(), Fault> {
        let allowed = match &self.account_changes {
            Some(allowed) => allowed,
            None if scope.scope == PolicyScope::Node => &BTreeSet::new(),
            None => return Ok(()),
        };
        let changes = payload.account_changes();
        let Some(change) = changes.difference(allowed).next() else {
            return Ok(());
        };
        let sentence = format_args!(
            "{scope} does not allow {}, which changes who can sign for the account; its operator \
             can name it under account_changes",
            change.name()
        );
        Err(Fault::field("kind", sentence))
    }

    /// Whether bytes that may be anything are signed. Of a vault or wallet, also what it says of
    /// recipients and amounts speaks against it.
    fn raw(&self, scope: &JudgingScope, place: &ChainScope) -> bool {
        self.raw_signing
            .unwrap_or(scope.scope != PolicyScope::Node && !self.limited(place))
    }

    /// Whether amounts or recipients are limited for something that is good at `place`.
    fn limited(&self, place: &ChainScope) -> bool {
        self.only_listed_assets
            || self.only_recipients()
            || self.recipients.keys().any(|other| other.meets(place))
            || self.limits.keys().any(|asset| asset.place.meets(place))
    }

    /// Whether nobody receives on networks without a list.
    pub(super) fn only_recipients(&self) -> bool {
        self.only_listed_recipients || self.own_wallets
    }

    fn check_recipients(
        &self,
        scope: &JudgingScope,
        own_wallets: &BTreeSet<String>,
        outflow: &Outflow,
    ) -> Result<(), Fault> {
        let mut lists = self
            .recipients
            .iter()
            .filter(|(place, _)| place.meets(&outflow.place))
            .map(|(_, list)| list)
            .peekable();
        if lists.peek().is_none() && !self.only_recipients() {
            return Ok(());
        }
        let lists: Vec<_> = lists.collect();
        let listed = |one: &String| {
            lists.iter().any(|list| list.contains(one))
                || (self.own_wallets && own_wallets.contains(one))
        };
        let recipients = outflow.spends.iter().map(|spend| &spend.recipient);
        let at = &outflow.place;
        let unseen = self.unseen_recipients.iter().any(|place| place.covers(at));
        if !unseen && recipients.clone().any(Option::is_none) {
            let sentence = format_args!(
                "cannot be seen in what is signed, so no list of {scope} for {at} can allow \
                 it; its operator can allow it under unseen_recipients"
            );
            return Err(Fault::field("recipient", sentence)
                .with_execute_code(ExecuteCode::AddressNotInWhitelist));
        }
        if recipients.flatten().all(listed) {
            return Ok(());
        }
        let sentence = format_args!("is not in the list of {scope} for {}", outflow.place);
        Err(Fault::field("recipient", sentence)
            .with_execute_code(ExecuteCode::AddressNotInWhitelist))
    }

    /// The highest fees that hold for a place: what is written, and for a node that writes nothing
    /// of it, the default.
    fn most_fees(&self, scope: &JudgingScope, at: &ChainScope) -> Vec<(ChainScope, U256)> {
        let meets = self.most_fee.iter().filter(|(place, _)| place.meets(at));
        let mut written: Vec<_> = meets.map(|(place, most)| (*place, *most)).collect();
        if written.is_empty() && scope.scope == PolicyScope::Node {
            written.push((
                ChainScope::network(at.network),
                at.network.rules().default_most_fee(),
            ));
        }
        written
    }

    fn check_fee(&self, scope: &JudgingScope, fee: U256, at: &ChainScope) -> Result<(), Fault> {
        for (place, most) in self.most_fees(scope, at) {
            if fee > most {
                let sentence = format_args!(
                    "could take more than {scope} allows for {place}; its operator can raise it \
                     under most_fee"
                );
                return Err(Fault::field("fee", sentence));
            }
        }
        Ok(())
    }

    /// Who names a price may be who gets it: a chain node, or the orchestrator in the name of a client.
    fn check_price(
        &self,
        scope: &JudgingScope,
        asked: &PolicyRequest<'_>,
        at: &ChainScope,
    ) -> Result<(), Fault> {
        let lowest = |prices: &BTreeMap<ChainScope, U256>| {
            let of_place = prices.iter().filter(|(place, _)| place.meets(at));
            of_place.map(|(_, most)| *most).min()
        };
        let default = || U256::from(at.network.rules().default_most_price(at.chain_id));
        let most =
            lowest(&self.most_price).or_else(|| (scope.scope == PolicyScope::Node).then(default));
        let most_own = lowest(&self.most_own_price)
            .or_else(|| Some(most?.saturating_mul(U256::from(OWN_PRICE_TIMES))));
        for (price, most, whose, key) in [
            (asked.price, most, "according to chain nodes", "most_price"),
            (
                asked.own_price,
                most_own,
                "by the request",
                "most_own_price",
            ),
        ] {
            let (Some(price), Some(most)) = (price.map(U256::from), most) else {
                continue;
            };
            if price > most {
                let unit = at.network.rules().price_unit();
                let sentence = format_args!(
                    "is {price} {unit} {whose}, and {scope} accepts at most {most}; its operator can raise it under {key}"
                );
                return Err(Fault::field("price", sentence));
            }
        }
        Ok(())
    }

    /// The fee counts as an amount of the coin: the one who sets it may be who gets it.
    fn check_amounts(
        &self,
        scope: &JudgingScope,
        fee: U256,
        outflow: &Outflow,
    ) -> Result<BTreeMap<Asset, U256>, Fault> {
        let mut totals: BTreeMap<Asset, U256> = BTreeMap::new();
        for spend in outflow
            .spends
            .iter()
            .filter(|spend| !spend.amount.is_zero())
        {
            self.check_listed(scope, &spend.asset)?;
            add(&mut totals, spend.asset.clone(), spend.amount);
            // What cannot be told may be any of those that are limited.
            for asset in self.watched().filter(|asset| spend.asset.may_be(asset)) {
                add(&mut totals, asset.clone(), spend.amount);
            }
        }
        if !fee.is_zero() {
            let coin = Asset::coin(outflow.place);
            let limited = self.limits.contains_key(&coin)
                || self
                    .most_fee
                    .keys()
                    .any(|place| place.meets(&outflow.place));
            if self.only_listed_assets && !limited {
                let sentence = format_args!(
                    "{scope} allows listed assets only, and limits neither {coin} nor its fees"
                );
                return Err(Fault::field("fee", sentence));
            }
            add(&mut totals, coin, fee);
        }
        Ok(totals)
    }

    /// Refuses an asset without limits where only those with limits are allowed.
    pub(super) fn check_listed(&self, scope: &JudgingScope, asset: &Asset) -> Result<(), Fault> {
        if self.only_listed_assets && !self.limits.contains_key(asset) {
            let sentence = format_args!("{scope} has no limits for {asset}");
            return Err(Fault::field("amount", sentence));
        }
        Ok(())
    }

    /// The assets that limits and rules of approval name.
    fn watched(&self) -> impl Iterator<Item = &Asset> {
        let above = self.approvals.iter().filter_map(|rule| rule.above.as_ref());
        let assets: BTreeSet<&Asset> = self
            .limits
            .keys()
            .chain(above.map(|(asset, _)| asset))
            .collect();
        assets.into_iter()
    }

    /// Checks the amount of an asset. What has to be counted.
    fn count(
        &self,
        scope: &JudgingScope,
        asset: &Asset,
        amount: U256,
    ) -> Result<Option<Spending>, Fault> {
        let limit = self.limits.get(asset).copied().unwrap_or_default();
        let counter = SpendingCounter {
            scope: scope.scope.clone(),
            asset: asset.to_string(),
        };
        if limit.per_request.is_some_and(|most| amount > most) {
            let sentence =
                format_args!("with the fee, more {asset} than {scope} allows per request");
            return Err(Fault::field("amount", sentence));
        }
        if limit.per_day.is_some_and(|most| amount > most) {
            return Err(over_day(scope, &counter.asset));
        }
        let mut above = self.approvals.iter().filter_map(|rule| rule.above.as_ref());
        let counts = limit.per_day.is_some()
            || above.any(|(other, above)| other == asset && above.per_day.is_some());
        // Of a node and its vaults also what is not limited yet: a limit that is set later finds it. There
        // may be too many wallets for that.
        let counts = counts || !matches!(scope.scope, PolicyScope::Wallet(_));
        Ok(counts.then_some(Spending {
            counter,
            amount,
            most_per_day: limit.per_day,
            unapproved: None,
        }))
    }
}

/// Two that are more than there can be count as the most that there can be.
fn add(totals: &mut BTreeMap<Asset, U256>, asset: Asset, amount: U256) {
    let total = totals.entry(asset).or_default();
    *total = total.saturating_add(amount);
}
