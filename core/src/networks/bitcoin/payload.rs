//! Bitcoin payload kinds: btcSendNative, and the batch payment of many outputs.

use bitcoin::{Address, AddressType, Amount};

use super::address::parse_address;
use crate::{
    amount::{U256, parse_u64},
    fault::Fault,
    field::{amount, recipients_in_range, required},
    networks::{
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

/// A checked Bitcoin payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BitcoinPayload {
    /// `btcSendNative`: exactly one output.
    SendNative(BitcoinPayment),
    /// A batch payment: one transaction with many outputs.
    ///
    /// It is no kind of a signing request: [`NetworkPayload::kind`] calls it by what it does,
    /// btcSendNative, and [`NetworkPayload::to_wire`] gives an empty one, which no parser takes. So it
    /// can be built, but not come into an order by mistake.
    Batch(BitcoinPayment),
}

/// One transaction that pays bitcoin.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BitcoinPayment {
    /// Sender, P2WPKH in lower case. What is left over goes back there.
    pub from: String,
    /// To whom how much, in order; 1 to 254.
    pub outputs: Vec<BitcoinOutput>,
    /// Fee rate in sat/vB, 1 to 10,000.
    pub network_fee: u64,
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
    Ok(BitcoinPayload::SendNative(BitcoinPayment {
        from: sender(&wire.from)?,
        outputs: vec![output("to", &wire.to, "amount", &wire.amount)?],
        network_fee: network_fee(wire.network_fee)?,
    }))
}

/// Parses a btcBatchSendNative, which does not name its fee rate (sat/vB): the one who completes the
/// batch does. Notes on recipients are not part of the transaction.
///
/// # Errors
/// [`crate::fault::Class::Invalid`] naming the field, relative to the batch kind.
pub fn batch(wire: &wire::BtcBatchSendNative, fee_rate: u64) -> Result<BitcoinPayload, Fault> {
    let from = sender(&wire.from)?;
    recipients_in_range(wire.recipients.len())?;
    let outputs = wire
        .recipients
        .iter()
        .enumerate()
        .map(|(index, recipient)| {
            output(
                &format!("recipients[{index}].address"),
                &recipient.address,
                &format!("recipients[{index}].amount"),
                &recipient.amount,
            )
        })
        .collect::<Result<Vec<_>, _>>()?;
    let payment = BitcoinPayment {
        from,
        outputs,
        network_fee: network_fee(fee_rate)?,
    };
    if payment.amount() > Amount::MAX_MONEY.to_sat() {
        return Err(Fault::field(
            "recipients",
            "total exceeds the bitcoin supply",
        ));
    }
    Ok(BitcoinPayload::Batch(payment))
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
        0 => Err(Fault::field("networkFee", "is required: give sat/vB")),
        1..=MAX_NETWORK_FEE => Ok(rate),
        _ => Err(Fault::field(
            "networkFee",
            format_args!("must be at most {MAX_NETWORK_FEE} sat/vB"),
        )),
    }
}

impl BitcoinPayment {
    /// What all recipients get together, in satoshi.
    pub(crate) fn amount(&self) -> u64 {
        // At most 254 times 21 million bitcoin, so it fits.
        self.outputs.iter().map(|output| output.satoshi).sum()
    }
}

impl BitcoinPayload {
    /// The payment.
    pub fn payment(&self) -> &BitcoinPayment {
        let (BitcoinPayload::SendNative(payment) | BitcoinPayload::Batch(payment)) = self;
        payment
    }

    /// The field that says how much is paid.
    pub(crate) fn amount_field(&self) -> &'static str {
        match self {
            BitcoinPayload::SendNative(_) => "amount",
            BitcoinPayload::Batch(_) => "recipients",
        }
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
            network_fee,
        } = self.payment();
        WireKind::BtcSendNative(match (self, outputs.as_slice()) {
            (BitcoinPayload::SendNative(_), [output]) => wire::BtcSendNative {
                from: from.clone(),
                to: output.to.to_string(),
                amount: output.satoshi.to_string(),
                network_fee: *network_fee,
            },
            _ => wire::BtcSendNative::default(),
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
