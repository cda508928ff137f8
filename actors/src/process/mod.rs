//! What exists once per process: limits, metrics, tasks that end with it, and callers that wait for requests
//! to end. None of it is in the store.

mod appointments;
pub mod counters;
pub mod limits;
pub mod mailbox;
pub mod meter;
pub mod shares;
pub mod tasks;
pub mod waiters;
