//! Clients of chain nodes.

mod answers;
mod aptos;
mod bitcoin;
mod blocks;
mod client;
mod endpoints;
mod evm;
mod exchange;
mod fees;
mod grpc;
mod health;
mod jsonrpc;
mod line;
mod load;
mod pool;
mod queue;
mod rest;
mod simulation;
mod solana;
mod stellar;
mod sui;
mod ton;
mod tries;
mod tron;
mod witnessed;

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use covault_core::{
    deposit::transfer::FollowedChain,
    fault::{ExecuteCode, Fault},
    networks::{ChainData, ChainMoment, KnownChains, Network, Payload, Queries, Signed},
    signature::Signature,
};
use futures::future::join_all;

pub use covault_core::request::{Inclusion, TransactionPart};

pub use blocks::{APART, BalanceNow, BlockBalances, BlockSource, ChainBlock};
pub use client::{CallError, ChainCall, Client, Protocol, Refusal, everywhere};
pub use endpoints::{
    ChainEndpoints, ChainKey, ChainsConfig, FollowPolicy, NodeAuth, NodeEndpoint, SpeedUpPolicy,
};
pub use exchange::{NodeRequest, NodeRequestBody, NodeResponse};
pub use fees::{FeeEstimate, TransferBurn};
pub use health::EndpointHealth;
pub use jsonrpc::{JsonRpc, RpcCall};
pub use line::{accepted_at, asked_by, of_request};
pub use load::{NodeLoad, load_of_nodes};
pub use pool::{CALLS_PER_NODE, NodePool, Objection, ObjectionKind, PoolPorts};
pub use queue::{ChainQueue, ChainWait};
pub use rest::Rest;
pub use simulation::{SimulationOutcome, SimulationRequest};
pub use tries::tried;

use witnessed::{EndsWitnessed, witnessed};

/// For how long every node keeps what it has had, in milliseconds: a day.
const MEMORY_MS: u64 = 86_400_000;
/// How far around the moment at which a transaction was sent what a node remembers has to reach before its word counts that
/// no block has it, in milliseconds: clocks differ, and blocks with theirs.
const HISTORY_MARGIN_MS: u64 = 600_000;
/// Questions about transactions that are put at the same time.
const MAX_PARALLEL_SIGHTINGS: usize = 8;

/// A signed transaction on its way to the chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BroadcastRequest {
    /// The bytes and their hash.
    pub signed: Signed,
    /// What it was built from; [`ChainData::Nothing`] when its request is over and it is sent again.
    pub chain_data: ChainData,
    /// How long ago it was built, or asked for, in milliseconds.
    pub age_ms: u64,
    /// The present time, in milliseconds since the Unix epoch.
    pub now_ms: u64,
    /// It may have been sent before, and what became of that is not known.
    pub retried: bool,
}

/// What a node's refusal means. It is for good when nothing was sent before, and the refusal cannot come of
/// the transaction itself being there. With `doubt` nobody knows, whatever nodes say of its hash: the one
/// that took the transaction may be another one behind the same address. A transaction that is called
/// failed and is mined nevertheless would be paid twice.
fn resolve_refusal(
    refusal: ChainRefusal,
    known: Result<bool, String>,
    doubt: bool,
) -> BroadcastOutcome {
    match known {
        Ok(true) => BroadcastOutcome::Accepted,
        Err(trouble) if doubt => BroadcastOutcome::Unknown(format!(
            "a node said \"{}\", and another cannot say whether it has the transaction: {trouble}",
            refusal.reason
        )),
        Ok(false) if doubt => BroadcastOutcome::Doubtful(refusal, Standing::Open),
        Ok(false) | Err(_) => BroadcastOutcome::Refused(refusal),
    }
}

/// The end of a transaction that by all that the nodes say can never come. With `doubt`, an earlier try may
/// have reached one.
fn is_void(refusal: ChainRefusal, doubt: bool) -> BroadcastOutcome {
    if doubt {
        BroadcastOutcome::Doubtful(refusal, Standing::Void)
    } else {
        BroadcastOutcome::Refused(refusal)
    }
}

