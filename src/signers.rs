//! The port of the orchestrator to its signer nodes, over mpc's cluster client.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use covault_actors::port::{
    ForeseenRequest, KeyRound, NodeBackup, NodeConfirmations, NodeHalt, NodeView, SignerCluster,
    SignerHold, SigningAttempt, UnadmittedView,
};
use covault_core::{
    amount::U256,
    approval::Rejection,
    attest::{AttestOrder, MadeKey, NodeStatements},
    fault::{Class, Fault},
    ids::{SessionId, TokenId, VaultId},
    networks::VerifiedSignatures,
    order::{
        BackupOrder, Generation, KeygenOrder, NodeId, ProvenGeneration, ReshareOrder,
        ReshareOutcome, ReshareProof, SigningOrder,
    },
    rate::UnsignedWork,
    scheme::Scheme,
};
use covault_mpc::{
    backend,
    cluster::{Ban, Cluster, ClusterHold, HaltReason, NodeStatus, SigningTask, Unadmitted},
    node::CurrentPolicy,
    policy::PolicyRequest,
    shares,
};

/// How long the bus has to take a rejection.
const TELLING: Duration = Duration::from_secs(2);

/// The cluster, as the orchestrator wants it.
pub struct ClusterSigners {
    /// It.
    pub cluster: Arc<Cluster>,
    /// What its signers are known to refuse, where the operator has said so.
    pub policy: Option<Arc<CurrentPolicy>>,
}

#[async_trait]
impl SignerCluster for ClusterSigners {
    async fn keygen(&self, order: &KeygenOrder) -> Result<MadeKey, Fault> {
        self.cluster.keygen(order).await
    }

    fn round(&self, session: &SessionId) -> Option<KeyRound> {
        let (round, of) = self.cluster.round(session)?;
        Some(KeyRound { round, of })
    }

    async fn sign(
        &self,
        order: &SigningOrder,
        attempt: &SigningAttempt,
    ) -> Result<VerifiedSignatures, Fault> {
        let SigningAttempt {
            scheme,
            session,
            holders,
            threshold,
            deadline_ms,
            token,
            turn,
            client_signer,
            trace,
        } = attempt;
        let task = SigningTask {
            scheme: *scheme,
            session: *session,
            holders,
            threshold: *threshold,
            deadline_ms: *deadline_ms,
            token: *token,
            turn: *turn,
            client_signer: *client_signer,
            trace: *trace,
        };
        self.cluster.sign(order, task).await
    }

    async fn tell_of_approvals(
        &self,
        order: &SigningOrder,
        session: SessionId,
        of: &Generation,
        client_signer: Option<NodeId>,
        patience: Duration,
    ) -> Result<Option<SignerHold>, Fault> {
        let needed = (of.threshold, client_signer);
        let cluster = &self.cluster;
        let told = cluster.tell_of_approvals(order, session, &of.holders, needed, patience);
        let hold = told.await?;
        Ok(hold.map(|ClusterHold { until_ms, by }| SignerHold { until_ms, by }))
    }

    async fn tell_of_rejection(
        &self,
        rejection: &Rejection,
        session: SessionId,
        holders: &[NodeId],
    ) -> Result<(), Fault> {
        let told = self
            .cluster
            .tell_of_rejection(rejection, session, holders, TELLING);
        told.await
    }

    fn foresee(&self, request: &ForeseenRequest<'_>) -> Result<(), Fault> {
        let Some(policy) = &self.policy else {
            return Ok(());
        };
        let ForeseenRequest {
            vault,
            network,
            payload,
            own_wallets,
        } = *request;
        let asked = PolicyRequest {
            vault,
            network,
            payload,
            fee: U256::ZERO,
            price: None,
            own_price: None,
            own_wallets,
        };
        let fee = network.rules().fixed_fee(payload);
        policy.get().0.foresee(&asked, fee).map(|_| ())
    }

