//! TON nodes: version 2 of toncenter's HTTP API.
//!
//! A node that takes a transaction passes it on, and it can be lost on the way, when the wallet's
//! later ones would wait for its number for ever. So it counts as accepted when it is in a block;
//! until then the same bytes are sent again. A wallet leaves out a message that it cannot pay, and takes the fee: the
//! transaction is in a block then, and failed there.

mod answers;
mod sightings;

use std::{convert::Infallible, time::Duration};

use async_trait::async_trait;
use covault_core::{
    backoff::Backoff,
    fault::{ExecuteCode, Fault},
    networks::{
        ChainData, ChainMoment, Queries,
        ton::{
            ChainData as TonChainData, JettonChainData, JettonQueries, Queries as TonQueries,
            TonAddress, TransactionChainData, TransactionQueries,
            fee::{TRANSFER_GAS, TransferPrices},
            ledger::{self, SentMessage},
            parse_address,
        },
    },
};
use futures::future::try_join_all;
use parking_lot::Mutex;
use serde_json::{Value, json};

use self::answers::{
    AccountStatus, JettonWalletData, TonAccount, TonVerdict, TonWallet, TransactionCursor,
    TransactionSearch,
};
use super::{
    BroadcastOutcome, BroadcastRequest, ChainClient, ChainError, ChainRefusal, EndpointHealth,
    FeeEstimate, NodePool, NodeRequest, NodeRequestBody, NodeResponse, Objection, ObjectionKind,
    TrackedTransaction, TransactionSighting, client::Client, is_void, rest::Rest, sight_each,
    witnessed::witnessed,
};

/// For how long a transaction is good, in seconds. The wallet's earlier ones must be in blocks
/// before it can be, and signing takes a minute at most.
const LIFETIME_S: u64 = 600;
/// By how much the time of a node's last block must have passed the end of a transaction before
/// no block can have it, in seconds: the last blocks of shards may be younger than the
/// masterchain's that names them.
const EXPIRY_MARGIN_S: u64 = 60;
/// By how much a block's time may be before that of this machine, in seconds.
const CLOCK_SKEW_S: u64 = 300;
/// Transactions of a wallet that are asked for at once; nodes give no more.
const PER_PAGE: &str = "100";
/// How often they are asked for: to find one among a wallet's last 5,000.
const MAX_PAGES: u32 = 50;
/// How often is looked whether a block has a transaction that a node took. There is a block every
/// few seconds.
const MAX_POLLS: u32 = 8;
/// The pauses before each look.
const POLLS: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(3));
/// nanoton with which a wallet may be too poor to have its contract run.
const MIN_FEE_BALANCE: u128 = 10_000_000;

/// The parameters of the chain's configuration that say what gas and messages cost in the base chain.
const GAS_PRICES: &str = "21";
const FORWARD_PRICES: &str = "25";

/// TON.
pub struct TonNode {
    rest: Client<Rest>,
}

/// What became of a transaction whose number is used.
enum TonTrace {
    /// A block has it. So many messages were sent.
    Here { sent: usize },
    /// No block has it.
    Nowhere,
}

impl TonNode {
    /// The chain, through its nodes. They are to be on mainnet; only where all of them are on this
    /// machine is the chain not looked at: chains of tests have other first blocks.
    pub fn new(pool: NodePool) -> Self {
        let is_local = pool.is_local();
        let rest = Client::new(
            pool,
            Rest {
                is_answer: answers::is_answer,
            },
        );
        if is_local {
            return Self { rest };
        }
        Self {
            rest: rest.checked(
                NodeRequest::get("/getMasterchainInfo", &[]),
                answers::other_chain,
            ),
        }
    }

    /// A wallet, of which at least so many nanoton are `needed`. That the nodes see other balances
    /// is nothing, as long as they all suffice.
    async fn wallet(&self, address: &TonAddress, needed: u128) -> Result<TonWallet, ChainError> {
        let has = |wallet: &TonWallet| wallet.balance >= needed;
        let same = |one: &TonWallet, other: &TonWallet| has(one) == has(other);
        self.wallet_by(address, same).await
    }

