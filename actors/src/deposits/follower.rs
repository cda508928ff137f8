//! Follows the blocks of one chain, for as long as this process has the lease of it: block after block by the hash of
//! the parent, all that changes in one commit with the cursor. What fails is begun again from the store.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use covault_core::{
    deposit::{
        lifecycle::{ChainView, default_confirmations},
        ring::{ForkSearch, HeaderRing, Succession},
        transfer::{BlockHeader, BlockRef, FollowedChain},
    },
    fault::Fault,
};
use futures::future::join_all;
use ractor::{Actor, ActorProcessingErr, ActorRef};

use super::{
    beside::SideTask,
    change::{ChainChange, OpenTransfers, may_be_included},
    known::StoredProgress,
    progress::{FollowError, FollowProgress},
    routes::Routes,
    start,
};
use crate::{
    chain_rpc::{APART, BlockSource, ChainBlock, FollowPolicy},
    leases::LeaseScope,
    services::Services,
    store::{
        Batch, Precondition,
        deposit_rows::{self, CursorRow, TransferRow},
    },
};

/// Blocks that are asked for at the same time, and written in one commit.
const WINDOW: u64 = 16;
/// Blocks of which a part is longer than so many bytes are asked for one after the other.
const LONG_ANSWER: usize = 4 << 20;
/// Blocks that become final in one commit, at most.
const MOST_FINALIZED: u64 = 1_000;
/// Transfers of new blocks in one commit, at most; of one block all.
const MOST_TAKEN: usize = 4_000;
/// Transfers that are told in one commit, at most.
const MOST_SETTLED: usize = 4_000;
/// A newest block that is older than this is told in the log, in milliseconds.
const STILL_MS: u64 = 10 * 60 * 1_000;
/// Blocks that a search for a common ancestor goes back at most in one look.
const LONGEST_FORK: usize = 10_000;

pub enum Msg {
    /// It is time to look for the next block.
    PollDue,
}

pub struct ChainFollower;

pub struct FollowerState {
    services: Arc<Services>,
    chain: FollowedChain,
    /// What the store has, under the present lease; `None`: it has to be read.
    known: Option<StoredProgress>,
    /// What was last said about it, so that an outage is told once.
    said: Option<String>,
    failures: u32,
    /// Blocks that are asked for at the same time now.
    window: u64,
    books: SideTask,
    rescans: SideTask,
    restarts: SideTask,
    /// Whether anyone takes deposits here: that is not asked before the nodes are, once it was so.
    has_routes: bool,
    /// Whether it was said that the chain stands still.
    is_still: bool,
    /// It is noted since when payments are to be told: that is never taken back.
    is_start_noted: bool,
}

#[async_trait]
impl Actor for ChainFollower {
    type Msg = Msg;
    type State = FollowerState;
    type Arguments = (Arc<Services>, FollowedChain);

    async fn pre_start(
        &self,
        myself: ActorRef<Msg>,
        (services, chain): (Arc<Services>, FollowedChain),
    ) -> Result<FollowerState, ActorProcessingErr> {
        myself.cast(Msg::PollDue)?;
        Ok(FollowerState::new(services, chain))
    }

    async fn handle(
        &self,
        myself: ActorRef<Msg>,
        message: Msg,
        state: &mut FollowerState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            Msg::PollDue => {
                let pause = state.look().await;
                let followers = &state.services.listeners.followers;
                let due = followers.wait(state.chain, pause);
                tokio::spawn(async move {
                    due.await;
                    // Where it has ended meanwhile, another one polls.
                    let _ = myself.cast(Msg::PollDue);
                });
            }
        }
        Ok(())
    }
}

impl FollowerState {
    /// Of a chain of which nothing was read yet.
    pub fn new(services: Arc<Services>, chain: FollowedChain) -> Self {
        Self {
            services,
            chain,
            known: None,
            said: None,
            failures: 0,
            window: WINDOW,
            books: SideTask::default(),
            rescans: SideTask::default(),
            restarts: SideTask::default(),
            has_routes: false,
            is_still: false,
            is_start_noted: false,
        }
    }

