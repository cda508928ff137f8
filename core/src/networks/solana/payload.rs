//! Solana and Sonic SVM payload kinds.

use std::collections::BTreeSet;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use solana_pubkey::Pubkey;

use super::{
    acts::{WalletInstructions, acts},
    address::parse_key,
    effect::{self, AccountRef, MovedToken},
    offchain,
    wire::{MAX_TRANSACTIONS, WireTransaction, is_transaction_message},
};
use crate::{
    amount::{U256, parse_u64},
    fault::Fault,
    field::{amount, decimals, default_type, required},
    networks::{
        fee_level::FeeLevel,
        network::Network,
        payload::{
            KnownChains, NetworkPayload, PayloadKind, WireKind, opaque,
            outflow::{AccountChange, Asset, ChainScope, ContentKind, Outflow, Spend},
        },
    },
    schema::wire,
};

/// Which network of the family. Testnets are not supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SolanaCluster {
    /// Solana mainnet.
    Solana,
    /// Sonic SVM mainnet.
    SonicSvm,
}

impl SolanaCluster {
    /// The chain id of the API: 101 and 0.
    pub fn chain_id(self) -> u64 {
        match self {
            SolanaCluster::Solana => 101,
            SolanaCluster::SonicSvm => 0,
        }
    }
}

/// A checked Solana payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SolanaPayload {
    /// `solanaSendNative` and `sonicSvmSendNative`.
    SendNative(SolanaTransfer),
    /// `solanaSendSplToken` and `sonicSvmSendSplToken`.
    SendToken(SolanaTokenTransfer),
    /// `solanaSendCustom` and `sonicSvmSendCustom`.
    SendCustom(SolanaCustom),
    /// `solanaMessage`.
    Message(SolanaMessage),
}

/// A transfer of the native coin.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SolanaTransfer {
    /// The network.
    pub cluster: SolanaCluster,
    /// Sender and fee payer, base58.
    pub from: String,
    /// Recipient, base58.
    pub to: String,
    /// Amount.
    pub lamports: u64,
    /// How soon a block should have it, where the request says.
    pub level: Option<FeeLevel>,
}

/// A transfer of a token, of either token program.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SolanaTokenTransfer {
    /// The network.
    pub cluster: SolanaCluster,
    /// Sender and fee payer, base58.
    pub from: String,
    /// The recipient's wallet, base58; not its token account.
    pub to: String,
    /// The token's mint, base58.
    pub mint: String,
    /// Amount, in the token's smallest unit.
    pub amount: u64,
    /// What the request takes for the token's decimals, where it says.
    pub decimals: Option<u8>,
    /// How soon a block should have it, where the request says.
    pub level: Option<FeeLevel>,
}

/// Transactions that were made elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SolanaCustom {
    /// The network.
    pub cluster: SolanaCluster,
    /// Signer, base58; not necessarily the fee payer.
    pub from: String,
    /// 1 to 5 different ones, each of which asks for the signature of `from`.
    pub transactions: Vec<WireTransaction>,
}

impl SolanaCustom {
    /// What the instructions do that the wallet takes part in.
    fn acts(&self) -> impl Iterator<Item = WalletInstructions> {
        let wallet = parse_key(&self.from).ok();
        let transactions = self.transactions.iter();
        transactions.filter_map(move |one| Some(acts(one.message(), wallet.as_ref()?)))
    }

