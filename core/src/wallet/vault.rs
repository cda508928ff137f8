//! A vault: a set of signer nodes that hold the shares of two root keys, one per curve.

use serde::{Deserialize, Serialize};

use crate::{
    attest::MadeKey,
    derive::RootKey,
    fault::{Class, Fault},
    field::label,
    ids::VaultId,
    order::{Generation, KeygenOrder, LaterGenerations, NodeId, ReshareOrder, ReshareProof},
    request::ApprovalRule,
    scheme::Scheme,
    signature::Curve,
    wallet::{
        MAX_NAME,
        generation::{LiveKey, ReshareTarget, check_set},
    },
};

/// The field of requests that names a client signer.
pub const CLIENT_SIGNER: &str = "callbackClientSignerPublicKey";
/// Why something that was in progress is not gone on with.
const RESTORED: &str =
    "the store was restored from a backup; the outcome of this operation is unknown";

/// A vault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vault {
    /// The vault.
    pub id: VaultId,
    /// Its name, unique.
    pub name: String,
    /// Signers needed, when its keys are made. Later on each key's generation says it.
    pub threshold: u16,
    /// Share holders, when its keys are made, in the order of their indices.
    pub signers: Vec<NodeId>,
    /// Who decides about its requests.
    pub approval: ApprovalRule,
    /// Milliseconds since the Unix epoch.
    pub created_at_ms: u64,
    /// Its root keys, one entry per curve.
    pub keys: Vec<VaultKey>,
}

/// One root key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VaultKey {
    /// The threshold scheme, and so the curve.
    pub scheme: Scheme,
    /// Where it stands.
    pub state: KeyState,
}

/// The state of a root key.
#[expect(
    clippy::large_enum_variant,
    reason = "a vault has two of them, and a key that is there is the usual case"
)]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeyState {
    /// It is to be made.
    Wanted,
    /// A run was claimed; nodes may be at work on it.
    Generating(KeygenOrder),
    /// It exists.
    Ready(LiveKey),
    /// The nodes refused for good.
    Failed(String),
}

impl Vault {
    /// A new vault without keys. `ecdsa` is the scheme of its secp256k1 key; the other curve has
    /// one scheme only.
    ///
    /// # Errors
    /// [`Class::Invalid`] naming the field.
    pub fn new(
        id: VaultId,
        name: &str,
        threshold: u16,
        signers: Vec<NodeId>,
        ecdsa: Scheme,
        approval: ApprovalRule,
        now_ms: u64,
    ) -> Result<Self, Fault> {
        approval.check()?;
        if !approval.wallets.is_empty() {
            return Err(Fault::field(
                "approvals.wallets",
                "a new vault has no wallets yet",
            ));
        }
        if name.trim().is_empty() {
            return Err(Fault::field("name", "is required"));
        }
        label("name", name, MAX_NAME)?;
        check_set(threshold, &signers)?;
        if ecdsa.curve() != Curve::Secp256k1 {
            return Err(Fault::field("ecdsaBackend", "not an ECDSA backend"));
        }
        let keys = Curve::ALL
            .into_iter()
            .map(|curve| VaultKey {
                scheme: if curve == ecdsa.curve() {
                    ecdsa
                } else {
                    Scheme::default_of(curve)
                },
                state: KeyState::Wanted,
            })
            .collect();
        Ok(Self {
            id,
            name: name.to_owned(),
            threshold,
            signers,
            approval,
            created_at_ms: now_ms,
            keys,
        })
    }

    /// The key on a curve, once it exists.
    pub fn live(&self, curve: Curve) -> Option<&LiveKey> {
        self.keys.iter().find_map(|key| match &key.state {
            KeyState::Ready(live) if key.scheme.curve() == curve => Some(live),
            _ => None,
        })
    }

    /// The scheme of its secp256k1 key.
    pub fn ecdsa(&self) -> Scheme {
        self.keys
            .iter()
            .map(|key| key.scheme)
            .find(|scheme| scheme.curve() == Curve::Secp256k1)
            .unwrap_or(Scheme::default_of(Curve::Secp256k1))
    }

    /// The root key on a curve, once it exists.
    pub fn root(&self, curve: Curve) -> Option<&RootKey> {
        self.live(curve).map(|live| &live.root)
    }

    /// The scheme of the key of a curve and the generation of shares that signs with it, once the key is
    /// there.
    pub fn shares(&self, curve: Curve) -> Option<(Scheme, &Generation)> {
        self.keys.iter().find_map(|key| match &key.state {
            KeyState::Ready(live) if key.scheme.curve() == curve => {
                Some((key.scheme, &live.generation))
            }
            _ => None,
        })
    }

    /// The generation of shares that signs on a curve, once the key exists.
    pub fn generation(&self, curve: Curve) -> Option<&Generation> {
        self.live(curve).map(|live| &live.generation)
    }

