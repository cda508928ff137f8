//! What the owner of an address is told about a transfer, and the id by which a receiver knows it again.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{
    lifecycle::{OwnerNotice, Stage},
    transfer::{BlockRef, OwnedTransfer, TransferIndex},
};
use crate::fault::Fault;

/// Separates these hashes from all others.
const DOMAIN: &[u8] = b"covault transfer event 1\0";
/// What ids begin with.
const PREFIX: &str = "evt_";

/// The id of an event: of the transfer, who is told, the stage and the round, so that anyone who finds out the same
/// again makes the same one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EventId(pub [u8; 16]);

impl EventId {
    /// The id of what is told.
    pub fn of(transfer: &OwnedTransfer, tell: &OwnerNotice) -> Self {
        let hash = Sha256::new()
            .chain_update(DOMAIN)
            // The parts have fixed lengths.
            .chain_update(transfer.key())
            .chain_update([tell.stage.number()])
            .chain_update(tell.round.to_be_bytes())
            .finalize();
        let mut id = [0; 16];
        for (place, byte) in id.iter_mut().zip(hash) {
            *place = byte;
        }
        Self(id)
    }

    /// The id of its text.
    pub fn parse(text: &str) -> Option<Self> {
        let mut id = [0; 16];
        hex::decode_to_slice(text.strip_prefix(PREFIX)?, &mut id).ok()?;
        Some(Self(id))
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", hex::encode(self.0))
    }
}

impl fmt::Debug for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What is told, as it is stored until it is delivered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransferNotice {
    /// Which news.
    pub stage: Stage,
    /// Of what.
    pub transfer: OwnedTransfer,
    /// The block that has, or had, it.
    pub block: BlockRef,
    /// When that was made, in milliseconds since the Unix epoch.
    pub timestamp_ms: u64,
}

/// The body: snake_case, in this order; 64-bit and larger numbers as texts.
#[derive(Serialize)]
struct EventBody<'a> {
    id: String,
    event: &'static str,
    network: &'static str,
    chain_id: Option<String>,
    tx_hash: Option<String>,
    index: String,
    block_number: String,
    address: String,
    r#ref: &'a str,
    token_address: Option<String>,
    amount: String,
    is_send: bool,
    from: Option<String>,
    to: String,
    timestamp: String,
}

