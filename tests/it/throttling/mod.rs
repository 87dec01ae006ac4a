//! Tests of `throttling`, by limiter.
mod adaptive_limit;
mod borrowed_keys;
mod client_throttle;
mod concurrency_limit;
mod concurrency_limit_queue;
mod degradation;
mod keyed_limit;
mod keyed_limit_modes;
mod limit_costs;
mod limit_hints;
mod overload;
mod rate_limit;
mod rate_limit_change;
mod rate_limit_queue;
mod shared_limit;
mod shared_limit_faults;
mod shedding;
