//! Bitcoin payload kinds: btcSendNative, with one output or many.

use std::collections::BTreeSet;

use bitcoin::{Address, AddressType, Amount, OutPoint};

use super::address::parse_address;
use crate::{
    amount::{U256, parse_u64},
    fault::Fault,
    field::{amount, only_recipients, recipients_in_range, required},
    networks::{
        fee_level::FeeLevel,
        network::Network,
        payload::{
            NetworkPayload, PayloadKind, WireKind,
            outflow::{Asset, ChainScope, ContentKind, Outflow, Spend},
        },
    },
    schema::wire,
};

/// sat/vB: more is a mistake, and Bitcoin Core refuses to send it (`-maxfeerate`, 0.1 BTC/kvB).
const MAX_NETWORK_FEE: u64 = 10_000;
/// The most inputs of a transaction, whose count takes one byte up to here. Signer nodes take
/// orders of 256 inputs. With the most outputs it weighs a third of what the network carries
/// ([`bitcoin::Transaction::MAX_STANDARD_WEIGHT`]).
pub(super) const MAX_INPUTS: usize = 252;

/// What a transaction pays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeeRate {
    /// sat/vB, 1 to 10,000.
    Fixed(u64),
    /// What the chain's nodes say.
    Level(FeeLevel),
}

/// A checked Bitcoin payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BitcoinPayload {
    /// `btcSendNative`: one transaction with one output, or with many.
    SendNative(BitcoinPayment),
}

/// One transaction that pays bitcoin.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BitcoinPayment {
    /// Sender, P2WPKH in lower case. What is left over goes back there.
    pub from: String,
    /// To whom how much, in order; 1 to 254.
    pub outputs: Vec<BitcoinOutput>,
    /// Outputs of the wallet that are spent whatever else is, in the order in which they were named; at most
    /// 252, each once. Empty where the wallet may choose all.
    pub inputs: Vec<OutPoint>,
    /// Fee rate.
    pub fee: FeeRate,
}

/// A recipient and its amount.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BitcoinOutput {
    /// Recipient, on mainnet.
    pub to: Address,
    /// Amount in satoshi: not dust, at most 21 million bitcoin.
    pub satoshi: u64,
}

/// Parses a btcSendNative.
pub(in crate::networks) fn send_native(
    wire: &wire::BtcSendNative,
) -> Result<BitcoinPayload, Fault> {
    let outputs = match wire.recipients.as_slice() {
        [] => vec![output("to", &wire.to, "amount", &wire.amount)?],
        recipients => {
            only_recipients(&[("to", &wire.to), ("amount", &wire.amount)], recipients)?;
            outputs(recipients)?
        }
    };
    Ok(BitcoinPayload::SendNative(BitcoinPayment {
        from: sender(&wire.from)?,
        outputs,
        inputs: inputs(&wire.inputs)?,
        fee: fee(wire.network_fee, wire.fee_level)?,
    }))
}

/// Parses a btcBatchSendNative, which does not name its fee rate (sat/vB): the one who completes the
/// batch does. Notes on recipients are not part of the transaction.
///
/// # Errors
/// [`crate::fault::Class::Invalid`] naming the field, relative to the batch kind.
pub fn batch(wire: &wire::BtcBatchSendNative, fee_rate: u64) -> Result<BitcoinPayload, Fault> {
    Ok(BitcoinPayload::SendNative(BitcoinPayment {
        from: sender(&wire.from)?,
        outputs: outputs(&wire.recipients)?,
        inputs: Vec::new(),
        fee: FeeRate::Fixed(network_fee(fee_rate)?),
    }))
}

/// Several recipients, whose amounts together exist.
fn outputs(recipients: &[wire::BatchPaymentRecipient]) -> Result<Vec<BitcoinOutput>, Fault> {
    recipients_in_range(recipients.len())?;
    let outputs = recipients.iter().enumerate().map(|(index, recipient)| {
        output(
            &format!("recipients[{index}].address"),
            &recipient.address,
            &format!("recipients[{index}].amount"),
            &recipient.amount,
        )
    });
    let outputs = outputs.collect::<Result<Vec<_>, _>>()?;
    if total(&outputs) > Amount::MAX_MONEY.to_sat() {
        return Err(Fault::field(
            "recipients",
            "total exceeds the bitcoin supply",
        ));
    }
    Ok(outputs)
}

fn total(outputs: &[BitcoinOutput]) -> u64 {
    // At most 254 times 21 million bitcoin, so it fits.
    outputs.iter().map(|output| output.satoshi).sum()
}

/// Wallets have P2WPKH addresses only.
fn sender(text: &str) -> Result<String, Fault> {
    let address = address("from", text)?;
    if address.address_type() != Some(AddressType::P2wpkh) {
        return Err(Fault::field(
            "from",
            "is not the address of a wallet: those begin with bc1q and have 42 characters",
        ));
    }
    Ok(address.to_string())
}

fn address(name: &str, text: &str) -> Result<Address, Fault> {
    parse_address(required(name, text)?).map_err(|error| Fault::field(name, error))
}

fn output(to: &str, address: &str, name: &str, text: &str) -> Result<BitcoinOutput, Fault> {
    let to = self::address(to, address)?;
    let satoshi = amount(name, text, parse_u64)?;
    if satoshi == 0 {
        return Err(Fault::field(name, "must be more than 0"));
    }
    // What Bitcoin Core relays: 3 sat/vB of what it would cost to spend the output.
    let least = to.script_pubkey().minimal_non_dust().to_sat();
    if satoshi < least {
        return Err(Fault::field(
            name,
            format_args!("is dust, which the network does not relay: at least {least} satoshi"),
        ));
    }
    if satoshi > Amount::MAX_MONEY.to_sat() {
        return Err(Fault::field(name, "exceeds the bitcoin supply"));
    }
    Ok(BitcoinOutput { to, satoshi })
}