/// What became of a broadcast.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BroadcastOutcome {
    /// A node has it.
    Accepted,
    /// The network will never take it, and no node ever had it.
    Refused(ChainRefusal),
    /// A node refuses it now, and an earlier try may have reached the chain.
    Doubtful(ChainRefusal, Standing),
    /// Nobody knows; the same bytes are sent again.
    Unknown(String),
}

/// Whether a transaction can still come that a node refuses now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It can.
    Open,
    /// The nodes say that its number is used, and not yet for good.
    Passed,
    /// Its number or its time is over for good, by what the nodes say now. One that is behind may still not
    /// know that the chain has it: it counts when they say so for [`Settings::settling_ms`].
    ///
    /// [`Settings::settling_ms`]: crate::settings::Settings::settling_ms
    Void,
}

/// A transaction that a node took, and that is followed until it is final.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrackedTransaction {
    /// The bytes and their hash.
    pub signed: Signed,
    /// The address that sent it.
    pub from: String,
    /// When a node took it, in milliseconds since the Unix epoch.
    pub sent_at_ms: u64,
}

impl TrackedTransaction {
    /// Whether nodes that do not know it have never had it: they forget what is old.
    fn is_remembered(&self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.sent_at_ms) < MEMORY_MS
    }

    /// Whether a node that knows all from the one moment to the other would know it, in milliseconds since the Unix
    /// epoch.
    fn is_within(&self, from_ms: u64, to_ms: u64) -> bool {
        let (before, after) = (
            self.sent_at_ms.saturating_sub(HISTORY_MARGIN_MS),
            self.sent_at_ms.saturating_add(HISTORY_MARGIN_MS),
        );
        from_ms <= before && to_ms >= after
    }
}

/// Asks for each of some transactions, where one question is about one of them.
async fn sight_each<'a, F>(
    transactions: &'a [TrackedTransaction],
    sight: impl Fn(&'a TrackedTransaction) -> F,
) -> Vec<Result<TransactionSighting, ChainError>>
where
    F: Future<Output = Result<TransactionSighting, ChainError>>,
{
    let mut sightings = Vec::with_capacity(transactions.len());
    for some in transactions.chunks(MAX_PARALLEL_SIGHTINGS) {
        sightings.extend(join_all(some.iter().map(&sight)).await);
    }
    sightings
}

/// What a chain's nodes say of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransactionSighting {
    /// No node has it, and it can still come.
    Missing,
    /// A node has it, and no block.
    Waiting,
    /// A block has it that may still be replaced.
    Mined(Inclusion),
    /// A block has it for good.
    Final(Inclusion),
    /// Another transaction used its number or what it spends, for good: it never comes. With the hash of the other
    /// one, where the nodes can say it.
    Replaced(Option<String>),
    /// Its time is over for good, and no block has it: it never comes.
    Expired,
    /// Of several that went together some did for good what they were to do, or have a block for good, and others did
    /// not: each of them, in their order.
    Partial(Vec<TransactionPart>),
}

impl TransactionSighting {
    /// Whether nobody follows the transaction once this is accepted, or someone may pay again.
    fn is_end(&self) -> bool {
        match self {
            Self::Missing | Self::Waiting => false,
            Self::Mined(inclusion) => !inclusion.success,
            Self::Final(_) | Self::Replaced(_) | Self::Expired | Self::Partial(_) => true,
        }
    }
}

/// Why a node said no, for good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainRefusal {
    /// A sentence that a person can act on.
    pub reason: String,
    /// The code that executeSigningRequests reports.
    pub code: ExecuteCode,
}

/// Why a question to a chain got no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChainError {
    /// No node answered; ask again.
    Unknown(String),
    /// The node answered that it cannot be.
    Refused(ChainRefusal),
    /// The wallet has too little for it now. A node may be behind, or an earlier transaction bring it: to be asked again for
    /// a while.
    Lacks(ChainRefusal),
}

impl ChainError {
    /// The chain will never take it.
    fn refused(reason: impl Into<String>, code: ExecuteCode) -> Self {
        let reason = reason.into();
        Self::Refused(ChainRefusal { reason, code })
    }

    /// Nobody knows.
    fn unknown(reason: impl Into<String>) -> Self {
        Self::Unknown(reason.into())
    }

    /// The network's rules find that it can never be built.
    fn cannot_build(fault: Fault) -> Self {
        Self::refused(fault.message(), fault.execute_code())
    }

