//! How transactions and messages are built, signed and read.

use std::collections::BTreeSet;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use curve25519_dalek::edwards::CompressedEdwardsY;
use tycho_types::cell::Cell;

use super::{
    address::{TonAddress, parse_address},
    cells,
    chain_data::{
        ChainData, JettonChainData, JettonQueries, Queries, TransactionChainData,
        TransactionQueries,
    },
    connect, fee, jetton,
    message::is_domain,
    payload::{JettonTransfer, TonMessage, TonPayload, TonTransfer},
    wallet::{self, WalletOrder, WalletVersion},
};
use crate::{
    amount::U256,
    fault::{Class, ExecuteCode, Fault},
    networks::{
        network::Network,
        rules::{
            Allocation, ChainMoment, NetworkRules, Resource, Signed, SigningInput, Unsigned,
            lowest_free, unexpected_chain_data,
        },
    },
    signature::{Curve, Signature},
};

/// How long a transaction waits for each one before it, at most: some blocks, and the look whether it is there.
const SECONDS_PER_TURN: u32 = 20;

/// The TON rules.
pub struct Ton;

impl NetworkRules for Ton {
    type Payload = TonPayload;
    type Queries = Queries;
    type ChainData = ChainData;

    const NETWORK: Network = Network::Ton;
    const IS_NUMBERED: bool = true;
    /// 0.5 TON.
    const DEFAULT_MOST_FEE: u64 = 500_000_000;
    const PRICE_UNIT: &'static str = "nanoton per unit of gas";

    /// The address of the v5r1 wallet, as new wallets are.
    fn address(&self, public_key: &[u8]) -> Result<String, Fault> {
        let address = WalletVersion::V5r1.address(&key(public_key)?)?;
        Ok(address.wallet_form())
    }

    /// That of either wallet contract.
    fn owns(&self, public_key: &[u8], address: &str) -> Result<bool, Fault> {
        Ok(version_of(&key(public_key)?, address)?.is_some())
    }

    /// The form of wallets (`UQ...`).
    fn answers_fit_together(&self) -> bool {
        true
    }

    fn parse_address(&self, text: &str) -> Result<String, Fault> {
        parse_address(text)
            .map(|address| address.wallet_form())
            .map_err(|error| Fault::new(Class::Invalid, error.to_string()))
    }

    /// The master contract, in the form of contracts (`EQ...`).
    fn parse_token(&self, text: &str) -> Result<String, Fault> {
        parse_address(text)
            .map(|address| address.contract_form())
            .map_err(|error| Fault::new(Class::Invalid, error.to_string()))
    }

    fn queries(&self, payload: &TonPayload) -> Option<Queries> {
        let transaction = |from: &str, value, valid_until, jetton| TransactionQueries {
            from: from.to_owned(),
            value,
            valid_until,
            recipient: None,
            contracts: BTreeSet::new(),
            jetton,
        };
        let transaction = match payload {
            TonPayload::SendNative(send) => TransactionQueries {
                recipient: send.to.bounce.then(|| send.to.contract_form()),
                ..transaction(&send.from, send.value, true, None)
            },
            TonPayload::SendToken(send) => {
                let jetton = JettonQueries {
                    master: send.master.contract_form(),
                    amount: send.amount,
                    decimals: send.decimals.is_some(),
                };
                transaction(&send.from, jetton::ATTACHED, true, Some(jetton))
            }
            TonPayload::SendCustom(send) => {
                // Each is below 2^120, and there are at most 255.
                let value = send.messages.iter().map(|message| message.value).sum();
                TransactionQueries {
                    contracts: connect::contracts_of(&send.messages),
                    ..transaction(&send.from, value, send.valid_until.is_none(), None)
                }
            }
            TonPayload::Message(message) => {
                let (domain, timestamp) = (message.domain.is_none(), message.timestamp.is_none());
                let wanted = message.form.has_domain() && (domain || timestamp);
                return wanted.then_some(Queries::Message { domain, timestamp });
            }
        };
        Some(Queries::Transaction(transaction))
    }

    fn is_sequenced(&self, queries: &Queries) -> bool {
        matches!(queries, Queries::Transaction(_))
    }

