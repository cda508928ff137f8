//! Which nonces of an account are held by requests, and which are remembered because nodes refused the
//! transaction that had them ([`rows::refused_name`], of these only the nonces), as last read under the lease
//! of the account's vault.
//!
//! Nobody else takes or frees them while the lease lasts, and what this process changes passes through
//! [`LeaseFence`](super::LeaseFence). It is a hint: what is handed out by it is taken by a commit that demands that
//! nobody has it.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use covault_core::ids::RequestId;
use parking_lot::Mutex;

use super::hot_rows::LeaseTerm;
use crate::store::{
    Batch, CommitError, KeySpace, Precondition, RowChange,
    rows::{self, split_nonce_claim},
};

/// Most numbers that are remembered of one account: when there are more, the lower half is forgotten.
const OF_ONE: usize = 1_024;
/// Most of all accounts: when there are more, all are forgotten. One takes less than a hundred bytes, an account with
/// none as much as ten.
const OF_ALL: usize = 200_000;
/// What an account counts for beside its numbers.
const ACCOUNT: usize = 10;

/// See the module. Accounts are named as their rows are ([`rows::account`], [`rows::refused_name`]).
#[derive(Default)]
pub struct HotNumbers(Mutex<HotNumberTable>);

#[derive(Default)]
struct HotNumberTable {
    accounts: HashMap<Vec<u8>, HotAccount>,
    /// About how many numbers and accounts there are.
    size: usize,
    /// The mark of the last account that was begun again.
    marks: u64,
}

struct HotAccount {
    /// Under which it was read, or is being read.
    lease: Arc<dyn LeaseTerm>,
    /// All that are held from here on are known.
    known_from: Option<u64>,
    held: BTreeMap<u64, RequestId>,
    /// Another one whenever what is being read may be an older state.
    mark: u64,
    /// Commits on their way that do more than to take what nobody has.
    changing: usize,
    /// Nobody knows whether a commit was taken: they are always read under this lease.
    unsure: bool,
}

/// A look at the store that has begun.
pub struct NumbersRead<'a> {
    numbers: &'a HotNumbers,
    account: Vec<u8>,
    mark: u64,
}

/// A commit that changes some of them is on its way.
pub struct NumbersChange<'a> {
    numbers: &'a HotNumbers,
    lease: Arc<dyn LeaseTerm>,
    taken: Vec<TakenNumber>,
    /// These may change in other ways.
    others: Vec<Vec<u8>>,
    is_done: bool,
}

/// A number that nobody had.
struct TakenNumber {
    account: Vec<u8>,
    number: u64,
    holder: RequestId,
    /// The account's when the commit began.
    mark: u64,
}

impl HotNumbers {
    /// The numbers of an account that are held, from this one on; `None` where that is not known.
    pub fn find(&self, account: &[u8], from: u64) -> Option<Vec<(u64, RequestId)>> {
        let remembered = self.0.lock();
        let account = remembered.accounts.get(account)?;
        let is_known = account.known_from.is_some_and(|first| first <= from)
            && account.is_sure()
            && !account.lease.is_over();
        let held = account.held.range(from..);
        is_known.then(|| held.map(|(number, holder)| (*number, *holder)).collect())
    }

    /// A look at the store begins, by who has this lease of the account's vault; `None` when that is over.
    pub fn begin(&self, account: Vec<u8>, lease: &Arc<dyn LeaseTerm>) -> Option<NumbersRead<'_>> {
        let mark = self.0.lock().account(&account, lease)?.mark;
        Some(NumbersRead {
            numbers: self,
            account,
            mark,
        })
    }

    /// A commit begins under a lease; `None` when it changes none of them.
    pub fn change(&self, batch: &Batch, lease: Arc<dyn LeaseTerm>) -> Option<NumbersChange<'_>> {
        let mut change = NumbersChange {
            numbers: self,
            lease,
            taken: Vec::new(),
            others: Vec::new(),
            is_done: false,
        };
        for write in batch.writes() {
            if let KeySpace::RefusedTransaction = write.key.space
                && let Some((account, ..)) = rows::split_refused(&write.key)
            {
                change.others.push(rows::refused_name(account));
            }
            if write.key.space != KeySpace::NonceReservation || write.change.is_check() {
                continue;
            }
            let Some((account, number)) = split_nonce_claim(&write.key) else {
                continue;
            };
            let account = account.to_vec();
            let holder = match (&write.change, write.expect) {
                (RowChange::Put(holder), Precondition::Absent) => rows::decode(holder).ok(),
                _ => None,
            };
            match holder {
                Some(holder) => change.taken.push(TakenNumber {
                    account,
                    number,
                    holder,
                    mark: 0,
                }),
                None => change.others.push(account),
            }
        }
        if change.taken.is_empty() && change.others.is_empty() {
            return None;
        }
        let mut remembered = self.0.lock();
        for account in &change.others {
            if let Some(account) = remembered.forget(account, &change.lease) {
                account.changing += 1;
            }
        }
        for taken in &mut change.taken {
            if let Some(account) = remembered.account(&taken.account, &change.lease) {
                taken.mark = account.mark;
            }
        }
        drop(remembered);
        Some(change)
    }
}

