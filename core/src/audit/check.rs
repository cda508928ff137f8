//! Finds out where a chain is broken, and how.

use std::{collections::BTreeMap, fmt};

use super::{AuditChain, AuditEntry, ChainHead, Hash, LinkedEntry, NO_HASH, VAULT_CHAIN, hash};

/// Most breaks of one chain that are named; the rest is counted.
const MOST: usize = 1_000;

/// Heads that were kept elsewhere, per chain.
pub type KnownHeads = BTreeMap<AuditChain, Vec<ChainHead>>;

/// A place where a chain is not what it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainBreak {
    /// The chain.
    pub chain: AuditChain,
    /// The entry.
    pub number: u64,
    /// What is wrong there.
    pub what: BreakKind,
}

/// What is wrong with an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BreakKind {
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
        /// The last existing one.
        last: u64,
    },
    /// It is the last, and the chain's head names it with another hash.
    OtherHead,
    /// It is the last, and the chain has no head.
    NoHead,
    /// It was there when a head was kept, and the chain ends before it.
    CutOff {
        /// The last existing one.
        last: u64,
    },
    /// It had another hash when a head was kept: the chain was rewritten.
    Rewritten,
    /// It is not there, nor is any other of its chain, although this entry of the service's chain tells
    /// that the chain began.
    Gone {
        /// The entry of the service's chain.
        told: u64,
    },
    /// How many more there are, unnamed.
    More(usize),
}

impl fmt::Display for ChainBreak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            chain,
            number,
            what,
        } = self;
        if let BreakKind::More(count) = what {
            return write!(f, "{chain}: {count} more breaks");
        }
        match what {
            BreakKind::Missing { to } if to > number => {
                return write!(f, "{chain}: entries {number} to {to} are missing");
            }
            _ => write!(f, "{chain}: entry {number} ")?,
        }
        match what {
            BreakKind::Changed => f.write_str("was modified: its hash does not match its content"),
            BreakKind::Missing { .. } => f.write_str("is missing"),
            BreakKind::Swapped { after } => write!(f, "is out of order: it comes after {after}"),
            BreakKind::Forked => f.write_str("appears twice: the chain is forked"),
            BreakKind::Unlinked => f.write_str(
                "does not link to the previous entry: one of the two was replaced, or an entry was removed",
            ),
            BreakKind::NotHead { last } => {
                write!(f, "is the last according to the chain's head, but the log ends at {last}")
            }
            BreakKind::OtherHead => f.write_str("is the last, but the chain's head has a different hash"),
            BreakKind::NoHead => f.write_str("is the last, but the chain's head is missing"),
            BreakKind::CutOff { last } => {
                write!(f, "existed when the expected head was recorded; the chain now ends with {last}")
            }
            BreakKind::Rewritten => f.write_str(
                "had a different hash when the expected head was recorded: the chain was rewritten",
            ),
            BreakKind::Gone { told } => write!(
                f,
                "and all others are missing: entry {told} of the service's chain refers to this chain"
            ),
            BreakKind::More(_) => Ok(()),
        }
    }
}

/// What was found about a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainReport {
    /// The chain.
    pub chain: AuditChain,
    /// Entries that were there.
    pub entries: u64,
    /// The last of them, as it says itself.
    pub head: Option<ChainHead>,
    /// Entries whose content this version cannot read. Their hashes are checked anyway.
    pub unreadable: u64,
    /// In the order of their numbers; none: the chain is whole.
    pub breaks: Vec<ChainBreak>,
}

/// Takes the entries of one chain in the order in which they lie, and finds what is wrong.
pub struct ChainChecker {
    chain: AuditChain,
    expected: Vec<ChainHead>,
    entries: u64,
    unreadable: u64,
    /// The highest entry so far, with what the next one may name: what it says its hash is, and what
    /// it should be. They differ when it was changed, and then that is the only thing to be said.
    last: u64,
    says: Hash,
    is: Hash,
    /// First and last numbers that have not come.
    missing: BTreeMap<u64, u64>,
    breaks: Vec<ChainBreak>,
    more: usize,
}

