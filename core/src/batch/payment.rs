//! The five batch kinds: each is checked as a whole, recipient by recipient.

use alloy_primitives::{Address, U256};
use prost::Message as _;

use super::{BatchStage, MAX_RECIPIENT_NOTES};
use crate::{
    amount::parse_u256,
    fault::{Class, Fault},
    field::{self, amount, recipients_in_range},
    networks::{FeeLevel, KnownChains, Network, Payload, bitcoin, evm, sui},
    schema::wire::{self, BatchPaymentRecipient, create_signing_request_request},
};

/// The batch kind of a create request, on the wire.
pub type BatchWireKind = wire::create_batch_payment_request::Type;
/// The batch kind of a batch payment in a response, on the wire.
pub type BatchWireEcho = wire::batch_payment::Type;

/// Any fee rate that the check takes, in sat/vB: a batch names none, the one who completes it does.
const SOME_FEE_RATE: u64 = 1;

/// A checked batch kind, in canonical form: canonical addresses, everything else as it came.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchPayload(BatchWireKind);

impl BatchPayload {
    /// Checks everything that does not depend on wallet, configuration or chain: 1 to 254
    /// recipients, each with an address of the network, an amount above 0 that the network can
    /// express and notes of at most [`MAX_RECIPIENT_NOTES`] characters; and that all amounts
    /// together can be expressed too.
    ///
    /// # Errors
    /// [`Class::Invalid`] with the path of the field, e.g.
    /// `evmBatchSendNative.recipients[3].amount`.
    pub fn parse(kind: &BatchWireKind) -> Result<Self, Fault> {
        let parsed = match kind {
            BatchWireKind::EvmBatchSendNative(wire) => evm_native(wire),
            BatchWireKind::EvmBatchSendErc20(wire) => evm_erc20(wire),
            BatchWireKind::BtcBatchSendNative(wire) => bitcoin_native(wire),
            BatchWireKind::SuiBatchSendNative(wire) => sui_native(wire),
            BatchWireKind::SuiBatchSendCoin(wire) => sui_coin(wire),
        };
        let parsed = parsed.and_then(|canonical| {
            let payment = Self(canonical);
            payment.check_notes()?;
            Ok(payment)
        });
        parsed.map_err(|fault| fault.with_prefix(name(kind)))
    }

