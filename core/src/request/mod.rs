//! A signing request: its states, events and effects.
