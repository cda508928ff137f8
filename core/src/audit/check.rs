//! Finding out where a chain is broken, and how.

use std::{collections::BTreeMap, fmt};

use super::{Chain, Entry, Hash, Head, Linked, NO_HASH, VAULT_CHAIN, hash};

/// Most breaks of one chain that are named; the rest is counted.
const MOST: usize = 1_000;

/// Heads that were kept elsewhere, per chain.
pub type Heads = BTreeMap<Chain, Vec<Head>>;

/// A place where a chain is not what it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Break {
    /// The chain.
    pub chain: Chain,
    /// The entry.
    pub number: u64,
    /// What is wrong there.
    pub what: What,
}

/// What is wrong with an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// Its hash is not that of its content.
    Changed,
    /// It, and all up to this number, are not there.
    Missing {
        /// The last that is missing.
        to: u64,
    },
    /// It is there, and comes after this one.
    Swapped {
        /// The entry before it.
        after: u64,
    },
    /// There is another entry with its number.
    Forked,
    /// It does not name the entry before it as that is: one of the two was replaced.
    Unlinked,
    /// The chain's head names this one as its last, and it is not.
    NotHead {
        /// The last that is there.
        last: u64,
    },
    /// It is the last, and the chain's head names it with another hash.
    OtherHead,
    /// It is the last, and the chain has no head.
    NoHead,
    /// It was there when a head was kept, and the chain ends before it.
    CutOff {
        /// The last that is there.
        last: u64,
    },
    /// It had another hash when a head was kept: the chain was written anew.
    Rewritten,
    /// It is not there, nor is any other of its chain, although this entry of the service's chain tells
    /// that the chain began.
    Gone {
        /// The entry of the service's chain.
        told: u64,
    },
    /// So many more, which are not named.
    More(usize),
}

impl fmt::Display for Break {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            chain,
            number,
            what,
        } = self;
        if let What::More(count) = what {
            return write!(f, "{chain}: {count} more breaks");
        }
        match what {
            What::Missing { to } if to > number => {
                return write!(f, "{chain}: entries {number} to {to} are missing");
            }
            _ => write!(f, "{chain}: entry {number} ")?,
        }
        match what {
            What::Changed => f.write_str("was changed: its hash is not that of its content"),
            What::Missing { .. } => f.write_str("is missing"),
            What::Swapped { after } => write!(f, "is out of its place: it comes after {after}"),
            What::Forked => f.write_str("appears twice: the chain is forked"),
            What::Unlinked => f.write_str(
                "does not follow the one before it: one of the two was replaced, or one was taken out",
            ),
            What::NotHead { last } => {
                write!(f, "is the last by the chain's head, and {last} is the last that is there")
            }
            What::OtherHead => f.write_str("is the last, and the chain's head has another hash"),
            What::NoHead => f.write_str("is the last, and the chain's head is missing"),
            What::CutOff { last } => {
                write!(f, "was there when the expected head was kept; the chain now ends with {last}")
            }
            What::Rewritten => f.write_str(
                "had another hash when the expected head was kept: the chain was written anew",
            ),
            What::Gone { told } => write!(
                f,
                "and all others are missing: entry {told} of the service's chain tells of this chain"
            ),
            What::More(_) => Ok(()),
        }
    }
}

/// What was found about a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The chain.
    pub chain: Chain,
    /// Entries that were there.
    pub entries: u64,
    /// The last of them, as it says itself.
    pub head: Option<Head>,
    /// Entries whose content this version cannot read. Their hashes are checked all the same.
    pub unreadable: u64,
    /// In the order of their numbers; none: the chain is whole.
    pub breaks: Vec<Break>,
}

/// Takes the entries of one chain in the order in which they lie, and finds what is wrong.
pub struct Checker {
    chain: Chain,
    expected: Vec<Head>,
    entries: u64,
    unreadable: u64,
    /// The highest entry so far, with what the next one may name: what it says its hash is, and what
    /// it should be. They differ when it was changed, and then that is the only thing to be said.
    last: u64,
    says: Hash,
    is: Hash,
    /// First and last numbers that have not come.
    missing: BTreeMap<u64, u64>,
    breaks: Vec<Break>,
    more: usize,
}

impl Checker {
    /// For a chain; `expected` are heads of it that were kept elsewhere.
    pub fn new(chain: Chain, mut expected: Vec<Head>) -> Self {
        expected.sort_by_key(|head| head.number);
        Self {
            chain,
            expected,
            entries: 0,
            unreadable: 0,
            last: 0,
            says: NO_HASH,
            is: NO_HASH,
            missing: BTreeMap::new(),
            breaks: Vec::new(),
            more: 0,
        }
    }

