//! TON nodes: version 2 of toncenter's HTTP API.
//!
//! A node that takes a transaction passes it on, and it can be lost on the way, when the wallet's
//! later ones would wait for its number for ever. So it counts as accepted when it is in a block;
//! until then the same bytes are sent again. Then it is seen, too, whether the wallet sent its
//! messages: one that it cannot pay it leaves out, and takes the fee.

mod answers;

use std::time::Duration;

use async_trait::async_trait;
use covault_core::{
    chain::{
        ChainData, Queries,
        ton::{
            ChainData as TonChainData, JettonChainData, JettonQueries, Queries as TonQueries,
            TonAddress, TransactionChainData, TransactionQueries,
            ledger::{self, Sent},
            parse_address,
        },
    },
    fault::{ExecuteCode, Fault},
};
use parking_lot::Mutex;
use serde_json::{Value, json};

use self::answers::{Account, Holding, Page, State, TransactionCursor, Verdict, Wallet};
use super::{
    Answer, Body, Broadcast, BroadcastRequest, Call, ChainClient, ChainError, EndpointHealth, Pool,
    Refusal, Rest,
};

/// For how long a transaction is good, in seconds. The wallet's earlier ones must be in blocks
/// before it can be, and signing takes a minute at most.
const LIFE_S: u64 = 600;
/// By how much the time of a node's last block must have passed the end of a transaction before
/// no block can have it any more, in seconds: the last blocks of shards may be younger than the
/// masterchain's that names them.
const SETTLED_S: u64 = 60;
/// By how much a block's time may be before that of this machine, in seconds.
const CLOCKS_S: u64 = 300;
/// Transactions of a wallet that are asked for at once; nodes give no more.
const PER_PAGE: &str = "100";
/// How often they are asked for: to find one among a wallet's last 5,000.
const PAGES: u32 = 50;
/// How often is looked whether a block has a transaction that a node took. There is a block every
/// few seconds.
const LOOKS: u32 = 8;
/// The pause before the first look. Doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// The longest pause.
const MOST_PAUSE: Duration = Duration::from_secs(3);
/// nanoton with which a wallet may be too poor to have its contract run.
const POOR: u128 = 10_000_000;

/// TON.
pub struct TonNode {
    rest: Rest,
}

/// What became of a transaction whose number is used.
enum Trace {
    /// A block has it. So many messages were sent.
    Here { sent: usize },
    /// No block has it.
    Nowhere,
}

impl TonNode {
    /// The chain, through its nodes. They are to be on mainnet; only where all of them are on this
    /// machine is the chain not looked at: chains of tests have other first blocks.
    pub fn new(pool: Pool) -> Self {
        let is_local = pool.is_local();
        let rest = Rest::new(pool).answers_when(answers::is_answer);
        if is_local {
            return Self { rest };
        }
        Self {
            rest: rest.checked(Call::get("/getMasterchainInfo", &[]), answers::other_chain),
        }
    }

    /// A wallet, of which at least so many nanoton are `needed`. That the nodes see other balances
    /// is nothing, as long as they all suffice.
    async fn wallet(&self, address: &TonAddress, needed: u128) -> Result<Wallet, ChainError> {
        let read = |answer: &Answer| answers::wallet(answer, address);
        let same = |one: &Wallet, other: &Wallet| {
            one.state == other.state
                && one.data == other.data
                && (one.balance >= needed) == (other.balance >= needed)
        };
        let call = account(address);
        self.rest.agreed_by("a wallet", &call, read, same).await
    }

    /// The jetton wallet that a master names as the owner's; `None` when it is no master.
    async fn jetton_wallet(
        &self,
        master: &TonAddress,
        owner: &TonAddress,
    ) -> Result<Option<TonAddress>, ChainError> {
        let argument = ledger::address_argument(owner).map_err(not_possible)?;
        let stack = json!([["tvm.Slice", argument]]);
        let call = get_method(master, "get_wallet_address", stack);
        let read = |answer: &Answer| Some(answers::ran(answer)?.address(0));
        self.rest.query_quorum("a jetton wallet", &call, read).await
    }

