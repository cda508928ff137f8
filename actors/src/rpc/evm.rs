//! EVM nodes: the JSON-RPC of execution clients (ethereum/execution-apis, EIP-1474).

use async_trait::async_trait;
use covault_core::{
    chain::{
        Facts, Needs,
        evm::{Call, Facts as EvmFacts, Fees, Needs as EvmNeeds},
    },
    fault::ExecuteCode,
};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use super::{
    Broadcast, ChainClient, ChainError, JsonRpc, Refusal, Shipment,
    jsonrpc::{CallError, RpcError},
};

/// Selector of `balanceOf(address)` (EIP-20).
const BALANCE_OF: &str = "70a08231";

/// One EVM chain.
pub struct EvmNode {
    chain_id: u64,
    rpc: JsonRpc,
    /// Set once the node has said that it is on this chain.
    checked: OnceCell<()>,
    /// Set once a block had a base fee: EIP-1559 is never switched off again.
    eip1559: OnceCell<()>,
}

impl EvmNode {
    /// The chain `chain_id`, through its nodes.
    pub fn new(chain_id: u64, rpc: JsonRpc) -> Self {
        Self {
            chain_id,
            rpc,
            checked: OnceCell::new(),
            eip1559: OnceCell::new(),
        }
    }

    async fn check_chain(&self) -> Result<(), ChainError> {
        self.checked
            .get_or_try_init(|| async {
                let found = number(&self.rpc.call("eth_chainId", json!([])).await?)?;
                if found == u128::from(self.chain_id) {
                    Ok(())
                } else {
                    Err(refused(
                        format!(
                            "the node that is configured for chain {} is on chain {found}",
                            self.chain_id
                        ),
                        ExecuteCode::Unspecified,
                    ))
                }
            })
            .await
            .copied()
    }

    async fn fees(&self, from: &str, call: &Call, base_fee: Option<u128>) -> Result<Fees, ChainError> {
        let estimate = self.rpc.call("eth_estimateGas", json!([transaction(from, call)]));
        let price = self.rpc.call(
            if base_fee.is_some() {
                "eth_maxPriorityFeePerGas"
            } else {
                "eth_gasPrice"
            },
            json!([]),
        );
        let (estimate, price) = tokio::join!(estimate, price);
        let estimate = match estimate {
            Err(CallError::Node(error)) => return Err(refused_call(&error)),
            other => number(&other?)?,
        };
        let estimate_gas = u64::try_from(estimate)
            .map_err(|_| ChainError::Unknown("the node's gas estimate is absurd".into()))?;
        let price = number(&price?)?;
        Ok(match base_fee {
            Some(base_fee) => Fees {
                estimate_gas,
                base_fee,
                max_priority_fee: price,
            },
            None => Fees {
                estimate_gas,
                base_fee: price,
                max_priority_fee: 0,
            },
        })
    }

    /// The base fee of the latest block; `None` on a chain without one.
    async fn base_fee(&self) -> Result<Option<u128>, ChainError> {
        let block = self
            .rpc
            .call("eth_getBlockByNumber", json!(["latest", false]))
            .await?;
        if block.is_null() {
            return Err(ChainError::Unknown("the node has no block yet".into()));
        }
        let base_fee = block.get("baseFeePerGas").map(number).transpose()?;
        if base_fee.is_some() {
            // Already set is as good.
            let _ = self.eip1559.set(());
        }
        Ok(base_fee)
    }

    /// Whether the chain has a base fee, for a transaction that brings everything else.
    /// Without an answer it has: the signature must not wait for a node.
    async fn has_base_fee(&self) -> bool {
        self.eip1559.initialized() || !matches!(self.base_fee().await, Ok(None))
    }

    async fn gather(&self, needs: &EvmNeeds) -> Result<Facts, ChainError> {
        if !needs.nonce && needs.fees.is_none() {
            return Ok(Facts::Evm(EvmFacts {
                nonce: None,
                eip1559: self.has_base_fee().await,
                fees: None,
            }));
        }
        self.check_chain().await?;
        let nonce = async {
            if !needs.nonce {
                return Ok(None);
            }
            let count = self
                .rpc
                .call("eth_getTransactionCount", json!([needs.from, "pending"]))
                .await?;
            u64::try_from(number(&count)?)
                .map(Some)
                .map_err(|_| ChainError::Unknown("the node's transaction count is absurd".into()))
        };
        let (nonce, base_fee) = tokio::try_join!(nonce, self.base_fee())?;
        let fees = match &needs.fees {
            Some(call) => Some(self.fees(&needs.from, call, base_fee).await?),
            None => None,
        };
        Ok(Facts::Evm(EvmFacts {
            nonce,
            eip1559: base_fee.is_some(),
            fees,
        }))
    }

