//! Fair shares of limited places: no party can keep all of them from the others.

use std::{collections::HashMap, hash::Hash, sync::Arc};

use covault_core::{
    fault::{Fault, FaultCode},
    ids::{TokenId, VaultId},
};
use parking_lot::Mutex;

/// Who has a share of what there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LimitedParty {
    /// The token that asked.
    Token(TokenId),
    /// The vault that signs.
    Vault(VaultId),
}

/// One in this many places is kept for tokens and vaults that have none.
pub const RESERVED: usize = 16;

/// Places that nobody keeps others from: one in [`RESERVED`] is for those that have none, and who has more than are
/// free of the rest gets no other. So one party alone gets nearly half of them, and two nearly a third each.
/// Decisions: 0050.
pub struct Shares<P> {
    most: usize,
    taken: Mutex<TakenPlaces<P>>,
}

struct TakenPlaces<P> {
    all: usize,
    by: HashMap<P, usize>,
}

/// Places of some parties, until it is dropped.
pub struct Share<P: Copy + Eq + Hash> {
    of: Arc<Shares<P>>,
    parties: Vec<P>,
    places: usize,
}

impl<P: Copy + Eq + Hash> Shares<P> {
    /// So many places, all of them free.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            taken: Mutex::new(TakenPlaces {
                all: 0,
                by: HashMap::new(),
            }),
        })
    }

    /// Takes places that count for each of the parties, the first of which asks. What others have taken of another
    /// one's share (of a vault, other tokens) leaves it a sixteenth of what is free.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when there are too few, or one of the parties has its share.
    pub fn take(self: &Arc<Self>, parties: &[P], places: usize) -> Result<Share<P>, Fault> {
        let mut taken = self.taken.lock();
        let free = self.most.saturating_sub(taken.all);
        if places > free {
            return Err(too_many());
        }
        let unreserved = free.saturating_sub(self.most / RESERVED);
        let has_its_share = |held| held > 0 && (held > unreserved || places > unreserved);
        let own = parties.first().map_or(0, |asks| taken.held(asks));
        let is_small = own == 0 || own.saturating_add(places) <= unreserved / RESERVED;
        let has_its_share =
            |(at, party): (usize, &P)| (at == 0 || !is_small) && has_its_share(taken.held(party));
        if parties.iter().enumerate().any(has_its_share) {
            return Err(busy(
                "too many requests of this token or vault are in progress, and the remaining capacity is reserved \
                 for others; try again later",
            ));
        }
        taken.add(parties, places);
        Ok(self.share(parties, places))
    }

    /// Takes places for what was accepted before: it continues, also where there are too few.
    pub fn retake(self: &Arc<Self>, parties: &[P], places: usize) -> Share<P> {
        self.taken.lock().add(parties, places);
        self.share(parties, places)
    }

    /// How many places are taken.
    pub fn taken(&self) -> usize {
        self.taken.lock().all
    }

    /// How many places a party has.
    pub fn held(&self, party: &P) -> usize {
        self.taken.lock().held(party)
    }

    /// A share of places that are taken already.
    fn share(self: &Arc<Self>, parties: &[P], places: usize) -> Share<P> {
        Share {
            of: Arc::clone(self),
            parties: parties.to_vec(),
            places,
        }
    }
}

impl<P: Copy + Eq + Hash> Share<P> {
    /// Parts with so many of its places, or with all that it has: they are given back when the part is dropped.
    pub fn split(&mut self, places: usize) -> Self {
        let places = places.min(self.places);
        self.places -= places;
        self.of.share(&self.parties, places)
    }

    /// Takes in the places of another share of the same places and parties; false: it is of others.
    pub fn merge(&mut self, other: &mut Self) -> bool {
        let same = Arc::ptr_eq(&self.of, &other.of) && self.parties == other.parties;
        if same {
            self.places += std::mem::take(&mut other.places);
        }
        same
    }
}

impl<P: Copy + Eq + Hash> TakenPlaces<P> {
    fn held(&self, party: &P) -> usize {
        self.by.get(party).copied().unwrap_or_default()
    }

