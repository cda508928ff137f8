//! Stellar payload kinds: stellarSendNative, stellarSendAsset, stellarChangeTrust,
//! stellarSendCustom.

use std::collections::BTreeSet;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use stellar_xdr::{
    AccountId, Asset as XdrAsset, Claimant, MuxedAccount, OperationBody, Price, SetOptionsOp,
    TransactionEnvelope,
};

use super::{
    address::{AddressError, IssuedAsset, account_key, parse_account, parse_address, parse_code},
    envelope,
};
use crate::{
    amount::{AmountError, U256, parse_decimal},
    fault::Fault,
    field::{at_most_bytes, required},
    networks::{
        fee_level::FeeLevel,
        network::Network,
        payload::{
            NetworkPayload, PayloadKind, WireKind,
            outflow::{AccountChange, Asset, ChainScope, ContentKind, Outflow, Spend},
        },
    },
    schema::wire,
};

/// Bytes of a text memo.
const MEMO_BYTES: usize = 28;
/// Digits after the point of an amount.
const DECIMALS: u8 = 7;
/// Smallest units of one: 10^[`DECIMALS`].
const ONE: i64 = 10_000_000;

/// A checked Stellar payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StellarPayload {
    /// Any kind whose transaction is built here.
    Transaction(StellarTransaction),
    /// `stellarSendCustom`.
    Custom(StellarCustom),
}

/// A transaction of one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StellarTransaction {
    /// Sender, `G...`.
    pub from: String,
    /// What it does.
    pub action: StellarAction,
    /// Text memo, at most 28 bytes; empty for none.
    pub memo: String,
    /// How soon a ledger should have it, where the request says.
    pub level: Option<FeeLevel>,
}

/// What a transaction does. Amounts are more than 0 and in units of 10^-7, which are stroops for
/// lumens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StellarAction {
    /// Sends lumens; creates the account where it does not exist.
    SendNative {
        /// Recipient.
        to: MuxedAccount,
        /// Stroops.
        amount: i64,
    },
    /// Sends an issued asset.
    SendAsset {
        /// Recipient.
        to: MuxedAccount,
        /// The asset.
        asset: IssuedAsset,
        /// Units of 10^-7.
        amount: i64,
    },
    /// Trusts an issuer for an asset, without a limit: the account can hold it then.
    ChangeTrust {
        /// The asset.
        asset: IssuedAsset,
    },
}

/// A transaction that was made elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StellarCustom {
    /// Who signs, `G...`: an account whose signature the envelope needs.
    pub from: String,
    /// The same account, as envelopes name it.
    pub account: AccountId,
    /// The envelope, with the signatures that it brings.
    pub envelope: Box<TransactionEnvelope>,
    /// The same in XDR.
    pub bytes: Vec<u8>,
}

/// Parses a stellarSendNative.
pub(in crate::networks) fn send_native(
    wire: &wire::StellarSendNative,
) -> Result<StellarPayload, Fault> {
    transaction(&wire.from, &wire.memo, wire.fee_level, |_| {
        Ok(StellarAction::SendNative {
            to: address("to", &wire.to, parse_address)?,
            amount: positive("value", &wire.value)?,
        })
    })
}

/// Parses a stellarSendAsset.
pub(in crate::networks) fn send_asset(
    wire: &wire::StellarSendAsset,
) -> Result<StellarPayload, Fault> {
    transaction(&wire.from, &wire.memo, wire.fee_level, |_| {
        Ok(StellarAction::SendAsset {
            to: address("to", &wire.to, parse_address)?,
            asset: asset(&wire.asset_code, &wire.asset_issuer)?,
            amount: positive("amount", &wire.amount)?,
        })
    })
}

/// Parses a stellarChangeTrust.
pub(in crate::networks) fn change_trust(
    wire: &wire::StellarChangeTrust,
) -> Result<StellarPayload, Fault> {
    transaction(&wire.from, &wire.memo, wire.fee_level, |from| {
        let asset = asset(&wire.asset_code, &wire.asset_issuer)?;
        if asset.issuer == *from {
            return Err(Fault::field(
                "assetIssuer",
                "must not be the wallet itself: an issuer needs no trust line for its own asset",
            ));
        }
        Ok(StellarAction::ChangeTrust { asset })
    })
}