    /// The network's rules find that there is too little for it now.
    fn lacks(fault: &Fault) -> Self {
        let (reason, code) = (fault.message().to_owned(), fault.execute_code());
        Self::Lacks(ChainRefusal { reason, code })
    }

    /// Why there was no answer, in words.
    pub fn into_reason(self) -> String {
        match self {
            Self::Unknown(reason)
            | Self::Refused(ChainRefusal { reason, .. })
            | Self::Lacks(ChainRefusal { reason, .. }) => reason,
        }
    }
}

/// What a token's contract says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenFacts {
    /// How many of the digits of an amount in the smallest unit are behind the point.
    pub decimals: u8,
    /// What it calls itself; may be empty. Anyone can make a token that calls itself like another one.
    pub symbol: String,
}

/// A chain, through its nodes.
#[async_trait]
pub trait ChainClient: Send + Sync {
    /// What a payload needs to know, as the nodes say: the next number of an account, outputs and
    /// objects that are there, reserved or not. What other requests hold is left out of it
    /// later ([`covault_core::networks::DynNetworkRules::allocate`]). `now_ms`, in milliseconds since the Unix
    /// epoch, is for facts that come of the clock: timestamps, expiration.
    ///
    /// # Errors
    /// [`ChainError::Lacks`] for what the chain would take the fee of and not do: a payment of more than there is.
    async fn chain_data(&self, queries: &Queries, now_ms: u64) -> Result<ChainData, ChainError>;

    /// Looks whether a transaction can do what its payload says, before anything is signed.
    /// Nothing is asked, unless the network says otherwise.
    ///
    /// # Errors
    /// [`ChainError::Refused`] when it cannot.
    async fn preflight(&self, _payload: &Payload) -> Result<(), ChainError> {
        Ok(())
    }

    /// Sends a signed transaction. Safe to repeat.
    async fn broadcast(&self, broadcast_request: &BroadcastRequest) -> BroadcastOutcome;

    /// The number of the next transaction that the chain takes of an account, in a state of the chain that is not from
    /// before `since`. `None` when there is no such state yet. Asked to tell that a transaction whose time is over was
    /// never executed, and, with [`ChainMoment::ANY`], which one the chain waits for: what `agree` of the nodes say
    /// counts.
    async fn next_number(
        &self,
        _address: &str,
        _since: ChainMoment,
    ) -> Result<Option<u64>, ChainError> {
        Err(ChainError::Unknown(
            "the nodes of this chain are not asked for it".into(),
        ))
    }

    /// What became of transactions that nodes took, in their order: a few questions for all of them. That a block has
    /// one is said only when `agree` of the nodes say so; that it is final or never comes, when two do at least,
    /// wherever there are two.
    /// `now_ms` is in milliseconds since the Unix epoch.
    ///
    /// # Errors
    /// [`ChainError::Unknown`] for those of which the nodes say nothing now.
    async fn sightings(
        &self,
        transactions: &[TrackedTransaction],
        now_ms: u64,
    ) -> Vec<Result<TransactionSighting, ChainError>>;

    /// The signatures of the sender in what is final, where the hash of a transaction does not tell because its own are
    /// not known: of the transaction `by`, which has used its number, or, where there are no numbers and its time is
    /// over, of the one with the same content; none where no block has that. Whose transaction they make is for the
    /// caller to check.
    /// Nothing is asked, unless the network says otherwise.
    ///
    /// # Errors
    /// [`ChainError::Unknown`] when the nodes do not say it.
    async fn signatures_in_block(
        &self,
        _transaction: &TrackedTransaction,
        _by: Option<&str>,
    ) -> Result<Vec<Signature>, ChainError> {
        Err(ChainError::Unknown(
            "the nodes of this chain are not asked for that".into(),
        ))
    }

    /// What transactions pay now: slow, normal and fast. The nodes' word; whether it is believed says
    /// [`ChainClients::estimate_problem`].
    /// Nothing is asked, unless the network says otherwise.
    async fn fee_estimates(&self) -> Result<[FeeEstimate; 3], ChainError> {
        Err(ChainError::Unknown(
            "the nodes of this chain are not asked for prices".into(),
        ))
    }