    /// The lowest seqno from the wallet's present one up that is free. The contract takes one after the other:
    /// the time of a transaction begins when those before it can be through.
    fn allocate(
        &self,
        _payload: &TonPayload,
        chain_data: ChainData,
        taken: &BTreeSet<Resource>,
    ) -> Result<Allocation<ChainData>, Fault> {
        let chain_data = match chain_data {
            ChainData::Transaction(chain_data) => {
                let seqno = lowest_free(chain_data.seqno.into(), taken)?;
                let seqno = u32::try_from(seqno).map_err(|_| {
                    Fault::field("from", "the wallet's sequence numbers are used up")
                })?;
                let before = seqno.saturating_sub(chain_data.seqno);
                let wait_s = before.saturating_mul(SECONDS_PER_TURN);
                let end = |end: u32| end.saturating_add(wait_s);
                ChainData::Transaction(TransactionChainData {
                    seqno,
                    valid_until: chain_data.valid_until.map(end),
                    ..chain_data
                })
            }
            message @ ChainData::Message { .. } => message,
        };
        Ok(Allocation::ChainData(chain_data))
    }

    fn with_next_number(&self, chain_data: ChainData, number: u64) -> Result<ChainData, Fault> {
        Ok(match chain_data {
            ChainData::Transaction(chain_data) => ChainData::Transaction(TransactionChainData {
                seqno: u32::try_from(number).map_err(Fault::bug)?,
                ..chain_data
            }),
            message @ ChainData::Message { .. } => message,
        })
    }

    fn gap_filler(&self, payload: &TonPayload) -> Option<TonPayload> {
        if matches!(payload, TonPayload::Message(_)) {
            return None;
        }
        let from = crate::networks::NetworkPayload::from(payload);
        Some(TonPayload::SendNative(TonTransfer {
            from: from.to_owned(),
            to: parse_address(from).ok()?,
            value: 0,
            comment: String::new(),
        }))
    }

    fn reservations(
        &self,
        _payload: &TonPayload,
        unsigned: &Unsigned,
    ) -> Result<Vec<Resource>, Fault> {
        let order = WalletOrder::read(&unsigned.bytes).ok_or_else(unreadable)?;
        Ok(vec![Resource::Nonce(order.seqno.into())])
    }

    fn build(
        &self,
        payload: &TonPayload,
        chain_data: Option<&ChainData>,
        public_key: &[u8],
    ) -> Result<Unsigned, Fault> {
        let chain_data = match (payload, chain_data) {
            (TonPayload::Message(message), chain_data) => return sign_message(message, chain_data),
            (_, Some(ChainData::Transaction(chain_data))) => chain_data,
            (_, Some(ChainData::Message { .. }) | None) => return Err(unexpected_chain_data()),
        };
        let order = order(payload, chain_data, &key(public_key)?)?;
        let body = order.body().map_err(Fault::bug)?;
        Ok(Unsigned {
            bytes: order.unsigned().map_err(Fault::bug)?,
            signing: vec![input(body.repr_hash().0)],
        })
    }

    fn most_fee(&self, unsigned: &[u8]) -> Result<U256, Fault> {
        WalletOrder::read(unsigned)
            .and_then(|order| fee::most_fee(&order))
            .map(U256::from)
            .ok_or_else(unreadable)
    }

    fn difference(&self, built: &[u8], shown: &[u8]) -> Option<&'static str> {
        difference(&WalletOrder::read(built)?, &WalletOrder::read(shown)?)
    }

    fn assemble(
        &self,
        payload: &TonPayload,
        unsigned: &Unsigned,
        signatures: &[Signature],
        public_key: &[u8],
    ) -> Result<Signed, Fault> {
        let ([input], [signature]) = (unsigned.signing.as_slice(), signatures) else {
            return Err(Fault::bug("a TON transaction takes exactly one signature"));
        };
        let order = WalletOrder::read(&unsigned.bytes).ok_or_else(unreadable)?;
        let body = order.body().map_err(Fault::bug)?;
        if body.repr_hash().as_slice() != input.message {
            return Err(Fault::bug("the signed message is not the transaction"));
        }
        let key = key(public_key)?;
        let from = crate::networks::NetworkPayload::from(payload);
        let is_senders = order.wallet == order.version.address(&key)?
            && order.wallet.wallet_form() == from
            && match &order.init {
                Some(init) => *init == order.version.state_init(&key)?,
                None => true,
            };
        if !is_senders {
            return Err(Fault::bug("the transaction is not the sender's"));
        }
        let signed = order.sign(&signature.to_bytes()).map_err(Fault::bug)?;
        Ok(Signed {
            transaction: STANDARD.encode(cells::write(signed.message.as_ref())),
            tx_hash: hex::encode(signed.normal.0),
        })
    }

    fn sent_number(&self, signed: &Signed, _address: &str) -> Result<Option<u64>, Fault> {
        Ok(Some(
            super::ledger::read_sent(&signed.transaction)?.seqno.into(),
        ))
    }

    /// The time that the wallet contract looks at; perhaps that second is still good.
    fn valid_until(&self, signed: &Signed) -> Result<Option<ChainMoment>, Fault> {
        let bytes = STANDARD.decode(&signed.transaction).map_err(Fault::bug)?;
        let second = wallet::signed_until(&bytes).ok_or_else(unreadable)?;
        let end_s = u64::from(second).saturating_add(1);
        Ok(Some(ChainMoment::at_ms(end_s.saturating_mul(1_000))))
    }
}