    /// Parses the bytes of [`super::BatchPayment::payment`].
    ///
    /// # Errors
    /// As [`BatchPayload::parse`]; also when the bytes are no batch.
    pub fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let request = wire::CreateBatchPaymentRequest::decode(bytes)
            .map_err(|error| Fault::field("payment", "cannot be decoded").caused_by(error))?;
        let kind = request
            .r#type
            .as_ref()
            .ok_or_else(|| Fault::field("payment", "contains no batch kind"))?;
        Self::parse(kind)
    }

    /// The bytes for [`super::BatchPayment::payment`]: a `CreateBatchPaymentRequest` that holds the
    /// canonical form of the batch kind and nothing else.
    pub fn encode(&self) -> Vec<u8> {
        wire::CreateBatchPaymentRequest {
            r#type: Some(self.0.clone()),
            ..Default::default()
        }
        .encode_to_vec()
    }

    /// The kind's name in JSON, e.g. `evmBatchSendNative`.
    pub fn kind(&self) -> &'static str {
        name(&self.0)
    }

    /// The sender's address in canonical form.
    pub fn from(&self) -> &str {
        match &self.0 {
            BatchWireKind::EvmBatchSendNative(wire) => &wire.from,
            BatchWireKind::EvmBatchSendErc20(wire) => &wire.from,
            BatchWireKind::BtcBatchSendNative(wire) => &wire.from,
            BatchWireKind::SuiBatchSendNative(wire) => &wire.from,
            BatchWireKind::SuiBatchSendCoin(wire) => &wire.from,
        }
    }

    /// The network of the wallets that the kind is for.
    pub fn network(&self) -> Network {
        match &self.0 {
            BatchWireKind::EvmBatchSendNative(_) | BatchWireKind::EvmBatchSendErc20(_) => {
                Network::Evm
            }
            BatchWireKind::BtcBatchSendNative(_) => Network::Bitcoin,
            BatchWireKind::SuiBatchSendNative(_) | BatchWireKind::SuiBatchSendCoin(_) => {
                Network::Sui
            }
        }
    }

    /// The chain id that the payment names, where its kind has one.
    pub fn chain_id(&self) -> Option<u64> {
        match &self.0 {
            BatchWireKind::EvmBatchSendNative(wire) => Some(wire.chain_id),
            BatchWireKind::EvmBatchSendErc20(wire) => Some(wire.chain_id),
            BatchWireKind::BtcBatchSendNative(_)
            | BatchWireKind::SuiBatchSendNative(_)
            | BatchWireKind::SuiBatchSendCoin(_) => None,
        }
    }

    /// Who gets what, in order.
    pub fn recipients(&self) -> &[BatchPaymentRecipient] {
        match &self.0 {
            BatchWireKind::EvmBatchSendNative(wire) => &wire.recipients,
            BatchWireKind::EvmBatchSendErc20(wire) => &wire.recipients,
            BatchWireKind::BtcBatchSendNative(wire) => &wire.recipients,
            BatchWireKind::SuiBatchSendNative(wire) => &wire.recipients,
            BatchWireKind::SuiBatchSendCoin(wire) => &wire.recipients,
        }
    }

    /// Checks what depends on configuration: the chain is known. Covault sends nothing to custom
    /// chains, and a batch is always sent.
    ///
    /// # Errors
    /// `Invalid chain id`.
    pub fn screen(&self, known: &KnownChains) -> Result<(), Fault> {
        match self.chain_id() {
            Some(chain_id) if !known.contains(chain_id) => Err(Fault::invalid_chain_id()),
            Some(_) | None => Ok(()),
        }
    }

    /// Checks the payment against the network of the wallet that it names.
    ///
    /// # Errors
    /// [`Class::Invalid`] naming the field.
    pub fn check_wallet(&self, wallet: Network) -> Result<(), Fault> {
        if self.network() == wallet {
            return Ok(());
        }
        let problem = format!(
            "is a {} wallet; this kind needs one of {}",
            wallet.name(),
            self.network().name()
        );
        Err(Fault::field("from", problem).with_prefix(self.kind()))
    }

    /// All amounts together, in the smallest unit.
    pub fn total(&self) -> U256 {
        let amounts = self.recipients().iter();
        // They were checked to fit.
        amounts
            .filter_map(|recipient| parse_u256(&recipient.amount).ok())
            .fold(U256::ZERO, U256::saturating_add)
    }

    /// The token of which a contract needs an allowance; `None` where none is needed.
    pub fn allowance_token(&self) -> Option<&str> {
        match &self.0 {
            BatchWireKind::EvmBatchSendErc20(wire) => Some(&wire.token_contract_address),
            _ => None,
        }
    }

    /// The contract or type of the token that is paid; `None` for the coin.
    pub fn token(&self) -> Option<&str> {
        match &self.0 {
            BatchWireKind::EvmBatchSendErc20(wire) => Some(&wire.token_contract_address),
            BatchWireKind::SuiBatchSendCoin(wire) => Some(&wire.coin_tag),
            _ => None,
        }
    }

    /// Whether a contract of the chain pays it.
    pub fn needs_contract(&self) -> bool {
        self.network() == Network::Evm
    }

    /// What has to be done first, where the contract may take so much of the token now.
    pub fn first_stage(&self, allowance: U256) -> BatchStage {
        match self.allowance_token() {
            // More than the total is taken back too: the contract is to have just what the batch pays.
            Some(_) if allowance == self.total() => BatchStage::Send,
            Some(_) if allowance.is_zero() => BatchStage::Allowance,
            Some(_) => BatchStage::ResetAllowance,
            None => BatchStage::Send,
        }
    }

    /// What a signing request of the batch signs; `contract` is the batch contract of its chain. Fees are taken from
    /// the chain's nodes.
    ///
    /// # Errors
    /// [`Class::WrongState`] when it needs a contract and there is none, [`Class::Bug`] when it needs no such request.
    pub fn payload(&self, stage: BatchStage, contract: Option<&str>) -> Result<Payload, Fault> {
        let kind = match (&self.0, stage) {
            (BatchWireKind::BtcBatchSendNative(wire), BatchStage::Send) => {
                let payload = bitcoin::batch(wire, SOME_FEE_RATE)?;
                return Ok(Payload::Bitcoin(payload.with_level(FeeLevel::Normal)));
            }
            (BatchWireKind::SuiBatchSendNative(wire), BatchStage::Send) => {
                let payment = sui::batch_native(wire)?;
                return Ok(Payload::Sui(sui::SuiPayload::Payment(payment)));
            }
            (BatchWireKind::SuiBatchSendCoin(wire), BatchStage::Send) => {
                let payment = sui::batch_coin(wire)?;
                return Ok(Payload::Sui(sui::SuiPayload::Payment(payment)));
            }
            (BatchWireKind::EvmBatchSendNative(wire), BatchStage::Send) => wire::EvmSendCustom {
                to: self.contract(contract)?.to_checksum(None),
                value: self.total().to_string(),
                input: evm_call(None, &wire.recipients)?,
                ..evm_custom(wire.chain_id, &wire.from)
            },
            (BatchWireKind::EvmBatchSendErc20(wire), stage) => {
                let token = evm::parse_field("token", &wire.token_contract_address)?;
                let contract = self.contract(contract)?;
                let (to, input) = match stage {
                    BatchStage::Send => (contract, evm_call(Some(token), &wire.recipients)?),
                    BatchStage::Allowance => (token, evm::batch::approval(contract, self.total())),
                    BatchStage::ResetAllowance => {
                        (token, evm::batch::approval(contract, U256::ZERO))
                    }
                };
                wire::EvmSendCustom {
                    to: to.to_checksum(None),
                    value: "0".to_owned(),
                    input,
                    ..evm_custom(wire.chain_id, &wire.from)
                }
            }
            (_, BatchStage::Allowance | BatchStage::ResetAllowance) => {
                return Err(Fault::bug("an allowance of what needs none"));
            }
        };
        Payload::parse(&create_signing_request_request::Type::EvmSendCustom(kind))
    }

    fn contract(&self, contract: Option<&str>) -> Result<Address, Fault> {
        let contract = contract.ok_or_else(|| {
            let chain = self.chain_id().unwrap_or_default();
            let sentence = format!(
                "chain {chain} has no batch contract: deploy deploy/contracts/CovaultBatch.sol there and set \
                 chains.evm.{chain}.batch_contract"
            );
            Fault::new(Class::WrongState, sentence)
        })?;
        let address = evm::parse_field("batch_contract", contract)?;
        let own = address.to_checksum(None);
        let mut recipients = self.recipients().iter();
        if recipients.any(|recipient| recipient.address == own) {
            let sentence = "pays the batch contract itself, which gives nothing back";
            return Err(Fault::new(Class::WrongState, sentence));
        }
        Ok(address)
    }

    /// The payment as a response shows it.
    pub fn echo(&self) -> BatchWireEcho {
        match self.0.clone() {
            BatchWireKind::EvmBatchSendNative(wire) => BatchWireEcho::EvmBatchSendNative(wire),
            BatchWireKind::EvmBatchSendErc20(wire) => BatchWireEcho::EvmBatchSendErc20(wire),
            BatchWireKind::BtcBatchSendNative(wire) => BatchWireEcho::BtcBatchSendNative(wire),
            BatchWireKind::SuiBatchSendNative(wire) => BatchWireEcho::SuiBatchSendNative(wire),
            BatchWireKind::SuiBatchSendCoin(wire) => BatchWireEcho::SuiBatchSendCoin(wire),
        }
    }

    fn check_notes(&self) -> Result<(), Fault> {
        for (index, recipient) in self.recipients().iter().enumerate() {
            let field = format!("recipients[{index}].notes");
            let notes = recipient.notes.as_deref().unwrap_or_default();
            field::notes(&field, notes, MAX_RECIPIENT_NOTES)?;
        }
        Ok(())
    }
}

