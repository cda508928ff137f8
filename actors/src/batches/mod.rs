//! Batch payments: how an approved one becomes signing requests, one after the other, and what became of them.

pub mod driver;
pub mod outcome;
pub mod start;
