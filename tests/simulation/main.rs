//! Protocols under seeded schedules: delays, lost and doubled messages, crashes, pauses, clocks that run at other rates.
//!
//! A seed replays its schedule (`STEADFAST_SEED=...`). In a debug build fewer seeds are run; `STEADFAST_SCHEDULES` sets how many.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "tests")]
mod leader;
