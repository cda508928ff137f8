//! A node's policy floor: what it never signs, whoever orders it.
//!
//! The operator of the node writes it into a file of the node's own ([`Policy::read`]); orders
//! cannot change it. It goes by what the signed bytes bind
//! ([`covault_core::payload::outflow`]), not by what an order calls them.

mod file;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use covault_core::{
    amount::U256,
    fault::{Class, ExecuteCode, Fault},
    order::SigningOrder,
    payload::{
        Kind, Payload,
        outflow::{Asset, Nature, Outflow, Place},
    },
};

/// What a node signs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// `None`: everywhere.
    networks: Option<BTreeSet<Place>>,
    /// `None`: all.
    kinds: Option<BTreeSet<Kind>>,
    raw_signing: bool,
    messages: bool,
    /// `None`: where nothing is limited.
    typed_data: Option<BTreeSet<Place>>,
    /// `None`: where nothing is limited.
    custom_calls: Option<BTreeSet<Place>>,
    only_listed_assets: bool,
    /// None of them is empty.
    recipients: BTreeMap<Place, BTreeSet<String>>,
    most_fee: BTreeMap<Place, U256>,
    limits: BTreeMap<Asset, Limit>,
}

/// The most of one asset, in its smallest unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Limit {
    per_request: Option<U256>,
    per_day: Option<U256>,
}

/// An amount of one asset that an order would let go, to be counted for the day when the order's
/// claim is granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spending {
    /// The asset, e.g. `evm:1`.
    pub asset: String,
    /// In its smallest unit.
    pub amount: U256,
    /// What may go per day.
    pub most_per_day: Option<U256>,
}

impl Policy {
    /// What a node without a policy file goes by: everything but raw signing.
    pub fn production() -> Self {
        Self {
            networks: None,
            kinds: None,
            raw_signing: false,
            messages: true,
            typed_data: None,
            custom_calls: None,
            only_listed_assets: false,
            recipients: BTreeMap::new(),
            most_fee: BTreeMap::new(),
            limits: BTreeMap::new(),
        }
    }

    /// For development: everything, raw signing too.
    pub fn development() -> Self {
        Self {
            raw_signing: true,
            ..Self::production()
        }
    }

    /// Whether `rawMessage` is signed, which no limit can hold.
    pub fn raw_signing(&self) -> bool {
        self.raw_signing
    }

    /// Checks a verified order and its payload. What has to be counted for the day: the limits
    /// per day hold only when the claims count it too.
    ///
    /// # Errors
    /// [`Class::Invalid`] that begins with what is forbidden: `network`, `kind`, `recipient`,
    /// `amount` or `fee`.
    pub fn check(&self, order: &SigningOrder, payload: &Payload) -> Result<Vec<Spending>, Fault> {
        let outflow = payload.outflow(order.network);
        self.check_kind(&outflow, payload.which())?;
        self.check_network(&outflow)?;
        self.check_recipients(&outflow)?;
        let fee = order.network.chain().most_fee(&order.unsigned)?;
        for (place, most) in &self.most_fee {
            if place.meets(&outflow.place) && fee > *most {
                let sentence = format_args!("could take more than {FLOOR} allows for {place}");
                return Err(Fault::field("fee", sentence));
            }
        }
        self.check_amounts(&outflow, fee)
    }

    fn check_network(&self, outflow: &Outflow) -> Result<(), Fault> {
        let Some(allowed) = &self.networks else {
            return Ok(());
        };
        let place = &outflow.place;
        let fits = allowed.iter().any(|allowed| match outflow.nature {
            // No chain does what a text says.
            Nature::Message => allowed.meets(place),
            Nature::Transfer | Nature::Custom | Nature::TypedData | Nature::Raw => {
                allowed.covers(place)
            }
        });
        if fits {
            return Ok(());
        }
        let sentence = match place.chain_id {
            Some(_) => format!("{FLOOR} does not allow {place}"),
            None => format!("{FLOOR} does not allow all of {place}, where this is good"),
        };
        Err(Fault::field("network", sentence))
    }

    fn check_kind(&self, outflow: &Outflow, kind: Kind) -> Result<(), Fault> {
        let forbidden = |why: fmt::Arguments<'_>| Err(Fault::field("kind", why));
        let name = kind.name();
        if let Some(kinds) = &self.kinds
            && !kinds.contains(&kind)
        {
            return forbidden(format_args!("{FLOOR} does not allow {name}"));
        }
        let opaque = match outflow.nature {
            Nature::Transfer => return Ok(()),
            Nature::Raw if self.raw_signing => return Ok(()),
            Nature::Raw => {
                return forbidden(format_args!("raw signing ({name}) is off in {FLOOR}"));
            }
            Nature::Message if self.messages => return Ok(()),
            Nature::Message => {
                return forbidden(format_args!("messages ({name}) are off in {FLOOR}"));
            }
            Nature::TypedData => ("typed data", "typed_data", &self.typed_data),
            Nature::Custom => ("custom calls", "custom_calls", &self.custom_calls),
        };
        let place = &outflow.place;
        let (what, switch, allowed) = opaque;
        match allowed {
            Some(allowed) if allowed.iter().any(|allowed| allowed.covers(place)) => Ok(()),
            Some(_) => forbidden(format_args!(
                "{FLOOR} does not allow {what} ({name}) for {place}"
            )),
            // What moves with it cannot be told, so no limit would hold.
            None if self.limited(place) => forbidden(format_args!(
                "{FLOOR} limits {place}, and nobody can tell what {what} ({name}) move; its \
                 operator can allow them under {switch}"
            )),
            None => Ok(()),
        }
    }

