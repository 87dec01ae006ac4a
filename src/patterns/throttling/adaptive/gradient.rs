//! The state machine of the adaptive limit. Takes `now` as an argument; independent of async and
//! tokio.
use std::time::Duration;

use super::{Adaptation, AdaptiveLimitConfig};
use crate::time::{Instant, scaled};

/// The result of one call, as a signal of load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sample {
    /// The call was served.
    Served,
    /// The call failed because of overload: it timed out or was rejected.
    Overloaded,
}

/// The limit, and the data to adjust it.
///
/// Latencies are compared with a base: what a call takes under a very low limit. If the base were a
/// mean of earlier latencies, the latency that the limit itself causes would become the norm, and
/// the limit would creep up. So the base falls with observed latencies, and rises only when it is
/// measured again under a low limit.
#[derive(Debug, Clone)]
pub(super) struct Gradient {
    config: AdaptiveLimitConfig,
    limit: f64,
    /// In seconds.
    base: Option<f64>,
    /// Set while the base is being measured, which began at `measured_from`.
    measures: bool,
    measured_from: Instant,
    measure_at: Instant,
    /// Number of consecutive windows at the minimum limit.
    at_min: u32,
    window: Window,
    /// Calls that began before this time ran under another limit, and are ignored.
    since: Instant,
}

#[derive(Debug, Clone, Copy)]
struct Window {
    began: Instant,
    calls: u32,
    /// Sum of the latencies, in nanoseconds.
    sum: u64,
    /// Largest number of calls that ran at once.
    peak: u32,
    overloaded: bool,
}

impl Window {
    const fn new(began: Instant) -> Self {
        Self { began, calls: 0, sum: 0, peak: 0, overloaded: false }
    }

    /// Returns the mean latency, in seconds.
    fn mean(&self) -> f64 {
        self.sum as f64 / 1e9 / f64::from(self.calls.max(1))
    }
}

/// Maximum limit during a measurement of the base.
const HARDLY_ANY: u32 = 3;

/// Number of windows after which a measurement counts as one of slow calls.
const SLOW: u32 = 10;

/// Divisor of the share of time that measurements may take: most calls are rejected meanwhile.
const RARELY: u32 = 50;

/// Number of windows at the minimum limit after which the base is taken to be wrong, as in Envoy.
const AT_MIN: u32 = 5;

impl Gradient {
    /// Creates the state machine. `unit` is drawn from `0.0..1.0`.
    pub(super) fn new(config: AdaptiveLimitConfig, now: Instant, unit: f64) -> Self {
        let mut machine = Self {
            config,
            limit: f64::from(config.initial),
            base: None,
            measures: false,
            measured_from: now,
            measure_at: now,
            at_min: 0,
            window: Window::new(now),
            since: Instant::default(),
        };
        machine.put_off(now, unit);
        machine
    }

    pub(super) fn config(&self) -> AdaptiveLimitConfig {
        self.config
    }

    /// Applies other settings and returns the limit. Keeps what was learned; without any, starts at
    /// `initial`.
    pub(super) fn reconfigure(&mut self, config: AdaptiveLimitConfig, now: Instant) -> u32 {
        self.config = config;
        let is_new = self.base.is_none() && self.window.calls == 0;
        let limit = if is_new { f64::from(config.initial) } else { self.limit };
        self.limit = limit.clamp(f64::from(config.min), f64::from(config.max));
        self.measure_at = self.measure_at.min(now + scaled(config.remeasure, 1.2));
        self.limit()
    }

    pub(super) fn limit(&self) -> u32 {
        let limit = (self.limit.round() as u32).clamp(self.config.min, self.config.max);
        if self.measures { limit.min(HARDLY_ANY.max(self.config.min)) } else { limit }
    }

    /// Returns the base latency: what a call takes under a very low limit.
    pub(super) fn base(&self) -> Option<Duration> {
        self.base.and_then(|base| Duration::try_from_secs_f64(base).ok())
    }