    /// Whether as many nodes as it takes to end something say that a wallet may be too poor to have its contract run.
    async fn is_poor(&self, address: &TonAddress) -> bool {
        let wallet = witnessed(self.wallet(address, MIN_FEE_BALANCE)).await;
        wallet.is_ok_and(|wallet| wallet.balance < MIN_FEE_BALANCE)
    }

    /// A wallet, of which nodes agree that are of the same mind about more.
    async fn wallet_by(
        &self,
        address: &TonAddress,
        same: impl Fn(&TonWallet, &TonWallet) -> bool + Sync,
    ) -> Result<TonWallet, ChainError> {
        let read = |answer: &NodeResponse| answers::wallet(answer, address);
        let same = |one: &TonWallet, other: &TonWallet| {
            one.state == other.state && one.data == other.data && same(one, other)
        };
        let call = account(address).about("a wallet");
        Ok(self.rest.query_quorum_by(call, read, same).await?)
    }

    /// What validators charge, as the nodes say that the chain's configuration says; what mainnet has had since 2024
    /// where they do not have the method.
    async fn prices(&self) -> Result<TransferPrices, ChainError> {
        let param = |id| NodeRequest::get("/getConfigParam", &[("config_id", id)]).about("prices");
        let ask = |id| self.rest.query_quorum(param(id), answers::config_param);
        let (Some(gas), Some(carriage)) = tokio::try_join!(ask(GAS_PRICES), ask(FORWARD_PRICES))?
        else {
            return Ok(TransferPrices::MAINNET);
        };
        let prices = TransferPrices::read(&gas, &carriage)
            .ok_or_else(|| ChainError::unknown("the node's prices make no sense"))?;
        if prices.is_credible() {
            Ok(prices)
        } else {
            Err(ChainError::unknown(
                "the nodes report prices of more than twice those of mainnet, which are not accepted",
            ))
        }
    }

    /// The jetton wallet that a master names as the owner's; `None` when it is no master.
    async fn jetton_wallet(
        &self,
        master: &TonAddress,
        owner: &TonAddress,
    ) -> Result<Option<TonAddress>, ChainError> {
        let argument = ledger::address_argument(owner).map_err(ChainError::cannot_build)?;
        let stack = json!([["tvm.Slice", argument]]);
        let call = get_method(master, "get_wallet_address", stack);
        let read = |answer: &NodeResponse| Some(answers::ran(answer)?.address(0));
        let call = call.about("a jetton wallet");
        Ok(self.rest.query_quorum(call, read).await?)
    }

    /// What a jetton wallet says of itself; `None` when it is not on the chain.
    async fn holding(&self, wallet: &TonAddress) -> Result<Option<JettonWalletData>, ChainError> {
        let call = get_method(wallet, "get_wallet_data", json!([]));
        let read = |answer: &NodeResponse| Some(answers::ran(answer)?.holding());
        let holding = self
            .rest
            .query_quorum(call.about("a jetton wallet"), read)
            .await?;
        if holding.is_some() {
            return Ok(holding);
        }
        let state = |answer: &NodeResponse| Some(TonAccount::read(answer)?.state);
        let call = account(wallet);
        match self
            .rest
            .query_quorum(call.about("a jetton wallet"), state)
            .await?
        {
            AccountStatus::Uninitialized => Ok(None),
            AccountStatus::Active | AccountStatus::Frozen => Err(unsound()),
        }
    }

    /// Whether a contract is at an address that is to be paid.
    async fn is_deployed(&self, recipient: &TonAddress) -> Result<bool, ChainError> {
        let state = |answer: &NodeResponse| Some(TonAccount::read(answer)?.state);
        let call = account(recipient).about("a recipient");
        match self.rest.query_quorum(call, state).await? {
            AccountStatus::Active => Ok(true),
            AccountStatus::Uninitialized => Ok(false),
            AccountStatus::Frozen => Err(ChainError::refused(
                "the recipient's account is frozen: what it is sent comes back",
                ExecuteCode::Unspecified,
            )),
        }
    }

