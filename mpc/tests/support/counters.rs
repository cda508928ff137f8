//! Everything that is counted in this process.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};

/// The counters since it was installed.
#[derive(Clone, Default)]
pub struct CounterCapture(Arc<Mutex<BTreeMap<Key, Arc<AtomicU64>>>>);

impl CounterCapture {
    /// One test, one process (nextest), one recorder.
    pub fn start() -> Self {
        let counters = Self::default();
        metrics::set_global_recorder(counters.clone()).unwrap();
        counters
    }

    /// The sums of a counter by the value of one of its labels.
    pub fn by_label(&self, name: &str, label: &str) -> BTreeMap<String, u64> {
        let mut sums = BTreeMap::new();
        for (key, count) in &*self.0.lock().unwrap() {
            let mut labels = key.labels().filter(|it| it.key() == label);
            if let (true, Some(found)) = (key.name() == name, labels.next()) {
                *sums.entry(found.value().to_owned()).or_default() += count.load(Ordering::Relaxed);
            }
        }
        sums
    }
}

impl Recorder for CounterCapture {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let mut counters = self.0.lock().unwrap();
        Counter::from_arc(Arc::clone(counters.entry(key.clone()).or_default()))
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}
