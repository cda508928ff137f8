//! A wallet: what it is and how its state changes.
