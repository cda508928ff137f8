//! Amounts: decimal strings, checked, never floats.