    /// Refuses a client signer without a share of the key of a curve, which could never take part, and one that the
    /// vault's rule does not name: it would decide in place of the rule's people.
    ///
    /// # Errors
    /// [`Class::Invalid`], field [`CLIENT_SIGNER`].
    pub fn check_client_signer(&self, curve: Curve, signer: NodeId) -> Result<(), Fault> {
        let refuse = |problem: &str| Err(Fault::field(CLIENT_SIGNER, problem));
        let holds = |of: &Generation| of.holders.contains(&signer);
        if !self.generation(curve).is_some_and(holds) {
            return refuse(
                "holds no share of this key of the vault; reshare the vault to it first",
            );
        }
        match self.approval.client_signers.contains(&signer) {
            true => Ok(()),
            false => refuse("is not a client signer of the vault's approval rule"),
        }
    }

    /// Whether every root key exists.
    pub fn ready(&self) -> bool {
        self.keys
            .iter()
            .all(|key| matches!(key.state, KeyState::Ready(_)))
    }

    /// Why a key will never be there.
    pub fn failed_reason(&self) -> Option<&str> {
        self.keys.iter().find_map(|key| match &key.state {
            KeyState::Failed(reason) => Some(reason.as_str()),
            _ => None,
        })
    }

    /// Claims a run of the key generation with `order.scheme`.
    ///
    /// # Errors
    /// [`Class::WrongState`] when the key is there or has failed for good: a root
    /// key is never replaced.
    pub fn claim(&mut self, order: KeygenOrder) -> Result<(), Fault> {
        match self.state_of(order.scheme)? {
            state @ (KeyState::Wanted | KeyState::Generating(_)) => {
                *state = KeyState::Generating(order);
                Ok(())
            }
            KeyState::Ready(_) | KeyState::Failed(_) => Err(already_decided()),
        }
    }

    /// Takes the key that the run `order` made.
    ///
    /// # Errors
    /// [`Class::WrongState`] when another run, or none, is claimed.
    pub fn take(&mut self, order: &KeygenOrder, key: MadeKey) -> Result<(), Fault> {
        let state = self.state_of(order.scheme)?;
        match state {
            KeyState::Generating(claimed)
                if claimed == order && key.root.curve == order.scheme.curve() =>
            {
                let live = LiveKey::new(key, order.threshold, order.signers.clone());
                *state = KeyState::Ready(live);
                Ok(())
            }
            _ => Err(already_decided()),
        }
    }

    /// Gives up: the nodes refused the run `order` for good.
    ///
    /// # Errors
    /// As [`Vault::take`].
    pub fn give_up(&mut self, order: &KeygenOrder, reason: &str) -> Result<(), Fault> {
        let state = self.state_of(order.scheme)?;
        match state {
            KeyState::Generating(claimed) if claimed == order => {
                *state = KeyState::Failed(reason.to_owned());
                Ok(())
            }
            _ => Err(already_decided()),
        }
    }

    /// It was restored from a backup. What was in progress then may have come to its end since: it is left
    /// to an operator. So many epochs may have been used up by runs that are not known here, as far as time brought so many.
    pub fn restored(&mut self, epochs: u32, now_ms: u64) {
        for key in &mut self.keys {
            match &mut key.state {
                KeyState::Wanted | KeyState::Generating(_) => {
                    key.state = KeyState::Failed(RESTORED.to_owned());
                }
                KeyState::Ready(live) => live.restored(epochs, now_ms, RESTORED),
                KeyState::Failed(_) => {}
            }
        }
    }

    /// Wants the keys again whose generation had failed for good.
    pub fn retry_failed_keys(&mut self) {
        for key in &mut self.keys {
            if matches!(key.state, KeyState::Failed(_)) {
                key.state = KeyState::Wanted;
            }
        }
    }

    /// Has the keys that are not there made by these nodes from now on: those that were to make
    /// them may never come. Keys that are there stay as they are.
    ///
    /// # Errors
    /// [`Class::Invalid`] naming the field, and [`Class::WrongState`] when there is nothing left to
    /// make, or the ECDSA key is there with another scheme.
    pub fn plan_again(
        &mut self,
        threshold: u16,
        signers: Vec<NodeId>,
        ecdsa: Scheme,
    ) -> Result<(), Fault> {
        check_set(threshold, &signers)?;
        if ecdsa.curve() != Curve::Secp256k1 {
            return Err(Fault::field("ecdsaBackend", "not an ECDSA backend"));
        }
        if self.ready() {
            return Err(Fault::new(
                Class::WrongState,
                "the vault's keys already exist; use covault vault reshare to move them to other nodes",
            ));
        }
        if self.live(Curve::Secp256k1).is_some() && self.ecdsa() != ecdsa {
            return Err(Fault::new(
                Class::WrongState,
                "the vault's ECDSA key already exists, with another backend",
            ));
        }
        for key in &mut self.keys {
            if matches!(key.state, KeyState::Ready(_)) {
                continue;
            }
            key.state = KeyState::Wanted;
            if key.scheme.curve() == Curve::Secp256k1 {
                key.scheme = ecdsa;
            }
        }
        (self.threshold, self.signers) = (threshold, signers);
        Ok(())
    }

