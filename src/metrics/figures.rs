//! Figures of the process, its requests and its store.

use std::{collections::BTreeMap, path::Path};

use covault_actors::gateway::{BackupRow, RequestCounts, ServiceCounts};
use covault_core::version::this_version;

use super::PrometheusText;

/// The commit that the program was built from, where the build says so.
const COMMIT: &str = match option_env!("COVAULT_COMMIT") {
    Some(commit) => commit,
    None => "unknown",
};
const FEATURES: &str = match (cfg!(feature = "cggmp24"), cfg!(feature = "otlp")) {
    (true, true) => "cggmp24,otlp",
    (true, false) => "cggmp24",
    (false, true) => "otlp",
    (false, false) => "none",
};

/// What was counted longer ago says nothing of now, in milliseconds.
const OLD_COUNTS_MS: u64 = 15 * 60 * 1000;
/// So far the clocks of processes on one store may be apart, in milliseconds.
const CLOCKS_APART_MS: u64 = 5 * 60 * 1000;

/// Whether a time that was written down has not come yet: a clock was wrong, and nobody knows how long ago it was.
pub fn is_ahead(now_ms: u64, at_ms: u64) -> bool {
    at_ms > now_ms.saturating_add(CLOCKS_APART_MS)
}

impl PrometheusText {
    /// What program this is.
    pub(super) fn build(&mut self) {
        let name = "covault_build_info";
        self.family(name, "1, with the version of the program as labels");
        let labels = [
            ("version", this_version()),
            ("commit", COMMIT),
            ("features", FEATURES),
        ];
        self.sample(name, &labels, 1);
    }

    /// What became of requests.
    pub(super) fn requests(&mut self, requests: &BTreeMap<&'static str, RequestCounts>) {
        let name = "covault_requests_total";
        let help = "Requests that this process accepted, and how they ended, by kind";
        self.family_of("counter", name, help);
        for (kind, counts) in requests {
            for (status, count) in [
                ("created", counts.created),
                ("succeeded", counts.succeeded),
                ("failed", counts.failed),
            ] {
                self.sample(name, &[("kind", kind), ("status", status)], count);
            }
        }
    }

    /// What this process has taken on.
    pub(super) fn live(&mut self, (requests, bytes): (usize, usize)) {
        let name = "covault_live_requests";
        self.family(name, "Requests of this process that are not signed yet");
        self.sample(name, &[], requests);
        let name = "covault_live_bytes";
        self.family(name, "Bytes that unfinished requests of this process hold");
        self.sample(name, &[], bytes);
    }

    /// Messages in the deepest mailbox of each kind of actor.
    pub(super) fn mailboxes(&mut self, depths: [(&str, usize); 2]) {
        let name = "covault_mailbox_depth";
        let help = "Messages that wait for one actor of this process, of the one with most";
        self.family(name, help);
        for (actor, depth) in depths {
            self.sample(name, &[("actor", actor)], depth);
        }
    }

    /// How the service is as a whole, as one process has written it down for all.
    pub(super) fn overview(
        &mut self,
        (counts, backup): &(Option<ServiceCounts>, Option<BackupRow>),
        now_ms: u64,
    ) {
        if let Some(ServiceCounts { at_ms, .. }) = counts {
            let name = "covault_vaults_counted_timestamp_seconds";
            self.family(name, "When the vaults were last counted");
            self.sample(name, &[], at_ms / 1_000);
        }
        let is_recent = |at_ms: u64| now_ms.saturating_sub(at_ms) <= OLD_COUNTS_MS;
        if let Some(ServiceCounts { vaults, at_ms, .. }) = counts
            && is_recent(*at_ms)
        {
            let name = "covault_vaults";
            self.family(
                name,
                "Vaults of the whole service, by whether they can sign",
            );
            for (state, count) in [
                ("ready", vaults.ready),
                ("short", vaults.short),
                ("no_keys", vaults.no_keys),
            ] {
                self.sample(name, &[("state", state)], count);
            }
        }
        if let Some(BackupRow { at_ms, .. }) = backup
            && !is_ahead(now_ms, *at_ms)
        {
            let name = "covault_backup_age_seconds";
            self.family(name, "The age of the last backup of the store");
            self.sample(name, &[], now_ms.saturating_sub(*at_ms) / 1_000);
        }
    }

    /// How large the store is that is a file.
    pub(super) fn store_file(&mut self, file: &Path) {
        if let Ok(found) = std::fs::metadata(file) {
            let name = "covault_store_bytes";
            self.family(name, "The size of the store's file");
            self.sample(name, &[], found.len());
        }
    }
}
