//! Limits how many bytes of nodes' answers this process holds at once. Anyone can fill blocks, and a lying
//! node can make up even longer answers: many may be requested at the same time, but long ones are read one
//! after the other.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{Semaphore, SemaphorePermit};

/// Up to so many bytes an answer is read beside others.
pub const SHORT: usize = 1 << 20;
/// Beyond so many bytes an answer is not read on a thread that others wait for.
const QUICK: usize = 256 << 10;
/// Bytes that one value of JSON takes at least, on average, in answers about blocks: they are long hashes and numbers. As
/// values in memory take some ten times as much as the shortest text of one, an answer of nothing but these is refused.
const BYTES_PER_VALUE: usize = 8;

/// One for the process.
static LONG: Semaphore = Semaphore::const_new(1);
static HELD: AtomicUsize = AtomicUsize::new(0);
static MOST_HELD: AtomicUsize = AtomicUsize::new(0);

/// The body of an answer while it is read.
#[derive(Default)]
pub struct AnswerBody {
    bytes: Vec<u8>,
    counted: usize,
    long: Option<SemaphorePermit<'static>>,
    has_waited: bool,
}

impl AnswerBody {
    /// How long it is.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether it had to wait for others: that it is late then says nothing of the node.
    pub fn has_waited(&self) -> bool {
        self.has_waited
    }

    /// Takes room for so many bytes more, if there is some.
    pub fn has_room(&mut self, more: usize) -> bool {
        let length = self.len().saturating_add(more);
        if length > SHORT && self.long.is_none() {
            self.long = LONG.try_acquire().ok();
        }
        length <= SHORT || self.long.is_some()
    }

    /// Waits until there is room for so many bytes more.
    pub async fn make_room(&mut self, more: usize) {
        if !self.has_room(more) {
            self.has_waited = true;
            // It is never closed.
            self.long = LONG.acquire().await.ok();
        }
    }

    /// Adds to it.
    pub fn add(&mut self, chunk: &[u8]) {
        self.bytes.extend_from_slice(chunk);
        let held = HELD.fetch_add(chunk.len(), Ordering::Relaxed);
        self.counted = self.counted.saturating_add(chunk.len());
        MOST_HELD.fetch_max(held.saturating_add(chunk.len()), Ordering::Relaxed);
    }

    /// Takes the bytes. What was counted for them is held until it is dropped.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }
}

impl Drop for AnswerBody {
    fn drop(&mut self) {
        HELD.fetch_sub(self.counted, Ordering::Relaxed);
    }
}

/// The most bytes that were held at once since the start.
#[cfg(test)]
pub fn most_held() -> usize {
    MOST_HELD.load(Ordering::Relaxed)
}

/// Reads an answer of so many bytes: a long one where nobody waits for the thread.
pub fn read_aside<T>(bytes: usize, read: impl FnOnce() -> T) -> T {
    use tokio::runtime::{Handle, RuntimeFlavor};
    let flavor = Handle::try_current().map(|handle| handle.runtime_flavor());
    match flavor {
        Ok(RuntimeFlavor::MultiThread) if bytes > QUICK => tokio::task::block_in_place(read),
        _ => read(),
    }
}

/// Whether an answer would take far more memory as values than as text.
pub fn is_stuffed(body: &[u8]) -> bool {
    if body.len() <= SHORT {
        return false;
    }
    let begins_value = |byte: &&u8| matches!(byte, b',' | b'[' | b'{');
    body.iter().filter(begins_value).count() > body.len() / BYTES_PER_VALUE
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn stuffed_answers__should_be_those_of_nothing_but_short_values() {
        let of = |text: &str| text.repeat(2 * SHORT / text.len());
        assert!(is_stuffed(of("0,").as_bytes()));
        assert!(is_stuffed(of("[").as_bytes()));
        let block = of(r#"{"hash":"0x0123456789abcdef0123456789abcdef","value":"0x0"},"#);
        assert!(!is_stuffed(block.as_bytes()));
        assert!(!is_stuffed(b"[0,0,0,0]"));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn window__should_hold_no_more_bytes_than_allowed() {
        const LENGTH: usize = 48 << 20;
        let chunk = vec![0; SHORT];
        let read = || async {
            let mut body = AnswerBody::default();
            while body.len() < LENGTH {
                body.make_room(chunk.len()).await;
                body.add(&chunk);
                tokio::task::yield_now().await;
            }
            let bytes = body.take();
            read_aside(bytes.len(), || drop(bytes));
            body.has_waited()
        };
        let waited = futures::future::join_all((0..16).map(|_| read())).await;
        assert!(waited.iter().filter(|waited| **waited).count() >= 14);
        assert!(most_held() <= 64 << 20, "{}", most_held());
        assert_eq!(HELD.load(Ordering::Relaxed), 0);
    }
}
