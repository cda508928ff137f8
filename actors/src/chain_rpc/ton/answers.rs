//! What toncenter's HTTP API answers: `{"ok": true, "result": ..}`, or `{"ok": false, "error": ..}`
//! with a status of error.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use covault_core::{
    fault::ExecuteCode,
    networks::ton::{
        TonAddress,
        ledger::{self, WalletData},
    },
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use crate::chain_rpc::{
    ChainRefusal, NodeResponse,
    exchange::{NOT_ABOUT_THE_REQUEST, short},
};

/// The root hash of mainnet's first state (`init` of getMasterchainInfo).
const MAINNET: &str = "F6OpKZKqvqeFp6CQmFomXNMfMj2EnaUSOXN+Mh+wVWk=";

/// Exit codes of the wallet contracts (v4r2, v5r1) by which they say that the number is not the
/// next one.
const SEQNO: [i64; 2] = [33, 133];
/// That the time is over, by the clock of the node.
const EXPIRED: [i64; 2] = [36, 136];
/// TVM: how a get-method ends well.
const DONE: [i64; 2] = [0, 1];

#[derive(Deserialize)]
struct OkResponse<T> {
    ok: bool,
    result: T,
}

#[derive(Deserialize)]
struct ErrorResponse {
    error: String,
}

fn result<T: DeserializeOwned>(answer: &NodeResponse) -> Option<T> {
    if !answer.is_success() {
        return None;
    }
    let OkResponse { ok, result } = answer.json()?;
    ok.then_some(result)
}

fn error(answer: &NodeResponse) -> Option<String> {
    Some(answer.json::<ErrorResponse>()?.error)
}

/// Whether a node has answered. What a liteserver says about a message comes as its failure (500),
/// as do troubles of its own, which another node may not have.
pub fn is_answer(answer: &NodeResponse) -> bool {
    match answer.status {
        500 => error(answer).is_some_and(|said| is_about_a_message(&said)),
        status => status < 500 && !NOT_ABOUT_THE_REQUEST.contains(&status),
    }
}

fn is_about_a_message(said: &str) -> bool {
    said.to_ascii_lowercase().contains("external message")
}

/// Names the chain, when it is not mainnet.
pub fn other_chain(answer: &NodeResponse) -> Result<Option<String>, String> {
    let found = result::<Value>(answer);
    let found = found
        .as_ref()
        .and_then(|found| found.pointer("/init/root_hash")?.as_str())
        .ok_or("the node named no first state")?;
    Ok((found != MAINNET).then(|| {
        format!(
            "the node that is configured for TON is not on mainnet: its first state is {}",
            short(found)
        )
    }))
}

/// A parameter of the chain's configuration, a bag of cells in base64; `None` when the node has none to give.
pub fn config_param(answer: &NodeResponse) -> Option<Option<String>> {
    if !answer.is_success() {
        return Some(None);
    }
    let found = result::<Value>(answer)?;
    Some(Some(found.pointer("/config/bytes")?.as_str()?.to_owned()))
}

/// What an account is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AccountStatus {
    /// Nothing, or coins and no contract.
    Uninitialized,
    /// A contract.
    Active,
    /// A contract whose rent was not paid.
    Frozen,
}

/// A transaction of an account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionCursor {
    /// Its logical time.
    pub lt: u64,
    /// Its hash, as the node writes it.
    pub hash: String,
}

#[derive(Deserialize)]
struct AddressInformation {
    balance: Value,
    #[serde(default)]
    data: String,
    state: AccountStatus,
    last_transaction_id: TransactionId,
    sync_utime: u64,
}

#[derive(Deserialize)]
struct TransactionId {
    lt: Value,
    hash: String,
}

impl TransactionId {
    fn place(self) -> Option<TransactionCursor> {
        Some(TransactionCursor {
            lt: decimal(&self.lt)?.try_into().ok()?,
            hash: self.hash,
        })
    }
}

/// Large numbers are strings.
fn decimal(value: &Value) -> Option<u128> {
    match value {
        Value::String(text) => text.parse().ok(),
        value => value.as_u64().map(Into::into),
    }
}

