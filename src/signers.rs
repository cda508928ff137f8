//! The port of the orchestrator to its signer nodes, over mpc's cluster client.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use covault_actors::port::{
    NodeBackup, NodeConfirmations, NodeHalt, NodeView, SignerCluster, SigningAttempt,
    UnadmittedView,
};
use covault_core::{
    attest::{AttestOrder, MadeKey, NodeStatements},
    fault::{Class, Fault},
    ids::{TokenId, VaultId},
    order::{
        BackupOrder, Generation, KeygenOrder, NodeId, ProvenGeneration, ReshareOrder,
        ReshareOutcome, ReshareProof, SigningOrder,
    },
    scheme::Scheme,
    signature::Signature,
};
use covault_mpc::{
    backend,
    cluster::{Ban, Cluster, HaltReason, NodeStatus, SigningTask, Unadmitted},
    shares,
};

/// The cluster, as the orchestrator wants it.
pub struct ClusterSigners(pub Arc<Cluster>);

#[async_trait]
impl SignerCluster for ClusterSigners {
    async fn keygen(&self, order: &KeygenOrder) -> Result<MadeKey, Fault> {
        self.0.keygen(order).await
    }

    async fn sign(
        &self,
        order: &SigningOrder,
        attempt: &SigningAttempt,
    ) -> Result<Vec<Signature>, Fault> {
        let SigningAttempt {
            scheme,
            session,
            holders,
            threshold,
            deadline_ms,
            token,
        } = attempt;
        let task = SigningTask {
            scheme: *scheme,
            session: *session,
            holders,
            threshold: *threshold,
            deadline_ms: *deadline_ms,
            token: *token,
        };
        self.0.sign(order, task).await
    }

    fn expected_wait(
        &self,
        scheme: Scheme,
        of: &Generation,
        party: (VaultId, TokenId),
        unsigned: usize,
    ) -> Option<Duration> {
        self.0
            .expected_wait(scheme, &of.holders, of.threshold, party, unsigned)
    }

    async fn reshare(&self, order: &ReshareOrder) -> Result<ReshareOutcome, Fault> {
        self.0.reshare_or_learn(order).await
    }

    async fn activate(
        &self,
        order: &ReshareOrder,
        proof: &ReshareProof,
        before: &[ProvenGeneration],
        nodes: &[NodeId],
    ) -> Result<NodeConfirmations, Fault> {
        self.0
            .distribute_activation(order, proof, before, nodes)
            .await
    }

    async fn backup(&self, order: &BackupOrder) -> Result<Vec<(NodeId, NodeBackup)>, Fault> {
        self.0.backup(order).await
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
        self.0.attest(order, holders, *threshold, patience).await
    }

    fn nodes(&self) -> Vec<NodeView> {
        self.0.nodes().into_iter().map(view).collect()
    }

    fn admit(&self, nodes: &[NodeId]) {
        self.0.admit(nodes);
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
        self.0.unadmitted().into_iter().map(view).collect()
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
    }
}

fn halt(halt: HaltReason) -> NodeHalt {
    match halt {
        HaltReason::Clock => NodeHalt::Clock,
        HaltReason::Claims => NodeHalt::Claims,
        HaltReason::Twice => NodeHalt::DuplicateIdentity,
        HaltReason::Frozen => NodeHalt::Frozen,
    }
}