/// Builds the order of any kind that makes a transaction.
fn order(
    payload: &TonPayload,
    chain_data: &TransactionChainData,
    key: &[u8; 32],
) -> Result<WalletOrder, Fault> {
    let sender = crate::networks::NetworkPayload::from(payload);
    let version = version_of(key, sender)?
        .ok_or_else(|| Fault::field("from", "is not the wallet's address"))?;
    let wallet = version.address(key)?;
    // A number above 0 is only good when the contract is there.
    let init = (!chain_data.deployed && chain_data.seqno == 0)
        .then(|| version.state_init(key))
        .transpose()?;
    let brought = match payload {
        TonPayload::SendCustom(send) => send.valid_until,
        _ => None,
    };
    let valid_until = one_of(brought, chain_data.valid_until)?;
    let may_bounce = matches!(payload, TonPayload::SendNative(send) if send.to.bounce);
    if may_bounce != chain_data.recipient_deployed.is_some() {
        return Err(unexpected_chain_data());
    }
    let (field, messages) = match (payload, &chain_data.jetton) {
        (TonPayload::SendNative(send), None) => {
            let body = jetton::comment(&send.comment).map_err(Fault::bug)?;
            let to = TonAddress {
                bounce: chain_data.recipient_deployed.unwrap_or(false),
                ..send.to
            };
            let message = wallet::internal(&to, send.value, None, body);
            ("comment", vec![message.map_err(Fault::bug)?])
        }
        (TonPayload::SendToken(send), Some(chain_data)) => {
            ("comment", vec![send_token(send, chain_data, &wallet)?])
        }
        (TonPayload::SendCustom(send), None) => ("payload", connect::cells_of(&send.messages)?),
        _ => return Err(unexpected_chain_data()),
    };
    let most = version.most_messages();
    if messages.len() > most {
        return Err(Fault::field(
            field,
            format_args!("must hold at most {most} messages for this wallet"),
        ));
    }
    let order = WalletOrder {
        wallet,
        version,
        init,
        valid_until,
        seqno: chain_data.seqno,
        messages,
    };
    order
        .check_size()
        .map_err(|error| Fault::field(field, error))?;
    Ok(order)
}

/// The message to the sender's jetton wallet.
fn send_token(
    send: &JettonTransfer,
    chain_data: &JettonChainData,
    from: &TonAddress,
) -> Result<Cell, Fault> {
    let address = |text: &str| parse_address(text).map_err(Fault::bug);
    let wallet = TonAddress {
        bounce: true,
        ..address(&chain_data.wallet)?
    };
    let Some(master) = &chain_data.master else {
        let problem = "the wallet holds none of this jetton";
        return Err(
            Fault::field("mintAddress", problem).with_execute_code(ExecuteCode::InsufficientFunds)
        );
    };
    // A false master would name the wallet of a jetton that is worth more.
    if !address(master)?.is_account(&send.master) {
        return Err(Fault::field(
            "mintAddress",
            "is not a valid jetton: it reports a wallet of another jetton as the sender's",
        ));
    }
    match (send.decimals, chain_data.decimals) {
        (Some(given), Some(real)) if given == real => {}
        (Some(_), Some(_)) => {
            return Err(Fault::field("decimals", "do not match the jetton's"));
        }
        (Some(_), None) => {
            return Err(Fault::field(
                "decimals",
                "cannot be verified: this jetton does not store them on chain; omit them",
            ));
        }
        (None, Some(_)) => return Err(unexpected_chain_data()),
        (None, None) => {}
    }
    let body = jetton::transfer(send.amount, &send.to, from, &send.comment).map_err(Fault::bug)?;
    wallet::internal(&wallet, jetton::ATTACHED, None, body).map_err(Fault::bug)
}