    /// What plainly leaves the wallet, and the programs that get its signature.
    fn spends(&self, place: ChainScope) -> Vec<Spend> {
        let asset = |token| match token {
            None => Asset::coin(place),
            Some(MovedToken::Of(AccountRef::Named(mint))) => Asset {
                place,
                token: Some(mint.to_string()),
            },
            // A signature does not cover the contents of tables and accounts.
            Some(MovedToken::Of(AccountRef::Listed { .. }) | MovedToken::In(_)) => {
                Asset::some_token(place)
            }
        };
        let moved = |one: &effect::Movement| Spend {
            asset: asset(one.token),
            amount: U256::from(one.amount),
            recipient: one.to.named().map(|key| key.to_string()),
        };
        let called = |program: &Option<_>| Spend {
            recipient: program.map(|program: Pubkey| program.to_string()),
            ..Spend::unseen(place)
        };
        let spends = |acts: WalletInstructions| -> Vec<Spend> {
            let moves = acts.moves.iter().map(moved);
            moves.chain(acts.called.iter().map(called)).collect()
        };
        self.acts().flat_map(spends).collect()
    }
}

/// A message that is signed as it is (the wallet standard's `solana:signMessage`), with nothing in
/// front. It is not a transaction message of Solana.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SolanaMessage {
    /// Signer, base58.
    pub from: String,
    /// What is signed; may be empty.
    pub content: Vec<u8>,
}

/// Parses a solanaSendNative or sonicSvmSendNative.
pub(in crate::networks) fn send_native(
    cluster: SolanaCluster,
    wire: &wire::SolanaSendNative,
) -> Result<SolanaPayload, Fault> {
    chain_id(cluster, wire.chain_id)?;
    Ok(SolanaPayload::SendNative(SolanaTransfer {
        cluster,
        from: address("from", &wire.from)?,
        to: address("to", &wire.to)?,
        lamports: amount("value", &wire.value, parse_u64)?,
        level: FeeLevel::parse("feeLevel", wire.fee_level)?,
    }))
}

impl SolanaMessage {
    /// What is neither in Solana's off-chain format nor plainly a text may be anything: the digest
    /// of another network's transaction too.
    fn nature(&self) -> ContentKind {
        let of_wallet = |key: Pubkey| offchain::is_message(&self.content, key.as_array());
        let is_off_chain = parse_key(&self.from).is_ok_and(of_wallet);
        if is_off_chain || opaque::is_bare_text(&self.content) {
            ContentKind::Message
        } else {
            ContentKind::Raw
        }
    }
}

