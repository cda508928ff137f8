//! What the orchestrator needs from the cluster of signer nodes. `src/` wires `mpc`'s cluster in.

use std::{collections::BTreeSet, time::Duration};

use async_trait::async_trait;
use covault_core::{
    approval::Rejection,
    attest::{AttestOrder, MadeKey, NodeStatements},
    fault::Fault,
    ids::{SessionId, TokenId, VaultId},
    networks::{Network, Payload, VerifiedSignatures},
    order::{
        BackupOrder, Generation, KeygenOrder, ListedNodes, NodeId, ProvenGeneration, ReshareOrder,
        ReshareOutcome, ReshareProof, SigningOrder,
    },
    rate::UnsignedWork,
    scheme::Scheme,
    trace::TraceContext,
    turns::RequestTurn,
};
use serde::{Deserialize, Serialize};

/// A request before anything of it is stored.
#[derive(Clone, Copy, Debug)]
pub struct ForeseenRequest<'a> {
    /// The vault of the wallet, whose address the payload names.
    pub vault: VaultId,
    /// The wallet's network.
    pub network: Network,
    /// The payload.
    pub payload: &'a Payload,
    /// The recipients that are wallets of the vault.
    pub own_wallets: &'a BTreeSet<String>,
}

/// One attempt to sign an order with a fixed set of nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SigningAttempt {
    /// The scheme of the key.
    pub scheme: Scheme,
    /// The session. Claimed in the store before it is used, and never used again.
    pub session: SessionId,
    /// Every node that holds a share of the generation that the order names, in the order of
    /// their indices.
    pub holders: Vec<NodeId>,
    /// Signers needed.
    pub threshold: u16,
    /// Milliseconds since the Unix epoch after which the attempt has failed.
    pub deadline_ms: u64,
    /// Who asked for it. Each token has its turns, and of a token each vault.
    pub token: TokenId,
    /// Where it stands among those.
    pub turn: RequestTurn,
    /// The client signer that has to approve it and to take part. Others sign nothing.
    pub client_signer: Option<NodeId>,
    /// The span that the signers' are parts of, where the request is traced.
    pub trace: Option<TraceContext>,
}

/// Signers hold what people have approved for a time in which it can still be rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignerHold {
    /// From when on enough of them sign it, in milliseconds since the Unix epoch.
    pub until_ms: u64,
    /// The names of those that hold it.
    pub by: Vec<String>,
}

/// Where a run is that makes a key or new shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyRound {
    /// From 1.
    pub round: u16,
    /// How many there are.
    pub of: u16,
}

/// A signer node as the orchestrator sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeView {
    /// Identity.
    pub id: NodeId,
    /// What the operator calls it, else the name the node announced.
    pub name: String,
    /// Whether the operator has given it that name.
    pub named: bool,
    /// Whether it announced itself recently.
    pub live: bool,
    /// When it last announced itself, in milliseconds since the Unix epoch; `None`: not since
    /// this process started.
    pub last_seen_ms: Option<u64>,
    /// The version of its program; empty while unseen.
    pub version: String,
    /// How many keys it says it holds a share of.
    pub keys: u32,
    /// Whom it says it has banned for cheating: the first bytes of the root public key, and the
    /// peer.
    pub bans: Vec<([u8; 8], NodeId)>,
    /// How far its clock is ahead, in milliseconds.
    pub skew_ms: i64,
    /// Why it does not sign.
    pub halted: Vec<NodeHalt>,
    /// Vaults for which it signs nothing: its operator has frozen them.
    pub frozen: Vec<VaultId>,
    /// Which orchestrators and peers its configuration lists; `None` while unseen.
    pub listed: Option<ListedNodes>,
}

/// Why a node does not sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeHalt {
    /// Its clock cannot be believed.
    Clock,
    /// Promises of it are missing in its claims file: its vaults must be refreshed.
    Claims,
    /// Two processes have its identity.
    DuplicateIdentity,
    /// Its operator has frozen it.
    Frozen,
    /// It is a client signer: it signs what names it, and nothing else.
    ClientSigner,
    /// Its version and that of the orchestrator are too far apart.
    Version,
    /// Its clock and that of the orchestrator are so far apart that nothing of it is believed.
    ClockTooFar,
}

impl NodeView {
    /// A node of which nothing is known but its identity.
    pub fn unseen(id: NodeId) -> Self {
        Self {
            id,
            name: String::new(),
            named: false,
            live: false,
            last_seen_ms: None,
            version: String::new(),
            keys: 0,
            bans: Vec::new(),
            skew_ms: 0,
            halted: Vec::new(),
            frozen: Vec::new(),
            listed: None,
        }
    }

    /// Whether it is frozen for a vault.
    pub fn is_frozen(&self, vault: VaultId) -> bool {
        self.halted.contains(&NodeHalt::Frozen) || self.frozen.contains(&vault)
    }

