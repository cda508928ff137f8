//! How long commits take, and how many entries of the audit log they add, whatever the store is.

use std::sync::Arc;

use async_trait::async_trait;
use covault_actors::store::{
    Batch, CommitError, Key, ReadError, Row, RowMap, Scan, Snapshot, Store,
};
use metrics::{Unit, counter, describe_counter, describe_histogram, histogram};
use tokio::time::Instant;

const SECONDS: &str = "covault_store_commit_seconds";
const AUDIT_ENTRIES: &str = "covault_audit_entries_total";

/// Tells the recorder what the numbers mean. Call it once, after the recorder is installed.
pub fn describe() {
    describe_histogram!(
        SECONDS,
        Unit::Seconds,
        "Time until commits were on disk, including commits that were refused"
    );
    describe_counter!(
        AUDIT_ENTRIES,
        "Entries of the audit log that this process has written"
    );
}

/// A store whose commits are measured. Every method hands on to the store itself.
pub struct MeteredStore(pub Arc<dyn Store>);

#[async_trait]
impl Store for MeteredStore {
    async fn commit(&self, batch: Batch) -> Result<(), CommitError> {
        let entries = u64::try_from(batch.appends().len()).unwrap_or(u64::MAX);
        let begun = Instant::now();
        let committed = self.0.commit(batch).await;
        histogram!(SECONDS).record(begun.elapsed());
        if committed.is_ok() {
            counter!(AUDIT_ENTRIES).increment(entries);
        }
        committed
    }

    async fn get(&self, key: &Key) -> Result<Option<Row>, ReadError> {
        self.0.get(key).await
    }

    async fn get_all(&self, keys: &[Key]) -> Result<RowMap, ReadError> {
        self.0.get_all(keys).await
    }

    async fn scan(&self, scan: &Scan) -> Result<Vec<(Key, Row)>, ReadError> {
        self.0.scan(scan).await
    }

    async fn snapshot(&self) -> Result<Arc<dyn Snapshot>, ReadError> {
        self.0.snapshot().await
    }

    fn exclusive(&self) -> bool {
        self.0.exclusive()
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use covault_actors::store::{KeySpace, Precondition, memory::MemoryStore};
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    #[tokio::test]
    async fn commits__should_be_measured_those_too_that_are_refused() {
        let recorder = PrometheusBuilder::new().build_recorder();
        // The runtime of a test has one thread.
        let _guard = ::metrics::set_default_local_recorder(&recorder);
        let store = MeteredStore(Arc::new(MemoryStore::new()));
        let key = Key::new(KeySpace::Probe, &[]);
        let batch = || {
            let mut batch = Batch::new();
            batch.put(key.clone(), Precondition::Absent, b"1".to_vec());
            batch
        };
        store.commit(batch()).await.expect("it is not there yet");
        store.commit(batch()).await.expect_err("it is there");
        let row = store.get(&key).await.expect("read").expect("there");
        assert_eq!(row.value, b"1");
        let shown = recorder.handle().render();
        let line = format!("{SECONDS}_count 2");
        assert!(shown.lines().any(|other| other == line), "{shown}");
    }
}
