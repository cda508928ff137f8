//! Nodes that announce themselves and are not admitted. Keys cost nothing: anyone who can write to
//! the bus can invent as many as it likes, and none may make this grow, or fill the log.

use std::collections::HashMap;

use covault_core::order::NodeId;

/// Strangers that are remembered. More wait until one is forgotten; an operator who has a node's
/// key admits it anyway.
pub(super) const MAX_UNADMITTED: usize = 64;
/// How long one is remembered, and logged no second time, in milliseconds.
const REMEMBERED_MS: u64 = 3_600_000;
/// How long one that falls silent is still shown as wanting to join, in milliseconds.
const SHOWN_MS: u64 = 60_000;

/// A node that wants to join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unadmitted {
    /// Identity.
    pub id: NodeId,
    /// The name it announced; anyone can announce any.
    pub name: String,
    /// When it was last heard, in milliseconds since the Unix epoch.
    pub last_seen_ms: u64,
}

struct NodeSighting {
    name: String,
    heard_ms: u64,
    logged_ms: u64,
}

#[derive(Default)]
pub(super) struct UnadmittedNodes {
    sightings: HashMap<NodeId, NodeSighting>,
    /// When it was last logged that there are too many.
    too_many_ms: Option<u64>,
}

impl UnadmittedNodes {
    /// Whether an announcement of this node is worth verifying.
    pub(super) fn wants(&self, node: &NodeId, now_ms: u64) -> bool {
        self.sightings.len() < MAX_UNADMITTED
            || self.sightings.contains_key(node)
            || self
                .sightings
                .values()
                .any(|sightings| forgotten(sightings, now_ms))
    }

    /// Notes a stranger whose announcement was verified; logged once an hour.
    pub(super) fn heard(&mut self, node: NodeId, name: String, now_ms: u64) {
        if let Some(sightings) = self.sightings.get_mut(&node) {
            sightings.heard_ms = now_ms;
            sightings.name = name;
            if forgotten(sightings, now_ms) {
                sightings.logged_ms = now_ms;
                log(&node, &sightings.name);
            }
            return;
        }
        self.sightings
            .retain(|_, sightings| !forgotten(sightings, now_ms));
        if self.sightings.len() >= MAX_UNADMITTED {
            return self.full(now_ms);
        }
        log(&node, &name);
        let sightings = NodeSighting {
            name,
            heard_ms: now_ms,
            logged_ms: now_ms,
        };
        self.sightings.insert(node, sightings);
    }

    /// There is no place for another one; logged once an hour.
    pub(super) fn full(&mut self, now_ms: u64) {
        let due = |last: u64| now_ms >= last.saturating_add(REMEMBERED_MS);
        if self.too_many_ms.is_none_or(due) {
            self.too_many_ms = Some(now_ms);
            tracing::warn!(
                "more than {MAX_UNADMITTED} unknown nodes announce themselves; not listing the others"
            );
        }
    }

    /// It was admitted.
    pub(super) fn forget(&mut self, node: &NodeId) {
        self.sightings.remove(node);
    }

    /// Those that were heard recently, by key.
    pub(super) fn list(&self, now_ms: u64) -> Vec<Unadmitted> {
        let mut list: Vec<Unadmitted> = self
            .sightings
            .iter()
            .filter(|(_, sightings)| now_ms < sightings.heard_ms.saturating_add(SHOWN_MS))
            .map(|(id, sightings)| Unadmitted {
                id: *id,
                name: sightings.name.clone(),
                last_seen_ms: sightings.heard_ms,
            })
            .collect();
        list.sort_by_key(|stranger| stranger.id);
        list
    }
}

fn forgotten(sightings: &NodeSighting, now_ms: u64) -> bool {
    now_ms >= sightings.logged_ms.saturating_add(REMEMBERED_MS)
}

fn log(node: &NodeId, name: &str) {
    tracing::warn!(
        %name,
        node = %node.openssh_line(""),
        "ignoring an unknown node that announces itself; to use it: covault node admit"
    );
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    fn number(number: u32) -> NodeId {
        let mut id = [0; 32];
        id[..4].copy_from_slice(&number.to_be_bytes());
        NodeId(id)
    }

    #[test]
    fn unadmitted_nodes__should_stay_few_whatever_a_flood_invents() {
        let mut unadmitted = UnadmittedNodes::default();
        for flood in 0..100_000 {
            let node = number(flood);
            if unadmitted.wants(&node, 5) {
                unadmitted.heard(node, "flood".into(), 5);
            } else {
                unadmitted.full(5);
            }
        }
        assert_eq!(unadmitted.sightings.len(), MAX_UNADMITTED);
        assert_eq!(unadmitted.list(6).len(), MAX_UNADMITTED);
        assert!(unadmitted.list(5 + SHOWN_MS).is_empty());
        // An hour later there is room again.
        let later = 5 + REMEMBERED_MS;
        assert!(unadmitted.wants(&number(200_000), later));
        unadmitted.heard(number(200_000), "late".into(), later);
        assert_eq!(unadmitted.sightings.len(), 1);
    }

    #[test]
    fn stranger__should_be_logged_once_an_hour() {
        let mut unadmitted = UnadmittedNodes::default();
        unadmitted.heard(number(1), "a".into(), 10);
        for now_ms in [20, 10 + REMEMBERED_MS - 1] {
            unadmitted.heard(number(1), "b".into(), now_ms);
            assert_eq!(unadmitted.sightings[&number(1)].logged_ms, 10);
        }
        unadmitted.heard(number(1), "c".into(), 10 + REMEMBERED_MS);
        assert_eq!(
            unadmitted.sightings[&number(1)].logged_ms,
            10 + REMEMBERED_MS
        );
        assert_eq!(unadmitted.list(10 + REMEMBERED_MS)[0].name, "c");
    }
}