    /// Looks once. For how long to wait before the next look.
    async fn look(&mut self) -> Duration {
        let policy = self.services.chains.follow(self.chain);
        let usual = policy.map_or(FollowPolicy::default().poll_ms, |(policy, _)| {
            policy.poll_ms
        });
        let usual = Duration::from_millis(usual);
        let error = match self.poll().await {
            Ok(progress) => {
                self.failures = 0;
                if self.said.take().is_some() {
                    tracing::info!(chain = %self.chain, "deposits are followed again");
                }
                return match progress {
                    FollowProgress::Behind => Duration::ZERO,
                    FollowProgress::AtHead => usual,
                    FollowProgress::Idle => usual.max(Duration::from_secs(1)),
                };
            }
            Err(error) => error,
        };
        self.failures = self.failures.saturating_add(1);
        let is_stopped = matches!(error, FollowError::Stopped(_));
        self.services.counters.follow(self.chain).failed(is_stopped);
        let reason = match &error {
            FollowError::Nodes(reason) | FollowError::Stopped(reason) => reason.clone(),
            FollowError::Service(fault) => format!("{fault:?}"),
        };
        if self.said.as_ref() != Some(&reason) {
            match is_stopped {
                true => {
                    tracing::error!(chain = %self.chain, reason, "deposits are no longer followed; check the \
                        chain's nodes");
                }
                false => {
                    tracing::warn!(chain = %self.chain, reason, "failed to follow deposits; retrying");
                }
            }
            self.said = Some(reason);
        }
        self.services.backoff(self.failures).max(usual)
    }

    /// Follows what there is, at most one window of blocks.
    ///
    /// # Errors
    /// [`FollowError`]; nothing was changed then.
    pub async fn poll(&mut self) -> Result<FollowProgress, FollowError> {
        let chain = self.chain;
        self.note_start().await?;
        let lease = self.services.held_leases.get(LeaseScope::Chain(chain));
        let (Some(lease), Some((policy, client))) = (lease, self.services.chains.follow(chain))
        else {
            self.known = None;
            // It is shown by who follows it.
            self.services.counters.follow(chain).forget();
            return Ok(FollowProgress::Idle);
        };
        let Some(source) = client.blocks() else {
            return Ok(FollowProgress::Idle);
        };
        let lease_version = lease.version();
        let services = self.services.with_lease(lease);
        if !self.has_routes {
            self.has_routes = !Routes::load(&services, chain.network()).await?.is_empty();
            if !self.has_routes {
                return Ok(FollowProgress::Idle);
            }
        }
        let newest = source.newest().await?;
        // Read after it: what was paid in blocks up to that one, was paid after what is configured by now.
        let routes = Routes::load(&services, chain.network()).await?;
        let known = self.known.take();
        let known = match known.filter(|known| known.lease_version == lease_version) {
            Some(known) => known,
            None => StoredProgress::load(&services, chain, lease_version).await?,
        };
        let follow = FollowStep {
            services: &services,
            chain,
            policy,
            source,
            routes: &routes,
            window: self.window,
        };
        let mut known = known;
        match follow.restart(&mut known).await {
            Ok(false) => self.restarts.went_well(),
            Ok(true) => {
                self.known = Some(known);
                return Ok(FollowProgress::Behind);
            }
            // It is followed as before until the nodes can, or another block is named.
            Err(FollowError::Nodes(reason)) => {
                let what = "failed to restart following the chain; retrying";
                self.restarts.failed(chain, what, reason, 0);
            }
            Err(error) => return Err(error),
        }
        let asked = follow.ask(&known, newest).await;
        self.window = match source.take_longest() {
            long if long > LONG_ANSWER => 1,
            _ => self.window.saturating_mul(2).min(WINDOW),
        };
        let asked = match asked {
            Ok(asked) => asked,
            // What is known was not touched, and is as good the next time.
            Err(error) => {
                self.known = Some(known);
                return Err(error);
            }
        };
        let (mut known, progress) = follow.look(known, asked).await?;
        let progress = match progress {
            FollowProgress::AtHead => {
                let rescan = follow.look_at_rescan(&mut self.rescans, &mut known);
                rescan.await?
            }
            other => other,
        };
        let progress = match progress {
            FollowProgress::AtHead => follow.look_at_books(&mut self.books, &mut known).await?,
            other => other,
        };
        self.tell_age(&known);
        self.known = Some(known);
        Ok(progress)
    }
}

