//! Batch payments: how an approved batch becomes signing requests, one after the other, and how they end.

pub mod driver;
pub mod outcome;
pub mod start;