fn transaction(
    from: &str,
    memo: &str,
    level: i32,
    action: impl FnOnce(&AccountId) -> Result<StellarAction, Fault>,
) -> Result<StellarPayload, Fault> {
    let from = address("from", from, parse_account)?;
    let action = action(&from)?;
    at_most_bytes("memo", memo, MEMO_BYTES)?;
    Ok(StellarPayload::Transaction(StellarTransaction {
        from: from.to_string(),
        action,
        memo: memo.to_owned(),
        level: FeeLevel::parse("feeLevel", level)?,
    }))
}

/// Parses a stellarSendCustom. What the network refuses in any case is refused here.
pub(in crate::networks) fn send_custom(
    wire: &wire::StellarSendCustom,
) -> Result<StellarPayload, Fault> {
    let from = address("from", &wire.from, parse_account)?;
    let refuse = |problem: &str| Err(Fault::field("txBase64", problem));
    let Ok(bytes) = STANDARD.decode(required("txBase64", &wire.tx_base64)?) else {
        return refuse("must be base64 with padding");
    };
    let envelope = envelope::decode(&bytes).map_err(|error| Fault::field("txBase64", error))?;
    let parts = envelope::parts(&envelope);
    if parts.operations.is_empty() {
        return refuse("must have an operation");
    }
    if parts.fee < 0 || parts.sequence < 0 {
        return refuse("must have no negative fee or sequence number");
    }
    if parts.signatures >= envelope::MAX_SIGNATURES {
        return refuse("already has 20 signatures, the maximum");
    }
    if !parts.takes_signature_of(account_key(&from)) {
        return Err(Fault::field(
            "from",
            "must be the source account of the transaction or of one of its operations; for a fee bump, the account that pays the fee",
        ));
    }
    Ok(StellarPayload::Custom(StellarCustom {
        from: from.to_string(),
        account: from,
        envelope: Box::new(envelope),
        bytes,
    }))
}

fn address<T>(
    name: &str,
    text: &str,
    parse: impl FnOnce(&str) -> Result<T, AddressError>,
) -> Result<T, Fault> {
    parse(required(name, text)?).map_err(|error| Fault::field(name, error))
}

fn asset(code: &str, issuer: &str) -> Result<IssuedAsset, Fault> {
    let code = parse_code(required("assetCode", code)?)
        .map_err(|error| Fault::field("assetCode", error))?;
    let issuer = address("assetIssuer", issuer, parse_account)?;
    Ok(IssuedAsset { code, issuer })
}

fn positive(name: &str, text: &str) -> Result<i64, Fault> {
    let amount = parse_decimal(required(name, text)?, DECIMALS).map_err(|error| match error {
        AmountError::TooLarge(_) => {
            Fault::field(name, "is too large: at most 922337203685.4775807")
        }
        // Nothing stands before the point.
        AmountError::Empty => Fault::field(name, AmountError::NotDecimal(DECIMALS)),
        error => Fault::field(name, error),
    })?;
    if amount == 0 {
        return Err(Fault::field(name, "must be more than 0"));
    }
    Ok(amount)
}