    /// Whether its configuration lets it work with this node, as far as that is known.
    pub fn lists_peer(&self, peer: &NodeId) -> bool {
        self.listed
            .as_ref()
            .is_none_or(|listed| listed.has_peer(peer))
    }

    /// Whether it takes the orders of this orchestrator, as far as that is known.
    pub fn lists_orchestrator(&self, orchestrator: &NodeId) -> bool {
        let listed = self.listed.as_ref();
        listed.is_none_or(|listed| listed.has_orchestrator(orchestrator))
    }

    /// Whether it can sign for a vault now, as far as it is heard. Of promises that are missing only some of its shares may
    /// be concerned.
    pub fn can_sign(&self, vault: VaultId) -> bool {
        self.can_sign_when_named(vault) && !self.halted.contains(&NodeHalt::ClientSigner)
    }

    /// The same of a client signer, for requests that name it.
    pub fn can_sign_when_named(&self, vault: VaultId) -> bool {
        let may = |halt: &NodeHalt| matches!(halt, NodeHalt::Claims | NodeHalt::ClientSigner);
        self.live && !self.is_frozen(vault) && self.halted.iter().all(may)
    }
}

/// A node that announces itself and is not admitted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnadmittedView {
    /// Identity.
    pub id: NodeId,
    /// The name it announced; anyone can announce any.
    pub name: String,
    /// When it last announced itself, in milliseconds since the Unix epoch.
    pub last_seen_ms: u64,
}

/// Each node that was told of new shares: that it has confirmed them, or why it has not.
pub type NodeConfirmations = Vec<(NodeId, Result<(), Fault>)>;

/// A node's share, encrypted with age, or why there is none.
pub type NodeBackup = Result<Vec<u8>, Fault>;

/// The cluster of signer nodes.
#[async_trait]
pub trait SignerCluster: Send + Sync {
    /// Makes a root key by distributed key generation. Repeating an order that has succeeded
    /// returns the same key, with what shows that every node has its share of it on disk.
    async fn keygen(&self, order: &KeygenOrder) -> Result<MadeKey, Fault>;

    /// Where a key generation or reshare is that was asked for here, as its nodes say; for people. `None`: nobody has said.
    fn round(&self, _session: &SessionId) -> Option<KeyRound> {
        None
    }

    /// Signs every input of the order with any `threshold` live holders. Each signature was
    /// verified against the order's public key.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when too few holders answered in time (the
    /// public sentence names the missing nodes), at once with the code
    /// [`covault_core::fault::FaultCode::Busy`] when what came before takes longer than there is time,
    /// [`covault_core::fault::Class::Peer`] when some
    /// misbehaved, [`covault_core::fault::Class::Invalid`] when the nodes refused the order.
    async fn sign(
        &self,
        order: &SigningOrder,
        attempt: &SigningAttempt,
    ) -> Result<VerifiedSignatures, Fault>;

    /// Tells live holders of the generation of the approvals that an order carries, which has no transaction yet: those that
    /// hold such payments begin to count the time. `Some`: too few would sign it now, or not the client signer that it
    /// names.
    ///
    /// # Errors
    /// With [`covault_core::fault::FaultCode::ApprovalsMissing`] where too few would sign it without more approvals, or
    /// others. [`covault_core::fault::Class::Unavailable`] when too few said anything within `patience` to tell.
    async fn tell_of_approvals(
        &self,
        _order: &SigningOrder,
        _session: SessionId,
        _of: &Generation,
        _client_signer: Option<NodeId>,
        _patience: Duration,
    ) -> Result<Option<SignerHold>, Fault> {
        Ok(None)
    }

    /// Tells holders of shares what a person has rejected, in a session of its own. They verify it themselves, and never sign
    /// it then. Those that are away may not hear of it.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when it could not be sent to all of them, or is not on the disk of one that
    /// is live.
    async fn tell_of_rejection(
        &self,
        rejection: &Rejection,
        session: SessionId,
        holders: &[NodeId],
    ) -> Result<(), Fault>;

    /// Refuses what signers are known to refuse, as far as that can be told before the transaction is built. They continue
    /// checking themselves: this spares a client the wait.
    ///
    /// # Errors
    /// As their own refusal: [`covault_core::fault::Class::Invalid`] that begins with what is forbidden.
    fn foresee(&self, _request: &ForeseenRequest<'_>) -> Result<(), Fault> {
        Ok(())
    }

    /// How long it may be at the present rate until what a party's vault has to sign with these shares is signed,
    /// with so much accepted and not signed, and the same again for what the token has waiting; where each
    /// team has this client signer, if any.
    /// `None`: nobody knows yet.
    fn expected_wait(
        &self,
        _scheme: Scheme,
        _of: &Generation,
        _party: (VaultId, TokenId),
        _client_signer: Option<NodeId>,
        _unsigned: UnsignedWork,
    ) -> Option<Duration> {
        Some(Duration::ZERO)
    }

