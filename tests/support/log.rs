//! Everything that is logged in this process.

use std::{
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::time::{sleep, timeout};
use tracing_subscriber::filter::LevelFilter;

/// What was logged since it was started.
#[derive(Clone, Default)]
pub struct LogCapture(Arc<Mutex<Vec<u8>>>);

impl io::Write for LogCapture {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl LogCapture {
    /// One test, one process (nextest), one log.
    pub fn start(level: LevelFilter) -> Self {
        Self::start_with(level, false)
    }

    /// Each line also has the name of the thread that has written it.
    #[allow(dead_code)]
    pub fn start_with_threads(level: LevelFilter) -> Self {
        Self::start_with(level, true)
    }

    fn start_with(level: LevelFilter, threads: bool) -> Self {
        let log = Self::default();
        let writer = log.clone();
        tracing_subscriber::fmt()
            .with_max_level(level)
            .with_ansi(false)
            .with_thread_names(threads)
            .with_writer(move || writer.clone())
            .init();
        log
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    pub fn lines(&self, text: &str) -> Vec<String> {
        let log = self.text();
        let with = log.lines().filter(|line| line.contains(text));
        with.map(str::to_owned).collect()
    }

    /// Waits until a line says this, doing the same thing again and again until then.
    pub async fn until(&self, text: &str, mut again: impl FnMut()) -> String {
        let said = timeout(Duration::from_secs(60), async {
            loop {
                again();
                if let Some(line) = self.lines(text).pop() {
                    return line;
                }
                sleep(Duration::from_millis(50)).await;
            }
        });
        let Ok(line) = said.await else {
            panic!("nobody said {text:?}");
        };
        line
    }
}