/// An amount as it is written: without zeros that say nothing.
fn decimal(amount: i64) -> String {
    let text = format!("{}.{:07}", amount / ONE, amount % ONE);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

impl NetworkPayload for StellarPayload {
    fn kind(&self) -> PayloadKind {
        match self {
            StellarPayload::Transaction(transaction) => match transaction.action {
                StellarAction::SendNative { .. } => PayloadKind::StellarSendNative,
                StellarAction::SendAsset { .. } => PayloadKind::StellarSendAsset,
                StellarAction::ChangeTrust { .. } => PayloadKind::StellarChangeTrust,
            },
            StellarPayload::Custom(_) => PayloadKind::StellarSendCustom,
        }
    }

    fn from(&self) -> &str {
        match self {
            StellarPayload::Transaction(transaction) => &transaction.from,
            StellarPayload::Custom(custom) => &custom.from,
        }
    }

    fn chain_id(&self) -> Option<u64> {
        None
    }

    fn is_transaction(&self) -> bool {
        true
    }

    fn outflow(&self, _wallet: Network) -> Outflow {
        let (nature, spends) = match self {
            StellarPayload::Transaction(transaction) => {
                let spends = match &transaction.action {
                    StellarAction::SendNative { to, amount } => {
                        vec![spend(None, *amount, Some(to))]
                    }
                    StellarAction::SendAsset { to, asset, amount } => {
                        vec![spend(Some(asset), *amount, Some(to))]
                    }
                    // It lets nothing go.
                    StellarAction::ChangeTrust { .. } => Vec::new(),
                };
                (ContentKind::Transfer, spends)
            }
            StellarPayload::Custom(custom) => (ContentKind::Custom, custom.spends()),
        };
        Outflow {
            nature,
            place: ChainScope::network(Network::Stellar),
            spends,
        }
    }

    fn purpose(&self) -> Option<Vec<u8>> {
        let custom = match self {
            StellarPayload::Transaction(one) => {
                return Some(format!("{:?} {:?}", one.action, one.memo).into_bytes());
            }
            StellarPayload::Custom(custom) => custom,
        };
        let parts = envelope::parts(&custom.envelope);
        Some(format!("{:?}", (parts.source, parts.memo, parts.operations)).into_bytes())
    }

    fn account_changes(&self) -> BTreeSet<AccountChange> {
        match self {
            StellarPayload::Transaction(_) => BTreeSet::new(),
            StellarPayload::Custom(custom) => custom.changes(),
        }
    }

    fn to_wire(&self) -> WireKind {
        match self {
            StellarPayload::Transaction(transaction) => transaction.to_wire(),
            StellarPayload::Custom(custom) => {
                WireKind::StellarSendCustom(wire::StellarSendCustom {
                    from: custom.from.clone(),
                    tx_base64: STANDARD.encode(&custom.bytes),
                })
            }
        }
    }
}

impl StellarTransaction {
    fn to_wire(&self) -> WireKind {
        let (from, memo) = (self.from.clone(), self.memo.clone());
        let fee_level = FeeLevel::to_wire(self.level);
        match &self.action {
            StellarAction::SendNative { to, amount } => {
                WireKind::StellarSendNative(wire::StellarSendNative {
                    from,
                    to: to.to_string(),
                    value: decimal(*amount),
                    memo,
                    fee_level,
                })
            }
            StellarAction::SendAsset { to, asset, amount } => {
                WireKind::StellarSendAsset(wire::StellarSendAsset {
                    from,
                    to: to.to_string(),
                    asset_code: asset.code.to_string(),
                    asset_issuer: asset.issuer.to_string(),
                    amount: decimal(*amount),
                    memo,
                    fee_level,
                })
            }
            StellarAction::ChangeTrust { asset } => {
                WireKind::StellarChangeTrust(wire::StellarChangeTrust {
                    from,
                    asset_code: asset.code.to_string(),
                    asset_issuer: asset.issuer.to_string(),
                    memo,
                    fee_level,
                })
            }
        }
    }
}

impl StellarCustom {
    /// The operations of the wallet.
    fn operations(&self) -> impl Iterator<Item = &OperationBody> {
        envelope::parts(&self.envelope).operations_of(account_key(&self.account))
    }

    fn changes(&self) -> BTreeSet<AccountChange> {
        let mut changes: BTreeSet<_> = self.operations().filter_map(change).collect();
        let parts = envelope::parts(&self.envelope);
        // Of a fee bump, the transaction inside.
        if parts.skips && parts.source == account_key(&self.account) {
            changes.insert(AccountChange::StellarBumpSequence);
        }
        changes
    }

    /// What the operations of the wallet pay, at most. What others do is not in it.
    fn spends(&self) -> Vec<Spend> {
        self.operations().flat_map(payments).collect()
    }
}

/// What an operation changes about who signs for the account.
fn change(operation: &OperationBody) -> Option<AccountChange> {
    match operation {
        OperationBody::SetOptions(SetOptionsOp {
            inflation_dest: _,
            clear_flags: _,
            set_flags: _,
            master_weight: None,
            low_threshold: None,
            med_threshold: None,
            high_threshold: None,
            home_domain: _,
            signer: None,
        }) => None,
        OperationBody::SetOptions(_) => Some(AccountChange::StellarSetOptions),
        OperationBody::BumpSequence(_) => Some(AccountChange::StellarBumpSequence),
        _ => None,
    }
}

/// What an operation pays, at most.
fn payments(operation: &OperationBody) -> Vec<Spend> {
    let one = |asset: &XdrAsset, amount, to: &MuxedAccount| {
        vec![spend(IssuedAsset::of(asset).as_ref(), amount, Some(to))]
    };
    let unseen = || Spend::unseen(ChainScope::network(Network::Stellar));
    // The market may keep all but the least of what is sent.
    let exchanged = |sent: &XdrAsset, amount, got: &XdrAsset, path: &[XdrAsset], to: &_| {
        let mut spends = one(sent, amount, to);
        if sent != got || !path.is_empty() {
            spends.push(unseen());
        }
        spends
    };
    // The market gets it; an offer of nothing takes one back.
    let offer = |asset: &XdrAsset, amount: i64| match amount {
        1.. => vec![spend(IssuedAsset::of(asset).as_ref(), amount, None)],
        _ => Vec::new(),
    };
    match operation {
        OperationBody::CreateAccount(op) => one(
            &XdrAsset::Native,
            op.starting_balance,
            &op.destination.clone().into(),
        ),
        OperationBody::Payment(op) => one(&op.asset, op.amount, &op.destination),
        OperationBody::PathPaymentStrictReceive(op) => {
            let to = &op.destination;
            exchanged(&op.send_asset, op.send_max, &op.dest_asset, &op.path, to)
        }
        OperationBody::PathPaymentStrictSend(op) => {
            let to = &op.destination;
            exchanged(&op.send_asset, op.send_amount, &op.dest_asset, &op.path, to)
        }
        // All that the account has.
        OperationBody::AccountMerge(to) => one(&XdrAsset::Native, i64::MAX, to),
        // One of the claimants gets it: it counts once, and all of them are recipients.
        OperationBody::CreateClaimableBalance(op) => {
            let amounts = std::iter::once(op.amount).chain(std::iter::repeat(0));
            let claimants = op.claimants.iter().zip(amounts);
            claimants
                .flat_map(|(Claimant::ClaimantTypeV0(claimant), amount)| {
                    one(&op.asset, amount, &claimant.destination.clone().into())
                })
                .collect()
        }
        OperationBody::ManageSellOffer(op) => offer(&op.selling, op.amount),
        OperationBody::CreatePassiveSellOffer(op) => offer(&op.selling, op.amount),
        OperationBody::ManageBuyOffer(op) => {
            offer(&op.selling, amount_sold(op.buy_amount, &op.price))
        }
        // Which assets a pool has stands in no operation, contracts do what they like, and whose
        // entries the wallet's reserves are held for is up to the one that is sponsored.
        OperationBody::LiquidityPoolDeposit(_)
        | OperationBody::LiquidityPoolWithdraw(_)
        | OperationBody::InvokeHostFunction(_)
        | OperationBody::BeginSponsoringFutureReserves(_) => vec![unseen()],
        OperationBody::SetOptions(_)
        | OperationBody::ChangeTrust(_)
        | OperationBody::AllowTrust(_)
        | OperationBody::Inflation
        | OperationBody::ManageData(_)
        | OperationBody::BumpSequence(_)
        | OperationBody::ClaimClaimableBalance(_)
        | OperationBody::EndSponsoringFutureReserves
        | OperationBody::RevokeSponsorship(_)
        | OperationBody::Clawback(_)
        | OperationBody::ClawbackClaimableBalance(_)
        | OperationBody::SetTrustLineFlags(_)
        | OperationBody::ExtendFootprintTtl(_)
        | OperationBody::RestoreFootprint(_) => Vec::new(),
    }
}

/// What buying an amount costs at the most, at the highest price that the offer takes.
fn amount_sold(amount: i64, price: &Price) -> i64 {
    let (n, d) = (i128::from(price.n), i128::from(price.d));
    let product = i128::from(amount).saturating_mul(n);
    let sold = product
        .checked_add(d.saturating_sub(1))
        .and_then(|sum| sum.checked_div(d));
    sold.map_or(i64::MAX, |sold| i64::try_from(sold).unwrap_or(i64::MAX))
}

/// A payment of an asset, or of lumens. The network refuses negative amounts.
fn spend(asset: Option<&IssuedAsset>, amount: i64, to: Option<&MuxedAccount>) -> Spend {
    Spend {
        asset: Asset {
            place: ChainScope::network(Network::Stellar),
            token: asset.map(ToString::to_string),
        },
        amount: U256::from(u64::try_from(amount).unwrap_or(0)),
        recipient: to.map(ToString::to_string),
    }
}