fn sign_message(message: &TonMessage, chain_data: Option<&ChainData>) -> Result<Unsigned, Fault> {
    let (domain, timestamp) = match chain_data {
        None => (None, None),
        Some(ChainData::Message { domain, timestamp }) => (domain.as_deref(), *timestamp),
        Some(ChainData::Transaction(_)) => return Err(unexpected_chain_data()),
    };
    let at = if message.form.has_domain() {
        let domain = one_of(message.domain.as_deref(), domain)?;
        if !is_domain(domain) {
            return Err(Fault::bug("the configured domain is not a host name"));
        }
        Some((domain, one_of(message.timestamp, timestamp)?))
    } else {
        None
    };
    let from = parse_address(&message.from).map_err(|error| Fault::field("from", error))?;
    Ok(Unsigned {
        bytes: Vec::new(),
        signing: vec![input(message.form.digest(&from, at)?)],
    })
}

/// Exactly one side brings it.
fn one_of<T>(request: Option<T>, chain_data: Option<T>) -> Result<T, Fault> {
    match (request, chain_data) {
        (Some(value), None) | (None, Some(value)) => Ok(value),
        (Some(_), Some(_)) | (None, None) => Err(unexpected_chain_data()),
    }
}

fn difference(built: &WalletOrder, shown: &WalletOrder) -> Option<&'static str> {
    if !built.wallet.is_account(&shown.wallet) || built.version != shown.version {
        return Some("from");
    }
    if built.messages.len() != shown.messages.len() {
        return Some("messages");
    }
    for (built, shown) in built.messages.iter().zip(&shown.messages) {
        if built.repr_hash() == shown.repr_hash() {
            continue;
        }
        let (Some(built), Some(shown)) = (wallet::look(built), wallet::look(shown)) else {
            return Some("messages");
        };
        if !built.to.is_account(&shown.to) {
            return Some("recipient");
        }
        if built.value != shown.value {
            return Some("amount");
        }
        let transfers = (
            jetton::read_transfer(built.body),
            jetton::read_transfer(shown.body),
        );
        return Some(match transfers {
            (Some((built, _)), Some((shown, _))) if built != shown => "recipient",
            (Some((_, built)), Some((_, shown))) if built != shown => "amount",
            _ if built.to.bounce != shown.to.bounce => "bounce",
            _ => "payload",
        });
    }
    if built.seqno != shown.seqno {
        return Some("nonce");
    }
    if built.valid_until != shown.valid_until {
        return Some("validUntil");
    }
    (built.init != shown.init).then_some("stateInit")
}

/// The wallet contract whose address of this key it is.
fn version_of(key: &[u8; 32], address: &str) -> Result<Option<WalletVersion>, Fault> {
    for version in WalletVersion::ALL {
        if version.address(key)?.wallet_form() == address {
            return Ok(Some(version));
        }
    }
    Ok(None)
}

/// RFC 8032 wants the canonical encoding; a key of small order is nobody's.
fn key(public_key: &[u8]) -> Result<[u8; 32], Fault> {
    let key: [u8; 32] = public_key
        .try_into()
        .map_err(|_| Fault::bug("an Ed25519 public key has 32 bytes"))?;
    CompressedEdwardsY(key)
        .decompress()
        .filter(|point| point.compress().to_bytes() == key && !point.is_small_order())
        .map(|_| key)
        .ok_or_else(|| Fault::bug("not an Ed25519 public key"))
}

fn input(digest: [u8; 32]) -> SigningInput {
    SigningInput {
        curve: Curve::Ed25519,
        message: digest.to_vec(),
    }
}

fn unreadable() -> Fault {
    Fault::bug("the unsigned transaction cannot be read")
}

#[cfg(test)]
#[path = "tests/mod.rs"]
mod tests;