impl NumbersRead<'_> {
    /// Remembers that the store has these, and no others from `from` on, unless that may have changed since.
    pub fn keep(self, from: u64, found: &[(u64, RequestId)]) {
        let mut remembered = self.numbers.0.lock();
        let Some(account) = remembered.accounts.get_mut(&self.account) else {
            return;
        };
        if account.mark != self.mark || !account.is_sure() {
            return;
        }
        let before = account.size();
        account.held.extend(found.iter().copied());
        account.known_from = Some(account.known_from.map_or(from, |first| first.min(from)));
        account.tidy();
        let after = account.size();
        remembered.resize(before, after);
    }
}

impl NumbersChange<'_> {
    /// The commit has come back with this.
    pub fn done(mut self, outcome: &Result<(), CommitError>) {
        self.is_done = true;
        let mut remembered = self.numbers.0.lock();
        self.end(&mut remembered);
        match outcome {
            Ok(()) => {
                for taken in &self.taken {
                    remembered.take(taken, &self.lease);
                }
            }
            // Another one has it than was thought.
            Err(CommitError::Conflict(key)) if key.space == KeySpace::NonceReservation => {
                for taken in &self.taken {
                    remembered.forget(&taken.account, &self.lease);
                }
            }
            Err(CommitError::Conflict(_) | CommitError::NotOwner) => {}
            Err(CommitError::Unavailable(_)) => self.lost(&mut remembered),
        }
    }

    /// No more is on its way.
    fn end(&self, remembered: &mut HotNumberTable) {
        for account in &self.others {
            if let Some(account) = remembered.forget(account, &self.lease) {
                account.changing = account.changing.saturating_sub(1);
            }
        }
    }

    /// It may be done now, later or never.
    fn lost(&self, remembered: &mut HotNumberTable) {
        let taken = self.taken.iter().map(|taken| &taken.account);
        for account in taken.chain(&self.others) {
            if let Some(account) = remembered.forget(account, &self.lease) {
                account.unsure = true;
            }
        }
    }
}

/// Also when nobody has waited for the outcome.
impl Drop for NumbersChange<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            let mut remembered = self.numbers.0.lock();
            self.end(&mut remembered);
            self.lost(&mut remembered);
        }
    }
}

impl HotAccount {
    fn size(&self) -> usize {
        self.held.len().saturating_add(ACCOUNT)
    }

    fn is_sure(&self) -> bool {
        self.changing == 0 && !self.unsure
    }

    /// Forgets the lower half when there are too many.
    fn tidy(&mut self) {
        if self.held.len() <= OF_ONE {
            return;
        }
        while self.held.len() > OF_ONE / 2 {
            let Some((number, _)) = self.held.pop_first() else {
                return;
            };
            let above = number.saturating_add(1);
            self.known_from = self.known_from.map(|first| first.max(above));
        }
    }
}

impl HotNumberTable {
    /// What there is of an account under a lease; `None` when that is over.
    fn account(&mut self, name: &[u8], lease: &Arc<dyn LeaseTerm>) -> Option<&mut HotAccount> {
        if lease.is_over() {
            return None;
        }
        let known = self.accounts.get(name);
        if !known.is_some_and(|account| same(&account.lease, lease)) {
            // What was on its way under another lease is never taken.
            let old = known.map_or(0, HotAccount::size);
            self.accounts.remove(name);
            self.marks += 1;
            let account = HotAccount {
                lease: Arc::clone(lease),
                known_from: None,
                held: BTreeMap::new(),
                mark: self.marks,
                changing: 0,
                unsure: false,
            };
            self.resize(old, account.size());
            self.accounts.insert(name.to_vec(), account);
        }
        self.accounts.get_mut(name)
    }

    /// Forgets what is known of an account, also what is being read.
    fn forget(&mut self, name: &[u8], lease: &Arc<dyn LeaseTerm>) -> Option<&mut HotAccount> {
        self.marks += 1;
        let mark = self.marks;
        let account = self.account(name, lease)?;
        account.known_from = None;
        account.mark = mark;
        let held = std::mem::take(&mut account.held).len();
        self.size = self.size.saturating_sub(held);
        self.accounts.get_mut(name)
    }

    /// A request has taken what nobody had.
    fn take(&mut self, taken: &TakenNumber, lease: &Arc<dyn LeaseTerm>) {
        let Some(account) = self.accounts.get_mut(&taken.account) else {
            return;
        };
        if account.mark != taken.mark {
            // It may have been freed again since.
            self.forget(&taken.account, lease);
            return;
        }
        let before = account.size();
        account.held.insert(taken.number, taken.holder);
        account.tidy();
        let after = account.size();
        self.resize(before, after);
    }

    /// What there was of something, and what there is.
    fn resize(&mut self, before: usize, after: usize) {
        self.size = self.size.saturating_sub(before).saturating_add(after);
        if self.size <= OF_ALL {
            return;
        }
        self.accounts
            .retain(|_, account| !account.is_sure() && !account.lease.is_over());
        self.size = self.accounts.values().map(HotAccount::size).sum();
    }
}

fn same(one: &Arc<dyn LeaseTerm>, other: &Arc<dyn LeaseTerm>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(one), Arc::as_ptr(other))
}

#[cfg(test)]
#[path = "hot_numbers_tests.rs"]
#[allow(non_snake_case)]
mod tests;