    /// What a jetton wallet says of itself; `None` when it is not on the chain.
    async fn holding(&self, wallet: &TonAddress) -> Result<Option<Holding>, ChainError> {
        let call = get_method(wallet, "get_wallet_data", json!([]));
        let read = |answer: &Answer| Some(answers::ran(answer)?.holding());
        let holding = self
            .rest
            .query_quorum("a jetton wallet", &call, read)
            .await?;
        if holding.is_some() {
            return Ok(holding);
        }
        let state = |answer: &Answer| Some(Account::read(answer)?.state);
        let call = account(wallet);
        match self
            .rest
            .query_quorum("a jetton wallet", &call, state)
            .await?
        {
            State::Uninitialized => Ok(None),
            State::Active | State::Frozen => Err(unsound()),
        }
    }

    async fn jetton(
        &self,
        owner: &TonAddress,
        queries: &JettonQueries,
    ) -> Result<JettonChainData, ChainError> {
        let master = address(&queries.master)?;
        let decimals = async {
            if !queries.decimals {
                return Ok(None);
            }
            let call = get_method(&master, "get_jetton_data", json!([]));
            let read = |answer: &Answer| Some(answers::ran(answer)?.decimals());
            self.rest
                .query_quorum("a jetton's decimals", &call, read)
                .await
        };
        let wallet = async {
            let Some(wallet) = self.jetton_wallet(&master, owner).await? else {
                return Err(not_possible(Fault::field("mintAddress", NO_MASTER)));
            };
            let holding = self.holding(&wallet).await?;
            Ok((wallet, holding))
        };
        let (decimals, (wallet, holding)) = tokio::try_join!(decimals, wallet)?;
        if let Some(holding) = &holding {
            if !holding.owner.is_account(owner) {
                return Err(unsound());
            }
            let is_that = holding.master.is_account(&master);
            if is_that && holding.balance < queries.amount {
                let problem = format!(
                    "the wallet holds {} of this jetton, and {} are to be sent",
                    holding.balance, queries.amount
                );
                let fault = Fault::field("mintAddress", problem);
                return Err(not_possible(
                    fault.with_execute_code(ExecuteCode::InsufficientFunds),
                ));
            }
        }
        Ok(JettonChainData {
            wallet: wallet.contract_form(),
            master: holding.map(|holding| holding.master.contract_form()),
            decimals,
        })
    }

    async fn gather(
        &self,
        queries: &TransactionQueries,
        now_ms: u64,
    ) -> Result<ChainData, ChainError> {
        let from = address(&queries.from)?;
        let jetton = async {
            match &queries.jetton {
                Some(jetton) => self.jetton(&from, jetton).await.map(Some),
                None => Ok(None),
            }
        };
        let (wallet, jetton) = tokio::try_join!(self.wallet(&from, queries.value), jetton)?;
        if wallet.state == State::Frozen {
            return Err(refused(
                "the wallet's account is frozen, as it owes rent: it has to be unfrozen first",
                ExecuteCode::InsufficientGasFee,
            ));
        }
        if !wallet.data.takes_signatures {
            return Err(refused(
                "the wallet contract was told to take no more signatures",
                ExecuteCode::Unspecified,
            ));
        }
        if wallet.balance < queries.value {
            return Err(ChainError::Refused(too_little(
                wallet.balance,
                queries.value,
            )));
        }
        let end = || u32::try_from((now_ms / 1_000).saturating_add(LIFE_S));
        let valid_until = queries.valid_until.then(end).transpose();
        let chain_data = TransactionChainData {
            seqno: wallet.data.seqno,
            deployed: wallet.state == State::Active,
            valid_until: valid_until.map_err(|_| unknown("the clock is past the year 2106"))?,
            jetton,
        };
        Ok(TonChainData::Transaction(chain_data).into())
    }