/// An account, by getAddressInformation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TonAccount {
    /// What it is.
    pub state: AccountStatus,
    /// nanoton.
    pub balance: u128,
    /// What its contract keeps, in base64.
    pub data: String,
    /// Its last transaction.
    pub last: TransactionCursor,
    /// The time of the block from which this is, in seconds since the Unix epoch.
    pub time_s: u64,
}

impl TonAccount {
    /// Reads an answer.
    pub fn read(answer: &NodeResponse) -> Option<Self> {
        let found: AddressInformation = result(answer)?;
        Some(Self {
            state: found.state,
            balance: decimal(&found.balance)?,
            data: found.data,
            last: found.last_transaction_id.place()?,
            time_s: found.sync_utime,
        })
    }
}

/// A wallet's account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TonWallet {
    /// What it is.
    pub state: AccountStatus,
    /// nanoton.
    pub balance: u128,
    /// What its contract keeps; its first state, while it is not on the chain.
    pub data: WalletData,
    /// Its last transaction.
    pub last: TransactionCursor,
    /// The time of the block from which this is, in seconds since the Unix epoch.
    pub time_s: u64,
}

/// Reads an answer about the account of a wallet.
pub fn wallet(answer: &NodeResponse, address: &TonAddress) -> Option<TonWallet> {
    let account = TonAccount::read(answer)?;
    let data = match account.state {
        AccountStatus::Active => ledger::read_wallet(&account.data, address)?,
        AccountStatus::Uninitialized | AccountStatus::Frozen => WalletData::FIRST,
    };
    Some(TonWallet {
        state: account.state,
        balance: account.balance,
        data,
        last: account.last,
        time_s: account.time_s,
    })
}

/// How a get-method ended.
#[derive(Debug, Deserialize)]
pub struct GetMethodResult {
    exit_code: i64,
    /// Pairs of a type and a value.
    stack: Vec<(String, Value)>,
}

/// What a jetton wallet says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JettonWalletData {
    /// In the jetton's smallest unit.
    pub balance: u128,
    /// Whose it is.
    pub owner: TonAddress,
    /// The jetton's master contract.
    pub master: TonAddress,
}

/// Reads an answer of runGetMethod.
pub fn ran(answer: &NodeResponse) -> Option<GetMethodResult> {
    result(answer)
}

impl GetMethodResult {
    /// A value of the stack, when the method ended well.
    fn at(&self, index: usize) -> Option<(&str, &Value)> {
        if !DONE.contains(&self.exit_code) {
            return None;
        }
        let (kind, value) = self.stack.get(index)?;
        Some((kind, value))
    }

    fn cell(&self, index: usize) -> Option<&str> {
        let ("cell" | "slice", value) = self.at(index)? else {
            return None;
        };
        value.get("bytes")?.as_str()
    }

    /// An address on the stack.
    pub fn address(&self, index: usize) -> Option<TonAddress> {
        ledger::read_address(self.cell(index)?)
    }

    fn number(&self, index: usize) -> Option<u128> {
        let ("num", value) = self.at(index)? else {
            return None;
        };
        u128::from_str_radix(value.as_str()?.strip_prefix("0x")?, 16).ok()
    }

    /// Of `get_wallet_data` (TEP-74).
    pub fn holding(&self) -> Option<JettonWalletData> {
        Some(JettonWalletData {
            balance: self.number(0)?,
            owner: self.address(1)?,
            master: self.address(2)?,
        })
    }

    /// Of `get_jetton_data` (TEP-74), where they are on the chain.
    pub fn decimals(&self) -> Option<u8> {
        ledger::read_decimals(self.cell(3)?)
    }
}

/// A part of the list of an account's transactions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransactionSearch {
    /// The one that was looked for is in it.
    Here {
        /// How many messages it sent.
        sent: usize,
        /// Its logical time.
        lt: u64,
    },
    /// It is not in it, nor can it be in an earlier one.
    Over,
    /// It may be before this.
    More(TransactionCursor),
}

