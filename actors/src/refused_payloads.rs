//! What refused requests were to do, read from the store once: a request that has failed never changes.

use std::{collections::HashMap, sync::Arc};

use covault_core::{
    ids::RequestId,
    networks::{Purpose, Resource},
};
use parking_lot::Mutex;

/// Most of them in memory: about 10 MB. With one more all are read anew.
const MOST: usize = 65_536;

/// What a refused request was to do.
pub struct RefusedPayload {
    /// What its transaction does.
    pub purpose: Purpose,
    /// SHA-256 of its payload.
    pub hash: [u8; 32],
    /// What stands for its transaction as a whole, where its client has built that.
    pub whole: Vec<Resource>,
}

/// Those that were read.
#[derive(Default)]
pub struct RefusedPayloads(Mutex<HashMap<RequestId, Arc<RefusedPayload>>>);

impl RefusedPayloads {
    /// That of a request, where it was read.
    pub fn get(&self, request: RequestId) -> Option<Arc<RefusedPayload>> {
        self.0.lock().get(&request).cloned()
    }

    /// It was read.
    pub fn keep(&self, request: RequestId, payload: Arc<RefusedPayload>) {
        let mut all = self.0.lock();
        if all.len() >= MOST {
            all.clear();
        }
        all.insert(request, payload);
    }
}