    fn expected_wait(
        &self,
        scheme: Scheme,
        of: &Generation,
        party: (VaultId, TokenId),
        client_signer: Option<NodeId>,
        unsigned: UnsignedWork,
    ) -> Option<Duration> {
        let (holders, threshold) = (&of.holders, of.threshold);
        self.cluster
            .expected_wait(scheme, holders, threshold, party, client_signer, unsigned)
    }

    async fn reshare(&self, order: &ReshareOrder) -> Result<ReshareOutcome, Fault> {
        self.cluster.reshare_or_learn(order).await
    }

    async fn activate(
        &self,
        order: &ReshareOrder,
        proof: &ReshareProof,
        before: &[ProvenGeneration],
        nodes: &[NodeId],
    ) -> Result<NodeConfirmations, Fault> {
        self.cluster
            .distribute_activation(order, proof, before, nodes)
            .await
    }

    async fn backup(&self, order: &BackupOrder) -> Result<Vec<(NodeId, NodeBackup)>, Fault> {
        self.cluster.backup(order).await
    }

    async fn attest(
        &self,
        order: &AttestOrder,
        of: &Generation,
        patience: Duration,
    ) -> Result<Vec<NodeStatements>, Fault> {
        let Generation {
            holders, threshold, ..
        } = of;
        self.cluster
            .attest(order, holders, *threshold, patience)
            .await
    }

    fn nodes(&self) -> Vec<NodeView> {
        self.cluster.nodes().into_iter().map(view).collect()
    }

    fn node_counts(&self) -> (usize, usize) {
        self.cluster.node_counts()
    }

    fn admit(&self, nodes: &[NodeId]) {
        self.cluster.admit(nodes);
    }

    fn is_bus_reachable(&self) -> bool {
        self.cluster.bus_reachable()
    }

    fn unadmitted(&self) -> Vec<UnadmittedView> {
        let view = |stranger| {
            let Unadmitted {
                id,
                name,
                last_seen_ms,
            } = stranger;
            UnadmittedView {
                id,
                name,
                last_seen_ms,
            }
        };
        self.cluster.unadmitted().into_iter().map(view).collect()
    }

    fn check_backend(&self, scheme: Scheme) -> Result<(), Fault> {
        let missing = |fault: Fault| Fault::new(Class::Invalid, backend::MISSING).caused_by(fault);
        backend::of(scheme).map(|_| ()).map_err(missing)
    }

    fn check_recipient(&self, recipient: &str) -> Result<(), Fault> {
        check_recipient(recipient)
    }
}

/// See [`SignerCluster::check_recipient`].
pub fn check_recipient(recipient: &str) -> Result<(), Fault> {
    let parsed = shares::backup::recipients(&[recipient.to_owned()]);
    parsed.map(|_| ()).map_err(|error| {
        Fault::new(Class::Invalid, "must be an age recipient: age1...").caused_by(error)
    })
}

fn view(status: NodeStatus) -> NodeView {
    let NodeStatus {
        id,
        name,
        live,
        last_seen_ms,
        version,
        keys,
        bans,
        skew_ms,
        halted,
        frozen,
        listed,
    } = status;
    NodeView {
        id,
        name,
        named: false,
        live,
        last_seen_ms: Some(last_seen_ms),
        version,
        keys,
        bans: bans
            .into_iter()
            .map(|Ban { key, peer }| (key, peer))
            .collect(),
        skew_ms,
        halted: halted.into_iter().map(halt).collect(),
        frozen,
        listed,
    }
}

fn halt(halt: HaltReason) -> NodeHalt {
    match halt {
        HaltReason::Clock => NodeHalt::Clock,
        HaltReason::Claims => NodeHalt::Claims,
        HaltReason::Twice => NodeHalt::DuplicateIdentity,
        HaltReason::Frozen => NodeHalt::Frozen,
        HaltReason::ClientSigner => NodeHalt::ClientSigner,
        HaltReason::Version => NodeHalt::Version,
        HaltReason::ClockTooFar => NodeHalt::ClockTooFar,
    }
}
