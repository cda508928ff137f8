//! A vault: a set of signer nodes that hold the shares of two root keys, one per curve.

use serde::{Deserialize, Serialize};

use crate::{
    derive::RootKey,
    fault::Fault,
    ids::VaultId,
    order::{KeygenOrder, NodeId},
    request::Approval,
    scheme::Scheme,
    signature::Curve,
    wallet::MAX_NAME,
};

/// Most nodes that can hold shares of one vault: their protocol index is one byte.
pub const MAX_SIGNERS: usize = 255;

/// A vault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vault {
    /// The vault.
    pub id: VaultId,
    /// Its name, unique.
    pub name: String,
    /// Signers needed.
    pub threshold: u16,
    /// Share holders, in the order of the keygen.
    pub signers: Vec<NodeId>,
    /// Generation of the shares; raised by refresh, reshare and restore.
    pub epoch: u32,
    /// Who decides about its requests.
    pub approval: Approval,
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeyState {
    /// It is to be made.
    Wanted,
    /// A run was claimed; nodes may be at work on it.
    Generating(KeygenOrder),
    /// It is there.
    Ready(RootKey),
    /// The nodes refused for good.
    Failed(String),
}

impl Vault {
    /// A new vault without keys. `ecdsa` is the scheme of its secp256k1 key; the other curve has
    /// one scheme only.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`] naming the field.
    pub fn new(
        id: VaultId,
        name: &str,
        threshold: u16,
        signers: Vec<NodeId>,
        ecdsa: Scheme,
        now_ms: u64,
    ) -> Result<Self, Fault> {
        if name.trim().is_empty() {
            return Err(Fault::field("name", "is required"));
        }
        if name.chars().count() > MAX_NAME {
            return Err(Fault::field(
                "name",
                format!("has more than {MAX_NAME} characters"),
            ));
        }
        if signers.len() > MAX_SIGNERS {
            return Err(Fault::field(
                "signers",
                format!("are more than {MAX_SIGNERS}"),
            ));
        }
        let mut sorted = signers.clone();
        sorted.sort_unstable();
        sorted.dedup();
        if sorted.len() != signers.len() {
            return Err(Fault::field("signers", "name one node twice"));
        }
        if threshold < 2 || usize::from(threshold) > signers.len() {
            return Err(Fault::field(
                "threshold",
                "must be at least 2 and at most the number of signers",
            ));
        }
        if ecdsa.curve() != Curve::Secp256k1 {
            return Err(Fault::field("ecdsaBackend", "is none for ECDSA"));
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
            epoch: 0,
            approval: Approval::Automatic,
            created_at_ms: now_ms,
            keys,
        })
    }

    /// The root key on a curve, once it is there.
    pub fn root(&self, curve: Curve) -> Option<&RootKey> {
        self.keys.iter().find_map(|key| match &key.state {
            KeyState::Ready(root) if key.scheme.curve() == curve => Some(root),
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

    /// Whether every root key is there.
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
    /// [`crate::fault::Class::WrongState`] when the key is there or has failed for good: a root
    /// key is never replaced.
    pub fn claim(&mut self, order: KeygenOrder) -> Result<(), Fault> {
        match self.state_of(order.scheme)? {
            state @ (KeyState::Wanted | KeyState::Generating(_)) => {
                *state = KeyState::Generating(order);
                Ok(())
            }
            KeyState::Ready(_) | KeyState::Failed(_) => Err(settled()),
        }
    }

    /// Takes the key that the run `order` made.
    ///
    /// # Errors
    /// [`crate::fault::Class::WrongState`] when another run, or none, is claimed.
    pub fn take(&mut self, order: &KeygenOrder, key: RootKey) -> Result<(), Fault> {
        let state = self.state_of(order.scheme)?;
        match state {
            KeyState::Generating(claimed)
                if claimed == order && key.curve == order.scheme.curve() =>
            {
                *state = KeyState::Ready(key);
                Ok(())
            }
            _ => Err(settled()),
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
            _ => Err(settled()),
        }
    }

    /// Wants the keys again whose generation had failed for good.
    pub fn want_again(&mut self) {
        for key in &mut self.keys {
            if matches!(key.state, KeyState::Failed(_)) {
                key.state = KeyState::Wanted;
            }
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

fn settled() -> Fault {
    Fault::new(
        crate::fault::Class::WrongState,
        "the key generation is over or another one runs",
    )
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;
    use crate::ids::SessionId;

    fn vault() -> Vault {
        let signers = vec![NodeId([1; 32]), NodeId([2; 32]), NodeId([3; 32])];
        let ecdsa = Scheme::Dkls23;
        Vault::new(VaultId::from_bytes([9; 16]), "main", 2, signers, ecdsa, 7).unwrap()
    }

    fn order(vault: &Vault, curve: Curve, session: u8) -> KeygenOrder {
        KeygenOrder {
            vault: vault.id,
            session: SessionId::from_bytes([session; 16]),
            scheme: Scheme::default_of(curve),
            threshold: 2,
            signers: vault.signers.clone(),
            issued_at_ms: 1,
            expires_at_ms: 2,
        }
    }

    fn key(curve: Curve) -> RootKey {
        RootKey {
            curve,
            public_key: vec![4; 32],
            chain_code: [5; 32],
        }
    }

    #[test]
    fn vault__should_be_ready_once_both_keys_are_there() {
        let mut vault = vault();
        for curve in Curve::ALL {
            assert!(!vault.ready());
            let order = order(&vault, curve, 1);
            vault.claim(order.clone()).unwrap();
            vault.take(&order, key(curve)).unwrap();
        }
        assert!(vault.ready());
        assert_eq!(vault.root(Curve::Ed25519), Some(&key(Curve::Ed25519)));
    }

    #[test]
    fn vault__should_never_replace_a_key() {
        let mut vault = vault();
        let first = order(&vault, Curve::Ed25519, 1);
        let second = order(&vault, Curve::Ed25519, 2);
        vault.claim(first.clone()).unwrap();
        vault.claim(second.clone()).unwrap();
        // The run that was given up comes in late.
        assert!(vault.take(&first, key(Curve::Ed25519)).is_err());
        vault.take(&second, key(Curve::Ed25519)).unwrap();
        assert!(vault.claim(first.clone()).is_err());
        assert!(vault.take(&second, key(Curve::Ed25519)).is_err());
        assert!(vault.give_up(&second, "no").is_err());
    }

    #[test]
    fn want_again__should_change_only_what_has_failed() {
        let mut vault = vault();
        let [first, second] = Curve::ALL.map(|curve| order(&vault, curve, 1));
        vault.claim(first.clone()).unwrap();
        vault.take(&first, key(first.scheme.curve())).unwrap();
        vault.claim(second.clone()).unwrap();
        vault.give_up(&second, "no").unwrap();
        vault.want_again();
        assert_eq!(vault.failed_reason(), None);
        assert_eq!(
            vault.root(first.scheme.curve()),
            Some(&key(first.scheme.curve()))
        );
        vault.claim(second.clone()).unwrap();
        vault.take(&second, key(second.scheme.curve())).unwrap();
        assert!(vault.ready());
    }

    #[test]
    fn new__should_refuse_what_cannot_sign() {
        let id = VaultId::from_bytes([9; 16]);
        let nodes = |ids: &[u8]| ids.iter().map(|id| NodeId([*id; 32])).collect::<Vec<_>>();
        let problem = |name: &str, threshold, signers| {
            Vault::new(id, name, threshold, signers, Scheme::Dkls23, 1)
                .unwrap_err()
                .public()
                .to_owned()
        };
        assert_eq!(problem(" ", 2, nodes(&[1, 2])), "name: is required");
        assert_eq!(
            problem("v", 2, nodes(&[1, 1])),
            "signers: name one node twice"
        );
        assert!(problem("v", 1, nodes(&[1, 2])).starts_with("threshold: "));
        assert!(problem("v", 3, nodes(&[1, 2])).starts_with("threshold: "));
    }

    #[test]
    fn new__should_take_the_ecdsa_scheme_that_is_asked_for() {
        let make = |ecdsa| {
            let signers = vec![NodeId([1; 32]), NodeId([2; 32])];
            Vault::new(VaultId::from_bytes([9; 16]), "v", 2, signers, ecdsa, 1)
        };
        let vault = make(Scheme::Cggmp24).unwrap();
        let schemes: Vec<_> = vault.keys.iter().map(|key| key.scheme).collect();
        assert_eq!(schemes.len(), 2);
        assert!(schemes.contains(&Scheme::Cggmp24) && schemes.contains(&Scheme::FrostEd25519));
        assert_eq!(vault.ecdsa(), Scheme::Cggmp24);
        let fault = make(Scheme::FrostEd25519).unwrap_err();
        assert_eq!(fault.public(), "ecdsaBackend: is none for ECDSA");
    }
}
