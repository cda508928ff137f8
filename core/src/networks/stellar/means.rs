//! Whether accounts have what a transaction moves, as a ledger has them before anything is signed. A ledger takes one that
//! cannot do what it says all the same: it pays nobody, and its number and its fee are gone.

use super::{
    address::{IssuedAsset, parse_account},
    chain_data::{Moves, Queries},
    envelope::{BASE_RESERVE, MOST_PRICE},
    ledger::{LedgerAccount, LedgerTrustLine, read_trust_line, trust_line_key},
};
use crate::fault::{ExecuteCode, Fault};

/// The trust lines that say whether a transaction can do what it says: keys of their entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustLineKeys {
    /// That of the sender; `None` where it needs none.
    sender: Option<String>,
    /// That of the recipient.
    recipient: Option<String>,
}

impl TrustLineKeys {
    /// The keys, for a node.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.sender
            .iter()
            .chain(&self.recipient)
            .map(String::as_str)
    }
}

impl Queries {
    /// The trust lines that have to be looked at. Who issues an asset has any amount of it, and no trust line.
    ///
    /// # Errors
    /// [`crate::fault::Class::Bug`] when an address or asset is none.
    pub fn trust_lines(&self) -> Result<TrustLineKeys, Fault> {
        let (Moves::Asset { asset, .. } | Moves::Trust { asset }) = &self.moves else {
            return Ok(TrustLineKeys::default());
        };
        let asset = IssuedAsset::parse(asset).map_err(Fault::bug)?;
        let key = |account: &str| {
            let account = parse_account(account).map_err(Fault::bug)?;
            let needs_one = account != asset.issuer;
            needs_one
                .then(|| trust_line_key(&account, &asset))
                .transpose()
        };
        Ok(TrustLineKeys {
            sender: key(&self.from)?,
            recipient: match &self.moves {
                Moves::Asset { to, .. } if *to != self.from => key(to)?,
                _ => None,
            },
        })
    }

    /// Whether a ledger in which the sender is `account` would do it, for a fee of at most `fee` stroops. `lines` are
    /// [`Queries::trust_lines`], whose entries `find` finds there. `None` where one makes no sense.
    pub fn check_means<'a>(
        &self,
        account: &LedgerAccount,
        fee: u32,
        lines: &TrustLineKeys,
        find: impl Fn(&str) -> Option<&'a str>,
    ) -> Option<Result<(), Fault>> {
        let line = |key: &Option<String>| {
            let Some(key) = key else {
                return Some(TrustLine::NotNeeded);
            };
            Some(match find(key) {
                None => TrustLine::Missing,
                Some(entry) => TrustLine::There(read_trust_line(key, entry)?),
            })
        };
        // A price that is not believed is refused as that, and may be a lie.
        let fee = u64::from(fee.min(MOST_PRICE));
        let spendable = account.spendable.saturating_sub(fee);
        let refusal = match &self.moves {
            // Nothing leaves it, whatever it has.
            Moves::Lumens(_) if self.destination.as_ref() == Some(&self.from) => None,
            Moves::Lumens(amount) => (*amount > spendable).then(|| {
                let LedgerAccount { balance, .. } = account;
                let kept = balance.saturating_sub(account.spendable);
                let problem = format_args!(
                    "is {amount} stroops, and the wallet can send {spendable}: it has {balance}, keeps {kept} as its \
                     reserve and for its offers, and pays up to {fee} as fee"
                );
                Fault::field("value", problem).with_execute_code(ExecuteCode::InsufficientFunds)
            }),
            Moves::Asset { amount, .. } => {
                let refusal = line(&lines.sender)?.refusal_to_send(*amount);
                let recipient = line(&lines.recipient)?;
                refusal.or_else(|| recipient.refusal_to_take(*amount))
            }
            Moves::Trust { .. } => {
                let is_new = matches!(line(&lines.sender)?, TrustLine::Missing);
                (is_new && spendable < BASE_RESERVE.unsigned_abs()).then(|| {
                    let problem = format_args!(
                        "can spend {spendable} stroops beside its reserve and the fee, and a trust line takes \
                         {BASE_RESERVE} more as reserve"
                    );
                    Fault::field("from", problem).with_execute_code(ExecuteCode::InsufficientFunds)
                })
            }
        };
        Some(refusal.map_or(Ok(()), Err))
    }
}

/// A trust line, as a ledger has it.
enum TrustLine {
    NotNeeded,
    Missing,
    There(LedgerTrustLine),
}

impl TrustLine {
    fn refusal_to_send(&self, amount: u64) -> Option<Fault> {
        let (field, problem) = match self {
            Self::NotNeeded => return None,
            Self::Missing => (
                "assetCode",
                "is an asset for which the wallet has no trust line, so that it has none of it"
                    .to_owned(),
            ),
            Self::There(line) if !line.is_authorized => (
                "assetIssuer",
                "has not authorized the wallet to send the asset".to_owned(),
            ),
            Self::There(line) if amount > line.spendable => (
                "amount",
                format!(
                    "is {amount} units of 10^-7, and the wallet can send {}: it has {}, of which its offers hold the \
                     rest",
                    line.spendable, line.balance
                ),
            ),
            Self::There(_) => return None,
        };
        Some(Fault::field(field, problem).with_execute_code(ExecuteCode::InsufficientFunds))
    }

    fn refusal_to_take(&self, amount: u64) -> Option<Fault> {
        let problem = match self {
            Self::NotNeeded => return None,
            Self::Missing => {
                "has no trust line for the asset, and must create one first".to_owned()
            }
            Self::There(line) if !line.is_authorized => {
                "is not authorized by the issuer to hold the asset".to_owned()
            }
            Self::There(line) if amount > line.room => format!(
                "has room for {} units of 10^-7 on its trust line, and {amount} are to be sent",
                line.room
            ),
            Self::There(_) => return None,
        };
        Some(Fault::field("to", problem))
    }
}