    /// Whether amounts or recipients are limited for something that is good at `place`.
    fn limited(&self, place: &Place) -> bool {
        self.only_listed_assets
            || self.recipients.keys().any(|other| other.meets(place))
            || self.limits.keys().any(|asset| asset.place.meets(place))
    }

    fn check_recipients(&self, outflow: &Outflow) -> Result<(), Fault> {
        let lists: Vec<_> = self
            .recipients
            .iter()
            .filter(|(place, _)| place.meets(&outflow.place))
            .map(|(_, list)| list)
            .collect();
        if lists.is_empty() {
            return Ok(());
        }
        let listed = |recipient: &Option<String>| {
            recipient
                .as_ref()
                .is_some_and(|one| lists.iter().any(|list| list.contains(one)))
        };
        if outflow.spends.iter().all(|spend| listed(&spend.recipient)) {
            return Ok(());
        }
        let sentence = format_args!("is not in the list of {FLOOR} for {}", outflow.place);
        Err(Fault::field("recipient", sentence).with_code(ExecuteCode::AddressNotInWhitelist))
    }

    /// The fee counts as an amount of the coin: whoever sets it may be who gets it.
    fn check_amounts(&self, outflow: &Outflow, fee: U256) -> Result<Vec<Spending>, Fault> {
        let mut totals: BTreeMap<Asset, U256> = BTreeMap::new();
        for spend in outflow
            .spends
            .iter()
            .filter(|spend| !spend.amount.is_zero())
        {
            if self.only_listed_assets && !self.limits.contains_key(&spend.asset) {
                let sentence = format_args!("{FLOOR} has no limits for {}", spend.asset);
                return Err(Fault::field("amount", sentence));
            }
            add(&mut totals, spend.asset.clone(), spend.amount)?;
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
                    "{FLOOR} allows listed assets only, and limits neither {coin} nor its fees"
                );
                return Err(Fault::field("fee", sentence));
            }
            add(&mut totals, coin, fee)?;
        }
        let mut spending = Vec::with_capacity(totals.len());
        for (asset, amount) in totals {
            let limit = self.limits.get(&asset).copied().unwrap_or_default();
            if limit.per_request.is_some_and(|most| amount > most) {
                let sentence =
                    format_args!("with the fee, more {asset} than {FLOOR} allows per request");
                return Err(Fault::field("amount", sentence));
            }
            spending.push(Spending {
                asset: asset.to_string(),
                amount,
                most_per_day: limit.per_day,
            });
        }
        Ok(spending)
    }
}

/// The refusal when the day's total would be too high.
pub(crate) fn over_day(asset: &str) -> Fault {
    let sentence = format_args!("with the fee, more {asset} than {FLOOR} allows per day (UTC)");
    Fault::field("amount", sentence)
}

const FLOOR: &str = "this signer's policy";

fn add(totals: &mut BTreeMap<Asset, U256>, asset: Asset, amount: U256) -> Result<(), Fault> {
    let total = totals.entry(asset).or_default();
    *total = total
        .checked_add(amount)
        .ok_or_else(|| Fault::new(Class::Invalid, "amount: is more than there can be"))?;
    Ok(())
}

/// One line for the log.
impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places = |places: &Option<BTreeSet<Place>>, none: &str| match places {
            None => none.to_owned(),
            Some(places) => format!("[{}]", join(places)),
        };
        write!(
            f,
            "networks {}, kinds {}, raw signing {}, messages {}, typed data {}, custom calls {}, \
             {} limits{}, {} recipient lists, {} fee limits",
            places(&self.networks, "all"),
            match &self.kinds {
                None => "all".to_owned(),
                Some(kinds) => kinds.len().to_string(),
            },
            on(self.raw_signing),
            on(self.messages),
            places(&self.typed_data, "where nothing is limited"),
            places(&self.custom_calls, "where nothing is limited"),
            self.limits.len(),
            if self.only_listed_assets {
                " and no other assets"
            } else {
                ""
            },
            self.recipients.len(),
            self.most_fee.len(),
        )
    }
}

fn on(switch: bool) -> &'static str {
    if switch { "on" } else { "off" }
}

fn join(places: &BTreeSet<Place>) -> String {
    let names: Vec<String> = places.iter().map(ToString::to_string).collect();
    names.join(", ")
}