impl FollowerState {
    /// Says once that a chain has no new blocks, which is no failure, and may be that of all its nodes.
    fn tell_age(&mut self, known: &StoredProgress) {
        let Some((_, ring)) = &known.followed else {
            return;
        };
        let head = ring.head();
        let age_ms = self.services.now_ms().saturating_sub(head.timestamp_ms);
        let is_still = age_ms > STILL_MS;
        if is_still && !self.is_still {
            let (number, seconds) = (head.block.number, age_ms / 1_000);
            tracing::warn!(chain = %self.chain, block = number, seconds, "the newest block that the nodes report is old");
        }
        self.is_still = is_still;
    }

    /// Notes that payments are to be told from now on, as soon as anyone takes deposits here: anyone who has the lease, and
    /// whether the nodes answer or not.
    async fn note_start(&mut self) -> Result<(), Fault> {
        let (services, chain) = (&self.services, self.chain);
        if self.is_start_noted || Routes::load(services, chain.network()).await?.is_empty() {
            return Ok(());
        }
        start::note(services, chain).await?;
        self.is_start_noted = true;
        Ok(())
    }
}

/// One look, with all that it needs.
pub(super) struct FollowStep<'a> {
    pub(super) services: &'a Services,
    pub(super) chain: FollowedChain,
    policy: FollowPolicy,
    pub(super) source: &'a dyn BlockSource,
    pub(super) routes: &'a Routes,
    window: u64,
}

/// What the nodes say of a chain now.
struct ChainAnswers {
    newest: u64,
    finality: ReportedFinality,
    /// Those that come next.
    blocks: Vec<ChainBlock>,
    /// The block at the height of the newest one that was followed, where that is another one by now.
    replaced_by: Option<BlockHeader>,
}

/// The newest final block, as it is told.
enum ReportedFinality {
    /// The first of these that was followed.
    Named(Vec<BlockRef>),
    /// The one with so many blocks on it.
    Below(u64),
}

