//! Solana and Sonic SVM nodes: the Solana JSON-RPC.

use async_trait::async_trait;
use covault_core::{
    chain::{Facts, Needs, solana::Facts as SolanaFacts},
    fault::ExecuteCode,
};
use serde_json::{Value, json};

use super::{
    Broadcast, ChainClient, ChainError, EndpointHealth, JsonRpc, Refusal, Shipment,
    jsonrpc::{CallError, RpcError, short},
    settle,
};

/// A blockhash is good for 150 blocks, about a minute. When a node does not know it after
/// this time, no node will ever take the transaction.
const BLOCKHASH_LIFE_MS: u64 = 150_000;

/// One Solana-family chain.
pub struct SolanaNode {
    rpc: JsonRpc,
}

impl SolanaNode {
    /// The chain, through its nodes.
    pub fn new(rpc: JsonRpc) -> Self {
        Self { rpc }
    }

    async fn known(&self, signature: &str) -> Result<bool, String> {
        let params = json!([[signature], {"searchTransactionHistory": true}]);
        self.rpc
            .any("getSignatureStatuses", params, |found| {
                found
                    .pointer("/value/0")
                    .is_some_and(|status| !status.is_null())
            })
            .await
    }
}

#[async_trait]
impl ChainClient for SolanaNode {
    async fn facts(&self, needs: &Needs, _now_ms: u64) -> Result<Facts, ChainError> {
        match needs {
            Needs::Nothing => Ok(Facts::Nothing),
            Needs::Solana(_) => {
                let answer = self
                    .rpc
                    .call("getLatestBlockhash", json!([{"commitment": "confirmed"}]))
                    .await?;
                answer
                    .pointer("/value/blockhash")
                    .and_then(Value::as_str)
                    .map(|hash| {
                        Facts::Solana(SolanaFacts {
                            recent_blockhash: hash.to_owned(),
                            token: None,
                        })
                    })
                    .ok_or_else(|| ChainError::Unknown("the node named no blockhash".into()))
            }
            _ => Err(ChainError::Refused(Refusal {
                reason: "not a Solana question".into(),
                code: ExecuteCode::Unspecified,
            })),
        }
    }

    async fn broadcast(&self, shipment: &Shipment) -> Broadcast {
        // Preflight at the commitment of the blockhash: at `finalized`, the default, the node
        // would not know it yet.
        let params = json!([
            shipment.signed.transaction,
            {"encoding": "base64", "preflightCommitment": "confirmed"}
        ]);
        let (answer, doubt) = self.rpc.call_once("sendTransaction", params).await;
        match answer {
            Ok(_) => Broadcast::Accepted,
            Err(CallError::Unreachable(reason) | CallError::WrongChain(reason)) => {
                Broadcast::Unknown(reason)
            }
            Err(CallError::Node(error)) => match judge(&error, shipment.age_ms) {
                Broadcast::Refused(refusal) => {
                    let known = self.known(&shipment.signed.tx_hash).await;
                    let doubt = doubt || shipment.retried || shipment.age_ms >= BLOCKHASH_LIFE_MS;
                    settle(refusal, known, doubt)
                }
                verdict => verdict,
            },
        }
    }

    async fn balance(&self, address: &str, token: Option<&str>) -> Result<String, ChainError> {
        let Some(mint) = token else {
            let params = json!([address, {"commitment": "confirmed"}]);
            let lamports = |answer: &Value| answer.get("value")?.as_u64();
            let lamports = self.rpc.agreed("getBalance", params, lamports).await?;
            return Ok(lamports.to_string());
        };
        let params = json!([
            address,
            {"mint": mint},
            {"encoding": "jsonParsed", "commitment": "confirmed"}
        ]);
        match self
            .rpc
            .agreed("getTokenAccountsByOwner", params, sum)
            .await
        {
            // -32602 invalid params: addresses are checked before, so that it is the mint.
            Err(CallError::Node(error)) if error.code == -32602 => {
                Err(ChainError::Refused(Refusal {
                    reason: format!("is not a token of {}", self.rpc.name()),
                    code: ExecuteCode::Unspecified,
                }))
            }
            amount => Ok(amount?.to_string()),
        }
    }