impl TransferNotice {
    /// The body of the webhook, the same bytes whenever it is made.
    ///
    /// # Errors
    /// [`crate::fault::Class::Bug`] when it cannot be written.
    pub fn body(&self, id: EventId) -> Result<Vec<u8>, Fault> {
        let Self {
            stage,
            transfer: owned,
            block,
            timestamp_ms,
        } = self;
        let network = owned.chain.network();
        let transfer = &owned.transfer;
        let hash = hex::encode(transfer.tx);
        // What only a balance shows was moved by nobody knows which transaction.
        let is_seen = transfer.index != TransferIndex::Balance;
        let body = EventBody {
            id: id.to_string(),
            event: stage.event(),
            network: network.name(),
            chain_id: owned.chain.chain_id().map(|id| id.to_string()),
            tx_hash: is_seen.then(|| match network {
                super::DepositNetwork::Evm => format!("0x{hash}"),
                // As TRON's own programs write it.
                super::DepositNetwork::Tron => hash,
            }),
            index: transfer.index.to_string(),
            block_number: block.number.to_string(),
            address: owned.account().text(network),
            r#ref: &owned.owner.reference,
            token_address: transfer.asset.map(|token| token.text(network)),
            amount: transfer.amount_text(),
            is_send: owned.is_send,
            from: is_seen.then(|| transfer.from.text(network)),
            to: transfer.to.text(network),
            timestamp: timestamp_ms.to_string(),
        };
        serde_json::to_vec(&body).map_err(Fault::bug)
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{
        deposit::transfer::{Account, AddressOwner, FollowedChain, Transfer},
        ids::TokenId,
    };

    fn owned(chain: FollowedChain) -> OwnedTransfer {
        let mut amount = [0; 32];
        amount[15] = 1;
        OwnedTransfer {
            chain,
            transfer: Transfer {
                tx: [0xab; 32],
                index: TransferIndex::Log(3),
                from: Account([1; 20]),
                to: Account([2; 20]),
                asset: Some(Account([3; 20])),
                amount,
            },
            is_send: false,
            owner: AddressOwner {
                token: TokenId::from_bytes([4; 16]),
                reference: "order-1".into(),
                wallet: None,
                since_ms: 0,
            },
        }
    }

    fn block(number: u64) -> BlockRef {
        BlockRef {
            number,
            hash: [9; 32],
        }
    }

    fn tell(stage: Stage, round: u32) -> OwnerNotice {
        OwnerNotice {
            stage,
            block: block(7),
            round,
        }
    }

    #[test]
    fn ids__should_differ_by_all_that_is_told_and_by_nothing_else() {
        let one = owned(FollowedChain::Evm(1));
        let mut all = BTreeSet::new();
        let mut add = |transfer: &OwnedTransfer, tell: OwnerNotice| {
            assert!(all.insert(EventId::of(transfer, &tell)), "{transfer:?}");
        };
        for stage in [Stage::Confirmed, Stage::Finalized, Stage::Reverted] {
            for round in [0, 1] {
                add(&one, tell(stage, round));
            }
        }
        let first = tell(Stage::Confirmed, 0);
        add(&owned(FollowedChain::Evm(2)), first);
        add(&owned(FollowedChain::Tron), first);
        let change = |change: fn(&mut OwnedTransfer)| {
            let mut other = one.clone();
            change(&mut other);
            other
        };
        add(&change(|it| it.transfer.tx = [1; 32]), first);
        add(
            &change(|it| it.transfer.index = TransferIndex::Log(4)),
            first,
        );
        add(
            &change(|it| it.transfer.index = TransferIndex::Value),
            first,
        );
        add(&change(|it| it.is_send = true), first);
        add(
            &change(|it| it.owner.token = TokenId::from_bytes([5; 16])),
            first,
        );
        // The block is not in it: anyone who finds the transfer in another one tells the same.
        let moved = OwnerNotice {
            block: block(8),
            ..first
        };
        let id = EventId::of(&one, &moved);
        assert!(all.contains(&id));
        assert_eq!(EventId::parse(&id.to_string()), Some(id));
        assert_eq!(EventId::parse("evt_00"), None);
        assert_eq!(EventId::parse(&id.to_string().replace("evt_", "")), None);
    }

    #[test]
    fn id__should_never_change() {
        let id = EventId::of(&owned(FollowedChain::Evm(1)), &tell(Stage::Confirmed, 0));
        assert_eq!(id.to_string(), "evt_7a3ba97a2c43a8be40d338ce5c0fff50");
    }

    #[test]
    fn body__should_be_that_of_the_contract() {
        let id = EventId([7; 16]);
        let notice = |chain| TransferNotice {
            stage: Stage::Confirmed,
            transfer: owned(chain),
            block: block(18_000_000),
            timestamp_ms: 1_700_000_000_000,
        };
        let body = notice(FollowedChain::Evm(1)).body(id).unwrap();
        let expected = concat!(
            r#"{"id":"evt_07070707070707070707070707070707","event":"transfer.confirmed.v1","#,
            r#""network":"EVM","chain_id":"1","#,
            r#""tx_hash":"0xabababababababababababababababababababababababababababababababab","#,
            r#""index":"log-3","block_number":"18000000","#,
            r#""address":"0x0202020202020202020202020202020202020202","ref":"order-1","#,
            r#""token_address":"0x0303030303030303030303030303030303030303","#,
            r#""amount":"340282366920938463463374607431768211456","is_send":false,"#,
            r#""from":"0x0101010101010101010101010101010101010101","#,
            r#""to":"0x0202020202020202020202020202020202020202","timestamp":"1700000000000"}"#,
        );
        assert_eq!(String::from_utf8(body).unwrap(), expected);
        let mut found = notice(FollowedChain::Evm(1));
        found.transfer.transfer.index = TransferIndex::Balance;
        let body = String::from_utf8(found.body(id).unwrap()).unwrap();
        assert!(
            body.contains(r#""tx_hash":null,"index":"balance""#),
            "{body}"
        );
        assert!(body.contains(r#""from":null,"to":"0x0202"#), "{body}");
        // Of TRON, with a reference of the longest kind: what a key in a vault of keys can sign is 4 KiB.
        let mut tron = notice(FollowedChain::Tron);
        tron.transfer.owner.reference = "x".repeat(crate::deposit::MAX_REF);
        tron.transfer.transfer.amount = [0xff; 32];
        let body = tron.body(id).unwrap();
        assert!(body.len() < 2_048, "{}", body.len());
        let text = String::from_utf8(body).unwrap();
        assert!(
            text.contains(r#""chain_id":null,"tx_hash":"abab"#),
            "{text}"
        );
        assert!(text.contains(r#""from":"T"#), "{text}");
    }
}