#[derive(Deserialize)]
struct TonTransaction {
    utime: u64,
    transaction_id: TransactionId,
    in_msg: Option<AccountMessage>,
    out_msgs: Vec<Value>,
}

#[derive(Deserialize)]
struct AccountMessage {
    /// Empty in those from outside.
    source: String,
    body_hash: String,
}

/// Looks for the transaction that a message from outside with this body caused, in a list that
/// begins with `from` and goes back in time. It cannot be from before `since_s`, in seconds since
/// the Unix epoch.
pub fn page(
    answer: &NodeResponse,
    body_hash: &[u8; 32],
    since_s: u64,
    from: &TransactionCursor,
) -> Option<TransactionSearch> {
    let list: Vec<TonTransaction> = result(answer)?;
    let mut last = None;
    for transaction in list {
        let TonTransaction {
            utime,
            transaction_id,
            in_msg,
            out_msgs,
        } = transaction;
        let place = transaction_id.place()?;
        let before = last.as_ref().map(|last: &TransactionCursor| last.lt);
        // Whatever was left out in front could be the one.
        if before.map_or(place.lt != from.lt, |before| place.lt >= before) {
            return None;
        }
        if let Some(message) = in_msg
            && message.source.is_empty()
            && STANDARD.decode(&message.body_hash).ok()? == body_hash
        {
            return Some(TransactionSearch::Here {
                sent: out_msgs.len(),
                lt: place.lt,
            });
        }
        if utime < since_s {
            return Some(TransactionSearch::Over);
        }
        last = Some(place);
    }
    let last = last?;
    Some(if last.lt == from.lt {
        TransactionSearch::Over
    } else {
        TransactionSearch::More(last)
    })
}

/// What an answer to sendBoc means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TonVerdict {
    /// The node passes it on.
    Taken,
    /// Not now; whether it was taken before is not known.
    Later(String),
    /// The wallet's contract was not even run.
    NotRun(String),
    /// It will never be taken.
    Refused(ChainRefusal),
}

/// Judges an answer to sendBoc.
pub fn judge(answer: &NodeResponse) -> TonVerdict {
    if result::<Value>(answer).is_some() {
        return TonVerdict::Taken;
    }
    let Some(said) = error(answer) else {
        let status = answer.status;
        return TonVerdict::Later(format!("the node answered HTTP {status} without a reason"));
    };
    let refused = |reason: String| {
        TonVerdict::Refused(ChainRefusal {
            reason,
            code: ExecuteCode::Unspecified,
        })
    };
    let words = short(said.lines().next().unwrap_or_default());
    let reason = format!("the node said: {words}");
    if !is_about_a_message(&said) {
        return TonVerdict::Later(reason);
    }
    match exit_code(&said) {
        Some(code) if SEQNO.contains(&code) => TonVerdict::Later(
            "the node has another seqno for the wallet than the transaction".into(),
        ),
        Some(code) if EXPIRED.contains(&code) => {
            TonVerdict::Later("the transaction is expired by the node's clock".into())
        }
        Some(code) => refused(format!(
            "the wallet contract refused the transaction with exit code {code}; {reason}"
        )),
        None if said.contains("before smart-contract execution") || said.contains("cannot pay") => {
            TonVerdict::NotRun(reason)
        }
        None if said.contains("failed to parse") || said.contains("not a valid bag of cells") => {
            refused(format!("the node cannot read the transaction; {reason}"))
        }
        None => TonVerdict::Later(reason),
    }
}