    async fn known(&self, hash: &str) -> bool {
        self.rpc
            .find("eth_getTransactionByHash", json!([hash]), |found| {
                (!found.is_null()).then_some(())
            })
            .await
            .is_some()
    }
}

#[async_trait]
impl ChainClient for EvmNode {
    async fn facts(&self, needs: &Needs) -> Result<Facts, ChainError> {
        match needs {
            Needs::Evm(needs) => self.gather(needs).await,
            Needs::Nothing => Ok(Facts::Nothing),
            Needs::Solana(_) => Err(refused("not an EVM question".into(), ExecuteCode::Unspecified)),
        }
    }

    async fn broadcast(&self, shipment: &Shipment) -> Broadcast {
        // Money must not be sent to a node of another chain.
        match self.check_chain().await {
            Ok(()) => {}
            Err(ChainError::Unknown(reason)) => return Broadcast::Unknown(reason),
            Err(ChainError::Refused(refusal)) => return Broadcast::Unknown(refusal.reason),
        }
        let raw = json!([shipment.signed.transaction]);
        match self.rpc.call("eth_sendRawTransaction", raw).await {
            Ok(_) => Broadcast::Accepted,
            Err(CallError::Unreachable(reason)) => Broadcast::Unknown(reason),
            Err(CallError::Node(error)) => {
                let verdict = judge(&error);
                if matches!(verdict, Broadcast::Accepted) {
                    return verdict;
                }
                // An earlier try may have arrived although its answer was lost.
                if self.known(&shipment.signed.tx_hash).await {
                    return Broadcast::Accepted;
                }
                verdict
            }
        }
    }

    async fn balance(&self, address: &str, token: Option<&str>) -> Result<String, ChainError> {
        self.check_chain().await?;
        let answer = match token {
            None => {
                self.rpc
                    .call("eth_getBalance", json!([address, "latest"]))
                    .await
            }
            Some(token) => {
                let owner = address.trim_start_matches("0x").to_ascii_lowercase();
                let data = format!("0x{BALANCE_OF}{owner:0>64}");
                self.rpc
                    .call("eth_call", json!([{"to": token, "data": data}, "latest"]))
                    .await
            }
        };
        let not_a_token = || {
            refused(
                "there is no token contract at this address".into(),
                ExecuteCode::Unspecified,
            )
        };
        let answer = match answer {
            Err(CallError::Node(error)) if token.is_some() && reverted(&error) => {
                return Err(not_a_token());
            }
            other => other?,
        };
        let digits = answer
            .as_str()
            .and_then(|text| text.strip_prefix("0x"))
            .ok_or_else(|| ChainError::Unknown("the node's balance is not a number".into()))?;
        if digits.is_empty() {
            return Err(not_a_token());
        }
        hex_to_decimal(digits)
            .ok_or_else(|| ChainError::Unknown("the node's balance is not a number".into()))
    }
}

fn transaction(from: &str, call: &Call) -> Value {
    let value = call.value.parse::<u128>().map_or_else(
        // Over 2^128 wei: no account has it, and the node says so.
        |_| format!("0x{}", "f".repeat(64)),
        |value| format!("{value:#x}"),
    );
    let mut object = json!({
        "from": from,
        "value": value,
        "data": format!("0x{}", hex::encode(&call.data)),
    });
    if let (Some(to), Some(fields)) = (&call.to, object.as_object_mut()) {
        fields.insert("to".into(), json!(to));
    }
    object
}

/// What a node's answer to eth_sendRawTransaction means. The words are those of geth, reth,
/// erigon, nethermind, besu and anvil.
fn judge(error: &RpcError) -> Broadcast {
    let said = error.message.to_ascii_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| said.contains(word));
    if has(&["already known", "known transaction", "already imported", "alreadyknown", "already exists"]) {
        return Broadcast::Accepted;
    }
    if has(&["txpool is full", "pool is full", "limit exceeded", "try again", "timeout", "syncing", "header not found"])
        || error.code == -32603 && has(&["internal error"])
    {
        return Broadcast::Unknown(format!("the node said: {}", error.message));
    }
    Broadcast::Refused(refusal(error))
}