    /// That a message which the client made does not come back from an address without a contract.
    async fn require_contract(&self, recipient: &str) -> Result<(), ChainError> {
        if self.is_deployed(&address(recipient)?).await? {
            return Ok(());
        }
        let problem = format!(
            "sends to {recipient}, where no contract is: it would come back; send it to the address in the form of \
             wallets (UQ...), or bring stateInit"
        );
        Err(ChainError::cannot_build(Fault::field("payload", problem)))
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
            let read = |answer: &NodeResponse| Some(answers::ran(answer)?.decimals());
            let call = call.about("a jetton's decimals");
            Ok(self.rest.query_quorum(call, read).await?)
        };
        let wallet = async {
            let Some(wallet) = self.jetton_wallet(&master, owner).await? else {
                return Err(ChainError::cannot_build(Fault::field(
                    "mintAddress",
                    NO_MASTER,
                )));
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
                return Err(ChainError::cannot_build(
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

    async fn fetch_chain_data(
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
        let recipient = async {
            match &queries.recipient {
                Some(recipient) => self.is_deployed(&address(recipient)?).await.map(Some),
                None => Ok(None),
            }
        };
        let contracts = try_join_all(queries.contracts.iter().map(|it| self.require_contract(it)));
        let (wallet, jetton, recipient_deployed, _) = tokio::try_join!(
            self.wallet(&from, needed(queries.value)),
            jetton,
            recipient,
            contracts
        )?;
        if wallet.state == AccountStatus::Frozen {
            return Err(ChainError::refused(
                "the wallet's account is frozen, as it owes rent: it has to be unfrozen first",
                ExecuteCode::InsufficientGasFee,
            ));
        }
        if !wallet.data.takes_signatures {
            return Err(ChainError::refused(
                "the wallet contract was told to take no more signatures",
                ExecuteCode::Unspecified,
            ));
        }
        if wallet.balance < needed(queries.value) {
            return Err(ChainError::Refused(too_little(
                wallet.balance,
                queries.value,
            )));
        }
        let end = || u32::try_from((now_ms / 1_000).saturating_add(LIFETIME_S));
        let valid_until = queries.valid_until.then(end).transpose();
        let chain_data = TransactionChainData {
            seqno: wallet.data.seqno,
            deployed: wallet.state == AccountStatus::Active,
            valid_until: valid_until
                .map_err(|_| ChainError::unknown("the clock is past the year 2106"))?,
            recipient_deployed,
            jetton,
        };
        Ok(TonChainData::Transaction(chain_data).into())
    }

    /// What the chain says of a transaction; `None` when it can be sent.
    async fn look(
        &self,
        sent: &SentMessage,
        broadcast_request: &BroadcastRequest,
        wallet: &TonWallet,
    ) -> Option<BroadcastOutcome> {
        if wallet.state == AccountStatus::Frozen {
            return Some(BroadcastOutcome::Unknown(
                "the wallet's account is frozen, as it owes rent; its earlier transactions cannot be seen"
                    .into(),
            ));
        }
        if wallet.data.seqno > sent.seqno {
            let doubt = broadcast_request.retried;
            let outcome = self.passed(sent, broadcast_request, &wallet.last, doubt);
            return Some(outcome.await);
        }
        if is_over(sent, broadcast_request) {
            return Some(match self.none_can_have(sent).await {
                Ok(true) => is_void(expired(), broadcast_request.retried),
                Ok(false) => BroadcastOutcome::Unknown(
                    "the transaction has expired; waiting for blocks past its expiration".into(),
                ),
                Err(trouble) => BroadcastOutcome::Unknown(format!(
                    "the transaction has expired, and a node cannot say what became of it: \
                     {trouble}"
                )),
            });
        }
        if wallet.data.seqno < sent.seqno {
            return Some(BroadcastOutcome::Unknown(
                "an earlier transaction of the wallet is not in a block yet".into(),
            ));
        }
        (!broadcast_request.retried && wallet.balance < needed(sent.value))
            .then(|| BroadcastOutcome::Refused(too_little(wallet.balance, sent.value)))
    }

    /// Whether every node has blocks after which none can have the transaction, and the
    /// number was not used up to there.
    async fn none_can_have(&self, sent: &SentMessage) -> Result<bool, String> {
        let end_s = u64::from(sent.valid_until).saturating_add(EXPIRY_MARGIN_S);
        let can = |answer: &NodeResponse| {
            let wallet = answers::wallet(answer, &sent.wallet)
                .ok_or("the node's answer about a wallet makes no sense")?;
            let is_seen = wallet.state != AccountStatus::Frozen;
            Ok(!is_seen || wallet.data.seqno > sent.seqno || wallet.time_s < end_s)
        };
        let some_can = self.rest.any(account(&sent.wallet), can).await?;
        Ok(!some_can)
    }

    /// A node has taken it: waits until a block has it.
    async fn watch(
        &self,
        sent: &SentMessage,
        broadcast_request: &BroadcastRequest,
    ) -> BroadcastOutcome {
        for polls in 0..MAX_POLLS {
            tokio::time::sleep(POLLS.pause(polls)).await;
            if let Ok(wallet) = self.wallet(&sent.wallet, 0).await
                && wallet.data.seqno > sent.seqno
            {
                return self
                    .passed(sent, broadcast_request, &wallet.last, true)
                    .await;
            }
        }
        BroadcastOutcome::Unknown(
            "a node has accepted the transaction, but no block includes it yet; sending it again"
                .into(),
        )
    }

    /// The number is used: by this transaction or by another one.
    async fn passed(
        &self,
        sent: &SentMessage,
        broadcast_request: &BroadcastRequest,
        last: &TransactionCursor,
        doubt: bool,
    ) -> BroadcastOutcome {
        match self.trace(sent, broadcast_request, last).await {
            Ok(TonTrace::Here { sent: count }) => {
                if count == 0 {
                    let hash = &broadcast_request.signed.tx_hash;
                    tracing::warn!(
                        hash,
                        "a TON wallet took a transaction and sent nothing: it cannot pay the amount and \
                        the fees for it"
                    );
                }
                BroadcastOutcome::Accepted
            }
            Ok(TonTrace::Nowhere) => {
                let refusal = ChainRefusal {
                    reason: "another transaction has used its number (seqno); create a new request"
                        .into(),
                    code: ExecuteCode::Unspecified,
                };
                is_void(refusal, doubt)
            }
            Err(trouble) => BroadcastOutcome::Unknown(format!(
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
        sent: &SentMessage,
        broadcast_request: &BroadcastRequest,
        last: &TransactionCursor,
    ) -> Result<TonTrace, String> {
        let built_s = broadcast_request
            .now_ms
            .saturating_sub(broadcast_request.age_ms)
            / 1_000;
        let since_s = built_s.saturating_sub(CLOCK_SKEW_S);
        let mut from = last.clone();
        for _ in 0..MAX_PAGES {
            let seen = Mutex::new(None);
            let look = |answer: &NodeResponse| {
                let page = answers::page(answer, &sent.body_hash, since_s, &from)
                    .ok_or("the node's list of a wallet's transactions makes no sense")?;
                let is_here = matches!(page, TransactionSearch::Here { .. });
                let mut seen = seen.lock();
                if !is_here && seen.as_ref().is_some_and(|other| *other != page) {
                    return Err("the nodes disagree about a wallet's transactions".into());
                }
                *seen = Some(page);
                Ok(is_here)
            };
            self.rest
                .any(transactions(&sent.wallet, &from), look)
                .await?;
            match seen.into_inner() {
                Some(TransactionSearch::Here { sent, .. }) => return Ok(TonTrace::Here { sent }),
                Some(TransactionSearch::Over) => return Ok(TonTrace::Nowhere),
                Some(TransactionSearch::More(place)) => from = place,
                None => return Err("no node could be reached".into()),
            }
        }
        Err("the wallet has too many transactions since".into())
    }
}

#[async_trait]
impl ChainClient for TonNode {
    async fn chain_data(&self, queries: &Queries, now_ms: u64) -> Result<ChainData, ChainError> {
        match queries {
            Queries::Ton(TonQueries::Transaction(queries)) => {
                self.fetch_chain_data(queries, now_ms).await
            }
            Queries::Nothing => Ok(ChainData::Nothing),
            _ => Err(ChainError::refused(
                "not a question for TON's nodes",
                ExecuteCode::Unspecified,
            )),
        }
    }

    async fn broadcast(&self, broadcast_request: &BroadcastRequest) -> BroadcastOutcome {
        let sent = match ledger::read_sent(&broadcast_request.signed.transaction) {
            Ok(sent) => sent,
            Err(fault) => {
                return BroadcastOutcome::Refused(ChainRefusal {
                    reason: fault.message().to_owned(),
                    code: ExecuteCode::Unspecified,
                });
            }
        };
        if !broadcast_request.retried && is_over(&sent, broadcast_request) {
            return BroadcastOutcome::Refused(expired());
        }
        let wallet = self.wallet(&sent.wallet, needed(sent.value)).await;
        if let Ok(wallet) = &wallet
            && self.look(&sent, broadcast_request, wallet).await.is_some()
        {
            // One that lies must not have it never sent.
            let looked = witnessed(async {
                let wallet = self.wallet(&sent.wallet, needed(sent.value)).await.ok()?;
                self.look(&sent, broadcast_request, &wallet).await
            });
            if let Some(outcome) = looked.await {
                return outcome;
            }
        }
        let boc = json!({"boc": broadcast_request.signed.transaction});
        let call = NodeRequest::post("/sendBoc", NodeRequestBody::Json(boc));
        let objection = |said: Result<&NodeResponse, &Infallible>| match answers::judge(said.ok()?)
        {
            TonVerdict::Refused(refusal) => {
                Some(Objection::new(ObjectionKind::Refused, refusal.reason))
            }
            TonVerdict::NotRun(reason) => Some(Objection::new(ObjectionKind::Missing, reason)),
            TonVerdict::Taken | TonVerdict::Later(_) => None,
        };
        let (answer, lost) = self.rest.submit(call, objection).await;
        let verdict = match answer {
            Ok(answer) => answers::judge(&answer),
            Err(error) => return BroadcastOutcome::Unknown(error.into_reason()),
        };
        // Where an earlier try may have arrived, or the number may not be the next one, only the
        // chain can say.
        let balance = match &wallet {
            Ok(wallet) if !lost && !broadcast_request.retried => Some(wallet.balance),
            _ => None,
        };
        match (verdict, balance) {
            (TonVerdict::Taken, _) => self.watch(&sent, broadcast_request).await,
            (TonVerdict::Refused(refusal), Some(_)) => BroadcastOutcome::Refused(refusal),
            (TonVerdict::NotRun(reason), Some(balance))
                if balance < MIN_FEE_BALANCE && self.is_poor(&sent.wallet).await =>
            {
                BroadcastOutcome::Refused(ChainRefusal {
                    reason: format!("the wallet cannot pay the fees; {reason}"),
                    code: ExecuteCode::InsufficientGasFee,
                })
            }
            (
                TonVerdict::Refused(ChainRefusal { reason, .. })
                | TonVerdict::NotRun(reason)
                | TonVerdict::Later(reason),
                _,
            ) => BroadcastOutcome::Unknown(reason),
        }
    }

    async fn next_number(
        &self,
        owner: &str,
        since: ChainMoment,
    ) -> Result<Option<u64>, ChainError> {
        let owner = address(owner)?;
        if since.height > 0 {
            let problem = "a state of this chain is known by its time only";
            return Err(ChainError::Unknown(problem.into()));
        }
        let since_s = since.time_ms.div_ceil(1_000);
        // Number and time are of one state of the chain. What a frozen account did before is not
        // seen.
        let read = |answer: &NodeResponse| {
            let wallet = answers::wallet(answer, &owner)?;
            let is_seen = wallet.state != AccountStatus::Frozen;
            is_seen.then_some((wallet.time_s >= since_s, u64::from(wallet.data.seqno)))
        };
        let call = account(&owner);
        let (is_later, next) = self.rest.query_quorum(call.about("a wallet"), read).await?;
        Ok(is_later.then_some(next))
    }

    async fn sightings(
        &self,
        transactions: &[TrackedTransaction],
        _now_ms: u64,
    ) -> Vec<Result<TransactionSighting, ChainError>> {
        sight_each(transactions, |one| self.sight(one)).await
    }

    async fn fee_estimates(&self) -> Result<[FeeEstimate; 3], ChainError> {
        let TransferPrices { gas, carriage } = self.prices().await?;
        Ok([FeeEstimate::plain(gas, TRANSFER_GAS, carriage); 3])
    }

    async fn balance(&self, owner: &str, token: Option<&str>) -> Result<String, ChainError> {
        let owner = address(owner)?;
        let Some(token) = token else {
            let read = |answer: &NodeResponse| Some(TonAccount::read(answer)?.balance);
            let call = account(&owner);
            let balance = self
                .rest
                .query_quorum(call.about("a balance"), read)
                .await?;
            return Ok(balance.to_string());
        };
        let master = address(token)?;
        let Some(wallet) = self.jetton_wallet(&master, &owner).await? else {
            return Err(ChainError::refused(NO_MASTER, ExecuteCode::Unspecified));
        };
        let holding = self.holding(&wallet).await?;
        match holding {
            Some(holding)
                if !holding.owner.is_account(&owner) || !holding.master.is_account(&master) =>
            {
                Err(ChainError::refused(UNSOUND, ExecuteCode::Unspecified))
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
const UNSOUND: &str = "is not a valid jetton: the jetton wallet that it names for the owner belongs to another owner, or does not exist";

fn account(address: &TonAddress) -> NodeRequest {
    let address = address.contract_form();
    NodeRequest::get("/getAddressInformation", &[("address", &address)])
}

fn transactions(wallet: &TonAddress, from: &TransactionCursor) -> NodeRequest {
    let (wallet, lt) = (wallet.contract_form(), from.lt.to_string());
    let query = [
        ("address", wallet.as_str()),
        ("limit", PER_PAGE),
        ("lt", &lt),
        ("hash", &from.hash),
    ];
    NodeRequest::get("/getTransactions", &query)
}

fn get_method(contract: &TonAddress, method: &str, stack: Value) -> NodeRequest {
    let body = json!({"address": contract.contract_form(), "method": method, "stack": stack});
    NodeRequest::post("/runGetMethod", NodeRequestBody::Json(body)).costly()
}

/// By this machine's clock.
fn is_over(sent: &SentMessage, broadcast_request: &BroadcastRequest) -> bool {
    u64::from(sent.valid_until) <= broadcast_request.now_ms / 1_000
}

/// In canonical form already.
fn address(text: &str) -> Result<TonAddress, ChainError> {
    parse_address(text).map_err(|error| ChainError::cannot_build(Fault::bug(error)))
}

/// What a wallet has to have to send so much, in nanoton: one that has the amount and not the fee takes the transaction,
/// sends nothing, and its fee is gone. The fee is that of a plain transfer at the prices of mainnet.
fn needed(value: u128) -> u128 {
    value.saturating_add(TransferPrices::MAINNET.transfer())
}

fn too_little(balance: u128, value: u128) -> ChainRefusal {
    let fee = TransferPrices::MAINNET.transfer();
    ChainRefusal {
        reason: format!(
            "the wallet has {balance} nanoton, and {value} are to be sent, plus fees of about {fee}"
        ),
        code: ExecuteCode::InsufficientFunds,
    }
}

fn expired() -> ChainRefusal {
    ChainRefusal {
        reason: "the transaction expired before a block took it; create a new request".into(),
        code: ExecuteCode::Unspecified,
    }
}

fn unsound() -> ChainError {
    ChainError::cannot_build(Fault::field("mintAddress", UNSOUND))
}