    /// What the chain says of a transaction; `None` when it can be sent.
    async fn look(
        &self,
        sent: &Sent,
        broadcast_request: &BroadcastRequest,
        wallet: &Wallet,
    ) -> Option<Broadcast> {
        if wallet.state == State::Frozen {
            return Some(Broadcast::Unknown(
                "the wallet's account is frozen, as it owes rent; what it did before is not seen"
                    .into(),
            ));
        }
        if wallet.data.seqno > sent.seqno {
            return Some(self.passed(sent, broadcast_request, &wallet.last).await);
        }
        if is_over(sent, broadcast_request) {
            return Some(match self.none_can_have(sent).await {
                Ok(true) => Broadcast::Refused(expired()),
                Ok(false) => Broadcast::Unknown(
                    "the transaction's time is over; it is waited for blocks that are past it"
                        .into(),
                ),
                Err(trouble) => Broadcast::Unknown(format!(
                    "the transaction's time is over, and a node cannot say what became of it: \
                     {trouble}"
                )),
            });
        }
        if wallet.data.seqno < sent.seqno {
            return Some(Broadcast::Unknown(
                "an earlier transaction of the wallet is not in a block yet".into(),
            ));
        }
        (!broadcast_request.retried && wallet.balance < sent.value)
            .then(|| Broadcast::Refused(too_little(wallet.balance, sent.value)))
    }

    /// Whether every node has blocks after which none can have the transaction any more, and the
    /// number was not used up to there.
    async fn none_can_have(&self, sent: &Sent) -> Result<bool, String> {
        let end_s = u64::from(sent.valid_until).saturating_add(SETTLED_S);
        let can = |answer: &Answer| {
            let wallet = answers::wallet(answer, &sent.wallet)
                .ok_or("the node's answer about a wallet makes no sense")?;
            let is_seen = wallet.state != State::Frozen;
            Ok(!is_seen || wallet.data.seqno > sent.seqno || wallet.time_s < end_s)
        };
        let some_can = self.rest.any(&account(&sent.wallet), can).await?;
        Ok(!some_can)
    }

    /// A node has taken it: waits until a block has it.
    async fn watch(&self, sent: &Sent, broadcast_request: &BroadcastRequest) -> Broadcast {
        let mut pause = FIRST_PAUSE;
        for _ in 0..LOOKS {
            tokio::time::sleep(pause).await;
            pause = pause.saturating_mul(2).min(MOST_PAUSE);
            if let Ok(wallet) = self.wallet(&sent.wallet, 0).await
                && wallet.data.seqno > sent.seqno
            {
                return self.passed(sent, broadcast_request, &wallet.last).await;
            }
        }
        Broadcast::Unknown(
            "a node has taken the transaction, and no block has it yet; it is sent again".into(),
        )
    }

    /// The number is used: by this transaction or by another one.
    async fn passed(
        &self,
        sent: &Sent,
        broadcast_request: &BroadcastRequest,
        last: &TransactionCursor,
    ) -> Broadcast {
        match self.trace(sent, broadcast_request, last).await {
            Ok(Trace::Here { sent: 0 }) => Broadcast::Refused(Refusal {
                reason: "the wallet took the transaction and sent nothing: it cannot pay the \
                         amount and the fees for it; a part of the fees was taken"
                    .into(),
                code: ExecuteCode::InsufficientFunds,
            }),
            Ok(Trace::Here { .. }) => Broadcast::Accepted,
            Ok(Trace::Nowhere) => Broadcast::Refused(Refusal {
                reason: "another transaction has used its number (seqno); create a new request"
                    .into(),
                code: ExecuteCode::Unspecified,
            }),
            Err(trouble) => Broadcast::Unknown(format!(
                "the transaction's number is used, and whether by this one is not known yet: \
                 {trouble}"
            )),
        }
    }