fn refusal(error: &RpcError) -> Refusal {
    let said = error.message.to_ascii_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| said.contains(word));
    let code = if has(&["intrinsic gas too low", "out of gas", "gas required exceeds", "underpriced", "max fee per gas less", "fee cap", "gas allowance"]) {
        ExecuteCode::InsufficientGasFee
    } else if has(&["insufficient funds", "insufficient balance", "insufficientfunds", "exceeds balance"]) {
        ExecuteCode::InsufficientFunds
    } else {
        ExecuteCode::Unspecified
    };
    let hint = match code {
        ExecuteCode::InsufficientFunds => "the sender cannot pay amount and fee; the node said: ",
        ExecuteCode::InsufficientGasFee => "the fee or gas limit is too low; the node said: ",
        _ => "the node refused the transaction: ",
    };
    Refusal {
        reason: format!("{hint}{}", short(&error.message)),
        code,
    }
}

/// An error of eth_estimateGas: the call reverts or cannot be paid.
fn refused_call(error: &RpcError) -> ChainError {
    let said = error.message.to_ascii_lowercase();
    let speaks_of_the_call = reverted(error)
        || ["insufficient", "exceeds", "gas required", "invalid opcode", "out of gas"]
            .iter()
            .any(|word| said.contains(word));
    if speaks_of_the_call {
        ChainError::Refused(refusal(error))
    } else {
        ChainError::Unknown(format!("the node said: {}", short(&error.message)))
    }
}

fn reverted(error: &RpcError) -> bool {
    // 3 is geth's code of a revert.
    error.code == 3 || error.message.to_ascii_lowercase().contains("revert")
}

fn refused(reason: String, code: ExecuteCode) -> ChainError {
    ChainError::Refused(Refusal { reason, code })
}

/// A node's words, cut to what fits a sentence.
fn short(text: &str) -> String {
    text.chars().take(300).collect()
}

fn number(value: &Value) -> Result<u128, ChainError> {
    value
        .as_str()
        .and_then(|text| text.strip_prefix("0x"))
        .and_then(|digits| u128::from_str_radix(digits, 16).ok())
        .ok_or_else(|| ChainError::Unknown("the node answered something that is not a number".into()))
}

/// 256-bit hex to decimal.
fn hex_to_decimal(digits: &str) -> Option<String> {
    // Base 10^9 limbs, least significant first.
    let mut limbs: Vec<u64> = vec![0];
    for digit in digits.chars() {
        let mut carry = u64::from(digit.to_digit(16)?);
        for limb in &mut limbs {
            let value = *limb * 16 + carry;
            *limb = value % 1_000_000_000;
            carry = value / 1_000_000_000;
        }
        if carry > 0 {
            limbs.push(carry);
        }
    }
    let mut text = limbs.pop()?.to_string();
    for limb in limbs.iter().rev() {
        text.push_str(&format!("{limb:09}"));
    }
    Some(text)
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    fn said(code: i64, message: &str) -> RpcError {
        RpcError {
            code,
            message: message.into(),
            data: Value::Null,
        }
    }

    #[test]
    fn hex_to_decimal__should_convert_256_bits() {
        assert_eq!(hex_to_decimal("0").unwrap(), "0");
        assert_eq!(hex_to_decimal("de0b6b3a7640000").unwrap(), "1000000000000000000");
        assert_eq!(
            hex_to_decimal(&"f".repeat(64)).unwrap(),
            "115792089237316195423570985008687907853269984665640564039457584007913129639935"
        );
        assert_eq!(hex_to_decimal("zz"), None);
    }

    #[test]
    fn judge__should_take_a_known_transaction_for_accepted() {
        for words in ["already known", "known transaction: 0x12", "AlreadyKnown", "transaction already imported"] {
            assert_eq!(judge(&said(-32000, words)), Broadcast::Accepted, "{words}");
        }
    }

    #[test]
    fn judge__should_name_the_code_of_a_refusal() {
        let code = |words: &str| match judge(&said(-32000, words)) {
            Broadcast::Refused(refusal) => refusal.code,
            other => panic!("{words}: {other:?}"),
        };
        assert_eq!(
            code("insufficient funds for gas * price + value: balance 0"),
            ExecuteCode::InsufficientFunds
        );
        assert_eq!(code("Insufficient funds for gas * price + value"), ExecuteCode::InsufficientFunds);
        assert_eq!(code("intrinsic gas too low: gas 1"), ExecuteCode::InsufficientGasFee);
        assert_eq!(code("transaction underpriced"), ExecuteCode::InsufficientGasFee);
        assert_eq!(code("nonce too low"), ExecuteCode::Unspecified);
    }

    #[test]
    fn judge__should_not_refuse_for_good_what_may_work_later() {
        for words in ["txpool is full", "request timeout", "node is syncing"] {
            assert!(matches!(judge(&said(-32000, words)), Broadcast::Unknown(_)), "{words}");
        }
    }
}