fn name(kind: &BatchWireKind) -> &'static str {
    match kind {
        BatchWireKind::EvmBatchSendNative(_) => "evmBatchSendNative",
        BatchWireKind::EvmBatchSendErc20(_) => "evmBatchSendErc20",
        BatchWireKind::BtcBatchSendNative(_) => "btcBatchSendNative",
        BatchWireKind::SuiBatchSendNative(_) => "suiBatchSendNative",
        BatchWireKind::SuiBatchSendCoin(_) => "suiBatchSendCoin",
    }
}

fn evm_native(wire: &wire::EvmBatchSendNative) -> Result<BatchWireKind, Fault> {
    Ok(BatchWireKind::EvmBatchSendNative(
        wire::EvmBatchSendNative {
            chain_id: chain_id(wire.chain_id)?,
            from: address("from", &wire.from)?,
            recipients: evm_recipients(&wire.recipients)?,
        },
    ))
}

fn evm_erc20(wire: &wire::EvmBatchSendErc20) -> Result<BatchWireKind, Fault> {
    let token = evm::parse_field("tokenContractAddress", &wire.token_contract_address)?;
    let recipients = evm_recipients(&wire.recipients)?;
    for (index, recipient) in recipients.iter().enumerate() {
        let at = format!("recipients[{index}].address");
        evm::check_token_recipient(&at, evm::parse_field(&at, &recipient.address)?, token)?;
    }
    Ok(BatchWireKind::EvmBatchSendErc20(wire::EvmBatchSendErc20 {
        chain_id: chain_id(wire.chain_id)?,
        from: address("from", &wire.from)?,
        token_contract_address: token.to_checksum(None),
        recipients,
    }))
}

