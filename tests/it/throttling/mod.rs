//! Tests of `throttling`.
mod adaptive_limit;
mod client_throttle;
mod concurrency_limit;
mod concurrency_limit_edges;
mod degradation;
mod keyed;
mod keyed_more;
mod limit_decisions;
mod limit_hints;
mod overload;
mod rate_limit;
mod rate_limit_change;
mod rate_limit_crowd;
mod shared_limit;
mod shared_limit_damage;
mod shedding;
