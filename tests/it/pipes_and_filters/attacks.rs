//! Hostile messages, cycles, and outputs that fail one by one.
