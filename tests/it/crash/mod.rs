//! Whatever is killed, cut off, full or wrong: nothing that was accepted is lost, nothing is done
//! twice.

mod faults;
mod ledger;
mod load;
mod partitions;
mod pieces;
mod rounds;
mod world;
