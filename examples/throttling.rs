//! Each kind of limit by itself, on a manual clock: admitted calls, rejected calls, and times to return.
//!
//! Every step asserts what it prints. The last line is the result as JSON.
#![allow(missing_docs, clippy::unwrap_used, reason = "a program of assertions")]
use std::{io::Write as _, time::Duration};

use serde_json::{Map, Value, json};
use steadfast::{
    FailureKind, Pipeline,
    Priority::{High, Low, Normal},
    Reason, Verdict,
    call::with_priority,
    entropy::Entropy,
    throttling::{
        AdaptiveLimitConfig, AdaptiveLimiter, ClientThrottle, ClientThrottleConfig, ConcurrencyLimitConfig,
        ConcurrencyLimiter, Degradation, DegradationConfig, Gauge, KeyedRateLimitConfig, KeyedRateLimiter,
        PriorityShares, Quota, RateLimitConfig, RateLimiter, Shedder, ShedderConfig,
    },
    time::{Clock, ManualClock},
};

const MS: fn(u64) -> Duration = Duration::from_millis;
const S: fn(u64) -> Duration = Duration::from_secs;

/// Shows one limit, prints its results, and returns the figures.
type Show = fn(&Clock, &ManualClock) -> (String, Value);

fn main() {
    clap::Command::new("throttling")
        .about("Each kind of limit by itself, on a manual clock: admitted calls, rejected calls, and times to return.")
        .get_matches();
    let limits: [(&str, Show); 9] = [
        ("rate limit", rate_limit),
        ("strict rate limit", strict_rate_limit),
        ("keyed rate limit", keyed_rate_limit),
        ("concurrency limit", concurrency_limit),
        ("adaptive limit", adaptive_limit),
        ("shares", shares),
        ("client throttle", client_throttle),
        ("shedder", shedder),
        ("degradation", degradation),
    ];
    let mut summary = Map::new();
    for (name, show) in limits {
        let (clock, time) = Clock::manual();
        let (told, figures) = show(&clock, &time);
        say(&format!("{name:>18}: {told}"));
        summary.insert(name.replace(' ', "_"), figures);
    }
    say(&format!("\nsummary: {}", Value::from(summary)));
}

fn say(what: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{what}");
}

/// Returns the number of calls that are admitted now.
fn passes(check: impl Fn() -> bool) -> usize {
    (0..10_000).take_while(|_| check()).count()
}

fn rate_limit(clock: &Clock, time: &ManualClock) -> (String, Value) {
    let limiter = RateLimiter::builder(Quota::per_second(10).burst(3)).clock(clock).build().unwrap();
    let burst = passes(|| limiter.try_acquire().is_ok());
    assert_eq!(burst, 3);
    let wait = limiter.try_acquire().unwrap_err().retry_after().unwrap();
    time.advance(wait - Duration::from_nanos(1));
    assert!(limiter.try_acquire().is_err());
    time.advance(Duration::from_nanos(1));
    assert!(limiter.try_acquire().is_ok());
    // Doubles the limit at run time.
    limiter.reconfigure(limiter.config().with_quota(Quota::per_second(20).burst(3))).unwrap();
    let faster = limiter.try_acquire().unwrap_err().retry_after().unwrap();
    assert_eq!((wait, faster), (MS(100), MS(50)));
    let told = format!("{burst} at once, the next in exactly {wait:?}; in {faster:?} after a change");
    (
        told,
        json!({ "burst": burst, "next_ms": wait.as_millis() as u64, "next_after_change_ms": faster.as_millis() as u64 }),
    )
}

fn strict_rate_limit(clock: &Clock, time: &ManualClock) -> (String, Value) {
    let limiter =
        RateLimiter::builder(RateLimitConfig::from(Quota::per_second(10)).strict()).clock(clock).build().unwrap();
    time.advance(MS(900));
    let within = passes(|| limiter.try_acquire().is_ok());
    assert_eq!(within, 10);
    time.advance(MS(200)); // a limiter that counts by the second of the clock would give ten more here
    let wait = limiter.try_acquire().unwrap_err().retry_after().unwrap();
    assert_eq!(wait, MS(800));
    let told = format!("never more than {within} in any second, wherever it begins");
    (told, json!({ "in_any_second": within, "next_ms": wait.as_millis() as u64 }))
}