impl ChainChecker {
    /// For a chain; `expected` are heads of it that were kept elsewhere.
    pub fn new(chain: AuditChain, mut expected: Vec<ChainHead>) -> Self {
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
    pub fn take(&mut self, linked: &LinkedEntry) -> Option<AuditEntry> {
        let LinkedEntry {
            number,
            previous,
            hash: says,
            body,
        } = linked;
        self.entries = self.entries.saturating_add(1);
        let is = hash(self.chain, *number, previous, body);
        if is != *says {
            self.note(*number, BreakKind::Changed);
        }
        for index in 0..self.expected.len() {
            let expected = self.expected.get(index);
            if expected.is_some_and(|head| head.number == *number && head.hash != *says) {
                self.note(*number, BreakKind::Rewritten);
            }
        }
        let next = self.last.saturating_add(1);
        if *number < next {
            self.late(*number);
        } else {
            if *number > next {
                self.missing.insert(next, number.saturating_sub(1));
            } else if *previous != self.says && *previous != self.is {
                self.note(*number, BreakKind::Unlinked);
            }
            (self.last, self.says, self.is) = (*number, *says, is);
        }
        let entry = AuditEntry::decode(body);
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
                self.note(number, BreakKind::Swapped { after: self.last });
            }
            _ => self.note(number, BreakKind::Forked),
        }
    }

    /// The end of the chain. `head` is what the store has for its head.
    pub fn end(mut self, head: Option<ChainHead>) -> ChainReport {
        for (first, to) in std::mem::take(&mut self.missing) {
            self.note(first, BreakKind::Missing { to });
        }
        match head {
            None if self.entries == 0 => {}
            None => self.note(self.last, BreakKind::NoHead),
            Some(head) if head.number != self.last => {
                let last = self.last;
                self.note(head.number, BreakKind::NotHead { last });
            }
            Some(head) if head.hash != self.says => self.note(self.last, BreakKind::OtherHead),
            Some(_) => {}
        }
        for head in std::mem::take(&mut self.expected) {
            if head.number > self.last {
                let last = self.last;
                self.note(head.number, BreakKind::CutOff { last });
            }
        }
        let mut breaks = self.breaks;
        breaks.sort_by_key(|it| it.number);
        if self.more > 0 {
            breaks.push(ChainBreak {
                chain: self.chain,
                number: 0,
                what: BreakKind::More(self.more),
            });
        }
        ChainReport {
            chain: self.chain,
            entries: self.entries,
            head: (self.entries > 0).then_some(ChainHead {
                number: self.last,
                hash: self.says,
            }),
            unreadable: self.unreadable,
            breaks,
        }
    }

    fn note(&mut self, number: u64, what: BreakKind) {
        if self.breaks.len() >= MOST {
            self.more = self.more.saturating_add(1);
            return;
        }
        self.breaks.push(ChainBreak {
            chain: self.chain,
            number,
            what,
        });
    }
}

/// Takes the entries of all chains of a log, and finds what is wrong.
pub struct LogChecker {
    expected: KnownHeads,
    chains: BTreeMap<AuditChain, ChainChecker>,
    heads: BTreeMap<AuditChain, ChainHead>,
    /// Chains that the service's chain tells of, with the entry that does.
    told: BTreeMap<AuditChain, u64>,
}

impl LogChecker {
    /// `expected` are heads that were kept elsewhere.
    pub fn new(expected: KnownHeads) -> Self {
        // One of which nothing is left must be missed as well.
        let named: Vec<AuditChain> = expected.keys().copied().collect();
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

    fn checker(&mut self, chain: AuditChain) -> &mut ChainChecker {
        let expected = &mut self.expected;
        self.chains.entry(chain).or_insert_with(|| {
            ChainChecker::new(chain, expected.remove(&chain).unwrap_or_default())
        })
    }

    /// The next entry of a chain.
    pub fn entry(&mut self, chain: AuditChain, linked: &LinkedEntry) {
        let tells = self.checker(chain).take(linked);
        if let (AuditChain::Service, Some(entry)) = (chain, tells)
            && entry.events.iter().any(|it| it.event == VAULT_CHAIN)
            && let Ok(of) = entry.subject.parse()
        {
            self.told.insert(of, linked.number);
        }
    }

    /// What the store has for the head of a chain. False when it had another one before.
    pub fn head(&mut self, chain: AuditChain, head: ChainHead) -> bool {
        self.checker(chain);
        self.heads.insert(chain, head).is_none()
    }

    /// There is nothing more: what was found, chain by chain.
    pub fn finish(mut self) -> Vec<ChainReport> {
        let told = std::mem::take(&mut self.told);
        for chain in told.keys() {
            self.checker(*chain);
        }
        if !self.chains.is_empty() {
            self.checker(AuditChain::Service);
        }
        let mut reports = Vec::new();
        for (chain, checker) in self.chains {
            let mut report = checker.end(self.heads.get(&chain).copied());
            if report.entries == 0 && report.breaks.is_empty() {
                let told = told.get(&chain).copied();
                let what = told.map_or(BreakKind::Missing { to: 1 }, |told| BreakKind::Gone {
                    told,
                });
                report.breaks.push(ChainBreak {
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