    /// The number of the newest block, as blocks are counted to tell how long a transaction has waited. `None`
    /// where that is not told.
    ///
    /// # Errors
    /// [`ChainError::Unknown`] when the nodes do not say it now.
    async fn head(&self) -> Result<Option<u64>, ChainError> {
        Ok(None)
    }

    /// A balance in the smallest unit, decimal: of the chain's coin, or of a token. Both texts are
    /// in canonical form.
    async fn balance(&self, address: &str, token: Option<&str>) -> Result<String, ChainError>;

    /// How much of an owner's token a contract may take, in the smallest unit, decimal. All texts are addresses in
    /// canonical form.
    ///
    /// # Errors
    /// [`ChainError::Unknown`] when the nodes do not say it now, which is so for ever unless the network says otherwise.
    async fn allowance(
        &self,
        _owner: &str,
        _token: &str,
        _spender: &str,
    ) -> Result<String, ChainError> {
        Err(ChainError::Unknown(
            "the nodes of this chain are not asked for allowances".into(),
        ))
    }

    /// The gas of what the queries of a payload ask fees for, as in [`ChainClient::chain_data`], and nothing else.
    ///
    /// # Errors
    /// [`ChainError::Unknown`] when the nodes do not say it now, which is so for ever unless the network says otherwise;
    /// [`ChainError::Refused`] when they say that it would fail.
    async fn gas_of(&self, _queries: &Queries) -> Result<u64, ChainError> {
        Err(ChainError::Unknown(
            "the nodes of this chain are not asked for gas".into(),
        ))
    }

    /// What the chain takes for a transfer beside gas, in the smallest unit of the coin: rollups do, for their data on
    /// another chain.
    ///
    /// # Errors
    /// [`ChainError::Unknown`] when no node answered.
    async fn data_fee(&self) -> Result<u128, ChainError> {
        Ok(0)
    }

    /// What a transfer burns, on networks that burn coin where the sender has no resources of its own.
    /// Nothing is asked, unless the network says otherwise.
    ///
    /// # Errors
    /// [`ChainError::Unknown`] when the nodes do not say it, [`ChainError::Refused`] when they say that it would fail.
    async fn transfer_burn(&self, _payload: &Payload) -> Result<TransferBurn, ChainError> {
        Err(ChainError::Unknown(
            "the nodes of this chain are not asked what a transfer burns".into(),
        ))
    }

    /// What a token's contract says of it. Its word, and that of nodes: nothing is decided by it. `None` where nobody is
    /// asked, which is so of all tokens unless the network says otherwise.
    ///
    /// # Errors
    /// [`ChainError::Unknown`] when nobody says it now.
    async fn token_facts(&self, _token: &str) -> Result<Option<TokenFacts>, ChainError> {
        Ok(None)
    }

    /// What a transaction would do now, as one node says that is asked once. `None` where that
    /// cannot be said; it is dropped when it takes long. Nothing is decided by it.
    async fn simulate(&self, _trial: &SimulationRequest) -> Option<SimulationOutcome> {
        None
    }

    /// Its blocks, where they can be followed for deposits.
    fn blocks(&self) -> Option<&dyn BlockSource> {
        None
    }

    /// How the chain's nodes are doing.
    fn health(&self) -> Vec<EndpointHealth> {
        Vec::new()
    }
}

/// [`ChainClient::next_number`] now, as so many nodes say it as it takes to end something for good.
///
/// # Errors
/// As there.
pub async fn next_number_of_witnesses(
    client: &dyn ChainClient,
    address: &str,
) -> Result<Option<u64>, ChainError> {
    witnessed(client.next_number(address, ChainMoment::ANY)).await
}

/// [`ChainClient::sightings`], each as so many nodes say it as it takes to end something for good.
pub async fn sightings_of_witnesses(
    client: &dyn ChainClient,
    transactions: &[TrackedTransaction],
    now_ms: u64,
) -> Vec<Result<TransactionSighting, ChainError>> {
    let said = witnessed(client.sightings(transactions, now_ms));
    let silent = |_: &TrackedTransaction| Err(ChainError::unknown("a node is silent"));
    let said = tokio::time::timeout(witnessed::PATIENCE, said).await;
    said.unwrap_or_else(|_| transactions.iter().map(silent).collect())
}

