//! Who approves on the page: the passkeys of the node's policy that were made for it.

use std::{collections::HashMap, sync::Arc};

use covault_core::approval::{ApprovalWay, ApproverKey, Passkey, PasskeyPublicKey};
use covault_mpc::{
    node::{CurrentPolicy, PolicyCheck},
    policy::Policy,
};
use parking_lot::Mutex;

use crate::config::PageOrigin;

/// Persons and passkeys, by credential id.
type Passkeys = HashMap<Vec<u8>, (String, Passkey)>;

/// The people of the policy that is in force.
pub struct PolicyPeople {
    policy: Arc<CurrentPolicy>,
    origin: String,
    /// Of the policy that was in force last.
    known: Mutex<Option<(Arc<PolicyCheck>, Arc<Passkeys>)>>,
}

impl PolicyPeople {
    /// Those who approve on the page of this origin.
    pub fn new(policy: Arc<CurrentPolicy>, origin: String) -> Self {
        Self {
            policy,
            origin,
            known: Mutex::new(None),
        }
    }

    /// The policy that is in force.
    pub fn policy(&self) -> Arc<PolicyCheck> {
        self.policy.get()
    }

    /// Whose passkey this is, and the passkey.
    pub fn find(&self, credential_id: &[u8]) -> Option<(String, Passkey)> {
        self.passkeys().get(credential_id).cloned()
    }

    /// The credential ids of a person's passkeys, in order.
    pub fn passkeys_of(&self, person: &str) -> Vec<Vec<u8>> {
        let all = self.passkeys();
        let all = all.iter();
        let of = all.filter(|(_, (owner, _))| owner == person);
        let mut of: Vec<_> = of.map(|(id, _)| id.clone()).collect();
        of.sort_unstable();
        of
    }

    fn passkeys(&self) -> Arc<Passkeys> {
        let policy = self.policy.get();
        let mut known = self.known.lock();
        if let Some((of, passkeys)) = &*known
            && Arc::ptr_eq(of, &policy)
        {
            return Arc::clone(passkeys);
        }
        let approvers = policy.0.approvers();
        let mut passkeys = Passkeys::new();
        for person in approvers.people() {
            for key in approvers.keys_of(person) {
                if let ApproverKey::Passkey(passkey) = key
                    && passkey.origins.contains(&self.origin)
                {
                    let passkey = Passkey::clone(passkey);
                    passkeys.insert(passkey.credential_id.clone(), (person.to_owned(), passkey));
                }
            }
        }
        let passkeys = Arc::new(passkeys);
        *known = Some((policy, Arc::clone(&passkeys)));
        passkeys
    }
}

/// Whether the policy takes what is approved on the page of this place for approved on a signer node's.
pub fn counts_as_node(policy: &Policy, place: &PageOrigin) -> bool {
    // Only its origin counts.
    let any = ApproverKey::Passkey(Box::new(Passkey {
        name: String::new(),
        rp_id: place.rp_id.clone(),
        origins: [place.origin.clone()].into(),
        credential_id: Vec::new(),
        public_key: PasskeyPublicKey::Ed25519([0; 32]),
        backup_eligible: false,
    }));
    let ways = policy.approvers().ways_of(&any);
    ways.contains(&ApprovalWay::Node)
}