fn bitcoin_native(wire: &wire::BtcBatchSendNative) -> Result<BatchWireKind, Fault> {
    let payload = bitcoin::batch(wire, SOME_FEE_RATE)?;
    let payment = payload.payment();
    let outputs = payment.outputs.iter();
    Ok(BatchWireKind::BtcBatchSendNative(
        wire::BtcBatchSendNative {
            from: payment.from.clone(),
            recipients: canonical(
                &wire.recipients,
                outputs.map(|output| (output.to.to_string(), output.satoshi.to_string())),
            ),
        },
    ))
}

fn sui_native(wire: &wire::SuiBatchSendNative) -> Result<BatchWireKind, Fault> {
    let payment = sui::batch_native(wire)?;
    Ok(BatchWireKind::SuiBatchSendNative(
        wire::SuiBatchSendNative {
            recipients: sui_recipients(&wire.recipients, &payment),
            from: payment.from,
        },
    ))
}

fn sui_coin(wire: &wire::SuiBatchSendCoin) -> Result<BatchWireKind, Fault> {
    let payment = sui::batch_coin(wire)?;
    Ok(BatchWireKind::SuiBatchSendCoin(wire::SuiBatchSendCoin {
        recipients: sui_recipients(&wire.recipients, &payment),
        from: payment.from,
        coin_tag: payment.coin_type.unwrap_or_default(),
    }))
}

fn sui_recipients(
    given: &[BatchPaymentRecipient],
    payment: &sui::SuiPayment,
) -> Vec<BatchPaymentRecipient> {
    let outputs = payment.outputs.iter();
    let outputs = outputs.map(|output| (output.to.clone(), output.amount.to_string()));
    canonical(given, outputs)
}

/// The recipients with address and amount as they were read.
fn canonical(
    given: &[BatchPaymentRecipient],
    read: impl Iterator<Item = (String, String)>,
) -> Vec<BatchPaymentRecipient> {
    let all = given.iter().zip(read);
    all.map(|(given, (address, amount))| BatchPaymentRecipient {
        address,
        amount,
        notes: given.notes.clone(),
    })
    .collect()
}

fn evm_recipients(given: &[BatchPaymentRecipient]) -> Result<Vec<BatchPaymentRecipient>, Fault> {
    recipients_in_range(given.len())?;
    let mut total = U256::ZERO;
    let mut read = Vec::with_capacity(given.len());
    for (index, recipient) in given.iter().enumerate() {
        let name = |field: &str| format!("recipients[{index}].{field}");
        let to = address(&name("address"), &recipient.address)?;
        let amount = amount(&name("amount"), &recipient.amount, parse_u256)?;
        if amount.is_zero() {
            return Err(Fault::field(name("amount"), "must be more than 0"));
        }
        total = total
            .checked_add(amount)
            .ok_or_else(|| Fault::field("recipients", "total exceeds 256 bits"))?;
        read.push((to, amount.to_string()));
    }
    Ok(canonical(given, read.into_iter()))
}

fn address(name: &str, text: &str) -> Result<String, Fault> {
    Ok(evm::parse_field(name, text)?.to_checksum(None))
}

fn evm_custom(chain_id: u64, from: &str) -> wire::EvmSendCustom {
    wire::EvmSendCustom {
        chain_id,
        from: from.to_owned(),
        ..Default::default()
    }
}

/// The call of the batch contract.
fn evm_call(
    token: Option<Address>,
    recipients: &[BatchPaymentRecipient],
) -> Result<Vec<u8>, Fault> {
    let rows = recipients.iter().map(|recipient| {
        let to = evm::parse_field("address", &recipient.address)?;
        let amount = parse_u256(&recipient.amount).map_err(Fault::bug)?;
        Ok((to, amount))
    });
    let rows = rows.collect::<Result<_, Fault>>()?;
    Ok(evm::batch::BatchCall { token, rows }.encode())
}

fn chain_id(given: u64) -> Result<u64, Fault> {
    evm::chain_id(given)?.ok_or_else(|| Fault::field("chainId", "is required, e.g. 1 for Ethereum"))
}
