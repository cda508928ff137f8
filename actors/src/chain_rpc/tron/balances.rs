//! What accounts have now.

use covault_core::{
    amount::U256,
    deposit::{
        DepositNetwork,
        transfer::{Account, NOBODY},
    },
    fault::ExecuteCode,
    networks::evm::balances,
};
use serde_json::{Value, json};

use super::{TronNode, account, balance_of, holding, http::post, refusals::refused, sun, tried};
use crate::chain_rpc::{ChainError, client::ChainCall as _, exchange::ParsedResponse};

impl TronNode {
    /// What an account has of a token, 32 bytes, big-endian; `None` where its contract does not say it.
    pub(super) async fn token_balance(
        &self,
        owner: &str,
        contract: &str,
    ) -> Result<Option<[u8; 32]>, ChainError> {
        let question = balance_of(owner, contract)
            .ok_or_else(|| refused("not an address".into(), ExecuteCode::Unspecified))?;
        let holding = question.about("a balance").reading(holding);
        Ok(self.http.quorum(holding, Option::eq).await?)
    }

    /// What an account has of a token, or of TRX.
    pub(super) async fn balance_now(
        &self,
        (owner, token): (Account, Option<Account>),
    ) -> Result<Option<[u8; 32]>, ChainError> {
        let text = |account: Account| account.text(DepositNetwork::Tron);
        if let Some(token) = token {
            return self.token_balance(&text(owner), &text(token)).await;
        }
        let account = account(&text(owner)).about("a balance");
        let sun = self.http.query_quorum(account, sun).await?;
        Ok(Some(U256::from(sun).to_be_bytes()))
    }

    /// What accounts have, by one call of a program that is on no chain ([`balances`]).
    pub(super) async fn balances_together(
        &self,
        of: &[(Account, Option<Account>)],
    ) -> Result<Vec<Option<[u8; 32]>>, ChainError> {
        let data = balances::call_data(of);
        let question = json!({
            "owner_address": NOBODY.text(DepositNetwork::Tron),
            "data": data.trim_start_matches("0x"),
            "visible": true,
        });
        let question = post("triggerconstantcontract", question).costly();
        let call = question.about("balances").reading(|found: &Value| {
            tried(found).and_then(|tried| {
                let output = tried.map(|tried| json!(format!("0x{}", hex::encode(tried.output))));
                let output = output.unwrap_or_default();
                match balances::read(&output, of.len()) {
                    Ok(said) => ParsedResponse::Value(said),
                    Err(error) => ParsedResponse::Malformed(error.to_string()),
                }
            })
        });
        Ok(self.http.quorum(call, Vec::eq).await?)
    }
}