fn keyed_rate_limit(clock: &Clock, _: &ManualClock) -> (String, Value) {
    let limiter =
        KeyedRateLimiter::builder(KeyedRateLimitConfig::from(Quota::per_second(5)).tiers([Quota::per_second(50)]))
            .tier_of(|tenant: &&str| tenant.starts_with("gold").then_some(0))
            .clock(clock)
            .build()
            .unwrap();
    let of = |tenant: &'static str| passes(|| limiter.try_acquire(&tenant).is_ok());
    let [blue, green, gold] = ["blue", "green", "gold-7"].map(of);
    assert_eq!((blue, green, gold), (5, 5, 50));
    let told = format!("{blue} for each tenant, {gold} for those of the upper tier; none takes another's");
    (told, json!({ "blue": blue, "green": green, "gold": gold }))
}

fn concurrency_limit(clock: &Clock, time: &ManualClock) -> (String, Value) {
    let limiter = ConcurrencyLimiter::builder(ConcurrencyLimitConfig::of(2).queue(1).max_wait(MS(50)))
        .clock(clock)
        .build()
        .unwrap();
    let work = async || {
        clock.sleep(MS(100)).await;
        Ok::<_, ()>(())
    };
    let call = || limiter.call(work);
    let (a, b, waits, full) = time.block_on(async { futures::join!(call(), call(), call(), call()) });
    let ran = [&a, &b, &waits, &full].iter().filter(|result| result.is_ok()).count();
    assert!(a.is_ok() && b.is_ok() && ran == 2);
    let reason = |refused: Result<(), steadfast::CallError<()>>| match refused.unwrap_err().into_cause() {
        steadfast::Cause::Rejected(rejected) => Some(rejected.reason()),
        _ => None,
    };
    let reasons = [reason(waits), reason(full)];
    assert_eq!(reasons, [Some(Reason::WaitedTooLong { limit: MS(50) }), Some(Reason::QueueFull)]);
    let count = |refused: Reason| reasons.iter().filter(|reason| **reason == Some(refused)).count();
    let (waited, full) = (count(Reason::WaitedTooLong { limit: MS(50) }), count(Reason::QueueFull));
    assert_eq!(limiter.available(), 2);
    let told = format!("{ran} run, {waited} waits for at most 50 ms, {full} more is refused at once");
    (told, json!({ "ran": ran, "waited_too_long": waited, "queue_full": full, "free_afterwards": limiter.available() }))
}

fn adaptive_limit(clock: &Clock, time: &ManualClock) -> (String, Value) {
    let config = AdaptiveLimitConfig::default().limits(20, 1, 100).queue(500).max_wait(S(60));
    let limiter = AdaptiveLimiter::builder(config).clock(clock).entropy(&Entropy::from_seed(1)).build().unwrap();
    // Duration of a call; beyond ten concurrent calls it grows in proportion.
    let work = async || {
        let crowd = f64::from(limiter.in_flight().max(10)) / 10.0;
        clock.sleep(MS(20).mul_f64(crowd)).await;
        Ok::<_, ()>(())
    };
    let end = clock.now() + S(90); // the first minute it does not know what a call takes alone
    let caller = async || {
        while clock.now() < end {
            let _ = limiter.call(work).await;
        }
    };
    time.block_on(futures::future::join_all((0..100).map(|_| caller())));
    assert!((8..40).contains(&limiter.limit()), "{}", limiter.limit());
    let told = format!("100 callers of a service that can do 10 at once: it lets {} in", limiter.limit());
    (told, json!({ "limit": limiter.limit() }))
}

