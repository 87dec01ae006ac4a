//! Policies against overload, while there is none: an adaptive limit, a client throttle, a shedder, a switch of a degradation.
//!
//! No crate has them, or none of their doors can be called alone. "By hand" is the plainest version that is correct with
//! several threads: it gives its place back when it is dropped, and judges by the same rule, but has no events, names,
//! priorities, or change of its settings.

use super::{Failed, Subject, Work, call_loop, instance, leak, operation, ours, poll_loop, rival};
use std::hint::black_box;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use steadfast::throttling::{
    AdaptiveLimitConfig, AdaptiveLimiter, ClientThrottle, ClientThrottleConfig, Degradation, DegradationConfig,
    Shedder, ShedderConfig,
};
use steadfast::{Priority, Verdict};

pub const ADAPTIVE: Work = Work {
    name: "adaptive_limit",
    about: "a call that is ready at once, through an adaptive limit with room",
    subjects: adaptive,
    light: true,
};
pub const CLIENT_THROTTLE: Work = Work {
    name: "client_throttle",
    about: "a call asked for and accepted, through a client throttle that refuses none",
    subjects: client_throttle,
    light: true,
};
pub const SHEDDER: Work =
    Work { name: "shedder", about: "a call admitted by a shedder whose gauge is low", subjects: shedder, light: true };
pub const DEGRADATION: Work = Work {
    name: "degradation",
    about: "a check of a feature that is on, with a gauge that is low",
    subjects: degradation,
    light: true,
};

/// Additive increase, multiplicative decrease by latency.
struct Aimd {
    in_flight: AtomicU32,
    limit: AtomicU32,
    /// The smoothed and the least latency, in seconds.
    latency: Mutex<(f64, f64)>,
}

struct Place<'a>(&'a Aimd);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Relaxed);
    }
}

impl Aimd {
    async fn call(&self, operation: impl Future<Output = Result<u32, Failed>>) -> Option<Result<u32, Failed>> {
        let before = self.in_flight.fetch_add(1, Relaxed);
        let place = Place(self);
        if before >= self.limit.load(Relaxed) {
            return None;
        }
        let began = Instant::now();
        let answer = operation.await;
        let took = began.elapsed().as_secs_f64();
        drop(place);
        let mut latency = self.latency.lock().expect("no panic");
        let (smooth, least) = &mut *latency;
        *smooth += (took - *smooth) * 0.01;
        *least = least.min(took);
        let limit = self.limit.load(Relaxed);
        let next = if *smooth > *least * 100.0 { limit / 2 } else { limit + 1 };
        self.limit.store(next.clamp(10, 200), Relaxed);
        Some(answer)
    }
}

fn adaptive() -> Vec<Subject> {
    vec![
        ours("steadfast", || {
            let limiter = leak(AdaptiveLimiter::new(AdaptiveLimitConfig::default()).expect("a valid configuration"));
            instance(move |_| poll_loop(async move || black_box(limiter).call(|| operation()).await))
        }),
        rival("by hand: an atomic limit, latencies behind a mutex", || {
            let latency = Mutex::new((0.0, f64::MAX));
            let limiter = leak(Aimd { in_flight: AtomicU32::new(0), limit: AtomicU32::new(20), latency });
            instance(move |_| poll_loop(async move || black_box(limiter).call(operation()).await))
        }),
    ]
}

/// Requests and accepts of the last two minutes, in twelve parts.
#[derive(Default)]
struct Ring {
    parts: [(u64, u64, u64); 12],
}

impl Ring {
    fn part(&mut self, now: u64) -> &mut (u64, u64, u64) {
        let part = &mut self.parts[(now % 12) as usize];
        if part.0 != now {
            *part = (now, 0, 0);
        }
        part
    }

    /// The probability of the SRE book.
    fn rejects(&self, now: u64) -> f64 {
        let recent = self.parts.iter().filter(|part| part.0 + 12 > now);
        let (requests, accepts) = recent.fold((0, 0), |sum, part| (sum.0 + part.1, sum.1 + part.2));
        ((requests as f64 - 2.0 * accepts as f64) / (requests as f64 + 1.0)).max(0.0)
    }
}

fn client_throttle() -> Vec<Subject> {
    vec![
        ours("steadfast try_acquire, record", || {
            let throttle = leak(ClientThrottle::new(ClientThrottleConfig::default()).expect("a valid configuration"));
            instance(move |_| {
                call_loop(move || black_box(throttle).try_acquire().map(|permit| permit.record(Verdict::success())))
            })
        }),
        rival("by hand: twelve parts behind a mutex", || {
            let (since, ring) = (Instant::now(), leak(Mutex::new(Ring::default())));
            instance(move |_| {
                call_loop(move || {
                    let now = black_box(since).elapsed().as_secs() / 10 + 12;
                    {
                        let mut ring = ring.lock().expect("no panic");
                        // A draw is made only where there is something to draw for, as by ours.
                        if ring.rejects(now) > 0.0 {
                            return false;
                        }
                        ring.part(now).1 += 1;
                    }
                    ring.lock().expect("no panic").part(now).2 += 1;
                    true
                })
            })
        }),
    ]
}

/// A gauge that is read when a call comes and a tenth of a second has passed.
struct Sampled {
    since: Instant,
    due: AtomicU64,
    is_high: AtomicBool,
}

impl Sampled {
    fn is_high(&self) -> bool {
        let (now, due) = (self.since.elapsed().as_millis() as u64, self.due.load(Relaxed));
        if now >= due && self.due.compare_exchange(due, now + 100, Relaxed, Relaxed).is_ok() {
            self.is_high.store(black_box(0.1) > 0.7, Relaxed);
        }
        self.is_high.load(Relaxed)
    }
}

fn sampled() -> Subject {
    rival("by hand: a flag, and when to read the gauge again", || {
        let flag = leak(Sampled { since: Instant::now(), due: AtomicU64::new(0), is_high: AtomicBool::new(false) });
        instance(move |_| call_loop(move || black_box(flag).is_high()))
    })
}

fn shedder() -> Vec<Subject> {
    vec![
        ours("steadfast try_acquire", || {
            let shedder =
                Shedder::builder(ShedderConfig::default().limit("cpu", 0.7, 0.9)).gauge("cpu", || black_box(0.1));
            let shedder = leak(shedder.build().expect("a valid configuration"));
            assert_eq!(shedder.config().sample_every, Duration::from_millis(100));
            instance(move |_| call_loop(move || black_box(shedder).try_acquire(Priority::Normal)))
        }),
        sampled(),
    ]
}

fn degradation() -> Vec<Subject> {
    vec![
        ours("steadfast Feature::check", || {
            let config = DegradationConfig::of(["avatars"]).limit("cpu", 0.7, 0.9);
            let degradation =
                Degradation::builder(config).gauge("cpu", || black_box(0.1)).build().expect("a valid configuration");
            let feature = leak(degradation.feature("avatars").expect("it is in the settings"));
            instance(move |_| call_loop(move || black_box(feature).ensure_enabled()))
        }),
        sampled(),
    ]
}