    /// Looks for it among the wallet's transactions: from the one that all nodes must know, as it
    /// is as late as the used number, back to the time when this one was made. It is nowhere only
    /// when every node says so.
    async fn trace(
        &self,
        sent: &Sent,
        broadcast_request: &BroadcastRequest,
        last: &TransactionCursor,
    ) -> Result<Trace, String> {
        let built_s = broadcast_request
            .now_ms
            .saturating_sub(broadcast_request.age_ms)
            / 1_000;
        let since_s = built_s.saturating_sub(CLOCKS_S);
        let mut from = last.clone();
        for _ in 0..PAGES {
            let seen = Mutex::new(None);
            let look = |answer: &Answer| {
                let page = answers::page(answer, &sent.body_hash, since_s, &from)
                    .ok_or("the node's list of a wallet's transactions makes no sense")?;
                let is_here = matches!(page, Page::Here { .. });
                let mut seen = seen.lock();
                if !is_here && seen.as_ref().is_some_and(|other| *other != page) {
                    return Err("the nodes do not agree about a wallet's transactions".into());
                }
                *seen = Some(page);
                Ok(is_here)
            };
            self.rest
                .any(&transactions(&sent.wallet, &from), look)
                .await?;
            match seen.into_inner() {
                Some(Page::Here { sent }) => return Ok(Trace::Here { sent }),
                Some(Page::Over) => return Ok(Trace::Nowhere),
                Some(Page::More(place)) => from = place,
                None => return Err("no node could be asked".into()),
            }
        }
        Err("the wallet has too many transactions since".into())
    }
}

#[async_trait]
impl ChainClient for TonNode {
    async fn chain_data(&self, queries: &Queries, now_ms: u64) -> Result<ChainData, ChainError> {
        match queries {
            Queries::Ton(TonQueries::Transaction(queries)) => self.gather(queries, now_ms).await,
            Queries::Nothing => Ok(ChainData::Nothing),
            _ => Err(refused(
                "not a question for TON's nodes",
                ExecuteCode::Unspecified,
            )),
        }
    }

    async fn broadcast(&self, broadcast_request: &BroadcastRequest) -> Broadcast {
        let sent = match ledger::read_sent(&broadcast_request.signed.transaction) {
            Ok(sent) => sent,
            Err(fault) => {
                return Broadcast::Refused(Refusal {
                    reason: fault.message().to_owned(),
                    code: ExecuteCode::Unspecified,
                });
            }
        };
        if !broadcast_request.retried && is_over(&sent, broadcast_request) {
            return Broadcast::Refused(expired());
        }
        let wallet = self.wallet(&sent.wallet, sent.value).await;
        if let Ok(wallet) = &wallet
            && let Some(outcome) = self.look(&sent, broadcast_request, wallet).await
        {
            return outcome;
        }
        let boc = json!({"boc": broadcast_request.signed.transaction});
        let call = Call::post("/sendBoc", Body::Json(boc));
        let (answer, lost) = self.rest.send(&call).await;
        let verdict = match answer {
            Ok(answer) => answers::judge(&answer),
            Err(ChainError::Unknown(reason) | ChainError::Refused(Refusal { reason, .. })) => {
                return Broadcast::Unknown(reason);
            }
        };
        // Where an earlier try may have arrived, or the number may not be the next one, only the
        // chain can say.
        let balance = match &wallet {
            Ok(wallet) if !lost && !broadcast_request.retried => Some(wallet.balance),
            _ => None,
        };
        match (verdict, balance) {
            (Verdict::Taken, _) => self.watch(&sent, broadcast_request).await,
            (Verdict::Refused(refusal), Some(_)) => Broadcast::Refused(refusal),
            (Verdict::NotRun(reason), Some(balance)) if balance < POOR => {
                Broadcast::Refused(Refusal {
                    reason: format!("the wallet cannot pay the fees; {reason}"),
                    code: ExecuteCode::InsufficientGasFee,
                })
            }
            (
                Verdict::Refused(Refusal { reason, .. })
                | Verdict::NotRun(reason)
                | Verdict::Later(reason),
                _,
            ) => Broadcast::Unknown(reason),
        }
    }