fn network_fee(rate: u64) -> Result<u64, Fault> {
    match rate {
        // What the wire shows when the field is left out.
        0 => Err(Fault::field(
            "networkFee",
            "is required: give sat/vB, or a feeLevel",
        )),
        1..=MAX_NETWORK_FEE => Ok(rate),
        _ => Err(Fault::field(
            "networkFee",
            format_args!("must be at most {MAX_NETWORK_FEE} sat/vB"),
        )),
    }
}

/// A rate or a level, never both.
fn fee(rate: u64, level: i32) -> Result<FeeRate, Fault> {
    let Some(level) = FeeLevel::parse("feeLevel", level)? else {
        return network_fee(rate).map(FeeRate::Fixed);
    };
    if rate != 0 {
        return Err(Fault::field(
            "feeLevel",
            "cannot be combined with networkFee: give one of them",
        ));
    }
    Ok(FeeRate::Level(level))
}

/// Outputs by their names, `txid:vout`.
fn inputs(names: &[String]) -> Result<Vec<OutPoint>, Fault> {
    if names.len() > MAX_INPUTS {
        return Err(Fault::field(
            "inputs",
            format_args!("must be at most {MAX_INPUTS}"),
        ));
    }
    let mut seen = BTreeSet::new();
    let inputs = names.iter().enumerate().map(|(index, name)| {
        let name_of = format!("inputs[{index}]");
        let outpoint: OutPoint = name.parse().map_err(|_| {
            Fault::field(
                &name_of,
                "must be an output as txid:vout: 64 hex digits, a colon and a number",
            )
        })?;
        if outpoint.is_null() || !seen.insert(outpoint) {
            return Err(Fault::field(name_of, "is named twice, or is not an output"));
        }
        Ok(outpoint)
    });
    inputs.collect()
}

impl BitcoinOutput {
    /// The least that nodes carry, to an address.
    pub(super) fn least(address: &str) -> Result<Self, Fault> {
        let to = self::address("from", address)?;
        let satoshi = to.script_pubkey().minimal_non_dust().to_sat();
        Ok(Self { to, satoshi })
    }
}

impl BitcoinPayment {
    /// The level whose rate nodes are asked for.
    pub(crate) fn level(&self) -> Option<FeeLevel> {
        match self.fee {
            FeeRate::Fixed(_) => None,
            FeeRate::Level(level) => Some(level),
        }
    }

    /// Whether all that is left over goes into the only output: it is the sender's, who has named what is
    /// spent.
    pub(super) fn gathers(&self) -> bool {
        match self.outputs.as_slice() {
            [output] => !self.inputs.is_empty() && output.to.to_string() == self.from,
            _ => false,
        }
    }

    /// What all recipients get together, in satoshi.
    pub(crate) fn amount(&self) -> u64 {
        total(&self.outputs)
    }
}

impl BitcoinPayload {
    /// The same payment, which takes its fee rate from the chain's nodes.
    #[must_use]
    pub fn with_level(self, level: FeeLevel) -> Self {
        let BitcoinPayload::SendNative(payment) = self;
        BitcoinPayload::SendNative(BitcoinPayment {
            fee: FeeRate::Level(level),
            ..payment
        })
    }

    /// The payment.
    pub fn payment(&self) -> &BitcoinPayment {
        let BitcoinPayload::SendNative(payment) = self;
        payment
    }

    /// The field that says how much is paid.
    pub(crate) fn amount_field(&self) -> &'static str {
        match self.payment().outputs.len() {
            1 => "amount",
            _ => "recipients",
        }
    }
}

fn recipient(output: &BitcoinOutput) -> wire::BatchPaymentRecipient {
    wire::BatchPaymentRecipient {
        address: output.to.to_string(),
        amount: output.satoshi.to_string(),
        notes: None,
    }
}

impl NetworkPayload for BitcoinPayload {
    fn kind(&self) -> PayloadKind {
        PayloadKind::BtcSendNative
    }

    fn from(&self) -> &str {
        &self.payment().from
    }

    fn to_wire(&self) -> WireKind {
        let BitcoinPayment {
            from,
            outputs,
            inputs,
            fee,
        } = self.payment();
        let (network_fee, fee_level) = match fee {
            FeeRate::Fixed(rate) => (*rate, None),
            FeeRate::Level(level) => (0, Some(*level)),
        };
        let (to, amount, recipients) = match outputs.as_slice() {
            [output] => (output.to.to_string(), output.satoshi.to_string(), vec![]),
            several => (
                String::new(),
                String::new(),
                several.iter().map(recipient).collect(),
            ),
        };
        WireKind::BtcSendNative(wire::BtcSendNative {
            from: from.clone(),
            to,
            amount,
            network_fee,
            fee_level: FeeLevel::to_wire(fee_level),
            inputs: inputs.iter().map(ToString::to_string).collect(),
            recipients,
        })
    }

    /// Every signature commits to all outputs (SIGHASH_ALL); change is no spend.
    fn outflow(&self, _wallet: Network) -> Outflow {
        let place = ChainScope::network(Network::Bitcoin);
        let spends = self.payment().outputs.iter().map(|output| Spend {
            asset: Asset::coin(place),
            amount: U256::from(output.satoshi),
            recipient: Some(output.to.to_string()),
        });
        Outflow {
            nature: ContentKind::Transfer,
            place,
            spends: spends.collect(),
        }
    }

    fn chain_id(&self) -> Option<u64> {
        None
    }

    fn is_transaction(&self) -> bool {
        true
    }
}