    /// Makes a new generation of shares; the old one signs until [`SignerCluster::activate`]. Repeating
    /// an order that has succeeded returns the same proof. Or what nodes know that the order did not.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when nodes did not answer before the order
    /// expired, [`covault_core::fault::Class::Peer`] when some misbehaved,
    /// [`covault_core::fault::Class::Invalid`] when nodes refused. Another attempt needs a new
    /// session and a new epoch.
    async fn reshare(&self, order: &ReshareOrder) -> Result<ReshareOutcome, Fault>;

    /// Tells nodes that a generation is there: its holders take it into use, and all retire what they
    /// have of earlier ones; `before` has the generations that some of them may not know. Each node's answer; none is waited for that is not live. To be repeated
    /// until all have confirmed, also after the order has expired.
    ///
    /// # Errors
    /// When nobody could be asked.
    async fn activate(
        &self,
        order: &ReshareOrder,
        proof: &ReshareProof,
        before: &[ProvenGeneration],
        nodes: &[NodeId],
    ) -> Result<NodeConfirmations, Fault>;

    /// Has holders encrypt their shares to the order's recipients: each one's backup, or why
    /// there is none.
    ///
    /// # Errors
    /// When nobody could be asked.
    async fn backup(&self, order: &BackupOrder) -> Result<Vec<(NodeId, NodeBackup)>, Fault>;

    /// Has live holders of the generation state that addresses are the vault's: the statements of
    /// threshold many, each verified.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when fewer have answered within `patience`; at once
    /// while fewer live.
    async fn attest(
        &self,
        _order: &AttestOrder,
        _of: &Generation,
        _patience: Duration,
    ) -> Result<Vec<NodeStatements>, Fault> {
        Err(Fault::unavailable("there are no signers"))
    }

    /// Every admitted node that announced itself since this process started: what this process hears, on which it acts. What
    /// is told of nodes are the rows that the node observer writes from it.
    fn nodes(&self) -> Vec<NodeView>;

    /// How many of them are live, and how many there are: anyone may ask, so that a cluster counts without a copy of the
    /// list.
    fn node_counts(&self) -> (usize, usize) {
        let nodes = self.nodes();
        (nodes.iter().filter(|node| node.live).count(), nodes.len())
    }

    /// From now on only these nodes are used and listed. Called before anything else, and with
    /// every change.
    fn admit(&self, _nodes: &[NodeId]) {}

    /// Nodes that announced themselves recently and are not admitted: a short list.
    fn unadmitted(&self) -> Vec<UnadmittedView> {
        Vec::new()
    }

    /// Whether the bus to the nodes was reachable when it was last used.
    fn is_bus_reachable(&self) -> bool {
        true
    }

    /// Whether this program has the backend of a scheme.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Invalid`] when it does not.
    fn check_backend(&self, _scheme: Scheme) -> Result<(), Fault> {
        Ok(())
    }

    /// Whether nodes can encrypt shares to an age recipient.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Invalid`] when they cannot.
    fn check_recipient(&self, _recipient: &str) -> Result<(), Fault> {
        Ok(())
    }
}

/// What this process writes into its log.
pub trait LogControl: Send + Sync {
    /// The level, or levels by target, as configuration has them.
    fn level(&self) -> String;

    /// The level that its configuration says.
    fn configured(&self) -> String {
        self.level()
    }

    /// Whether this can be a level.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Invalid`] saying what can be.
    fn check(&self, level: &str) -> Result<(), Fault>;

    /// Writes on this level from now on.
    ///
    /// # Errors
    /// As [`LogControl::check`].
    fn set_level(&self, level: &str) -> Result<(), Fault>;
}

/// A log whose level nobody changes.
#[derive(Clone, Copy, Debug)]
pub struct FixedLog;

impl LogControl for FixedLog {
    fn level(&self) -> String {
        "info".to_owned()
    }

    fn check(&self, _: &str) -> Result<(), Fault> {
        Err(Fault::new(
            covault_core::fault::Class::WrongState,
            "the log level of this process cannot be changed while it runs",
        ))
    }

    fn set_level(&self, level: &str) -> Result<(), Fault> {
        self.check(level)
    }
}

/// A clock that neither jumps nor goes back, and that no other machine's is compared with.
pub trait MonotonicClock: Send + Sync {
    /// Milliseconds since some moment.
    fn elapsed_ms(&self) -> u64;
}

/// The machine's steady clock, through tokio.
#[derive(Clone, Copy, Debug)]
pub struct TokioMonotonicClock(tokio::time::Instant);

impl Default for TokioMonotonicClock {
    fn default() -> Self {
        Self(tokio::time::Instant::now())
    }
}

impl MonotonicClock for TokioMonotonicClock {
    fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}