    /// The next entry. Says what it tells, where this version can read it.
    pub fn take(&mut self, linked: &Linked) -> Option<Entry> {
        let Linked {
            number,
            previous,
            hash: says,
            body,
        } = linked;
        self.entries = self.entries.saturating_add(1);
        let is = hash(self.chain, *number, previous, body);
        if is != *says {
            self.note(*number, What::Changed);
        }
        for index in 0..self.expected.len() {
            let expected = self.expected.get(index);
            if expected.is_some_and(|head| head.number == *number && head.hash != *says) {
                self.note(*number, What::Rewritten);
            }
        }
        let next = self.last.saturating_add(1);
        if *number < next {
            self.late(*number);
        } else {
            if *number > next {
                self.missing.insert(next, number.saturating_sub(1));
            } else if *previous != self.says && *previous != self.is {
                self.note(*number, What::Unlinked);
            }
            (self.last, self.says, self.is) = (*number, *says, is);
        }
        let entry = Entry::decode(body);
        if entry.is_none() {
            self.unreadable = self.unreadable.saturating_add(1);
        }
        entry
    }

    /// One whose turn was earlier.
    fn late(&mut self, number: u64) {
        let gap = self.missing.range(..=number).next_back();
        match gap.map(|(first, last)| (*first, *last)) {
            Some((first, last)) if number <= last => {
                self.missing.remove(&first);
                if first < number {
                    self.missing.insert(first, number.saturating_sub(1));
                }
                if number < last {
                    self.missing.insert(number.saturating_add(1), last);
                }
                self.note(number, What::Swapped { after: self.last });
            }
            _ => self.note(number, What::Forked),
        }
    }

    /// The end of the chain. `head` is what the store has for its head.
    pub fn end(mut self, head: Option<Head>) -> Report {
        for (first, to) in std::mem::take(&mut self.missing) {
            self.note(first, What::Missing { to });
        }
        match head {
            None if self.entries == 0 => {}
            None => self.note(self.last, What::NoHead),
            Some(head) if head.number != self.last => {
                let last = self.last;
                self.note(head.number, What::NotHead { last });
            }
            Some(head) if head.hash != self.says => self.note(self.last, What::OtherHead),
            Some(_) => {}
        }
        for head in std::mem::take(&mut self.expected) {
            if head.number > self.last {
                let last = self.last;
                self.note(head.number, What::CutOff { last });
            }
        }
        let mut breaks = self.breaks;
        breaks.sort_by_key(|it| it.number);
        if self.more > 0 {
            breaks.push(Break {
                chain: self.chain,
                number: 0,
                what: What::More(self.more),
            });
        }
        Report {
            chain: self.chain,
            entries: self.entries,
            head: (self.entries > 0).then_some(Head {
                number: self.last,
                hash: self.says,
            }),
            unreadable: self.unreadable,
            breaks,
        }
    }

    fn note(&mut self, number: u64, what: What) {
        if self.breaks.len() >= MOST {
            self.more = self.more.saturating_add(1);
            return;
        }
        self.breaks.push(Break {
            chain: self.chain,
            number,
            what,
        });
    }
}

/// Takes the entries of all chains of a log, and finds what is wrong.
pub struct Chains {
    expected: Heads,
    chains: BTreeMap<Chain, Checker>,
    heads: BTreeMap<Chain, Head>,
    /// Chains that the service's chain tells of, with the entry that does.
    told: BTreeMap<Chain, u64>,
}

impl Chains {
    /// `expected` are heads that were kept elsewhere.
    pub fn new(expected: Heads) -> Self {
        // One of which nothing is left must be missed as well.
        let named: Vec<Chain> = expected.keys().copied().collect();
        let mut chains = Self {
            expected,
            chains: BTreeMap::new(),
            heads: BTreeMap::new(),
            told: BTreeMap::new(),
        };
        for chain in named {
            chains.checker(chain);
        }
        chains
    }

    fn checker(&mut self, chain: Chain) -> &mut Checker {
        let expected = &mut self.expected;
        self.chains
            .entry(chain)
            .or_insert_with(|| Checker::new(chain, expected.remove(&chain).unwrap_or_default()))
    }

    /// The next entry of a chain.
    pub fn entry(&mut self, chain: Chain, linked: &Linked) {
        let tells = self.checker(chain).take(linked);
        if let (Chain::Service, Some(entry)) = (chain, tells)
            && entry.event == VAULT_CHAIN
            && let Ok(of) = entry.subject.parse()
        {
            self.told.insert(of, linked.number);
        }
    }

    /// What the store has for the head of a chain. False when it had another one before.
    pub fn head(&mut self, chain: Chain, head: Head) -> bool {
        self.checker(chain);
        self.heads.insert(chain, head).is_none()
    }

    /// There is nothing more: what was found, chain by chain.
    pub fn finish(mut self) -> Vec<Report> {
        let told = std::mem::take(&mut self.told);
        for chain in told.keys() {
            self.checker(*chain);
        }
        if !self.chains.is_empty() {
            self.checker(Chain::Service);
        }
        let mut reports = Vec::new();
        for (chain, checker) in self.chains {
            let mut report = checker.end(self.heads.get(&chain).copied());
            if report.entries == 0 && report.breaks.is_empty() {
                let told = told.get(&chain).copied();
                let what = told.map_or(What::Missing { to: 1 }, |told| What::Gone { told });
                report.breaks.push(Break {
                    chain,
                    number: 1,
                    what,
                });
            }
            reports.push(report);
        }
        reports
    }
}