    /// An operator wants new shares of the keys of these schemes (of every key that can have some, when there are
    /// none): held by `to`, or by whom they are held now. `lost` are holders that have lost their shares. Repeating
    /// the wish changes nothing.
    ///
    /// # Errors
    /// [`Class::Invalid`] naming the field, and [`Class::WrongState`] before the keys are there
    /// or while another wish is open. Nothing has changed for some keys only: drop the vault.
    pub fn want_reshare(
        &mut self,
        to: Option<(u16, &[NodeId])>,
        lost: &[NodeId],
        schemes: &[Scheme],
    ) -> Result<(), Fault> {
        if let Some(scheme) = schemes
            .iter()
            .find(|scheme| self.keys.iter().all(|key| key.scheme != **scheme))
        {
            return Err(Fault::field(
                "schemes",
                format!("the vault has no {} key", scheme.name()),
            ));
        }
        let holds = |key: &VaultKey, node| match &key.state {
            KeyState::Ready(live) => live.generation.holders.contains(node),
            _ => true,
        };
        if lost
            .iter()
            .any(|node| !self.keys.iter().any(|key| holds(key, node)))
        {
            return Err(Fault::field("lost", "includes a node that holds no share"));
        }
        for key in &mut self.keys {
            let meant = if schemes.is_empty() {
                key.scheme.reshares()
            } else {
                schemes.contains(&key.scheme)
            };
            if !meant {
                continue;
            }
            let KeyState::Ready(live) = &mut key.state else {
                return Err(Fault::new(
                    Class::WrongState,
                    "the vault's keys do not exist yet",
                ));
            };
            if !key.scheme.reshares() {
                return Err(Fault::field(
                    "schemes",
                    format!("{} keys cannot be refreshed or reshared", key.scheme.name()),
                ));
            }
            let (threshold, holders) = match to {
                Some((threshold, holders)) => (threshold, holders.to_vec()),
                None => (live.generation.threshold, live.generation.holders.clone()),
            };
            // Keys may have different holders.
            let holds = |node: &&NodeId| live.generation.holders.contains(node);
            let lost = lost.iter().filter(holds).copied().collect();
            live.want(ReshareTarget {
                threshold,
                holders,
                lost,
            })?;
        }
        Ok(())
    }

    /// Cancels what [`Vault::want_reshare`] asked for, where it is not too late.
    ///
    /// # Errors
    /// [`Class::WrongState`] when there is nothing, or nothing left, to cancel.
    pub fn cancel_reshare(&mut self) -> Result<(), Fault> {
        let mut outcome = Err(Fault::new(
            Class::WrongState,
            "no refresh or reshare of this vault can be cancelled: none is in progress, or its shares are already in use",
        ));
        for key in &mut self.keys {
            if let KeyState::Ready(live) = &mut key.state
                && live.cancel().is_ok()
            {
                outcome = Ok(());
            }
        }
        outcome
    }

    /// Claims a run for a new generation of shares; as [`LiveKey::begin`].
    ///
    /// # Errors
    /// As there.
    pub fn begin_reshare(&mut self, order: ReshareOrder) -> Result<(), Fault> {
        self.ready_key(order.scheme)?.begin(order)
    }

    /// Takes a new generation into use; as [`LiveKey::prepared`].
    ///
    /// # Errors
    /// As there.
    pub fn reshared(&mut self, order: &ReshareOrder, proof: ReshareProof) -> Result<(), Fault> {
        self.ready_key(order.scheme)?.prepared(order, proof)
    }

    /// Takes what nodes have shown of later generations; as [`LiveKey::learned`].
    ///
    /// # Errors
    /// As there.
    pub fn learned(&mut self, order: &ReshareOrder, later: LaterGenerations) -> Result<(), Fault> {
        self.ready_key(order.scheme)?.learned(order, later)
    }

    /// These nodes confirmed the generation; as [`LiveKey::confirmed`].
    ///
    /// # Errors
    /// As there.
    pub fn confirmed(&mut self, order: &ReshareOrder, nodes: &[NodeId]) -> Result<(), Fault> {
        self.ready_key(order.scheme)?.confirmed(order, nodes)
    }

    /// No further run until it is wanted again; as [`LiveKey::halt`].
    ///
    /// # Errors
    /// As there.
    pub fn halt_reshare(&mut self, order: &ReshareOrder, reason: &str) -> Result<(), Fault> {
        self.ready_key(order.scheme)?.halt(order, reason)
    }

    fn ready_key(&mut self, scheme: Scheme) -> Result<&mut LiveKey, Fault> {
        match self.state_of(scheme)? {
            KeyState::Ready(live) => Ok(live),
            _ => Err(Fault::bug("the reshared key does not exist")),
        }
    }

    fn state_of(&mut self, scheme: Scheme) -> Result<&mut KeyState, Fault> {
        self.keys
            .iter_mut()
            .find(|key| key.scheme == scheme)
            .map(|key| &mut key.state)
            .ok_or_else(|| Fault::bug("a vault has no key of this scheme"))
    }
}

fn already_decided() -> Fault {
    Fault::new(
        Class::WrongState,
        "the key generation has ended, or another one is running",
    )
}

#[cfg(test)]
#[path = "vault_tests.rs"]
mod tests;