    async fn next_number(&self, owner: &str, since_ms: u64) -> Result<Option<u64>, ChainError> {
        let owner = address(owner)?;
        let since_s = since_ms.div_ceil(1_000);
        // Number and time are of one state of the chain. What a frozen account did before is not
        // seen.
        let read = |answer: &Answer| {
            let wallet = answers::wallet(answer, &owner)?;
            let is_seen = wallet.state != State::Frozen;
            is_seen.then_some((wallet.time_s >= since_s, u64::from(wallet.data.seqno)))
        };
        let call = account(&owner);
        let (is_later, next) = self.rest.query_quorum("a wallet", &call, read).await?;
        Ok(is_later.then_some(next))
    }

    async fn balance(&self, owner: &str, token: Option<&str>) -> Result<String, ChainError> {
        let owner = address(owner)?;
        let Some(token) = token else {
            let read = |answer: &Answer| Some(Account::read(answer)?.balance);
            let call = account(&owner);
            let balance = self.rest.query_quorum("a balance", &call, read).await?;
            return Ok(balance.to_string());
        };
        let master = address(token)?;
        let Some(wallet) = self.jetton_wallet(&master, &owner).await? else {
            return Err(refused(NO_MASTER, ExecuteCode::Unspecified));
        };
        let holding = self.holding(&wallet).await?;
        match holding {
            Some(holding)
                if !holding.owner.is_account(&owner) || !holding.master.is_account(&master) =>
            {
                Err(refused(UNSOUND, ExecuteCode::Unspecified))
            }
            Some(holding) => Ok(holding.balance.to_string()),
            None => Ok("0".into()),
        }
    }

    fn health(&self) -> Vec<EndpointHealth> {
        self.rest.health()
    }
}

const NO_MASTER: &str = "is not the master contract of a jetton";
const UNSOUND: &str =
    "is not a sound jetton: what it names as the owner's jetton wallet is another's, or none";

fn account(address: &TonAddress) -> Call {
    let address = address.contract_form();
    Call::get("/getAddressInformation", &[("address", &address)])
}

fn transactions(wallet: &TonAddress, from: &TransactionCursor) -> Call {
    let (wallet, lt) = (wallet.contract_form(), from.lt.to_string());
    let query = [
        ("address", wallet.as_str()),
        ("limit", PER_PAGE),
        ("lt", &lt),
        ("hash", &from.hash),
    ];
    Call::get("/getTransactions", &query)
}

fn get_method(contract: &TonAddress, method: &str, stack: Value) -> Call {
    let body = json!({"address": contract.contract_form(), "method": method, "stack": stack});
    Call::post("/runGetMethod", Body::Json(body))
}

/// By this machine's clock.
fn is_over(sent: &Sent, broadcast_request: &BroadcastRequest) -> bool {
    u64::from(sent.valid_until) <= broadcast_request.now_ms / 1_000
}

/// In canonical form already.
fn address(text: &str) -> Result<TonAddress, ChainError> {
    parse_address(text).map_err(|error| not_possible(Fault::bug(error)))
}

fn too_little(balance: u128, value: u128) -> Refusal {
    Refusal {
        reason: format!(
            "the wallet has {balance} nanoton, and {value} are to be sent, with fees besides"
        ),
        code: ExecuteCode::InsufficientFunds,
    }
}

fn expired() -> Refusal {
    Refusal {
        reason: "the transaction expired before a block took it; create a new request".into(),
        code: ExecuteCode::Unspecified,
    }
}

fn unsound() -> ChainError {
    not_possible(Fault::field("mintAddress", UNSOUND))
}

fn not_possible(fault: Fault) -> ChainError {
    refused(fault.message(), fault.execute_code())
}

fn refused(reason: &str, code: ExecuteCode) -> ChainError {
    ChainError::Refused(Refusal {
        reason: reason.to_owned(),
        code,
    })
}

fn unknown(reason: &str) -> ChainError {
    ChainError::Unknown(reason.to_owned())
}
