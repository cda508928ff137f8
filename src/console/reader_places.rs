//! Places of those who read much of the store. Each person has one at a time, so that what one reads keeps nobody else.

use std::{collections::HashSet, sync::Arc, time::Duration};

use covault_core::{fault::Fault, ids::UserId};
use parking_lot::Mutex;
use tokio::{sync::Notify, time::timeout};

/// So many places.
pub struct ReaderPlaces {
    most: usize,
    taken: Mutex<HashSet<UserId>>,
    freed: Notify,
}

/// The place of a person, until it is dropped.
pub struct ReaderPlace {
    of: Arc<ReaderPlaces>,
    who: UserId,
}

impl Drop for ReaderPlace {
    fn drop(&mut self) {
        self.of.taken.lock().remove(&self.who);
        self.of.freed.notify_waiters();
    }
}

impl ReaderPlaces {
    /// All of them free.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            taken: Mutex::default(),
            freed: Notify::new(),
        })
    }

    /// Takes a place.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when they are taken, or this person has one.
    pub fn take(self: &Arc<Self>, who: UserId) -> Result<ReaderPlace, Fault> {
        let mut taken = self.taken.lock();
        if taken.contains(&who) {
            return Err(Fault::unavailable(
                "you are reading a long list already: wait until that page, download or check is done",
            ));
        }
        if taken.len() >= self.most {
            return Err(Fault::unavailable(
                "others are reading long lists now; try again in a minute",
            ));
        }
        taken.insert(who);
        Ok(ReaderPlace {
            of: Arc::clone(self),
            who,
        })
    }

    /// Waits for a place, so long at most.
    ///
    /// # Errors
    /// As [`Self::take`].
    pub async fn wait(
        self: &Arc<Self>,
        who: UserId,
        patience: Duration,
    ) -> Result<ReaderPlace, Fault> {
        let one = async {
            loop {
                // Before the try: what is given back in between is noticed.
                let freed = self.freed.notified();
                match self.take(who) {
                    Ok(place) => return place,
                    Err(_) => freed.await,
                }
            }
        };
        match timeout(patience, one).await {
            Ok(place) => Ok(place),
            Err(_) => self.take(who),
        }
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    const WAIT: Duration = Duration::from_millis(20);

    #[tokio::test]
    async fn reader_places__should_be_one_for_each_person_and_be_waited_for() {
        let places = ReaderPlaces::new(2);
        let who = |id| UserId::from_bytes([id; 16]);
        let said = |place: Result<ReaderPlace, Fault>| place.err().map(|it| it.to_string());
        let first = places.take(who(1)).unwrap();
        let own = said(places.wait(who(1), WAIT).await).unwrap();
        assert!(own.contains("you are reading"), "{own}");
        // The queue of one keeps nobody from a place.
        let queue = (0..50).map(|_| places.wait(who(1), WAIT));
        let queue = futures::future::join_all(queue);
        let (queue, second) = tokio::join!(queue, places.wait(who(2), WAIT));
        let second = second.unwrap();
        assert!(queue.iter().all(Result::is_err));
        let others = said(places.wait(who(3), WAIT).await).unwrap();
        assert!(others.contains("others are reading"), "{others}");
        let later = async {
            tokio::task::yield_now().await;
            drop((first, second));
        };
        let (third, ()) = tokio::join!(places.wait(who(3), Duration::from_secs(60)), later);
        third.unwrap();
        places.take(who(1)).unwrap();
    }
}