fn shares(clock: &Clock, time: &ManualClock) -> (String, Value) {
    let config = AdaptiveLimitConfig::default().limits(10, 10, 10).shares(PriorityShares::new(0.5, 0.8, 1.0));
    let limiter = AdaptiveLimiter::builder(config).clock(clock).build().unwrap();
    let mut served = Vec::new();
    for priority in [Low, Normal, High] {
        let work = async || {
            clock.sleep(MS(100)).await;
            Ok::<_, ()>(())
        };
        let burst = (0..10).map(|_| limiter.call(with_priority(priority, work)));
        let results = time.block_on(futures::future::join_all(burst));
        served.push(results.iter().filter(|result| result.is_ok()).count());
    }
    assert_eq!(served, [5, 8, 10]);
    let told = format!("of 10 places low calls take {}, normal ones {}, high ones {}", served[0], served[1], served[2]);
    (told, json!({ "low": served[0], "normal": served[1], "high": served[2] }))
}

fn client_throttle(clock: &Clock, time: &ManualClock) -> (String, Value) {
    let throttle = ClientThrottle::builder(ClientThrottleConfig::sre().window(S(10)))
        .clock(clock)
        .entropy(&Entropy::from_seed(1))
        .build()
        .unwrap();
    let pipeline = Pipeline::new().then(throttle.clone()).classify(|answer: &Result<(), ()>| match answer {
        Ok(()) => Verdict::success(),
        Err(()) => Verdict::failure(FailureKind::Overloaded),
    });
    let (mut sent, mut served) = (0, 0);
    for second in 0..20 {
        let mut taken = 0;
        for _ in 0..1_000 {
            time.advance(MS(1));
            // The service takes a hundred in each second.
            let _ = time.block_on(pipeline.call(|| {
                taken += 1;
                std::future::ready(if taken <= 100 { Ok(()) } else { Err(()) })
            }));
        }
        if second >= 10 {
            sent += taken;
            served += taken.min(100);
        }
    }
    assert_eq!(served, 1_000);
    assert!((1_500..2_500).contains(&sent), "{sent}");
    let told = format!(
        "of 1,000 calls a second it sends {} to a service that takes 100, which works at full speed",
        sent / 10
    );
    (told, json!({ "sent_per_s": sent / 10, "served_per_s": served / 10 }))
}

fn shedder(clock: &Clock, time: &ManualClock) -> (String, Value) {
    let cpu = Gauge::new();
    let shedder = Shedder::builder(ShedderConfig::default().limit("cpu", 0.7, 0.9))
        .clock(clock)
        .gauge("cpu", cpu.clone())
        .build()
        .unwrap();
    cpu.set(0.8);
    let shares = || [Low, Normal, High].map(|priority| (shedder.shed_share(priority) * 100.0).round());
    let [low, normal, high] = shares();
    assert_eq!([low, normal, high], [100.0, 50.0, 0.0]);
    cpu.set(0.5);
    time.advance(MS(100));
    assert_eq!(shares(), [100.0, 50.0, 0.0], "held");
    time.advance(S(4));
    assert_eq!(shares(), [0.0, 0.0, 0.0]);
    let told =
        format!("at 80 % of the processor {low} % of low calls and {normal} % of normal ones; 4 s after the peak none");
    (told, json!({ "low_percent": low, "normal_percent": normal, "high_percent": high, "afterwards": shares() }))
}

fn degradation(clock: &Clock, time: &ManualClock) -> (String, Value) {
    let cpu = Gauge::new();
    let config = DegradationConfig::of(["recommendations", "avatars", "search"]).limit("cpu", 0.7, 0.9);
    let degradation = Degradation::builder(config).clock(clock).gauge("cpu", cpu.clone()).build().unwrap();
    let search = degradation.feature("search").unwrap();
    cpu.set(0.8);
    let mut course = Vec::new();
    for second in 0..36 {
        if second == 4 {
            cpu.set(0.3);
        }
        course.push(degradation.switched_off().len());
        time.advance(S(1));
    }
    assert_eq!((course[0], course[1], course[2]), (1, 2, 3));
    assert_eq!((course[13], course[14], course[24], course[34]), (3, 2, 1, 0));
    assert!(search.is_enabled());
    let told =
        "one feature per second is switched off, the most important last; they return at intervals of 10 s".to_owned();
    (told, json!({ "most_off": course.iter().max(), "off_at_the_end": course.last() }))
}