/// The chains that can be reached. Cheap to clone.
#[derive(Clone, Default)]
pub struct ChainClients {
    clients: BTreeMap<ChainKey, Arc<dyn ChainClient>>,
    /// The highest prices that configuration believes.
    most_prices: BTreeMap<ChainKey, u128>,
    /// When transactions that no block takes are replaced; not where nobody has said so.
    speed_ups: BTreeMap<ChainKey, SpeedUpPolicy>,
    /// The contracts that pay batches.
    batch_contracts: BTreeMap<ChainKey, String>,
    /// How the blocks of chains are followed that deposits are taken on.
    follows: BTreeMap<FollowedChain, FollowPolicy>,
    /// Requests that wait for what a chain's nodes say.
    queues: BTreeMap<ChainKey, Arc<ChainQueue>>,
}

impl ChainClients {
    /// Clients for configured nodes. Nothing is asked yet.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Invalid`] naming the setting that is wrong, and
    /// [`covault_core::fault::Class::Bug`] when the TLS provider is missing.
    pub fn connect(config: &ChainsConfig, ports: &PoolPorts) -> Result<Self, Fault> {
        let connect = |(chain, endpoints): (&ChainKey, &ChainEndpoints)| {
            let pool = NodePool::new(*chain, endpoints, ports.clone())?;
            Ok((*chain, client(*chain, pool, endpoints.deposits)?))
        };
        let most_price = |(chain, endpoints): (&ChainKey, &ChainEndpoints)| {
            endpoints.most_price.map(|most| (*chain, most))
        };
        let speed_up = |(chain, endpoints): (&ChainKey, &ChainEndpoints)| {
            endpoints.speed_up.map(|policy| (*chain, policy))
        };
        let batch_contract = |(chain, endpoints): (&ChainKey, &ChainEndpoints)| {
            let contract = endpoints.batch_contract.clone();
            contract.map(|contract| (*chain, contract))
        };
        let clients: BTreeMap<ChainKey, Arc<dyn ChainClient>> =
            config.iter().map(connect).collect::<Result<_, Fault>>()?;
        let follow = |(chain, endpoints): (&ChainKey, &ChainEndpoints)| {
            let has_blocks = clients.get(chain)?.blocks().is_some();
            has_blocks.then_some((chain.followed()?, endpoints.deposits?))
        };
        Ok(Self {
            follows: config.iter().filter_map(follow).collect(),
            clients,
            batch_contracts: config.iter().filter_map(batch_contract).collect(),
            most_prices: config.iter().filter_map(most_price).collect(),
            speed_ups: config.iter().filter_map(speed_up).collect(),
            queues: config
                .keys()
                .map(|chain| (*chain, Arc::default()))
                .collect(),
        })
    }

    /// Adds a custom client.
    #[must_use]
    pub fn with(mut self, chain: ChainKey, client: Arc<dyn ChainClient>) -> Self {
        self.clients.insert(chain, client);
        self.queues.insert(chain, Arc::default());
        self
    }

    /// Has transactions of a chain replaced that no block takes.
    #[must_use]
    pub fn with_speed_up(mut self, chain: ChainKey, policy: SpeedUpPolicy) -> Self {
        self.speed_ups.insert(chain, policy);
        self
    }

    /// When transactions of a chain are replaced that no block takes; `None`: never.
    pub fn speed_up(&self, chain: ChainKey) -> Option<SpeedUpPolicy> {
        self.speed_ups.get(&chain).copied()
    }

    /// Has a contract pay the batches of a chain; an address in canonical form.
    #[must_use]
    pub fn with_batch_contract(mut self, chain: ChainKey, contract: String) -> Self {
        self.batch_contracts.insert(chain, contract);
        self
    }

    /// The contract that pays the batches of a chain; `None` where none is configured.
    pub fn batch_contract(&self, chain: ChainKey) -> Option<&str> {
        self.batch_contracts.get(&chain).map(String::as_str)
    }

    /// Has the blocks of a chain followed for deposits.
    #[must_use]
    pub fn with_follow(mut self, chain: FollowedChain, policy: FollowPolicy) -> Self {
        self.follows.insert(chain, policy);
        self
    }

