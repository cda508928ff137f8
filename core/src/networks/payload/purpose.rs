//! What a payload does, in a form that is small and compared without the payload.

use sha2::{Digest as _, Sha256};

use super::outflow::{ContentKind, Outflow};

/// What a payload of a wallet does, whatever number, fee and time it has. To be kept in memory only: it comes of how types
/// of this version are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Purpose {
    /// Memos and comments are in it.
    exact: [u8; 32],
    /// Its amounts and recipients, in whatever order; nothing where it is no transfer.
    transfers: Option<[u8; 32]>,
}

impl Purpose {
    /// Of a payload with these canonical bytes. `own` is what the network says that it does
    /// ([`super::NetworkPayload::purpose`]).
    pub(in crate::networks) fn new(
        from: &str,
        own: Option<Vec<u8>>,
        outflow: Outflow,
        canonical: &[u8],
    ) -> Self {
        let mut spends = outflow.spends;
        spends.sort_by(|one, other| {
            let key = (&one.asset, one.amount, &one.recipient);
            key.cmp(&(&other.asset, other.amount, &other.recipient))
        });
        let is_transfer = outflow.nature == ContentKind::Transfer && !spends.is_empty();
        let transfers = is_transfer.then(|| {
            let printed = format!("{:?} {spends:?}", outflow.place);
            hash("transfers", "", printed.as_bytes())
        });
        let exact = match (own, transfers) {
            (Some(own), _) => hash("own", from, &own),
            (None, Some(transfers)) => transfers,
            (None, None) => hash("canonical", from, canonical),
        };
        Self { exact, transfers }
    }

    /// Whether both pay or do the same.
    pub fn is_same(&self, other: &Self) -> bool {
        self.is_exactly_same(other) || self.transfers.is_some() && self.transfers == other.transfers
    }

    /// As [`Purpose::is_same`], with memos and comments: one of them in place of the other harms nobody.
    pub fn is_exactly_same(&self, other: &Self) -> bool {
        self.exact == other.exact
    }

    /// The same for all that are exactly the same.
    pub fn key(&self) -> [u8; 32] {
        self.exact
    }
}

fn hash(kind: &str, from: &str, bytes: &[u8]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in [kind.as_bytes(), from.as_bytes()] {
        // Without that, the end of one part could be the beginning of the next.
        hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
        hash.update(part);
    }
    hash.update(bytes);
    hash.finalize().into()
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use crate::{
        networks::{Network, Payload, WireKind},
        schema::wire,
    };

    const SUI: [u8; 2] = [0xaa, 0xbb];

    fn sui_batch(outputs: &[(u8, &str)]) -> Payload {
        let recipients = outputs
            .iter()
            .map(|(to, value)| wire::BatchPaymentRecipient {
                address: format!("0x{}", hex::encode([*to; 32])),
                amount: (*value).to_owned(),
                ..Default::default()
            });
        let batch = WireKind::SuiSendNative(wire::SuiSendNative {
            from: format!("0x{}", hex::encode([7; 32])),
            recipients: recipients.collect(),
            ..Default::default()
        });
        Payload::parse(&batch).unwrap()
    }

    /// A program that reads its rows from a map has another order each time.
    #[test]
    fn payments__should_be_the_same_in_any_order_of_their_outputs() {
        let [one, other] = SUI;
        let batch = sui_batch(&[(one, "5"), (other, "6")]);
        let turned = sui_batch(&[(other, "6"), (one, "5")]);
        let changed = sui_batch(&[(one, "6"), (other, "5")]);
        let twice = sui_batch(&[(one, "5"), (other, "6"), (other, "6")]);
        assert_ne!(batch, turned);
        assert!(batch.does_the_same(&turned, Network::Sui));
        assert!(batch.does_exactly_the_same(&turned, Network::Sui));
        for different in [changed, twice] {
            assert!(!batch.does_the_same(&different, Network::Sui));
        }
    }

    #[test]
    fn what_is_no_transfer__should_be_the_same_only_as_itself() {
        let message = |text: &str| {
            let message = wire::SuiMessage {
                from: format!("0x{}", hex::encode([7; 32])),
                content: text.into(),
                ..Default::default()
            };
            Payload::parse(&WireKind::SuiMessage(message)).unwrap()
        };
        assert!(message("a").does_the_same(&message("a"), Network::Sui));
        assert!(!message("a").does_the_same(&message("b"), Network::Sui));
        let keys = [message("a"), message("b")].map(|one| one.purpose(Network::Sui).key());
        assert_ne!(keys[0], keys[1]);
    }
}
