//! What a process has one of: how much it takes on at once, what its metrics show, tasks that end with it, and who waits
//! in it for requests to end. None of it is in the store.

mod appointments;
pub mod counters;
pub mod limits;
pub mod shares;
pub mod tasks;
pub mod waiters;