impl FollowStep<'_> {
    /// The same, for other routes.
    pub(super) fn with_routes<'a>(&'a self, routes: &'a Routes) -> FollowStep<'a> {
        FollowStep { routes, ..*self }
    }

    async fn ask(&self, known: &StoredProgress, newest: u64) -> Result<ChainAnswers, FollowError> {
        let finality = self.finality().await?;
        let (mut blocks, mut replaced_by) = (Vec::new(), None);
        if let Some((_, ring)) = &known.followed {
            let head = ring.head().block;
            blocks = self.blocks(head.number.saturating_add(1), newest).await?;
            let is_told =
                |row: &TransferRow| row.state.block() == Some(head) && row.state.is_told();
            // What was told of the newest block is taken back as soon as it can be, and not with the next one.
            if blocks.is_empty() && known.open.values().any(is_told) {
                let there = self.source.header_at(head.number).await;
                replaced_by = there.ok().filter(|there| there.block != head);
            }
        }
        Ok(ChainAnswers {
            newest,
            finality,
            blocks,
            replaced_by,
        })
    }

    async fn look(
        &self,
        mut known: StoredProgress,
        asked: ChainAnswers,
    ) -> Result<(StoredProgress, FollowProgress), FollowError> {
        let ChainAnswers {
            newest,
            finality,
            blocks,
            replaced_by,
        } = asked;
        let Some((version, mut ring)) = known.followed else {
            known.followed = Some(self.begin(newest, finality).await?);
            return Ok((known, FollowProgress::Behind));
        };
        let before = (ring.head().block, ring.finalized().block);
        let mut change = ChainChange::default();
        let mut other = replaced_by;
        if let Some(first) = blocks.first()
            && ring.succession(&first.header)? == Succession::Forks
        {
            other = Some(first.header);
        }
        let forked = other.is_some();
        if let Some(other) = other {
            let ancestor = self.ancestor(&ring, other).await?;
            let replaced = ring.cut(&ancestor)?;
            tracing::warn!(
                chain = %self.chain, blocks = replaced.len(), from = ancestor.number.saturating_add(1),
                "the chain was reorganised: blocks that were followed were replaced"
            );
            for header in replaced {
                change.drop_header(header.block.number);
            }
            change.revert(&mut known.open, &ancestor)?;
        } else {
            self.take(&blocks, &mut ring, &mut known.open, &mut change)
                .await?;
        }
        let head = ring.head().block;
        let final_block = match finality {
            ReportedFinality::Below(depth) => head.number.checked_sub(depth),
            // Only by its hash: blocks below it are final because it stands on them.
            ReportedFinality::Named(blocks) => {
                let followed = blocks.iter().find(|block| ring.has(block));
                followed.map(|block| block.number)
            }
        };
        let most = before.1.number.saturating_add(MOST_FINALIZED);
        let final_block = final_block.and_then(|number| ring.get(number.min(most)));
        if let Some(block) = final_block.map(|header| header.block) {
            for header in ring.finalize(&block) {
                change.drop_header(header.block.number);
            }
        }
        let view = ChainView {
            head: head.number,
            finalized: ring.finalized().block.number,
            confirmations: self.confirmations(),
        };
        let is_settled = forked || change.settle(&mut known.open, &view, MOST_SETTLED)?;
        let version = if change.is_empty() && before == (head, ring.finalized().block) {
            version
        } else {
            self.commit(&change, &ring, Precondition::Version(version))
                .await?
        };
        let counter = self.services.counters.follow(self.chain);
        counter.followed(head.number, ring.finalized().block.number, newest);
        counter.traced(self.source.traces());
        counter.seen(ring.head().timestamp_ms);
        // A node that names a block that nobody has is asked no more often than others.
        let has_moved = forked || head != before.0;
        let progress = match !is_settled || (has_moved && (forked || head.number < newest)) {
            true => FollowProgress::Behind,
            false => FollowProgress::AtHead,
        };
        known.followed = Some((version, ring));
        Ok((known, progress))
    }

    pub(super) fn confirmations(&self) -> u64 {
        let wanted = self.policy.confirmations;
        wanted
            .unwrap_or_else(|| default_confirmations(self.chain))
            .max(1)
    }

    async fn finality(&self) -> Result<ReportedFinality, FollowError> {
        if let Some(depth) = self.policy.final_after {
            return Ok(ReportedFinality::Below(depth));
        }
        let named = self.source.newest_final().await?;
        if named.is_empty() {
            let reason =
                "the nodes report no final block; set final_after of the chain if they never do";
            return Err(FollowError::Nodes(reason.into()));
        }
        Ok(ReportedFinality::Named(named))
    }

    /// Begins at a final block from before anyone was told an address.
    async fn begin(
        &self,
        newest: u64,
        finality: ReportedFinality,
    ) -> Result<(u64, HeaderRing), FollowError> {
        let header = match finality {
            ReportedFinality::Named(blocks) => self.first_known(&blocks).await?,
            ReportedFinality::Below(depth) => {
                self.source.header_at(newest.saturating_sub(depth)).await?
            }
        };
        let since_ms = start::since_ms(self.services, self.chain).await?;
        let header = start::first_block(self.source, newest, header, since_ms).await?;
        let ring = HeaderRing::new(header);
        let mut change = ChainChange::default();
        change.add_header(header);
        let version = self.commit(&change, &ring, Precondition::Absent).await?;
        tracing::info!(chain = %self.chain, block = header.block.number, "deposits are followed from here on");
        Ok((version, ring))
    }

    /// The header of the first of these blocks that the nodes have.
    async fn first_known(&self, blocks: &[BlockRef]) -> Result<BlockHeader, FollowError> {
        let mut problem = FollowError::Nodes("the nodes report no final block".into());
        for block in blocks {
            match self.source.header_of(block).await {
                Ok(header) => return Ok(header),
                Err(error) => problem = error.into(),
            }
        }
        Err(problem)
    }

    /// Blocks from this one on, without a gap: one window at most.
    pub(super) async fn blocks(
        &self,
        first: u64,
        last: u64,
    ) -> Result<Vec<ChainBlock>, FollowError> {
        let newest = last;
        let last = last.min(first.saturating_add(self.window.saturating_sub(1)));
        let tokens = self.routes.tokens(self.chain);
        let numbers = first..=last;
        let asked = join_all(numbers.map(|number| self.source.block(number, &tokens))).await;
        let mut blocks = Vec::new();
        for answer in asked {
            match answer {
                Ok(Some(block)) => blocks.push(block),
                // The newest ones may not be everywhere yet.
                Ok(None) if blocks.is_empty() && first.saturating_add(APART) < newest => {
                    let reason =
                        format!("the nodes report block {newest}, but do not have block {first}");
                    return Err(FollowError::Nodes(reason));
                }
                Ok(None) => break,
                // Those before it are as good.
                Err(error) if blocks.is_empty() => return Err(error.into()),
                Err(_) => break,
            }
        }
        Ok(blocks)
    }

    /// The newest block that was followed and that a block of another fork stands on.
    async fn ancestor(
        &self,
        ring: &HeaderRing,
        fork: BlockHeader,
    ) -> Result<BlockRef, FollowError> {
        let mut at = fork;
        for _ in 0..LONGEST_FORK {
            match ring.search(&at) {
                ForkSearch::Ancestor(block) => return Ok(block),
                ForkSearch::Ask(parent) => at = self.source.header_of(&parent).await?,
                ForkSearch::BelowFinal => {
                    let finalized = ring.finalized().block.number;
                    return Err(FollowError::Stopped(format!(
                        "the nodes have replaced blocks before block {finalized}, which was final; no deposit \
                         is announced until they are back, or until you run covault deposits restart"
                    )));
                }
            }
        }
        Err(FollowError::Stopped(format!(
            "the nodes have replaced more than {LONGEST_FORK} blocks that were not final yet; no deposit is \
             announced until they are back, or until you run covault deposits restart"
        )))
    }

    /// Takes blocks that follow each other, up to the first that does not.
    async fn take(
        &self,
        blocks: &[ChainBlock],
        ring: &mut HeaderRing,
        open: &mut OpenTransfers,
        change: &mut ChainChange,
    ) -> Result<(), FollowError> {
        // Read after the blocks: an address is told after it was written, so whatever was sent to it is found.
        let owners = self.owners(blocks).await?;
        let head = ring.head().block;
        let mut taken = 0_usize;
        for block in blocks {
            if ring.succession(&block.header)? == Succession::Forks || taken >= MOST_TAKEN {
                break;
            }
            let transfers = match self.transfers(block, &owners).await {
                Ok(transfers) => transfers,
                // What is before it is as good, and must not wait for it.
                Err(FollowError::Nodes(_)) if head != ring.head().block => break,
                Err(error) => return Err(error),
            };
            taken = taken.saturating_add(transfers.len());
            let was_restarted = !transfers.is_empty() && self.was_restarted().await?;
            for transfer in transfers {
                let key = deposit_rows::transfer(&transfer);
                let stored = self.services.load::<TransferRow>(&key).await?;
                let stored = stored.map(|(row, _)| row);
                // After a restart: what was told for good is not told again, be it in another block now.
                if let Some(row) = stored.as_ref().filter(|row| row.state.is_final()) {
                    change.move_final(open, row, &block.header);
                    continue;
                }
                let number = block.header.block.number;
                if was_restarted
                    && stored.is_none()
                    && self.may_be_told_otherwise(&transfer, number, true).await?
                {
                    tracing::warn!(chain = %self.chain, block = number, "a transfer is not announced, because it \
                        may have been announced already, as a balance or by its trace");
                    continue;
                }
                let is_open = open.contains_key(&transfer.key());
                if is_open || !may_be_included(stored.as_ref()) {
                    let hash = hex::encode(transfer.transfer.tx);
                    return Err(FollowError::Nodes(format!(
                        "the nodes contradict themselves: transaction 0x{hash} is in two blocks"
                    )));
                }
                change.include(open, transfer, stored, &block.header)?;
            }
            ring.push(block.header)?;
            change.add_header(block.header);
        }
        Ok(())
    }

    /// Writes it all. The new version of the cursor's row.
    async fn commit(
        &self,
        change: &ChainChange,
        ring: &HeaderRing,
        expect: Precondition,
    ) -> Result<u64, FollowError> {
        let cursor = CursorRow {
            head: ring.head().block,
            finalized: ring.finalized().block,
        };
        let nothing_more = |_: &mut Batch| Ok(());
        change
            .commit(
                (self.services, self.routes),
                (self.chain, &cursor),
                expect,
                nothing_more,
            )
            .await?;
        match expect {
            Precondition::Version(version) => Ok(version.saturating_add(1)),
            Precondition::Absent | Precondition::Any => Ok(1),
        }
    }
}