    fn add(&mut self, parties: &[P], places: usize) {
        self.all = self.all.saturating_add(places);
        for party in parties {
            let held = self.by.entry(*party).or_default();
            *held = held.saturating_add(places);
        }
    }

    fn give_back(&mut self, parties: &[P], places: usize) {
        self.all = self.all.saturating_sub(places);
        for party in parties {
            let left = self.held(party).saturating_sub(places);
            match left {
                0 => self.by.remove(party),
                left => self.by.insert(*party, left),
            };
        }
    }
}

impl<P: Copy + Eq + Hash> Drop for Share<P> {
    fn drop(&mut self) {
        let mut taken = self.of.taken.lock();
        taken.give_back(&self.parties, self.places);
    }
}

/// The service has as much to do as it may take on; no limit of a caller's.
pub fn too_many() -> Fault {
    busy("too many requests are in progress; try again later")
}

fn busy(sentence: &str) -> Fault {
    Fault::unavailable(sentence).with_code(FaultCode::Busy { seconds: 1 })
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    /// Takes places one by one until there are no more for it.
    fn greedy(shares: &Arc<Shares<u8>>, party: u8) -> Vec<Share<u8>> {
        std::iter::from_fn(|| shares.take(&[party], 1).ok()).collect()
    }

    #[test]
    fn shares__should_leave_some_for_who_has_none() {
        let shares = Shares::new(1_000);
        // As many as places are kept, beside those that share the rest.
        let mut all: Vec<_> = (0..62).map(|party| greedy(&shares, party)).collect();
        assert_eq!(all[0].len(), 470, "nearly half, and no more");
        assert!(all.iter().all(|held| !held.is_empty()));
        all.truncate(8);
        // What the first gives back is not for the first.
        all[0].truncate(370);
        assert_eq!(greedy(&shares, 0).len(), 0);
        all[0].clear();
        assert!(greedy(&shares, 7).len() > 100);
        all.clear();
        assert_eq!(greedy(&shares, 3).len(), 470, "all were given back");
        assert!(shares.taken.lock().by.is_empty(), "nobody is remembered");
    }

    #[test]
    fn parts_of_a_share__should_be_given_back_one_by_one() {
        let shares = Shares::new(100);
        let mut whole = shares.take(&[1], 30).expect("free");
        let part = whole.split(10);
        let rest = whole.split(usize::MAX);
        drop(whole);
        assert_eq!(shares.held(&1), 30);
        drop(rest);
        assert_eq!(shares.held(&1), 10);
        drop(part);
        assert!(shares.taken.lock().by.is_empty());
    }

    #[test]
    fn shares__should_count_for_each_party() {
        let shares = Shares::new(5);
        let _one = shares.take(&[1, 10], 2).expect("free");
        assert!(shares.take(&[1, 11], 4).is_err(), "more than there is");
        let _other = shares.take(&[1, 11], 1).expect("no more than is free");
        let _of_vault = shares.take(&[2, 10], 1).expect("it has none");
        for parties in [[1, 12], [2, 10]] {
            let full = shares.take(&parties, 1).err();
            assert!(full.is_some_and(|fault| fault.message().contains("for others")));
        }
        let _fits = shares.take(&[2, 12], 1).expect("one is free");
        let _accepted = shares.retake(&[2, 12], 7);
        assert_eq!((shares.held(&12), shares.held(&1)), (8, 3));
        assert!(shares.take(&[3, 13], 1).is_err());
    }

    #[test]
    fn tokens_of_one_vault__should_not_keep_each_other_from_having_some() {
        let shares = Shares::new(10_000);
        let of_vault = |token| {
            let more = || shares.take(&[token, 100], 1).ok();
            std::iter::from_fn(more).collect::<Vec<_>>()
        };
        let first = of_vault(1);
        assert_eq!(first.len(), 4_688);
        let others = (2..=8).map(of_vault);
        let others: Vec<_> = others.collect();
        let few = others.iter().map(Vec::len).min();
        assert!(few > Some(150), "{few:?}");
        // Most of what is left is for other vaults.
        shares.take(&[9, 101], 2_000).map(drop).expect("free");
    }
}