    fn health(&self) -> Vec<EndpointHealth> {
        self.rpc.health()
    }
}

/// What all token accounts of an owner hold of one mint; of either token program.
fn sum(answer: &Value) -> Option<u128> {
    let accounts = answer.get("value")?.as_array()?;
    accounts.iter().try_fold(0u128, |sum, account| {
        let amount = account.pointer("/account/data/parsed/info/tokenAmount/amount")?;
        sum.checked_add(u128::from(amount.as_str()?.parse::<u64>().ok()?))
    })
}

fn judge(error: &RpcError, age_ms: u64) -> Broadcast {
    let said = format!("{} {}", error.message, error.data).to_ascii_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| said.contains(word));
    if has(&["already been processed", "alreadyprocessed"]) {
        return Broadcast::Accepted;
    }
    if has(&["blockhash not found", "blockhashnotfound"]) {
        if age_ms < BLOCKHASH_LIFE_MS {
            return Broadcast::Unknown("the node does not know the blockhash yet".into());
        }
        return Broadcast::Refused(Refusal {
            reason: "the transaction expired before a node took it; create a new request".into(),
            code: ExecuteCode::Unspecified,
        });
    }
    // -32005 node is unhealthy, -32014 and -32016 behind, -32603 internal.
    if matches!(error.code, -32005 | -32014 | -32016 | -32603) {
        return Broadcast::Unknown(format!("the node said: {}", short(&error.message)));
    }
    let code = if has(&[
        "insufficient lamports",
        "insufficientfundsforrent",
        "insufficient funds for rent",
        "no record of a prior credit",
        "accountnotfound",
    ]) || custom_error(&said) == Some("1")
    {
        ExecuteCode::InsufficientFunds
    } else if has(&["insufficientfundsforfee", "insufficient funds for fee"]) {
        ExecuteCode::InsufficientGasFee
    } else {
        ExecuteCode::Unspecified
    };
    let hint = match code {
        ExecuteCode::InsufficientFunds => "the sender cannot pay the amount; the node said: ",
        ExecuteCode::InsufficientGasFee => "the sender cannot pay the fee; the node said: ",
        _ => "the node refused the transaction: ",
    };
    let words = short(&error.message);
    Broadcast::Refused(Refusal {
        reason: format!("{hint}{words}"),
        code,
    })
}

/// The hex digits of a program's own error: 1 of the system and token programs says that there
/// is too little.
fn custom_error(said: &str) -> Option<&str> {
    let (_, rest) = said.split_once("custom program error: 0x")?;
    rest.split(|other: char| !other.is_ascii_hexdigit()).next()
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    fn said(message: &str) -> RpcError {
        RpcError {
            code: -32002,
            message: format!("Transaction simulation failed: {message}"),
            data: Value::Null,
        }
    }

    #[test]
    fn judge__should_know_a_transaction_that_was_processed() {
        let error = said("This transaction has already been processed");
        assert_eq!(judge(&error, 0), Broadcast::Accepted);
    }

    #[test]
    fn judge__should_wait_for_the_blockhash_as_long_as_it_can_live() {
        let error = said("Blockhash not found");
        assert!(matches!(judge(&error, 10_000), Broadcast::Unknown(_)));
        assert!(matches!(
            judge(&error, BLOCKHASH_LIFE_MS),
            Broadcast::Refused(_)
        ));
    }

    #[test]
    fn judge__should_name_the_code_of_a_refusal() {
        let error = said("Attempt to debit an account but found no record of a prior credit.");
        match judge(&error, 0) {
            Broadcast::Refused(refusal) => assert_eq!(refusal.code, ExecuteCode::InsufficientFunds),
            other => panic!("{other:?}"),
        }
        for (words, code) in [
            ("custom program error: 0x1", ExecuteCode::InsufficientFunds),
            (
                "custom program error: 0x1 [3 log messages]",
                ExecuteCode::InsufficientFunds,
            ),
            ("custom program error: 0x1771", ExecuteCode::Unspecified),
        ] {
            match judge(&said(words), 0) {
                Broadcast::Refused(refusal) => assert_eq!(refusal.code, code, "{words}"),
                other => panic!("{other:?}"),
            }
        }
    }
}