/// Parses a solanaMessage.
pub(in crate::networks) fn message(wire: &wire::SolanaMessage) -> Result<SolanaPayload, Fault> {
    let from = address("from", &wire.from)?;
    default_type(wire.r#type)?;
    if is_transaction_message(&wire.content) {
        return Err(Fault::field(
            "content",
            "is a transaction message; signing it would sign the transaction: use solanaSendNative, solanaSendSplToken or solanaSendCustom",
        ));
    }
    Ok(SolanaPayload::Message(SolanaMessage {
        from,
        content: wire.content.clone(),
    }))
}

/// Parses a solanaSendSplToken or sonicSvmSendSplToken.
pub(in crate::networks) fn send_token(
    cluster: SolanaCluster,
    wire: &wire::SolanaSendSplToken,
) -> Result<SolanaPayload, Fault> {
    chain_id(cluster, wire.chain_id)?;
    decimals(wire.decimals)?;
    Ok(SolanaPayload::SendToken(SolanaTokenTransfer {
        cluster,
        from: address("from", &wire.from)?,
        to: address("to", &wire.to)?,
        mint: address("mintAddress", &wire.mint_address)?,
        amount: amount("amount", &wire.amount, parse_u64)?,
        decimals: wire.decimals.and_then(|given| u8::try_from(given).ok()),
        level: FeeLevel::parse("feeLevel", wire.fee_level)?,
    }))
}

/// Parses a solanaSendCustom or sonicSvmSendCustom.
pub(in crate::networks) fn send_custom(
    cluster: SolanaCluster,
    wire: &wire::SolanaSendCustom,
) -> Result<SolanaPayload, Fault> {
    chain_id(cluster, wire.chain_id)?;
    let from = address("from", &wire.from)?;
    let key = parse_key(&from).map_err(|error| Fault::field("from", error))?;
    if !(1..=MAX_TRANSACTIONS).contains(&wire.tx_base64.len()) {
        return Err(Fault::field(
            "txBase64",
            format_args!("must hold 1 to {MAX_TRANSACTIONS} transactions"),
        ));
    }
    let mut transactions: Vec<WireTransaction> = Vec::with_capacity(wire.tx_base64.len());
    for (index, text) in wire.tx_base64.iter().enumerate() {
        let name = format!("txBase64[{index}]");
        required(&name, text)?;
        let bytes = STANDARD
            .decode(text)
            .map_err(|_| Fault::field(&name, "must be base64 with padding"))?;
        let transaction =
            WireTransaction::parse(&bytes).map_err(|error| Fault::field(&name, error))?;
        if transaction.place_of(&key).is_none() {
            let problem = "does not require the signature of `from`";
            return Err(Fault::field(&name, problem));
        }
        // The network would take the second for the first.
        if transactions
            .iter()
            .any(|other| other.message() == transaction.message())
        {
            return Err(Fault::field(&name, "is a duplicate"));
        }
        transactions.push(transaction);
    }
    Ok(SolanaPayload::SendCustom(SolanaCustom {
        cluster,
        from,
        transactions,
    }))
}

impl NetworkPayload for SolanaPayload {
    /// Nothing that is signed tells Solana from Sonic SVM (a blockhash is just a number to who
    /// has not seen the chain), so their coins count as one.
    fn outflow(&self, _wallet: Network) -> Outflow {
        let place = ChainScope::network(Network::Solana);
        let (nature, spends) = match self {
            SolanaPayload::SendNative(send) => {
                let spend = Spend {
                    asset: Asset::coin(place),
                    amount: U256::from(send.lamports),
                    recipient: Some(send.to.clone()),
                };
                (ContentKind::Transfer, vec![spend])
            }
            // The account that is signed is derived from recipient, mint and token program.
            SolanaPayload::SendToken(send) => {
                let spend = Spend {
                    asset: Asset {
                        place,
                        token: Some(send.mint.clone()),
                    },
                    amount: U256::from(send.amount),
                    recipient: Some(send.to.clone()),
                };
                (ContentKind::Transfer, vec![spend])
            }
            SolanaPayload::SendCustom(send) => (ContentKind::Custom, send.spends(place)),
            SolanaPayload::Message(message) => (message.nature(), Vec::new()),
        };
        Outflow {
            nature,
            place,
            spends,
        }
    }

    fn purpose(&self) -> Option<Vec<u8>> {
        let SolanaPayload::SendCustom(send) = self else {
            return None;
        };
        let purposes = send.transactions.iter().map(WireTransaction::purpose);
        let purpose = (send.cluster, purposes.collect::<Vec<_>>());
        Some(format!("{purpose:?}").into_bytes())
    }

    fn account_changes(&self) -> BTreeSet<AccountChange> {
        match self {
            SolanaPayload::SendCustom(send) => send.acts().flat_map(|acts| acts.changes).collect(),
            _ => BTreeSet::new(),
        }
    }

    fn kind(&self) -> PayloadKind {
        match self {
            SolanaPayload::SendNative(send) => match send.cluster {
                SolanaCluster::Solana => PayloadKind::SolanaSendNative,
                SolanaCluster::SonicSvm => PayloadKind::SonicSvmSendNative,
            },
            SolanaPayload::SendToken(send) => match send.cluster {
                SolanaCluster::Solana => PayloadKind::SolanaSendSplToken,
                SolanaCluster::SonicSvm => PayloadKind::SonicSvmSendSplToken,
            },
            SolanaPayload::SendCustom(send) => match send.cluster {
                SolanaCluster::Solana => PayloadKind::SolanaSendCustom,
                SolanaCluster::SonicSvm => PayloadKind::SonicSvmSendCustom,
            },
            SolanaPayload::Message(_) => PayloadKind::SolanaMessage,
        }
    }

    fn from(&self) -> &str {
        match self {
            SolanaPayload::SendNative(send) => &send.from,
            SolanaPayload::SendToken(send) => &send.from,
            SolanaPayload::SendCustom(send) => &send.from,
            SolanaPayload::Message(message) => &message.from,
        }
    }

    fn chain_id(&self) -> Option<u64> {
        let cluster = match self {
            SolanaPayload::SendNative(send) => send.cluster,
            SolanaPayload::SendToken(send) => send.cluster,
            SolanaPayload::SendCustom(send) => send.cluster,
            SolanaPayload::Message(_) => return None,
        };
        Some(cluster.chain_id())
    }

    fn is_transaction(&self) -> bool {
        !matches!(self, SolanaPayload::Message(_))
    }

    /// No node takes a transaction that others have yet to sign: it goes back to who made it.
    fn may_broadcast(&self, _known: &KnownChains) -> bool {
        match self {
            SolanaPayload::SendNative(_) | SolanaPayload::SendToken(_) => true,
            SolanaPayload::SendCustom(send) => parse_key(&send.from).is_ok_and(|key| {
                let mut transactions = send.transactions.iter();
                transactions.all(|transaction| transaction.lacks_only(&key))
            }),
            SolanaPayload::Message(_) => false,
        }
    }

    fn to_wire(&self) -> WireKind {
        match self {
            SolanaPayload::SendNative(send) => {
                let wire = wire::SolanaSendNative {
                    from: send.from.clone(),
                    to: send.to.clone(),
                    value: send.lamports.to_string(),
                    chain_id: send.cluster.chain_id(),
                    fee_level: FeeLevel::to_wire(send.level),
                };
                match send.cluster {
                    SolanaCluster::Solana => WireKind::SolanaSendNative(wire),
                    SolanaCluster::SonicSvm => WireKind::SonicSvmSendNative(wire),
                }
            }
            SolanaPayload::SendToken(send) => {
                let wire = wire::SolanaSendSplToken {
                    from: send.from.clone(),
                    to: send.to.clone(),
                    mint_address: send.mint.clone(),
                    amount: send.amount.to_string(),
                    chain_id: send.cluster.chain_id(),
                    decimals: send.decimals.map(Into::into),
                    fee_level: FeeLevel::to_wire(send.level),
                };
                match send.cluster {
                    SolanaCluster::Solana => WireKind::SolanaSendSplToken(wire),
                    SolanaCluster::SonicSvm => WireKind::SonicSvmSendSplToken(wire),
                }
            }
            SolanaPayload::SendCustom(send) => {
                let texts = send.transactions.iter();
                let wire = wire::SolanaSendCustom {
                    from: send.from.clone(),
                    tx_base64: texts.map(|one| STANDARD.encode(one.bytes())).collect(),
                    chain_id: send.cluster.chain_id(),
                };
                match send.cluster {
                    SolanaCluster::Solana => WireKind::SolanaSendCustom(wire),
                    SolanaCluster::SonicSvm => WireKind::SonicSvmSendCustom(wire),
                }
            }
            SolanaPayload::Message(message) => WireKind::SolanaMessage(wire::SolanaMessage {
                from: message.from.clone(),
                r#type: wire::solana_message::Type::Default.into(),
                content: message.content.clone(),
            }),
        }
    }
}

/// 0 is also what the wire shows when the field is left out, which means the kind's own network.
fn chain_id(cluster: SolanaCluster, given: u64) -> Result<(), Fault> {
    if given == 0 || given == cluster.chain_id() {
        return Ok(());
    }
    Err(Fault::field(
        "chainId",
        match cluster {
            SolanaCluster::Solana => "must be 101 (Solana mainnet) or left out",
            SolanaCluster::SonicSvm => "must be 0 (Sonic SVM mainnet) or left out",
        },
    ))
}

fn address(name: &str, text: &str) -> Result<String, Fault> {
    required(name, text)?;
    parse_key(text)
        .map(|key| key.to_string())
        .map_err(|error| Fault::field(name, error))
}