/// That of the contract, in a liteserver's words.
fn exit_code(said: &str) -> Option<i64> {
    let (_, rest) = said.split_once("exitcode=")?;
    let end = rest.find(|char: char| char != '-' && !char.is_ascii_digit());
    rest.get(..end.unwrap_or(rest.len()))?.parse().ok()
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use serde_json::json;

    use super::*;

    fn http(status: u16, body: &Value) -> NodeResponse {
        NodeResponse {
            status,
            body: body.to_string().into(),
            ..NodeResponse::default()
        }
    }

    fn failure(words: &str) -> NodeResponse {
        http(500, &json!({"ok": false, "error": words, "code": 500}))
    }

    #[test]
    fn other_chain__should_know_mainnet_by_its_first_state() {
        let first = |hash: &str| {
            let result = json!({"last": {"root_hash": MAINNET}, "init": {"root_hash": hash}});
            other_chain(&http(200, &json!({"ok": true, "result": result})))
        };
        assert_eq!(first(MAINNET), Ok(None));
        let testnet = "gj+B8wb/AmlPk1z1AhVI484rhrUpgSr2oSFIh56VoSg=";
        let found = first(testnet).unwrap().unwrap();
        assert!(found.contains(testnet), "{found}");
        assert!(other_chain(&http(200, &json!({"ok": true, "result": {}}))).is_err());
    }

    #[test]
    fn is_answer__should_take_only_words_about_a_message_from_a_failure() {
        assert!(is_answer(&http(200, &json!({}))));
        assert!(is_answer(&http(422, &json!({}))));
        let refused = "LITE_SERVER_UNKNOWN: cannot apply external message to current state : x";
        assert!(is_answer(&failure(refused)));
        for answer in [
            failure("LITE_SERVER_NETWORK: timeout"),
            http(500, &json!("external message")),
            http(504, &json!({"error": refused})),
            http(429, &json!({"error": refused})),
            http(401, &json!({})),
        ] {
            assert!(!is_answer(&answer), "{answer:?}");
        }
    }

    #[test]
    fn exit_code__should_be_that_of_the_contract() {
        let said = "External message was not accepted\nCannot run message on account: inbound \
                    external message rejected by transaction 8B:\nexitcode=133, steps=13";
        assert_eq!(exit_code(said), Some(133));
        assert_eq!(exit_code("exitcode=-14"), Some(-14));
        for nothing in ["", "exitcode=", "exitcode=x", "code=1"] {
            assert_eq!(exit_code(nothing), None);
        }
    }

    #[test]
    fn judge__should_show_the_first_line_of_what_a_node_says() {
        let verdict = judge(&failure("external message: no\nsecret stack"));
        assert_eq!(
            verdict,
            TonVerdict::Later("the node said: external message: no".into())
        );
    }

    #[test]
    fn page__should_begin_where_it_was_asked_to_and_go_back() {
        let transaction = |lt: u64| {
            json!({"utime": lt, "transaction_id": {"lt": lt.to_string(), "hash": "h"},
                "out_msgs": []})
        };
        let from = TransactionCursor {
            lt: 9,
            hash: "h".into(),
        };
        let read = |lts: &[u64], since| {
            let list: Vec<_> = lts.iter().copied().map(transaction).collect();
            let answer = http(200, &json!({"ok": true, "result": list}));
            page(&answer, &[0; 32], since, &from)
        };
        let more = |lt| {
            let hash = "h".into();
            Some(TransactionSearch::More(TransactionCursor { lt, hash }))
        };
        assert_eq!(read(&[9, 8, 5], 0), more(5));
        assert_eq!(read(&[9, 8, 5], 5), more(5));
        assert_eq!(read(&[9, 8, 5], 6), Some(TransactionSearch::Over));
        assert_eq!(read(&[9], 0), Some(TransactionSearch::Over));
        for wrong in [&[][..], &[8, 5], &[10, 9], &[9, 5, 8], &[9, 9]] {
            assert_eq!(read(wrong, 0), None, "{wrong:?}");
        }
    }

    #[test]
    fn stacks__should_be_read_only_of_what_ended_well() {
        let ran = |exit_code: i64, stack: Value| {
            let result = json!({"exit_code": exit_code, "stack": stack});
            ran(&http(200, &json!({"ok": true, "result": result}))).unwrap()
        };
        let stack = || json!([["num", "0xff"], ["num", "-0x1"], ["list", {}]]);
        for (exit_code, expected) in [(0, Some(255)), (1, Some(255)), (-13, None), (11, None)] {
            assert_eq!(ran(exit_code, stack()).number(0), expected);
        }
        for index in 1..4 {
            assert_eq!(ran(0, stack()).number(index), None);
            assert_eq!(ran(0, stack()).address(index), None);
        }
    }
}
