//! What pages say: texts of others, amounts, times.

use std::fmt;

use covault_core::{
    amount::U256,
    networks::outflow::{Asset, Spend},
};
use prost_types::Timestamp;

use crate::{
    approving::visible,
    units::{in_decimals, in_units},
};

/// Characters of a text that a list shows.
const LIST_CHARS: usize = 300;

/// A text from another person. What could make it look like another one (control characters, characters that turn
/// the direction of writing or have no width) is shown as `\u{...}`; the templates escape the rest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text(String);

impl Text {
    /// The text as it may be shown.
    pub fn new(text: impl AsRef<str>) -> Self {
        Self(visible(text.as_ref()))
    }

    /// Its beginning, where it is long.
    pub fn shortened(self) -> Self {
        match self.0.char_indices().nth(LIST_CHARS) {
            Some((end, _)) => Self(format!(
                "{}... (open it to read all)",
                self.0.get(..end).unwrap_or_default()
            )),
            None => self,
        }
    }

    /// Whether there is nothing to show.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A moment: RFC 3339 for the browser, which shows it in the reader's zone, and for those without JavaScript.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Time {
    /// `2026-11-25T22:10:42Z`
    pub machine: String,
    /// `2026-11-25 22:10 UTC`
    pub people: String,
}

impl Time {
    /// Of milliseconds since the Unix epoch.
    pub fn new(ms: u64) -> Self {
        let seconds = i64::try_from(ms / 1000).unwrap_or(i64::MAX);
        let machine = Timestamp { seconds, nanos: 0 }.to_string();
        let people = match (machine.get(..10), machine.get(11..16)) {
            (Some(day), Some(time)) => format!("{day} {time} UTC"),
            _ => machine.clone(),
        };
        Self { machine, people }
    }
}

/// A sentence with a moment in it, which a browser shows in its own zone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TimedText {
    pub before: String,
    pub at: Option<Time>,
    pub after: String,
}

impl TimedText {
    /// Without a moment.
    pub fn new(text: impl Into<String>) -> Self {
        Self {
            before: text.into(),
            ..Self::default()
        }
    }
}

impl fmt::Display for TimedText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.at.as_ref().map_or("", |at| &at.people);
        write!(f, "{}{at}{}", self.before, self.after)
    }
}

/// What leaves a wallet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpendView {
    /// `1.5 ETH`, or nothing where the decimals are not known.
    pub amount: String,
    /// In the smallest unit.
    pub smallest: String,
    /// `evm:1`, `evm:1/0x...`
    pub asset: Text,
    /// To whom; empty where nobody can tell.
    pub recipient: Text,
    /// As the request's own decimals have it, which are not part of what is signed; empty without any.
    pub by_payload: String,
    /// The chain whose nodes can say more of its asset: that of the asset, or, where what is signed names none, that of
    /// the request.
    pub chain_id: Option<u64>,
    /// The decimals of a token that the request names.
    pub named_decimals: Option<usize>,
    /// The request names other decimals than the token's contract.
    pub differs: bool,
    /// As the contract of the token says, through nodes that may lie; empty where they do not.
    pub by_chain: Text,
    /// Why there is nothing of that.
    pub not_by_chain: &'static str,
    /// The service's own wallet that the recipient is; empty where it is none that the person sees.
    pub whose: Text,
    /// What the vault had to do with the recipient before, in a sentence; empty where that is not looked up.
    pub history: TimedText,
    /// The vault has paid the recipient nothing yet, as far as was looked.
    pub is_new: bool,
    /// Of which asset.
    pub of: Asset,
    /// How much, in the smallest unit.
    pub units: U256,
    /// To whom, as it is signed.
    pub to: Option<String>,
}

impl SpendView {
    /// Of an amount that leaves.
    pub fn new(spend: &Spend) -> Self {
        Self {
            amount: in_units(&spend.asset, spend.amount),
            smallest: spend.amount.to_string(),
            asset: Text::new(spend.asset.to_string()),
            recipient: Text::new(spend.recipient.as_deref().unwrap_or_default()),
            by_payload: String::new(),
            chain_id: spend.asset.place.chain_id,
            named_decimals: None,
            differs: false,
            by_chain: Text::default(),
            not_by_chain: "",
            whose: Text::default(),
            history: TimedText::default(),
            is_new: false,
            of: spend.asset.clone(),
            units: spend.amount,
            to: spend.recipient.clone(),
        }
    }

    /// The same with what the request takes for the token's decimals.
    #[must_use]
    pub fn with_decimals(mut self, decimals: Option<usize>) -> Self {
        if let (Some(decimals), Some(_)) = (decimals, &self.of.token) {
            self.by_payload = in_decimals(self.units, decimals);
            self.named_decimals = Some(decimals);
        }
        self
    }

    /// Whether it is of a token: decimals and symbol are no part of what is signed.
    pub fn is_of_token(&self) -> bool {
        self.of.token.is_some()
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn text__should_mark_what_makes_it_look_like_another() {
        let text = Text::new("pay \u{202e}EVE\u{200b}\u{1b}[2J");
        assert_eq!(text.to_string(), "pay \\u{202e}EVE\\u{200b}\\u{1b}[2J");
    }

    #[test]
    fn time__should_be_for_machines_and_people() {
        let time = Time::new(1_764_108_642_999);
        assert_eq!(time.machine, "2025-11-25T22:10:42Z");
        assert_eq!(time.people, "2025-11-25 22:10 UTC");
    }
}