    /// Returns the current latency: the mean of this window, or else the base.
    pub(super) fn typical(&self) -> Option<Duration> {
        let seen = (self.window.calls > 0).then(|| self.window.mean()).or(self.base);
        seen.and_then(|seen| Duration::try_from_secs_f64(seen).ok())
    }

    /// Records a call that began at `began`, ended at `now`, and ran beside `under_way` calls.
    /// Returns the limit if it changed.
    pub(super) fn record(
        &mut self,
        (began, now): (Instant, Instant),
        under_way: u32,
        sample: Sample,
        unit: impl FnOnce() -> f64,
    ) -> Option<u32> {
        if began < self.since {
            return None;
        }
        let window = &mut self.window;
        window.calls += 1;
        window.sum = window.sum.saturating_add(now.as_nanos().saturating_sub(began.as_nanos()));
        window.peak = window.peak.max(under_way);
        window.overloaded |= sample == Sample::Overloaded;
        // A measurement is kept short. If calls are slow, as many samples as run at once are
        // enough.
        let over = if self.measures {
            let is_slow = now - self.measured_from >= self.config.window.saturating_mul(SLOW);
            window.calls >= self.config.min_calls || (is_slow && window.calls >= HARDLY_ANY)
        } else {
            window.calls >= self.config.min_calls && now - window.began >= self.config.window
        };
        // An overload is answered at once, and only once: calls that began before do not count
        // again.
        if !over && sample != Sample::Overloaded {
            return None;
        }
        let window = std::mem::replace(&mut self.window, Window::new(now));
        let before = (self.limit(), self.limit, self.measures);
        self.think(&window, now, unit);
        self.limit = self.limit.clamp(f64::from(self.config.min), f64::from(self.config.max));
        if self.limit < before.1 || self.measures != before.2 {
            self.since = now;
        }
        (self.limit() != before.0).then(|| self.limit())
    }

    fn think(&mut self, window: &Window, now: Instant, unit: impl FnOnce() -> f64) {
        let config = self.config;
        if window.overloaded {
            self.limit *= config.decrease;
            self.measures = false;
            return;
        }
        // If the callers are the bottleneck, good latencies prove nothing about a higher limit.
        let is_used = f64::from(window.peak) * 2.0 >= self.limit;
        if config.by == Adaptation::Aimd {
            self.limit += f64::from(u8::from(is_used));
            return;
        }
        let seen = window.mean();
        if std::mem::take(&mut self.measures) {
            self.base = Some(seen);
            self.put_off(now, unit());
            let took = now - self.measured_from;
            self.measure_at = self.measure_at.max(now + took.saturating_mul(RARELY));
            return;
        }
        let before = self.base;
        let base = before.map_or(seen, |base| base.min(seen));
        self.base = Some(base);
        let gradient = if seen > 0.0 { (config.tolerance * base / seen).clamp(0.5, 1.0) } else { 1.0 };
        let wanted = self.limit * gradient + f64::from(config.headroom);
        let next = self.limit * (1.0 - config.smoothing) + wanted * config.smoothing;
        if next <= self.limit || is_used {
            self.limit = next;
        }
        // Too slow even at a very low limit.
        let is_low = self.limit <= f64::from(HARDLY_ANY.max(config.min)) + f64::from(config.headroom) * 2.0;
        self.at_min = if is_low && gradient <= 0.5 { self.at_min + 1 } else { 0 };
        // Much faster than the measured base: calls now run under a limit that is still high.
        let is_faster = before.is_some_and(|before| seen * config.tolerance < before);
        if self.at_min >= AT_MIN || is_faster || now >= self.measure_at {
            (self.measures, self.at_min) = (true, 0);
            self.measured_from = now;
        }
    }

    /// Schedules the next measurement at random, so that many limiters of one service do not
    /// measure together.
    fn put_off(&mut self, now: Instant, unit: f64) {
        self.measure_at = now + scaled(self.config.remeasure, 0.8 + 0.4 * unit);
    }
}