    /// The chains whose blocks are followed for deposits.
    pub fn followed(&self) -> impl Iterator<Item = FollowedChain> + '_ {
        self.follows.keys().copied()
    }

    /// How the blocks of a chain are followed, and its client; `None` where they are not.
    pub fn follow(&self, chain: FollowedChain) -> Option<(FollowPolicy, Arc<dyn ChainClient>)> {
        let policy = self.follows.get(&chain)?;
        let client = self.get(chain.network().network(), chain.chain_id())?;
        Some((*policy, Arc::clone(client)))
    }

    /// The chains, in order.
    pub fn keys(&self) -> impl Iterator<Item = ChainKey> + '_ {
        self.clients.keys().copied()
    }

    /// The client of a chain, where one is configured.
    pub fn get(&self, network: Network, chain_id: Option<u64>) -> Option<&Arc<dyn ChainClient>> {
        self.clients.get(&ChainKey::of(network, chain_id))
    }

    /// The requests that wait for what a chain's nodes say, where one is configured.
    pub fn queue(&self, network: Network, chain_id: Option<u64>) -> Option<&Arc<ChainQueue>> {
        self.queues.get(&ChainKey::of(network, chain_id))
    }

    /// The number of the next transaction that a chain takes of an account now; `None` where there are no numbers.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when its nodes do not say, or none is configured.
    pub async fn next_number(&self, chain: ChainKey, address: &str) -> Result<Option<u64>, Fault> {
        let client = self.clients.get(&chain);
        let client = client.ok_or_else(|| Fault::unavailable(chain.without_node()))?;
        let next = client.next_number(address, ChainMoment::ANY).await;
        next.map_err(|error| Fault::unavailable(error.into_reason()))
    }

    /// Why a transaction is not built with the price that the chain's nodes name; `None` where it may be.
    pub fn price_problem(
        &self,
        network: Network,
        payload: &Payload,
        chain_data: &ChainData,
    ) -> Option<String> {
        let rules = network.rules();
        let price = rules.quoted_price(payload, chain_data)?;
        let chain = ChainKey::of(network, payload.chain_id());
        let most = self.most_price(chain);
        (price > most).then(|| {
            format!(
                "the nodes of {chain} report a price of {price} {}, above the accepted maximum of {most} \
                 ({}.most_price); raise that setting, or set the fees in the request if its kind has them",
                rules.price_unit(),
                chain.setting(),
            )
        })
    }

    /// The EVM chains that configuration names.
    pub fn known(&self) -> KnownChains {
        let evm = self
            .clients
            .keys()
            .filter(|chain| chain.network == Network::Evm);
        KnownChains {
            configured: evm.filter_map(|chain| chain.chain_id).collect(),
        }
    }

    /// How the nodes of all chains are doing.
    pub fn health(&self) -> Vec<EndpointHealth> {
        self.clients
            .values()
            .flat_map(|client| client.health())
            .collect()
    }
}

/// The registry of clients: the one match that a new network has to be in.
fn client(
    chain: ChainKey,
    pool: NodePool,
    follow: Option<FollowPolicy>,
) -> Result<Arc<dyn ChainClient>, Fault> {
    let needs_more = pool.witnesses_needed() > pool.agree();
    let client: Arc<dyn ChainClient> = match chain.network {
        Network::Evm => {
            let id = chain.chain_id.ok_or_else(|| Fault::bug("no chain id"))?;
            Arc::new(evm::EvmNode::new(id, pool, follow.unwrap_or_default()))
        }
        Network::Solana => Arc::new(solana::SolanaNode::new(chain, pool)),
        Network::Aptos => {
            let id = chain.chain_id.ok_or_else(|| Fault::bug("no chain id"))?;
            Arc::new(aptos::AptosNode::new(id, pool))
        }
        Network::Stellar => Arc::new(stellar::StellarNode::new(pool)),
        Network::Tron => Arc::new(tron::TronNode::new(pool)),
        Network::Ton => Arc::new(ton::TonNode::new(pool)),
        Network::Bitcoin => Arc::new(bitcoin::BitcoinNode::new(pool)),
        Network::Sui => Arc::new(sui::SuiNode::new(pool)),
    };
    Ok(match needs_more {
        true => Arc::new(EndsWitnessed::new(client)),
        false => client,
    })
}
